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
import functools
import inspect
import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any

from lightning_prune.schedules.base import Schedule, nearest_step

__all__ = [
    "Constant",
    "Cosine",
    "Cubic",
    "Curve",
    "Exponential",
    "FromFunction",
    "Linear",
    "OneCycle",
    "OneShot",
    "Polynomial",
    "Schedule",
    "Steps",
]


_ARGUMENTS = """Arguments of all curves:
    final: Share of zeros at the end, in [0, 1].
    begin: Time of the first event: an epoch or step from 0, or a share of the run in [0, 1]. Default: 0.
    end: Time of the last event, at which ``final`` is reached.
    every: Epochs or steps between two events. Default: 1; with ``unit="fraction"`` about twenty events.
    unit: What times count: ``"epoch"`` (default), ``"step"`` or ``"fraction"`` of the run.
    initial: Share of zeros at ``begin``. Default: 0."""


@dataclass(frozen=True, kw_only=True)
class OneShot(Schedule):
    """Everything at once: a single event at ``begin``.

    >>> OneShot(0.9, begin=3).events()
    [(3, 0.9)]
    """

    final: float = field(kw_only=False)
    begin: int | float = field(default=0, kw_only=False)
    end: int | float = field(init=False, repr=False)
    every: int | None = field(default=1, init=False, repr=False)

    def __post_init__(self) -> None:
        self._set(end=self.begin)
        super().__post_init__()

    def _target(self, t: int | float) -> float:
        return self.final

    def _arguments_in_steps(self, total: int) -> dict[str, Any]:
        return {"begin": nearest_step(self.begin, total)}


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

    end: int | float = None  # type: ignore[assignment]  # checked below, where the class can be named
    initial: float = 0.0

    def __init_subclass__(cls) -> None:
        """Explains the arguments in the documentation of each curve."""
        super().__init_subclass__()
        cls.__doc__ = f"{inspect.cleandoc(cls.__doc__ or cls.__name__)}\n\n{_ARGUMENTS}"

    def __post_init__(self) -> None:
        if self.end is None:
            raise TypeError(
                f"{type(self).__name__}(final={self.final!r}) needs end=, the time at which it reaches that: an epoch, "
                "a step with unit='step', or a share of the run with unit='fraction'"
            )
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
    every: int | None = field(default=1, init=False, repr=False)

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
        return {"targets": {nearest_step(t, total): s for t, s in self.targets.items()}}


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
        name = _name_of(self.fn)
        rest = ", ".join(f"{f.name}={getattr(self, f.name)!r}" for f in fields(self) if f.name != "fn")
        return f"{type(self).__name__}({name}, {rest})"

    def _target(self, t: int | float) -> float:
        value = self._checked_share(f"fn({t!r})", self.fn(t))
        if value > self.final:
            raise ValueError(f"{self._named(f'fn({t!r})', value)} is above final={self.final!r}")
        return value

    def _arguments_in_steps(self, total: int) -> dict[str, Any]:
        return {**super()._arguments_in_steps(total), "fn": _OfStep(self.fn, total)}


def _name_of(fn: Callable[..., object]) -> str:
    """A function in words that are the same in every process, with the arguments that are bound to it."""
    if isinstance(fn, functools.partial):
        bound = [*map(repr, fn.args), *(f"{name}={value!r}" for name, value in fn.keywords.items())]
        return f"{_name_of(fn.func)}({', '.join(bound)})"
    return str(getattr(fn, "__qualname__", type(fn).__qualname__))


@dataclass(frozen=True)
class _OfStep:
    """A function of the fraction of a run, asked with a step."""

    fn: Callable[[int | float], float]
    total: int

    def __call__(self, step: int | float) -> float:
        return self.fn(step / self.total)
