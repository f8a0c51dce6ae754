"""Updates of regrowth in a fit: each call below is made as written, and timed in the callback's own hook.

A model of ten layers is fitted with gradients that are written instead of computed. At each update the hook
``on_before_optimizer_step`` is timed just after a pass, ``weight.abs() > threshold`` over all layers. "update" is what
it takes longer than the same hook at the step before, where no weight moves and gradients are only masked; "hook" is
all of it. Memory is the peak of the hook over what there was before, new masks included, as a share of the weights'
bytes.

    python -m tests.benchmarks updates
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from typing import Any

import lightning as L
import torch
from torch import Tensor

from lightning_prune import SET, Constant, PruningCallback, RigL
from tests.benchmarks.events import Layers, spread, trainer
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
HEADER = ["`PruningCallback`", "optimizer", "update / pass", "hook / pass", "ms", "memory"]


class Stepped(Layers):
    """Ten layers that are stepped with random gradients."""

    def __init__(self, size: int, optimizer: str) -> None:
        super().__init__(size)
        self.optimizer = optimizer

    def training_step(self, batch: Tensor) -> None:
        """Writes gradients and makes a step."""
        for parameter in self.parameters():
            parameter.grad = torch.randn_like(parameter) if parameter.grad is None else parameter.grad.normal_()
        self.optimizers().step()  # type: ignore[union-attr]

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return OPTIMIZERS[self.optimizer](self.parameters())

    def train_dataloader(self) -> Any:
        return torch.utils.data.DataLoader(torch.zeros(EVERY * (UPDATES + 1), 1))  # type: ignore[arg-type]


class Measured:
    """What the updates of one fit took."""

    def __init__(self) -> None:
        self.update: list[float] = []
        self.hook: list[float] = []
        self.one_pass: list[float] = []
        self.memory: list[float] = []


def timing_its_hook(callback: PruningCallback, measured: Measured, memory: bool) -> PruningCallback:
    """The callback, whose hook before each step is timed after a pass over the weights."""
    hook = callback.on_before_optimizer_step
    usual = [0.0]

    def timed(trainer: L.Trainer, module: L.LightningModule, optimizer: Any) -> None:
        start = time.process_time()
        found = [weight.detach().abs() > 1.0 for weight in module.parameters()]
        one_pass = time.process_time() - start
        del found
        before = 0 if callback.regrowth is None else callback.regrowth.updates
        with Watch(memory) as watch:
            hook(trainer, module, optimizer)
        if callback.regrowth is not None and callback.regrowth.updates > before:
            measured.one_pass.append(one_pass)
            measured.hook.append(watch.seconds)
            measured.update.append(watch.seconds - usual[0])
            measured.memory.append(watch.peak / sum(p.numel() * p.element_size() for p in module.parameters()))
        else:
            usual[0] = watch.seconds

    callback.on_before_optimizer_step = timed  # type: ignore[method-assign]
    return callback


def fit(call: str, optimizer: str, size: int, memory: bool = False) -> Measured:
    """Fits a model with the callback that the call makes."""
    names = {"PruningCallback": PruningCallback, "Constant": Constant, "RigL": RigL, "SET": SET, "EVERY": EVERY}
    callback, measured = eval(f"{call[:-1]}, verbose=False)", names), Measured()
    module = Stepped(size, optimizer)
    trainer(callbacks=[timing_its_hook(callback, measured, memory)], max_steps=EVERY * (UPDATES + 1)).fit(module)
    return measured


def rows(call: str, size: int) -> Iterator[list[str]]:
    """Lines of the table for one call."""
    for optimizer in OPTIMIZERS:
        found, memory = fit(call, optimizer, size), fit(call, optimizer, size, memory=True)
        yield [
            f"`{call}`",
            optimizer,
            spread([mine / one for mine, one in zip(found.update, found.one_pass, strict=True)]),
            spread([mine / one for mine, one in zip(found.hook, found.one_pass, strict=True)]),
            f"{statistics.median(found.update) * 1e3:.0f}",
            f"{statistics.median(memory.memory):.2f}",
        ]


def main(quick: bool = False, size: int = 60_000_000) -> None:
    """Prints the table."""
    keep_freed_memory()
    size = 1_000_000 if quick else size
    title = f"Updates of a fit with {size / 1e6:g} million float32 weights in 10 layers, one thread"
    print_table(title, HEADER, [row for call in CALLS for row in rows(call, size)])
