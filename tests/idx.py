"""Folders like those of MNIST, small and random."""

import gzip
import struct
from pathlib import Path

import torch
from torch import Tensor


def random_images(count: int) -> Tensor:
    return torch.randint(0, 256, (count, 28, 28), dtype=torch.uint8, generator=torch.Generator().manual_seed(count))


def write_idx(path: Path, array: Tensor) -> None:
    content = struct.pack(f">I{array.dim()}I", 0x0800 + array.dim(), *array.shape) + array.numpy().tobytes()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


def write_idx_folder(folder: Path) -> Path:
    """96 training images in gzipped files, 20 test images in plain ones; their classes are 0 to 9 in turn."""
    folder.mkdir()
    for part, count, ending in [("train", 96, ".gz"), ("t10k", 20, "")]:
        write_idx(folder / f"{part}-images-idx3-ubyte{ending}", random_images(count))
        write_idx(folder / f"{part}-labels-idx1-ubyte{ending}", torch.arange(count).to(torch.uint8) % 10)
    return folder
