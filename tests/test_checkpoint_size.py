"""Sizes of checkpoint files: what resuming needs beside the weights is a bit for each of them."""

from __future__ import annotations

from pathlib import Path

import lightning as L
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from lightning_prune import PruningCallback
from tests.models import random_data, trainer, zeros


class Wide(L.LightningModule):
    """1,048,576 weights in a matrix, 11,264 in two others, trained by Adam."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 3))

    def training_step(self, batch: list[Tensor]) -> Tensor:
        return nn.functional.cross_entropy(self.layers(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters())

    def train_dataloader(self) -> DataLoader[tuple[Tensor, ...]]:
        return DataLoader(random_data(), batch_size=16)


def size(folder: Path, *callbacks: PruningCallback, weights_only: bool = False) -> int:
    """Bytes of the file written at the end of a fit."""
    fitting = trainer(folder, *callbacks, epochs=1)
    model = Wide()
    fitting.fit(model)
    assert zeros(model) == (953_856 if callbacks else 0)  # 90 % of 1,059,840
    fitting.save_checkpoint(folder / "file.ckpt", weights_only)
    return (folder / "file.ckpt").stat().st_size


def test_a_full_checkpoint_is_at_most_a_twentieth_larger_than_a_dense_one(tmp_path: Path) -> None:
    dense = size(tmp_path)
    pruned = size(tmp_path, PruningCallback(amount=0.9, scope="global", epochs=[0], verbose=False))
    assert dense > 3 * 4 * 1_059_840  # weights and two moments
    assert dense < pruned <= 1.05 * dense


def test_weights_alone_are_as_large_as_dense_ones(tmp_path: Path) -> None:
    dense = size(tmp_path, weights_only=True)
    callback = PruningCallback(amount=0.9, scope="global", epochs=[0], verbose=False)
    pruned = size(tmp_path, callback, weights_only=True)
    assert pruned <= 1.001 * dense
