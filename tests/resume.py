"""A run of the resume tests that can go on in a new process: python -m tests.resume OPTIMIZER PLAN CKPT OUT."""

from __future__ import annotations

import functools
import sys
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset

from lightning_prune import Cubic, Linear, PruningCallback
from tests.models import Net, random_data, trainer

OPTIMIZERS: dict[str, Any] = {
    "sgd": functools.partial(torch.optim.SGD, lr=0.05, momentum=0.9, weight_decay=1e-3),
    "adam": functools.partial(torch.optim.Adam, lr=0.01),
    "adamw": functools.partial(torch.optim.AdamW, lr=0.01, weight_decay=0.1),
}
# 4 epochs of 4 batches: events in the first two epochs and in the last two.
PLANS: dict[str, dict[str, Any]] = {
    "magnitude": {"schedule": Linear(final=0.8, initial=0.2, end=3), "scope": "global"},
    "random": {"method": "random_unstructured", "schedule": Linear(final=0.8, initial=0.2, end=3), "seed": 7},
    "amount": {"method": "random_structured", "amount": 0.3, "epochs": [1, 3], "seed": 3},
    "steps": {"schedule": Cubic(final=0.9, begin=2, end=14, every=3, unit="step"), "scope": "erk"},
}


class Scheduled(Net):
    """With a learning rate that falls each step, and a loader that knows where it is."""

    def configure_optimizers(self) -> Any:
        optimizer = self.make(self.parameters())
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.97)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    def train_dataloader(self) -> Any:
        return StatefulLoader(random_data())


class StatefulLoader(DataLoader[Any]):
    """Batches of 8 in order, which goes on where a checkpoint was written."""

    def __init__(self, data: TensorDataset) -> None:
        super().__init__(data, batch_size=8)
        self.given = 0
        self._start = 0

    def __iter__(self) -> Any:
        start, self._start = self._start, 0
        self.given = start
        for index in range(start, len(self)):
            self.given = index + 1
            yield tuple(t[8 * index : 8 * index + 8] for t in self.dataset.tensors)  # type: ignore[attr-defined]

    def state_dict(self) -> dict[str, Any]:
        return {"given": self.given % len(self)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._start = state["given"]


def make(optimizer: str, plan: str, seed: int = 0) -> tuple[Scheduled, PruningCallback]:
    """A model with weights from a seed, and the callback of a plan."""
    torch.manual_seed(seed)
    return Scheduled(OPTIMIZERS[optimizer]), PruningCallback(**PLANS[plan], verbose=False)


def go(root: Path, optimizer: str, plan: str, out: Path, ckpt: Path | None = None, **settings: Any) -> None:
    """Fits, from a checkpoint if one is given, and saves all that the run has come to."""
    model, callback = make(optimizer, plan, seed=0 if ckpt is None else 99)
    fits = trainer(root, callback, **{"epochs": 4, **settings})
    fits.fit(model, ckpt_path=ckpt)
    fits.save_checkpoint(out)


if __name__ == "__main__":
    torch.set_num_threads(1)
    go(Path(sys.argv[4]).parent, sys.argv[1], sys.argv[2], Path(sys.argv[4]), Path(sys.argv[3]))
