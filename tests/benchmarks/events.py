"""Pruning events of a fit: each call below is made as written, ``PruningRun.prune`` is timed where the fit calls it.

A model of ten layers is fitted for eleven epochs, with an event at the start of each and no step. Each event is
compared with a pass, ``weight.abs() > threshold`` over all layers, that runs just before it; "hook" is all that the
callback does at the start of the epoch, erasing and counting included. Memory is the peak while masks are chosen and
imposed over what there was before, new masks included, as a share of the weights' bytes.

    python -m tests.benchmarks events
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import lightning as L
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from lightning_prune import PruningCallback
from lightning_prune.fit.run import PruningRun
from tests.benchmarks.measure import Watch, keep_freed_memory, print_table

LAYERS, COLUMNS = 10, 1000
EPOCHS = range(11)
SHOWN = {0: "first", 3: "51 % left", 10: "11 % left"}
CALLS = (
    'PruningCallback("l1_unstructured", amount=0.2, epochs=EPOCHS, scope="global")',
    'PruningCallback("l1_unstructured", amount=0.2, epochs=EPOCHS, scope="local")',
    'PruningCallback("random_unstructured", amount=0.2, epochs=EPOCHS, scope="local")',
    'PruningCallback("ln_structured", amount=0.2, epochs=EPOCHS, scope="local", dim=0, parameters="*")',
    'PruningCallback("ln_structured", amount=0.2, epochs=EPOCHS, scope="local", dim=1, parameters="*")',
)
HEADER = ["`PruningCallback`", "round", "event / pass", "hook / pass", "ms", "memory"]


class Layers(L.LightningModule):
    """Ten layers that no step changes."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.automatic_optimization = False
        rows = size // LAYERS // COLUMNS
        self.layers = nn.ModuleList(nn.Linear(COLUMNS, rows, bias=False) for _ in range(LAYERS))

    def training_step(self, batch: Tensor) -> None:
        """Does nothing."""

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def train_dataloader(self) -> DataLoader[Tensor]:
        return DataLoader(torch.zeros(1, 1))  # type: ignore[arg-type]


class Measured:
    """What the events of one fit took, by their number."""

    def __init__(self) -> None:
        self.event: list[float] = []
        self.hook: list[float] = []
        self.one_pass: list[float] = []
        self.memory: list[float] = []


@contextmanager
def watched(module: Layers, measured: Measured, memory: bool) -> Iterator[None]:
    """Measures each call of ``PruningRun.prune``."""
    prune = PruningRun.prune

    def measuring(run: PruningRun, *arguments: Any) -> Any:
        with Watch(memory) as watch:
            event = prune(run, *arguments)
        measured.event.append(watch.seconds)
        measured.memory.append(watch.peak / sum(p.numel() * p.element_size() for p in module.parameters()))
        return event

    PruningRun.prune = measuring  # type: ignore[method-assign]
    try:
        yield
    finally:
        PruningRun.prune = prune  # type: ignore[method-assign]


def seconds_of_a_pass(module: nn.Module) -> float:
    """Processor time of the least that ranking has to do."""
    start = time.process_time()
    found = [weight.detach().abs() > 1.0 for weight in module.parameters()]
    end = time.process_time()
    del found
    return end - start


def timing_its_hook(callback: PruningCallback, measured: Measured) -> PruningCallback:
    """The callback, whose hook at the start of an epoch is timed after a pass over the weights."""
    hook: Callable[..., None] = callback.on_train_epoch_start

    def timed(trainer: L.Trainer, module: L.LightningModule) -> None:
        measured.one_pass.append(seconds_of_a_pass(module))
        start = time.process_time()
        hook(trainer, module)
        measured.hook.append(time.process_time() - start)

    callback.on_train_epoch_start = timed  # type: ignore[method-assign]
    return callback


def fit(call: str, size: int, memory: bool = False) -> Measured:
    """Fits a model with the callback that the call makes."""
    callback = eval(f"{call[:-1]}, verbose=False)", {"PruningCallback": PruningCallback, "EPOCHS": EPOCHS})
    module, measured = Layers(size), Measured()
    callback = timing_its_hook(callback, measured)
    with watched(module, measured, memory):
        trainer(callbacks=[callback], max_epochs=len(EPOCHS)).fit(module)
    return measured


def trainer(**options: Any) -> L.Trainer:
    """A Trainer that shows and saves nothing."""
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "accelerator": "cpu"}
    return L.Trainer(**quiet, enable_model_summary=False, **options)


def rows(call: str, size: int, rounds: int) -> Iterator[list[str]]:
    """Lines of the table for one call."""
    runs = [fit(call, size) for _ in range(rounds)]
    memory = fit(call, size, memory=True).memory
    for place, name in SHOWN.items():
        yield [
            f"`{call}`",
            name,
            spread([run.event[place] / run.one_pass[place] for run in runs]),
            spread([run.hook[place] / run.one_pass[place] for run in runs]),
            f"{statistics.median(run.event[place] for run in runs) * 1e3:.0f}",
            f"{memory[place]:.2f}",
        ]


def spread(values: list[float]) -> str:
    """The median, and the smallest and largest value."""
    return f"{statistics.median(values):.1f} ({min(values):.1f} to {max(values):.1f})"


def main(quick: bool = False, size: int = 60_000_000) -> None:
    """Prints the table."""
    keep_freed_memory()
    size, rounds = (1_000_000, 2) if quick else (size, 3)
    title = f"Events of a fit with {size / 1e6:g} million float32 weights in {LAYERS} layers, one thread"
    print_table(title, HEADER, [row for call in CALLS for row in rows(call, size, rounds)])
