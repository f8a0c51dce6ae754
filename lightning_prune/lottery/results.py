"""Results of an experiment: rows, a file, a table and a plot."""

from __future__ import annotations

import csv
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, stdev
from typing import TYPE_CHECKING

from lightning_prune.lottery.plot import Line, plot_lines
from lightning_prune.prune.printing import aligned, html_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure
    from rich.table import Table

EARLY_STOPPING = "early_stopping_step"
_COLUMNS = ("level", "arm", "seed", "remaining", "weights", EARLY_STOPPING)


@dataclass(frozen=True)
class LotteryRow:
    """One network.

    Attributes:
        level: How often it was pruned.
        arm: ``"dense"`` (level 0, of all arms), ``"ticket"`` or the control.
        seed: The seed.
        remaining: Share of the selected weights that it keeps.
        weights: Number of them.
        early_stopping_step: ``global_step`` of the lowest validation loss, ``None`` if there was no validation.
        metrics: What testing logged.
        checkpoint: Path of its plain checkpoint, from the experiment's directory.
        mask: Path of its mask, from the experiment's directory; see :func:`~lightning_prune.lottery.read_mask`.
    """

    level: int
    arm: str
    seed: int
    remaining: float
    weights: int
    early_stopping_step: int | None
    metrics: dict[str, float] = field(default_factory=dict)
    checkpoint: str = ""
    mask: str = ""

    def value(self, metric: str) -> float | None:
        """A test metric, or the early-stopping step."""
        return self.early_stopping_step if metric == EARLY_STOPPING else self.metrics.get(metric)


