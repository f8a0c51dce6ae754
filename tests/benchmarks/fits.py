"""Whole fits: ``Trainer.fit`` with ten pruning events beside the same fit without, and with ``ModelPruning``.

python -m tests.benchmarks fits
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback, ModelPruning
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from lightning_prune import PruningCallback
from lightning_prune.targets.select import select
from tests.benchmarks.events import trainer
from tests.benchmarks.measure import keep_freed_memory, print_table
from tests.benchmarks.models import CONVNET, MLP_60, TRANSFORMER, Workload

EPOCHS = 10
BATCHES = {MLP_60: 50, CONVNET: 12, TRANSFORMER: 10}  # of each epoch
WAYS: dict[str, Callable[[L.LightningModule], list[Callback]]] = {
    "without": lambda module: [],
    "in place": lambda module: [_pruning("in_place")],
    "read": lambda module: [_pruning("read")],
    "ModelPruning": lambda module: [_model_pruning(module)],
}
HEADER = ["fit of ten epochs, ten events", "without", *(f"{name} / without" for name in list(WAYS)[1:])]


class Batches(Dataset[Tensor]):
    """The same batch so many times."""

    def __init__(self, batch: Tensor, number: int) -> None:
        self.batch, self.number = batch, number

    def __len__(self) -> int:
        return self.number

    def __getitem__(self, index: int) -> Tensor:
        return self.batch


class Task(L.LightningModule):
    """A workload trained by SGD with momentum."""

    def __init__(self, workload: Workload, batches: int) -> None:
        super().__init__()
        self.model, self.batches = workload.make(), Batches(workload.batch(), batches)

    def training_step(self, batch: Tensor) -> Tensor:
        return self.model(batch).square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=1e-4, momentum=0.9)

    def train_dataloader(self) -> DataLoader[Tensor]:
        return DataLoader(self.batches, batch_size=None)


def _pruning(enforce: str) -> PruningCallback:
    epochs = range(EPOCHS)
    return PruningCallback("l1_unstructured", amount=0.2, epochs=epochs, scope="global", enforce=enforce, verbose=False)


def _model_pruning(module: L.LightningModule) -> ModelPruning:
    pairs = [owner for target in select(module) for owner in target.owners]
    lottery = {"use_lottery_ticket_hypothesis": False}
    return ModelPruning("l1_unstructured", pairs, amount=0.2, use_global_unstructured=True, **lottery)


def seconds(way: str, workload: Workload, batches: int) -> float:
    """Processor time of one fit."""
    torch.manual_seed(0)
    module = Task(workload, batches)
    fitting = trainer(callbacks=WAYS[way](module), max_epochs=EPOCHS)
    start = time.process_time()
    fitting.fit(module)
    return time.process_time() - start


def row(workload: Workload, rounds: int, batches: int) -> list[str]:
    """A line of the table."""
    seconds("in place", workload, 1)
    found: dict[str, list[float]] = {way: [] for way in WAYS}
    for _ in range(rounds):
        for way in WAYS:
            found[way].append(seconds(way, workload, batches))
    dense = found.pop("without")
    ratios = [spread([mine / one for mine, one in zip(times, dense, strict=True)]) for times in found.values()]
    return [f"{workload.name}, {batches} batches an epoch", f"{statistics.median(dense):.2f} s", *ratios]


def spread(values: list[float]) -> str:
    """The median, the smallest and the largest value with two decimals."""
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def main(quick: bool = False) -> None:
    """Prints the table."""
    keep_freed_memory()
    workloads = (MLP_60,) if quick else (MLP_60, CONVNET, TRANSFORMER)
    lines = [row(w, 1 if quick else 3, 2 if quick else BATCHES[w]) for w in workloads]
    print_table("Whole fits, one thread", HEADER, lines)
