"""Schedule: what all schedules share, a window of time, its events and the clamping."""

from __future__ import annotations

import numbers
import operator
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, get_args

from lightning_prune.prune.printing import pyplot

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

Unit = Literal["epoch", "step", "fraction"]
_EVENTS = 20  # of a schedule in fractions that does not say every=; each costs a ranking of all weights


def as_count(value: Any) -> Any:
    """A float without a fraction as the whole number that it is, as parsers of files may give it; others as they are.

    1.0 stays, for it may be meant as a share of the run.

    Example:
        >>> as_count(24.0), as_count(0.5), as_count(1.0)
        (24, 0.5, 1.0)
    """
    return int(value) if isinstance(value, float) and value.is_integer() and value != 1 else value


@dataclass(frozen=True, kw_only=True)
class Schedule(ABC):
    """Base of all schedules: the window, its events and the clamping.

    Before ``begin`` nothing is asked for (0.0), from ``end`` on the target is ``final`` to the last bit, and
    in between a subclass answers with `_target`, also for a time between two events: the next one acts on it.
    Schedules compare by value, hash, pickle, and ``eval(repr(schedule)) == schedule``.

    Args:
        final: Share of zeros at the end, in [0, 1].
        begin: Time of the first event: an epoch or step from 0, or a fraction of the run.
        end: Time of the last event, always an event itself; None where a schedule may be open-ended.
        every: Epochs between two events; steps with ``unit="step"`` and ``unit="fraction"``. Default: 1; with
            ``unit="fraction"`` so many that there are about twenty events.
        unit: What times are counted in: ``"epoch"``, ``"step"`` or ``"fraction"``.

    Raises:
        TypeError: If a share is no number, or an epoch, step or ``every`` no whole number.
        ValueError: If a share is outside [0, 1] or NaN, a time outside the run, ``end`` before ``begin``,
            ``every`` below 1, the unit unknown, or a target lower than the one before.
    """

    final: float
    begin: int | float = 0
    end: int | float | None
    every: int | None = None
    unit: Unit = "epoch"

    def __post_init__(self) -> None:
        if self.unit not in get_args(Unit):
            raise ValueError(f"{self._named('unit', self.unit)}; known: {', '.join(get_args(Unit))}")
        self._set(final=self._checked_share("final", self.final))
        self._set(begin=self._checked_time("begin", self.begin))
        if self.every is None and self.unit != "fraction":
            self._set(every=1)
        if self.every is not None:
            self._set(every=self._checked_count("every", self.every, least=1))
        if self.end is not None:
            self._set(end=self._checked_time("end", self.end))
            if self.end < self.begin:
                raise ValueError(f"{self._named('end', self.end)} lies before begin={self.begin!r}")

    @abstractmethod
    def _target(self, t: int | float) -> float:
        """Return the target share at ``begin <= t < end``."""

    @property
    def last(self) -> int | float:
        """Time of the last event; ``begin`` of an open-ended schedule, which every longer run finishes.

        >>> from lightning_prune import Constant, Linear
        >>> Linear(final=0.5, begin=2, end=9).last, Constant(final=0.5, begin=3).last
        (9, 3)
        """
        return self.begin if self.end is None else self.end

    def sparsity(self, t: int | float) -> float:
        """Return the share of the selected weights that should be zero at time ``t``.

        >>> from lightning_prune import Linear
        >>> Linear(final=0.6, initial=0.2, begin=2, end=6).sparsity(4)
        0.4
        """
        if t < self.begin:
            return 0.0
        return self.final if self.end is not None and t >= self.end else self._target(t)

    def is_event(self, t: int | float) -> bool:
        """Tell whether something happens at ``t``: at ``begin``, every ``every`` from there, and at ``end``.

        >>> from lightning_prune import Linear
        >>> [t for t in range(20) if Linear(final=0.5, begin=2, end=9, every=3).is_event(t)]
        [2, 5, 8, 9]

        Raises:
            ValueError: With ``unit="fraction"``; ask ``schedule.in_steps(total_steps)`` instead.
        """
        self._refuse_fractions()
        if t < self.begin or (self.end is not None and t >= self.end):
            return t == self.end
        return (t - self.begin) % (self.every or 1) == 0

    def events(self, total: int | None = None) -> list[tuple[int, float]]:
        """List the (time, target) pairs of a run; of one with fractions the times are steps.

        Args:
            total: Number of epochs or steps of the run. Its times are 0 to ``total - 1``; later events are
                left out. Needed with ``unit="fraction"`` and by open-ended schedules. Default: all events.

        Raises:
            ValueError: If ``total`` is needed and missing, or if a target is lower than the one before.

        >>> from lightning_prune import Constant, Cubic
        >>> Cubic(final=0.8, initial=0.2, begin=100, end=110, every=5, unit="step").events()
        [(100, 0.2), (105, 0.7250000000000001), (110, 0.8)]
        >>> Constant(final=0.5, begin=1).events(total=4)
        [(1, 0.5), (2, 0.5), (3, 0.5)]
        """
        if total is None and (self.unit == "fraction" or self.end is None):
            raise ValueError(f"{self!r} needs the length of the run to list its events: give total=")
        if self.unit == "fraction" and total is not None:
            return self.in_steps(total).events(total)
        stop = int(self.last) + 1 if total is None else self._checked_count("total", total)
        events = [(t, self.sparsity(t)) for t in self._times(stop)]
        self._refuse_decrease(events)
        return events

    def in_steps(self, total_steps: int) -> Schedule:
        """Return the equal schedule with ``unit="step"``, or itself if it does not count in fractions.

        Fraction ``f`` becomes step ``round(f * total_steps)``, halves to even as Python rounds, but at most
        ``total_steps - 1``: so an event at 1.0 comes before the run's last step instead of never.

        >>> from lightning_prune import Cubic
        >>> Cubic(final=0.9, begin=0.1, end=1.0, every=10, unit="fraction").in_steps(500)
        Cubic(final=0.9, begin=50, end=499, every=10, unit='step', initial=0.0)
        """
        if self.unit != "fraction":
            return self
        total = self._checked_count("total_steps", total_steps, least=1)
        return replace(self, unit="step", **self._arguments_in_steps(total))

    def plot(self, ax: Axes | None = None, total: int | None = None) -> tuple[Figure | SubFigure, Axes]:
        """Draw the targets of a run over its events; return the figure and the axes.

        Args:
            ax: Axes to draw on. Default: new ones.
            total: As in `events`.

        Raises:
            ModuleNotFoundError: If matplotlib is missing (extra ``plot``).

        >>> from lightning_prune import Cubic
        >>> fig, ax = Cubic(final=0.9, begin=2, end=20).plot()
        """
        plt, events = pyplot(), self.events(total)
        ax = plt.subplots()[1] if ax is None else ax
        assert ax is not None
        name = type(self).__name__
        ax.step([t for t, _ in events], [s for _, s in events], where="post", marker=".", label=name)
        ax.set(xlabel="epoch" if self.unit == "epoch" else "step", ylabel="sparsity")
        return ax.figure, ax

    def _times(self, stop: int) -> list[int]:
        if self.end is None:
            return [*range(int(self.begin), stop, self.every or 1)]
        times = range(int(self.begin), min(stop, int(self.end)), self.every or 1)
        return [*times, int(self.end)] if self.end < stop else [*times]

    def _arguments_in_steps(self, total: int) -> dict[str, Any]:
        begin, end = (None if t is None else nearest_step(t, total) for t in (self.begin, self.end))
        length = (total if end is None else end) - (begin or 0)
        return {"begin": begin, "end": end, "every": self.every or max(1, length // _EVENTS)}

    def _set(self, **values: Any) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def _named(self, name: str, value: object) -> str:
        return f"{type(self).__name__}: {name}={value!r}"

    def _checked_share(self, name: str, value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, numbers.Real):
            raise TypeError(f"{self._named(name, value)} is no number; a share in [0, 1] is needed")
        share = float(value)
        if not 0 <= share <= 1:
            raise ValueError(f"{self._named(name, value)} is outside [0, 1]")
        return share

    def _checked_count(self, name: str, value: Any, least: int = 0) -> int:
        value = as_count(value)
        if isinstance(value, bool) or not hasattr(value, "__index__"):
            hint = "; shares of the run need unit='fraction'" if isinstance(value, float) and 0 < value <= 1 else ""
            raise TypeError(f"{self._named(name, value)} is no whole number{hint}")
        if value < least:
            raise ValueError(f"{self._named(name, value)} is below {least}")
        return operator.index(value)

    def _checked_time(self, name: str, value: object) -> int | float:
        return (self._checked_share if self.unit == "fraction" else self._checked_count)(name, value)

    def _refuse_fractions(self) -> None:
        if self.unit == "fraction":
            raise ValueError(f"{self!r} counts in fractions of a run: use schedule.in_steps(total_steps)")

    def _refuse_decrease(self, events: list[tuple[Any, float]]) -> None:
        for (before, high), (after, low) in pairwise(events):
            if low < high:
                raise ValueError(
                    f"{type(self).__name__}: the target falls from {high!r} at {self.unit} {before!r} to "
                    f"{low!r} at {self.unit} {after!r}; pruned weights stay pruned, so it must not decrease"
                )


def nearest_step(fraction: float, total: int) -> int:
    """Return the step that a fraction of a run falls on: the nearest, at most the last one."""
    return min(round(fraction * total), total - 1)