@dataclass(frozen=True)
class LotteryResults:
    """All networks of an experiment; prints as a table, with ``rich.print`` as a rich one.

    Attributes:
        rows: One for each level, arm and seed.

    Example:
        >>> dense = LotteryRow(0, "dense", 0, 1.0, 100, 60, {"accuracy": 0.9})
        >>> rows = [LotteryRow(1, "ticket", seed, 0.8, 80, 50, {"accuracy": 0.91 + seed / 50}) for seed in (0, 1)]
        >>> print(LotteryResults([dense, *rows]))
        accuracy (mean and standard deviation over seeds)
        level  weights remaining   dense           ticket
            0            100.00%  0.9000
            1             80.00%          0.9200 ± 0.0141
    """

    rows: Sequence[LotteryRow]

    @property
    def metrics(self) -> list[str]:
        """Names of the test metrics, in the order in which they were logged."""
        return list(dict.fromkeys(name for row in self.rows for name in row.metrics))

    @property
    def arms(self) -> list[str]:
        """Names of the arms, in the order of the rows."""
        return list(dict.fromkeys(row.arm for row in self.rows))

    def values(self, arm: str, level: int, metric: str) -> list[float]:
        """One value for each seed that has it."""
        found = [row.value(metric) for row in self.rows if row.arm == arm and row.level == level]
        return [value for value in found if value is not None]

    def to_csv(self, path: str | os.PathLike[str]) -> None:
        """Writes one line for each row, replacing the file at once.

        Args:
            path: The file.
        """
        partial = Path(f"{path}.partial")
        with partial.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow([*_COLUMNS, *self.metrics, "checkpoint", "mask"])
            for row in self.rows:
                own = [getattr(row, column) for column in _COLUMNS]
                writer.writerow([*own, *(row.metrics.get(m) for m in self.metrics), row.checkpoint, row.mask])
        partial.replace(path)

    @classmethod
    def read_csv(cls, path: str | os.PathLike[str]) -> LotteryResults:
        """The results in a file of :meth:`to_csv`, or in the ``results.csv`` of an experiment's directory.

        Args:
            path: The file or the directory.

        Raises:
            FileNotFoundError: If there is no such file.
            ValueError: If it is another kind of file.
        """
        path = Path(path, "results.csv") if os.path.isdir(path) else Path(path)
        with path.open(newline="", encoding="utf-8-sig") as file:
            lines = list(csv.DictReader(file))
        if lines and not {*_COLUMNS, "checkpoint", "mask"} <= lines[0].keys():
            raise ValueError(f"'{path}' has no results of an experiment; its columns are {', '.join(lines[0])}")
        return cls([_row(line) for line in lines])

    def __str__(self) -> str:
        """The first metric as plain aligned text."""
        return self.text()

    def __rich__(self) -> Table:
        """The first metric as a rich table."""
        return self.table()

    def text(self, metric: str | None = None) -> str:
        """Plain aligned text.

        Args:
            metric: Name of a test metric or ``"early_stopping_step"``; the first test metric by default, if there is
                one.

        Raises:
            ValueError: If there is no such metric.
        """
        metric = self._known(metric)
        lines = [self._header(), *self._cells(metric)]
        return "\n".join([_title(metric), aligned(lines, left=0)])

    def _repr_html_(self) -> str:
        """The first metric as a table for notebooks."""
        metric = self._known(None)
        return html_table([self._header(), *self._cells(metric)], _title(metric))

    def table(self, metric: str | None = None) -> Table:
        """A rich table.

        Args:
            metric: Name of a test metric or ``"early_stopping_step"``; the first test metric by default, if there is
                one.

        Raises:
            ValueError: If there is no such metric.
        """
        from rich.table import Table

        metric = self._known(metric)
        table = Table(title=_title(metric), title_justify="left")
        for column in self._header():
            table.add_column(column, justify="right")
        for line in self._cells(metric):
            table.add_row(*line)
        return table

    def plot(self, metric: str | None = None, ax: Axes | None = None) -> tuple[Figure | SubFigure, Axes]:
        """The metric against the share of weights remaining: mean and standard deviation over seeds, a line per arm.

        Args:
            metric: Name of a test metric or ``"early_stopping_step"``; the first test metric by default, if there is
                one.
            ax: A matplotlib axis; a new one by default.

        Returns:
            Figure and axis.

        Raises:
            ModuleNotFoundError: If matplotlib is missing (extra ``plot``).
            ValueError: If there is no such metric.
        """
        metric = self._known(metric)
        dense = self._points("dense", metric)
        lines = [Line(arm, [*dense, *self._points(arm, metric)]) for arm in self.arms if arm != "dense"]
        return plot_lines(lines or [Line("dense", dense)], metric.replace("_", " "), ax)

    def _points(self, arm: str, metric: str) -> list[tuple[float, float, float]]:
        points = []
        for level in self._levels():
            if values := self.values(arm, level, metric):
                points.append((self._remaining(level, arm), mean(values), _spread(values)))
        return points

    def _levels(self) -> list[int]:
        return sorted({row.level for row in self.rows})

    def _remaining(self, level: int, arm: str | None = None) -> float:
        return mean(row.remaining for row in self.rows if row.level == level and arm in (None, row.arm))

    def _header(self) -> list[str]:
        return ["level", "weights remaining", *self.arms]

    def _cells(self, metric: str) -> list[list[str]]:
        return [
            [f"{level}", f"{self._remaining(level):.2%}", *(_cell(self.values(a, level, metric)) for a in self.arms)]
            for level in self._levels()
        ]

    def _known(self, metric: str | None) -> str:
        if metric is None:
            return self.metrics[0] if self.metrics else EARLY_STOPPING
        if metric != EARLY_STOPPING and metric not in self.metrics:
            raise ValueError(f"metric={metric!r} is unknown; known are {', '.join([*self.metrics, EARLY_STOPPING])}")
        return metric


def _row(line: dict[str, str]) -> LotteryRow:
    known = [line.pop(column) for column in (*_COLUMNS, "checkpoint", "mask")]
    level, arm, seed, remaining, weights, step, checkpoint, mask = known
    metrics = {name: float(value) for name, value in line.items() if value}
    return LotteryRow(
        *(int(level), arm, int(seed), float(remaining), int(weights), int(step) if step else None),
        *(metrics, checkpoint, mask),
    )


def _title(metric: str) -> str:
    return f"{metric} (mean and standard deviation over seeds)"


def _spread(values: Sequence[float]) -> float:
    return stdev(values) if len(values) > 1 else 0.0


def _cell(values: Sequence[float]) -> str:
    if not values:
        return ""
    digits = 0 if all(isinstance(value, int) for value in values) else 4
    return f"{mean(values):.{digits}f}" + (f" ± {stdev(values):.{digits}f}" if len(values) > 1 else "")
