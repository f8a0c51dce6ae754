"""How sparse a model was over a fit: read from a log on disk, or taken from pruning events."""

from __future__ import annotations

import csv
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from lightning_prune.fit.regrowth import Regrowth
from lightning_prune.fit.run import PruningEvent
from lightning_prune.schedules.plan import Clock

Points = tuple[tuple[int, float], ...]
"""(time, share of zeros) pairs in order."""


@dataclass(frozen=True)
class History:
    """Shares of zeros over time.

    Attributes:
        unit: What times count: ``"epoch"`` or ``"step"``.
        sparsity: That of all selected weights.
        target: What a schedule asked for; empty if there was none.
        tensors: That of single tensors, by name.
        churn: Share of the weights left that the latest update of regrowth replaced; empty without regrowth.
        explored: Share of all selected weights that were ever unmasked; empty without regrowth.
    """

    unit: Clock
    sparsity: Points
    target: Points = ()
    tensors: Mapping[str, Points] = field(default_factory=dict)
    churn: Points = ()
    explored: Points = ()


def read_csv(path: str | os.PathLike[str], prefix: str = "", unit: Clock = "epoch") -> History:
    """The history in the file of Lightning's ``CSVLogger``.

    Args:
        path: The ``metrics.csv``, or the folder that holds it.
        prefix: The ``prefix`` of the callback's :class:`~lightning_prune.Log`.
        unit: Which column times are taken from: the unit of the plan, ``"epoch"`` or ``"step"``.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it has no sparsity, no column of the unit or something else than numbers in them, or ``unit`` is
            another word.
    """
    if unit not in ("step", "epoch"):
        raise ValueError(f"unit should be 'step' or 'epoch', got {unit!r}")
    path = os.path.join(path, "metrics.csv") if os.path.isdir(path) else path
    with open(path, newline="", encoding="utf-8-sig") as file:
        rows = list(csv.DictReader(file))
    key = f"{prefix}sparsity"
    names = [name for name in (rows[0] if rows else ()) if name is not None]  # None: what a row has too much
    if unit not in names or key not in names:
        missing = key if key not in names else unit
        raise ValueError(f"'{os.fspath(path)}' has no values of '{missing}'; its columns are {', '.join(names)}")
    columns = {name: _points(rows, name, unit) for name in names if name == key or name.startswith(f"{key}/")}
    if not columns[key]:
        raise ValueError(f"'{os.fspath(path)}' has no values of '{key}'; its columns are {', '.join(names)}")
    whole, target = columns.pop(key), columns.pop(f"{key}/target", ())
    tensors = {name.removeprefix(f"{key}/"): points for name, points in columns.items()}
    moved = [_points(rows, f"{prefix}regrow/{name}", unit) for name in ("churn", "explored")]
    return History(unit, whole, target, tensors, *moved)


def of_events(
    events: Sequence[PruningEvent],
    sizes: Mapping[str, int],
    unit: Clock = "epoch",
    regrowths: Sequence[Regrowth] = (),
) -> History:
    """The history that pruning events make.

    Args:
        events: The events in order, as ``PruningCallback.on_pruned`` is given them.
        sizes: Number of weights of each tensor, by name.
        unit: What the plan counts times in.
        regrowths: What ``PruningCallback.regrowth`` was after each update, of which those in this unit are taken.

    Example:
        >>> from lightning_prune import Demand
        >>> event = PruningEvent(Demand(3, sparsity=0.4), zeros=5, total=10, before=0, tensors={"a": 1, "b": 4})
        >>> found = of_events([event], {"a": 2, "b": 8})
        >>> found.sparsity, found.target
        (((3, 0.5),), ((3, 0.4),))
        >>> found.tensors
        {'a': ((3, 0.5),), 'b': ((3, 0.5),)}
    """
    return History(
        unit,
        tuple((e.demand.time, e.sparsity) for e in events),
        tuple((e.demand.time, e.demand.sparsity) for e in events if e.demand.sparsity is not None),
        {name: tuple((e.demand.time, e.tensors[name] / n) for e in events) for name, n in sizes.items()},
        tuple((r.time, r.churn) for r in regrowths if r.unit == unit),
        tuple((r.time, r.explored) for r in regrowths if r.unit == unit),
    )


def _points(rows: Sequence[Mapping[str, str]], name: str, unit: str) -> Points:
    return tuple((int(row[unit]), float(row[name])) for row in rows if row.get(name) and row.get(unit))
