"""What a plan would do to a model, without a Trainer: played through on a copy of it."""

from __future__ import annotations

import copy
from dataclasses import dataclass

from torch import nn

from lightning_prune.fit.run import PruningRun
from lightning_prune.prune.printing import aligned, html_table
from lightning_prune.prune.sharded.tensors import is_sharded
from lightning_prune.schedules.plan import Clock, Demand, Plan

_MOST_EVENTS = 12


@dataclass(frozen=True)
class PreviewRow:
    """One tensor.

    Attributes:
        name: Full name in the model.
        shape: Its shape.
        weights: Number of entries.
        zeros: Masked entries after each event.
    """

    name: str
    shape: tuple[int, ...]
    weights: int
    zeros: tuple[int, ...]


@dataclass(frozen=True)
class Preview:
    """The selected tensors and their zeros at each event; prints as a table.

    Where tensors are ranked together, or a method decides itself, the numbers are those of the present weights.

    Attributes:
        rows: One for each selected tensor.
        unit: What times count.
        times: Times of the events.

    Example:
        >>> print(Preview((PreviewRow("fc.weight", (2, 3), 6, (2, 4)),), "epoch", (0, 5)))
        tensor     shape  weights  epoch 0  epoch 5
        fc.weight  2x3          6        2        4
        all                     6        2        4
        sparsity                     0.333    0.667
    """

    rows: tuple[PreviewRow, ...]
    unit: Clock
    times: tuple[int, ...]

    @property
    def weights(self) -> int:
        """Entries of all selected tensors."""
        return sum(row.weights for row in self.rows)

    @property
    def sparsities(self) -> tuple[float, ...]:
        """Share of masked weights after each event."""
        return tuple(sum(row.zeros[i] for row in self.rows) / self.weights for i in range(len(self.times)))

    def __str__(self) -> str:
        """A table of at most twelve events."""
        return aligned(self._lines(), left=2)

    def _repr_html_(self) -> str:
        """A table for notebooks."""
        return html_table(self._lines())

    def _lines(self) -> list[list[str]]:
        shown = _spread(len(self.times))
        lines = [["tensor", "shape", "weights", *(f"{self.unit} {self.times[i]}" for i in shown)]]
        for row in self.rows:
            shape = "x".join(str(n) for n in row.shape)
            lines.append([row.name, shape, str(row.weights), *(str(row.zeros[i]) for i in shown)])
        lines.append(["all", "", str(self.weights), *(str(sum(row.zeros[i] for row in self.rows)) for i in shown)])
        lines.append(["sparsity", "", "", *(f"{self.sparsities[i]:.3f}" for i in shown)])
        return lines


def play(model: nn.Module, run: PruningRun, plan: Plan, total: int | None, keep_zeros: bool) -> Preview:
    """Carries out a plan on copies of the selected tensors.

    Args:
        model: The model, which is not changed.
        run: Its selection and method.
        plan: When how much is due.
        total: Epochs or steps of the fit; by default up to the plan's last event.
        keep_zeros: Whether present zeros are masked first.

    Raises:
        ValueError: If the plan has no end or counts in fractions, and no total is given, or if the model is split over
            ranks, of which torch makes no copies.
    """
    split = next((t.name for t in run.targets if is_sharded(t.parameter)), None)
    if split is not None:
        raise ValueError(
            f"'{split}' is split over ranks, and torch makes no copy of such a model to try a plan on: preview it "
            "before fully_shard or a parallel plan is applied"
        )
    if total is not None:
        plan = plan.bound_to(total)
    if total is None and plan.last is None:
        raise ValueError(f"{plan} has no last event: give total=, the number of epochs or steps of the fit")
    end = total if plan.last is None else plan.last + 1 if total is None else min(total, plan.last + 1)
    for target in run.targets:
        if target.parameter.is_meta:
            raise ValueError(f"'{target.name}' is on the meta device and has no data to rank yet: preview a made model")
    trial = run.moved_to(copy.deepcopy(model))
    trial.start(keep_zeros)
    demands = [demand for time in range(end or 0) for demand in plan.due(time - 1, time)]
    return _played(trial, plan.unit, demands)


def _played(run: PruningRun, unit: Clock, demands: list[Demand]) -> Preview:
    events = [run.prune(demand).tensors for demand in demands]
    rows = tuple(
        PreviewRow(t.name, tuple(t.parameter.shape), t.parameter.numel(), tuple(e[t.name] for e in events))
        for t in run.counted
    )
    return Preview(rows, unit, tuple(demand.time for demand in demands))


def _spread(count: int) -> list[int]:
    """Positions to show: all, or about twelve that include the first and the last."""
    if count <= _MOST_EVENTS:
        return list(range(count))
    return [round(i * (count - 1) / (_MOST_EVENTS - 1)) for i in range(_MOST_EVENTS)]
