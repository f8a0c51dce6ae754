"""What is trained, as far as pruning has to know: the one thing that loops of any kind hand over."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from lightning_prune.fit.limits import Limits
from lightning_prune.schedules.plan import Clock


@dataclass(frozen=True)
class Training:
    """A moment of a training.

    Attributes:
        model: The model.
        optimizers: All optimizers.
        schedulers: All learning-rate schedulers.
        epoch: The epoch that runs or begins, from 0.
        step: Optimizer steps taken so far.
        averages: Finds the averages of the model, which have the same names of parameters; asked at events.
        left: Optimizer steps that are left of this epoch with the one that comes next, where that is known.
        limits: How long the training can last.
    """

    model: nn.Module
    optimizers: Sequence[Any] = ()
    schedulers: Sequence[Any] = ()
    epoch: int = 0
    step: int = 0
    averages: Callable[[], Sequence[nn.Module]] = list
    left: int | None = None
    limits: Limits = field(default_factory=Limits)

    def time(self, unit: Clock) -> int:
        """The epoch or the step."""
        return self.step if unit == "step" else self.epoch
