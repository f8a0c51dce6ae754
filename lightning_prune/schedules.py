"""Sparsity as a function of time: frozen values that say when to prune and how far.

A schedule answers two questions for a time ``t``: does something happen (`Schedule.is_event`), and which
share of the weights selected at the start should be zero now (`Schedule.sparsity`). Times count from 0, as
the Trainer counts epochs and optimizer steps; with ``unit="fraction"`` they are shares of the run, 0 to 1.

A new curve is one method on the progress from 0 to 1:

>>> class SquareRoot(Curve):
...     def share(self, x: float) -> float:
...         return x**0.5
>>> SquareRoot(final=0.8, end=4).events(total=2)
[(0, 0.0), (1, 0.4)]
"""

from __future__ import annotations

import bisect
import math
import numbers
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, get_args

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

Unit = Literal["epoch", "step", "fraction"]


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
        every: Epochs between two events; steps with ``unit="step"`` and ``unit="fraction"``.
        unit: What times are counted in: ``"epoch"``, ``"step"`` or ``"fraction"``.

    Raises:
        TypeError: If a share is no number, or an epoch, step or ``every`` no whole number.
        ValueError: If a share is outside [0, 1] or NaN, a time outside the run, ``end`` before ``begin``,
            ``every`` below 1, the unit unknown, or a target lower than the one before.
    """

    final: float
    begin: int | float = 0
    end: int | float | None
    every: int = 1
    unit: Unit = "epoch"

    def __post_init__(self) -> None:
        if self.unit not in get_args(Unit):
            raise ValueError(f"{self._named('unit', self.unit)}; known: {', '.join(get_args(Unit))}")
        self._set(final=self._checked_share("final", self.final))
        self._set(begin=self._checked_time("begin", self.begin))
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

        >>> Linear(final=0.5, begin=2, end=9).last, Constant(final=0.5, begin=3).last
        (9, 3)
        """
        return self.begin if self.end is None else self.end

    def sparsity(self, t: int | float) -> float:
        """Return the share of the selected weights that should be zero at time ``t``.

        >>> Linear(final=0.6, initial=0.2, begin=2, end=6).sparsity(4)
        0.4
        """
        if t < self.begin:
            return 0.0
        return self.final if self.end is not None and t >= self.end else self._target(t)

    def is_event(self, t: int | float) -> bool:
        """Tell whether something happens at ``t``: at ``begin``, every ``every`` from there, and at ``end``.

        >>> [t for t in range(20) if Linear(final=0.5, begin=2, end=9, every=3).is_event(t)]
        [2, 5, 8, 9]

        Raises:
            ValueError: With ``unit="fraction"``; ask ``schedule.in_steps(total_steps)`` instead.
        """
        self._refuse_fractions()
        if t < self.begin or (self.end is not None and t >= self.end):
            return t == self.end
        return (t - self.begin) % self.every == 0

    def events(self, total: int | None = None) -> list[tuple[int, float]]:
        """List the (time, target) pairs of a run; of one with fractions the times are steps.

        Args:
            total: Number of epochs or steps of the run. Its times are 0 to ``total - 1``; later events are
                left out. Needed with ``unit="fraction"`` and by open-ended schedules. Default: all events.

        Raises:
            ValueError: If ``total`` is needed and missing, or if a target is lower than the one before.

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

        >>> fig, ax = Cubic(final=0.9, begin=2, end=20).plot()
        """
        try:
            import matplotlib.pyplot as plt
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError("plot needs matplotlib: pip install 'lightning-prune[plot]'") from error
        events = self.events(total)
        if ax is None:
            _, ax = plt.subplots()
        name = type(self).__name__
        ax.step([t for t, _ in events], [s for _, s in events], where="post", marker=".", label=name)
        ax.set(xlabel="epoch" if self.unit == "epoch" else "step", ylabel="sparsity")
        return ax.figure, ax

    def _times(self, stop: int) -> list[int]:
        if self.end is None:
            return [*range(int(self.begin), stop, self.every)]
        times = range(int(self.begin), min(stop, int(self.end)), self.every)
        return [*times, int(self.end)] if self.end < stop else [*times]

    def _arguments_in_steps(self, total: int) -> dict[str, Any]:
        times = {"begin": self.begin, "end": self.end}
        return {name: None if t is None else _nearest_step(t, total) for name, t in times.items()}

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
        if isinstance(value, bool) or not hasattr(value, "__index__"):
            raise TypeError(f"{self._named(name, value)} is no whole number")
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


def _nearest_step(fraction: float, total: int) -> int:
    return min(round(fraction * total), total - 1)


