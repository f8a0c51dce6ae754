"""The data of the examples: scikit-learn's digits, or MNIST and its likes from a folder."""

from __future__ import annotations

import gzip
import math
import struct
from pathlib import Path

import lightning as L
import torch
from sklearn.datasets import load_digits
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset, random_split

UNSIGNED_BYTE = 0x08


class Images(L.LightningDataModule):
    """Grey images of ten classes, in a training, a validation and a test part that are the same in every run.

    Args:
        folder: Folder with the four IDX files of MNIST or Fashion-MNIST; the 1,797 digits of scikit-learn by default.
        limit: Train on so many images only; on all by default.
        batch_size: Images in a training batch.
        unit_range: Scale pixels to [0, 1] instead of to mean 0 and standard deviation 1.
    """

    def __init__(
        self,
        folder: str | Path | None = None,
        limit: int | None = None,
        batch_size: int = 32,
        unit_range: bool = False,
    ) -> None:
        super().__init__()
        self.folder = folder
        train, test = digits() if folder is None else idx_folder(Path(folder))
        train, test = normalised(train, test, unit_range)
        validation = len(train) // 8
        train, self.validation = random_split(train, [len(train) - validation, validation], _seeded())
        self.train = train if limit is None else random_split(train, [limit, len(train) - limit], _seeded())[0]
        self.test = test
        self.batch_size = batch_size

    def train_dataloader(self) -> DataLoader[tuple[Tensor, ...]]:
        """Shuffled batches."""
        return DataLoader(self.train, self.batch_size, shuffle=True)

    def val_dataloader(self) -> DataLoader[tuple[Tensor, ...]]:
        """Large batches, in order."""
        return DataLoader(self.validation, batch_size=1000)

    def test_dataloader(self) -> DataLoader[tuple[Tensor, ...]]:
        """Large batches, in order."""
        return DataLoader(self.test, batch_size=1000)


def digits() -> tuple[TensorDataset, TensorDataset]:
    """Handwritten digits of 8 x 8 pixels; a fifth of them is the test part."""
    images, labels = load_digits(return_X_y=True)
    data = TensorDataset(torch.tensor(images, dtype=torch.float32).view(-1, 1, 8, 8), torch.tensor(labels))
    train, test = random_split(data, [0.8, 0.2], _seeded())
    return TensorDataset(*train[:]), TensorDataset(*test[:])


def idx_folder(folder: Path) -> tuple[TensorDataset, TensorDataset]:
    """The training and the test part of a folder that holds MNIST, Fashion-MNIST or the like."""
    return _idx_part(folder, "train"), _idx_part(folder, "t10k")


def _idx_part(folder: Path, part: str) -> TensorDataset:
    images = read_idx(_find(folder, f"{part}-images-idx3-ubyte"))
    labels = read_idx(_find(folder, f"{part}-labels-idx1-ubyte"))
    if images.dim() != 3 or labels.shape != images.shape[:1]:
        raise ValueError(f"{folder}: {part} has images of shape {[*images.shape]} and labels of {[*labels.shape]}")
    return TensorDataset(images.unsqueeze(1).float(), labels.long())


def _find(folder: Path, name: str) -> Path:
    for path in (folder / name, folder / f"{name}.gz"):
        if path.is_file():
            return path
    raise FileNotFoundError(
        f"{folder} has neither {name} nor {name}.gz; MNIST and Fashion-MNIST come as four such files"
    )


def read_idx(path: Path) -> Tensor:
    """The array of bytes in an IDX file, plain or gzipped.

    Raises:
        ValueError: If it is not a whole IDX file of unsigned bytes.
    """
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    if len(data) < 4 or data[:3] != bytes([0, 0, UNSIGNED_BYTE]):
        raise ValueError(f"{path} does not start like an IDX file of unsigned bytes, but with {data[:4]!r}")
    start = 4 + 4 * data[3]
    shape = struct.unpack(f">{data[3]}I", data[4:start])
    if len(data) != start + math.prod(shape):
        raise ValueError(f"{path} should have {math.prod(shape)} bytes after its header, it has {len(data) - start}")
    return torch.frombuffer(bytearray(data[start:]), dtype=torch.uint8).view(shape)


def normalised(train: TensorDataset, test: TensorDataset, unit_range: bool) -> tuple[TensorDataset, TensorDataset]:
    """Both parts with the training images' range made [0, 1], or their mean and standard deviation 0 and 1."""
    (train_images, train_labels), (test_images, test_labels) = train.tensors, test.tensors
    low, high = train_images.aminmax()
    shift, scale = (low, high - low) if unit_range else (train_images.mean(), train_images.std())
    return (
        TensorDataset((train_images - shift) / scale, train_labels),
        TensorDataset((test_images - shift) / scale, test_labels),
    )


def _seeded() -> torch.Generator:
    return torch.Generator().manual_seed(0)
