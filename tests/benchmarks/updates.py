"""Updates of regrowth in a fit: each call below is made as written, and timed where the fit calls it.

A model of ten layers is fitted with gradients that are written instead of computed. Before each step a pass is timed,
``weight.abs() > threshold`` over all layers, and then, at an update, what the callback's hook does: "masks" is
``PruningRun.move``, the choice and installation of the masks; "update" is ``Session.show_gradients``, which also looks
for gradients that are not finite, and writes zeros into weights and optimizer. Masking the gradients, which every step
does, is in neither. Memory is the peak of the hook over what there was before, new masks included, as a share of the
weights' bytes.

    python -m tests.benchmarks updates
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from lightning_prune import SET, Constant, PruningCallback, RigL
from lightning_prune.fit.run import PruningRun
from lightning_prune.fit.session import Session
from tests.benchmarks.events import Layers, seconds_of_a_pass, spread, trainer
from tests.benchmarks.measure import Watch, keep_freed_memory, print_table

EVERY, UPDATES = 2, 6
OPTIMIZERS = {
    "SGD with momentum": lambda parameters: torch.optim.SGD(parameters, lr=1e-3, momentum=0.9),
    "Adam": lambda parameters: torch.optim.Adam(parameters, lr=1e-3),
}
CALLS = (
    'PruningCallback(schedule=Constant(final=0.9), scope="erk", regrow=RigL(every=EVERY, until=0.95))',
    'PruningCallback(schedule=Constant(final=0.5), scope="erk", regrow=RigL(every=EVERY, until=0.95))',
    'PruningCallback(schedule=Constant(final=0.9), scope="erk", regrow=SET(every=EVERY, until=0.95))',
)
HEADER = ["`PruningCallback`", "optimizer", "masks / pass", "update / pass", "ms", "memory"]


class Stepped(Layers):
    """Ten layers that are stepped with random gradients."""

    def __init__(self, size: int, optimizer: str, batches: int = EVERY * (UPDATES + 1)) -> None:
        super().__init__(size)
        self.optimizer, self.batches = optimizer, batches

    def training_step(self, batch: Tensor) -> None:
        """Writes gradients and makes a step."""
        for parameter in self.parameters():
            parameter.grad = torch.randn_like(parameter) if parameter.grad is None else parameter.grad.normal_()
        self.optimizers().step()  # type: ignore[union-attr]

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return OPTIMIZERS[self.optimizer](self.parameters())

    def train_dataloader(self) -> Any:
        return torch.utils.data.DataLoader(torch.zeros(self.batches, 1))  # type: ignore[arg-type]


class Measured:
    """What the updates of one fit took."""

    def __init__(self) -> None:
        self.masks: list[float] = []
        self.update: list[float] = []
        self.one_pass: list[float] = []
        self.memory: list[float] = []


@contextmanager
def watched(module: Stepped, measured: Measured, memory: bool) -> Iterator[None]:
    """Measures each update, after a pass over the weights."""
    move, show = PruningRun.move, Session.show_gradients

    def moving(run: PruningRun, *arguments: Any) -> Any:
        with Watch() as watch:
            found = move(run, *arguments)
        measured.masks.append(watch.seconds)
        return found

    def showing(session: Session, *arguments: Any) -> Any:
        one_pass, before = seconds_of_a_pass(module), len(measured.masks)
        with Watch(memory) as watch:
            found = show(session, *arguments)
        if len(measured.masks) > before:
            measured.one_pass.append(one_pass)
            measured.update.append(watch.seconds)
            measured.memory.append(watch.peak / sum(p.numel() * p.element_size() for p in module.parameters()))
        return found

    PruningRun.move, Session.show_gradients = moving, showing  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        PruningRun.move, Session.show_gradients = move, show  # type: ignore[method-assign]


def fit(call: str, optimizer: str, size: int, memory: bool = False) -> Measured:
    """Fits a model with the callback that the call makes."""
    names = {"PruningCallback": PruningCallback, "Constant": Constant, "RigL": RigL, "SET": SET, "EVERY": EVERY}
    callback, measured, module = eval(f"{call[:-1]}, verbose=False)", names), Measured(), Stepped(size, optimizer)
    with watched(module, measured, memory):
        trainer(callbacks=[callback], max_steps=EVERY * (UPDATES + 1)).fit(module)
    return measured


def rows(call: str, size: int) -> Iterator[list[str]]:
    """Lines of the table for one call."""
    for optimizer in OPTIMIZERS:
        found, memory = fit(call, optimizer, size), fit(call, optimizer, size, memory=True)
        yield [
            f"`{call}`",
            optimizer,
            *(spread([m / one for m, one in zip(t, found.one_pass, strict=True)]) for t in (found.masks, found.update)),
            f"{statistics.median(found.update) * 1e3:.0f}",
            f"{statistics.median(memory.memory):.2f}",
        ]


def main(quick: bool = False, size: int = 60_000_000) -> None:
    """Prints the table."""
    keep_freed_memory()
    size = 1_000_000 if quick else size
    title = f"Updates of a fit with {size / 1e6:g} million float32 weights in 10 layers, one thread"
    print_table(title, HEADER, [row for call in CALLS for row in rows(call, size)])