@dataclass(frozen=True, kw_only=True)
class OneShot(Schedule):
    """Everything at once: a single event at ``begin``.

    >>> OneShot(0.9, begin=3).events()
    [(3, 0.9)]
    """

    final: float = field(kw_only=False)
    begin: int | float = field(default=0, kw_only=False)
    end: int | float = field(init=False, repr=False)
    every: int = field(default=1, init=False, repr=False)

    def __post_init__(self) -> None:
        self._set(end=self.begin)
        super().__post_init__()

    def _target(self, t: int | float) -> float:
        return self.final

    def _arguments_in_steps(self, total: int) -> dict[str, Any]:
        return {"begin": _nearest_step(self.begin, total)}


@dataclass(frozen=True, kw_only=True)
class Constant(Schedule):
    """The same target at every event from ``begin`` to ``end``; without one, as long as the run lasts.

    >>> Constant(final=0.5, begin=2, every=4).events(total=11)
    [(2, 0.5), (6, 0.5), (10, 0.5)]
    """

    end: int | float | None = None

    def _target(self, t: int | float) -> float:
        return self.final


@dataclass(frozen=True, kw_only=True)
class Curve(Schedule):
    """Base of the curves, which rise from ``initial`` at ``begin`` to ``final`` at ``end``.

    ``s(x) = initial + (final - initial) * share(x)`` with the progress ``x = (t - begin) / (end - begin)``.
    Beside the arguments of `Schedule` they take ``initial``: share of zeros at ``begin``, in [0, final].
    """

    end: int | float = field()
    initial: float = 0.0

    def __post_init__(self) -> None:
        if self.end is None:
            raise TypeError(f"{type(self).__name__}: end=None; the time at which it reaches final is needed")
        super().__post_init__()
        self._set(initial=self._checked_share("initial", self.initial))
        self._refuse_decrease([(self.begin, self.initial), (self.end, self.final)])

    @abstractmethod
    def share(self, x: float) -> float:
        """Return the share of the way from ``initial`` to ``final`` at progress ``x`` in [0, 1)."""

    def _target(self, t: int | float) -> float:
        share = self.share((t - self.begin) / (self.end - self.begin))
        return min(max(self.initial + (self.final - self.initial) * share, self.initial), self.final)


class Linear(Curve):
    """Equal shares of the selected weights: ``share(x) = x``.

    >>> Linear(final=0.8, end=4).events()
    [(0, 0.0), (1, 0.2), (2, 0.4), (3, 0.6000000000000001), (4, 0.8)]
    """

    def share(self, x: float) -> float:  # noqa: D102
        return x


@dataclass(frozen=True, kw_only=True)
class Polynomial(Curve):
    """Fast at first, slower towards the end: ``share(x) = 1 - (1 - x) ** power``.

    Args:
        power: Exponent, above 0; 1 is `Linear`, 3 is `Cubic`.

    >>> Polynomial(power=2, final=0.8, end=4).events()
    [(0, 0.0), (1, 0.35000000000000003), (2, 0.6000000000000001), (3, 0.75), (4, 0.8)]
    """

    power: float

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.power < math.inf:
            raise ValueError(f"{self._named('power', self.power)} must be a number above 0")

    def share(self, x: float) -> float:  # noqa: D102
        return 1 - float((1 - x) ** self.power)


class Cubic(Curve):
    """The schedule of Zhu & Gupta, "To prune, or not to prune" (2017): ``share(x) = 1 - (1 - x) ** 3``.

    >>> schedule = Cubic(final=0.8, initial=0.2, begin=100, end=110, unit="step")
    >>> [round(schedule.sparsity(t), 4) for t in (100, 102, 105, 110)]
    [0.2, 0.4928, 0.725, 0.8]
    """

    def share(self, x: float) -> float:  # noqa: D102
        return 1 - (1 - x) ** 3


class Exponential(Curve):
    """Geometric: each event prunes the same fraction of what is left, and the last one ends at ``final``.

    ``1 - s_t = (1 - s_i) ((1 - s_f) / (1 - s_i)) ** x``, with ``final`` below 1. Where ``every`` does not
    divide the window, the last event covers a shorter time and so a smaller fraction.

    >>> Exponential(final=0.875, end=3).events()
    [(0, 0.0), (1, 0.5), (2, 0.75), (3, 0.875)]
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.final == 1:
            raise ValueError(f"{self._named('final', 1.0)}: a fraction of what is left never prunes it all")

    def share(self, x: float) -> float:  # noqa: D102
        left = (1 - self.final) / (1 - self.initial)
        return x if left == 1 else (1 - left**x) / (1 - left)


class Cosine(Curve):
    """Half a cosine wave, slow at both ends: ``share(x) = (1 - cos(pi x)) / 2``.

    The shape of cosine annealing (Loshchilov & Hutter 2017), rising.

    >>> [round(s, 4) for _, s in Cosine(final=0.8, end=4).events()]
    [0.0, 0.1172, 0.4, 0.6828, 0.8]
    """

    def share(self, x: float) -> float:  # noqa: D102
        return (1 - math.cos(math.pi * x)) / 2


@dataclass(frozen=True, kw_only=True)
class OneCycle(Curve):
    """One-cycle pruning, Hubens et al. (2021): a logistic curve, steep in the first half.

    ``share(x) = (1 + e ** (beta - alpha)) / (1 + e ** (beta - alpha x))``. As published, it starts a little
    above ``initial`` (0.67 % of the way with the defaults). At x = 1 it is 1; there and later `Schedule`
    answers ``final`` itself, so the end is exact.

    Args:
        alpha: Steepness, above 0.
        beta: Delay: half of the way is reached near x = beta / alpha. At most 700: e ** beta overflows.

    >>> [round(s, 4) for _, s in OneCycle(final=0.8, end=4).events()]
    [0.0054, 0.146, 0.7047, 0.7968, 0.8]
    """

    alpha: float = 14.0
    beta: float = 5.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.alpha < math.inf:
            raise ValueError(f"{self._named('alpha', self.alpha)} must be a number above 0")
        if not -math.inf < self.beta <= 700:
            raise ValueError(f"{self._named('beta', self.beta)} must be a number up to 700")

    def share(self, x: float) -> float:  # noqa: D102
        return (1 + math.exp(self.beta - self.alpha)) / (1 + math.exp(self.beta - self.alpha * x))


@dataclass(frozen=True, kw_only=True)
class Steps(Schedule):
    """Targets written out: ``{time: share}``; between two times the earlier one holds.

    Two fractions that fall on the same step leave the higher target.

    Args:
        targets: Share of zeros for each time; at least one, none below the one before.
        unit: As in `Schedule`.

    >>> Steps({5: 0.3, 10: 0.6}).events()
    [(5, 0.3), (10, 0.6)]
    """

    targets: dict[int | float, float] = field(kw_only=False, hash=False)
    final: float = field(init=False, repr=False)
    begin: int | float = field(init=False, repr=False)
    end: int | float = field(init=False, repr=False)
    every: int = field(default=1, init=False, repr=False)

    def __post_init__(self) -> None:
        if not self.targets:
            raise ValueError(f"{self._named('targets', self.targets)}; at least one time is needed")
        times = {self._checked_time("time", t): s for t, s in self.targets.items()}
        pairs = [(t, self._checked_share(f"target at {self.unit} {t!r}", times[t])) for t in sorted(times)]
        self._set(targets=dict(pairs), begin=pairs[0][0], end=pairs[-1][0], final=pairs[-1][1])
        super().__post_init__()
        self._refuse_decrease(pairs)

    def is_event(self, t: int | float) -> bool:  # noqa: D102
        self._refuse_fractions()
        return t in self.targets

    def _target(self, t: int | float) -> float:
        times = [*self.targets]
        return self.targets[times[bisect.bisect_right(times, t) - 1]]

    def _times(self, stop: int) -> list[int]:
        return [int(t) for t in self.targets if t < stop]

    def _arguments_in_steps(self, total: int) -> dict[str, Any]:
        return {"targets": {_nearest_step(t, total): s for t, s in self.targets.items()}}


@dataclass(frozen=True, kw_only=True, repr=False)
class FromFunction(Schedule):
    """Targets from your own function of the time, in the schedule's unit.

    Args:
        fn: Takes an epoch, a step or a fraction of the run and returns the share of zeros at that time. It is
            checked when asked, and by `events` that it never falls.
        final: The target from ``end`` on, and the highest one that ``fn`` may return.
        begin: As in `Schedule`, and so are ``every`` and ``unit``.
        end: Time of the last event. Default: as long as the run lasts.

    >>> FromFunction(lambda epoch: 0.1 * epoch, final=0.25, end=3).events()
    [(0, 0.0), (1, 0.1), (2, 0.2), (3, 0.25)]
    """

    fn: Callable[[int | float], float] = field(kw_only=False)
    end: int | float | None = None

    def __post_init__(self) -> None:
        if not callable(self.fn):
            raise TypeError(f"{self._named('fn', self.fn)}; a function of the time is needed")
        super().__post_init__()

    def __repr__(self) -> str:
        name = getattr(self.fn, "__qualname__", repr(self.fn))
        rest = ", ".join(f"{f.name}={getattr(self, f.name)!r}" for f in fields(self) if f.name != "fn")
        return f"{type(self).__name__}({name}, {rest})"

    def _target(self, t: int | float) -> float:
        value = self._checked_share(f"fn({t!r})", self.fn(t))
        if value > self.final:
            raise ValueError(f"{self._named(f'fn({t!r})', value)} is above final={self.final!r}")
        return value

    def _arguments_in_steps(self, total: int) -> dict[str, Any]:
        return {**super()._arguments_in_steps(total), "fn": _OfStep(self.fn, total)}


@dataclass(frozen=True)
class _OfStep:
    """A function of the fraction of a run, asked with a step."""

    fn: Callable[[int | float], float]
    total: int

    def __call__(self, step: int | float) -> float:
        return self.fn(step / self.total)
