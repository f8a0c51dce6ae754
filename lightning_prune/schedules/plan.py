"""What is asked for, and when: an amount at given times, or the targets of a schedule."""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Literal

from lightning_prune.prune.arguments import instance_of
from lightning_prune.schedules import Cubic, Schedule

DEFAULT_AMOUNT = 0.5
DEFAULT_SCHEDULE = Cubic(final=0.5, begin=0.1, end=0.6, unit="fraction")
Clock = Literal["epoch", "step"]
Times = Iterable[int] | Callable[[int], bool] | None


@dataclass(frozen=True)
class Demand:
    """What one pruning event is asked for.

    Attributes:
        time: The epoch or step it was due at.
        amount: Fraction of the units still unpruned, or a count; ``None`` if the method decides or a target is given.
        sparsity: Target share of zeros among all weights selected at the start, or ``None``.
    """

    time: int
    amount: int | float | None = None
    sparsity: float | None = None


class Plan(ABC):
    """Says what is due, from the time alone."""

    unit: Clock

    @abstractmethod
    def due(self, after: int, now: int) -> list[Demand]:
        """The demands at times ``after < t <= now``, in order."""

    @property
    @abstractmethod
    def last(self) -> int | None:
        """Time of the last event, ``None`` if it has no end."""

    @property
    @abstractmethod
    def final(self) -> float | None:
        """Target share of zeros at the end, ``None`` if it follows from amounts."""

    @abstractmethod
    def start(self, now: int) -> int:
        """The time up to which everything counts as done when a fit begins at time ``now``."""

    @property
    def counts_fractions(self) -> bool:
        """Whether times are fractions of a run, so that it has to be bound to one."""
        return False

    @property
    def pure(self) -> bool:
        """Whether its times are the same in every process, which those of a user's predicate need not be."""
        return True

    def bound_to(self, total_steps: int) -> Plan:
        """The same plan for a run of that many optimizer steps; differs for plans in fractions of a run."""
        return self

    def check(self, total: int | None) -> None:  # noqa: B027
        """Raises ValueError if a target of a run of that many epochs or steps falls, as far as that can be told."""


@dataclass(frozen=True)
class AmountPlan(Plan):
    """The same amount at each of some times.

    Attributes:
        amount: Fraction of the units still unpruned, or a count; ``None`` if the method decides.
        unit: What times count.
        times: The times, a predicate on them, or ``None`` = always.

    Example:
        >>> AmountPlan(0.2, "epoch", (5, 10)).due(after=5, now=12)
        [Demand(time=10, amount=0.2, sparsity=None)]
    """

    amount: int | float | None
    unit: Clock
    times: tuple[int, ...] | Callable[[int], bool] | None

    def due(self, after: int, now: int) -> list[Demand]:
        """One demand for each time; events are not merged, since each takes its share of what is left."""
        return [Demand(t, amount=self.amount) for t in range(after + 1, now + 1) if self._at(t)]

    def _at(self, time: int) -> bool:
        if self.times is None:
            return True
        return time in self.times if isinstance(self.times, tuple) else bool(self.times(time))

    @property
    def last(self) -> int | None:
        """The largest of the times, if they are listed."""
        return max(self.times) if isinstance(self.times, tuple) else None

    @property
    def final(self) -> float | None:
        """Amounts add up to what they add up to."""
        return None

    @property
    def pure(self) -> bool:
        """Whether the times are listed."""
        return not callable(self.times)

    def start(self, now: int) -> int:
        """Amounts that were due before the fit began are not made up for."""
        return now - 1

    def __str__(self) -> str:
        """In words that are the same in every process."""
        if self.times is None:
            return f"amount={self.amount!r} at every {self.unit}"
        times = list(self.times) if isinstance(self.times, tuple) else "chosen by a predicate"
        return f"amount={self.amount!r} at {self.unit}s {times}"


@dataclass(frozen=True)
class SchedulePlan(Plan):
    """The targets of a schedule.

    Attributes:
        schedule: The schedule; one in fractions has to be bound to a run first.
    """

    schedule: Schedule

    @property
    def unit(self) -> Clock:  # type: ignore[override]
        """What times count."""
        return "epoch" if self.schedule.unit == "epoch" else "step"

    def due(self, after: int, now: int) -> list[Demand]:
        """At most one demand: the latest target says all."""
        for time in range(now, after, -1):
            if self.schedule.is_event(time):
                return [Demand(time, sparsity=self.schedule.sparsity(time))]
        return []

    @property
    def last(self) -> int | None:
        """The schedule's last event; ``None`` until fractions are bound to a run."""
        return None if self.schedule.unit == "fraction" else int(self.schedule.last)

    @property
    def final(self) -> float | None:
        """The schedule's final target."""
        return self.schedule.final

    def start(self, now: int) -> int:
        """A target that was due before the fit began is reached at its first event time."""
        return -1

    @property
    def counts_fractions(self) -> bool:
        """Whether the schedule's times are fractions of a run."""
        return self.schedule.unit == "fraction"

    def check(self, total: int | None) -> None:
        """Lists all events, which refuses a target below the one before."""
        if total is not None or self.schedule.end is not None:
            self.schedule.events(total)

    def bound_to(self, total_steps: int) -> Plan:
        """With a schedule in steps instead of fractions."""
        return replace(self, schedule=self.schedule.in_steps(total_steps))

    def __str__(self) -> str:
        """In words that are the same in every process."""
        return repr(self.schedule)


class KeepPlan(Plan):
    """No events: what is zero at the start stays zero, and nothing else is pruned."""

    unit = "epoch"

    def due(self, after: int, now: int) -> list[Demand]:
        """Nothing."""
        return []

    @property
    def last(self) -> int | None:
        """No event, so no last one."""
        return None

    @property
    def final(self) -> float | None:
        """Whatever is there at the start."""
        return None

    def start(self, now: int) -> int:
        """Nothing is due at any time."""
        return now

    def __str__(self) -> str:
        """In words that are the same in every process."""
        return "keep zeros"


def make_plan(
    amount: int | float | None,
    epochs: Times,
    steps: Times,
    schedule: Schedule | None,
    *,
    takes_amount: bool = True,
    keep_zeros: bool = False,
    scope: str = "local",
    own_policy: bool = False,
    default: Schedule = DEFAULT_SCHEDULE,
) -> Plan:
    """The plan that some arguments of the callback describe.

    Args:
        amount: Fraction of what is left, or a count, for each event.
        epochs: Epochs of events, a predicate, or ``None``.
        steps: Optimizer steps of events, a predicate, or ``None``.
        schedule: Targets instead of amounts.
        takes_amount: Whether the method can be told how much to prune.
        keep_zeros: Whether the zeros at the start are kept, which is a plan of its own.
        scope: How events spread over the tensors.
        own_policy: Whether somebody else decides what is due, so that a plan without arguments is asked at each epoch.
        default: The schedule of a plan without arguments.

    Raises:
        ValueError: If both kinds are given, both units, or no or negative times, or what the method cannot do.
        TypeError: If times are not whole numbers.
    """
    if keep_zeros and all(given is None for given in (amount, epochs, steps, schedule)):
        return KeepPlan()
    if not takes_amount and (amount is not None or schedule is not None):
        raise ValueError(
            "the method decides itself how much it prunes (it has no argument named amount): give epochs= or steps= "
            f"alone, not amount={amount!r} or schedule={schedule!r}"
        )
    instance_of("schedule", schedule, (Schedule,), "Cubic(final=0.9, end=20)")
    if takes_amount and not own_policy and all(given is None for given in (amount, epochs, steps, schedule)):
        schedule = default
    if schedule is not None:
        if amount is not None or epochs is not None or steps is not None:
            raise ValueError(
                "schedule= says when and how much: give it alone, or amount= with epochs= or steps=; got "
                f"amount={amount!r}, epochs={epochs!r}, steps={steps!r} beside {schedule!r}"
            )
        return SchedulePlan(schedule)
    if scope == "erk":
        raise ValueError("scope='erk' spreads the target of a schedule over the tensors: give schedule=, not an amount")
    if epochs is not None and steps is not None:
        raise ValueError(f"give epochs= or steps=, not both; got epochs={epochs!r} and steps={steps!r}")
    if amount is None and takes_amount:
        amount = DEFAULT_AMOUNT
    times = _times(epochs if steps is None else steps)
    return AmountPlan(amount, "epoch" if steps is None else "step", times)


def _times(times: Times) -> tuple[int, ...] | Callable[[int], bool] | None:
    if times is None or callable(times):
        return times
    if isinstance(times, str) or not isinstance(times, Iterable):
        raise TypeError(f"times of pruning should be a list of numbers or a predicate, got {times!r}")
    given = list(times)
    if not all(hasattr(t, "__index__") and not isinstance(t, bool) for t in given):
        raise TypeError(f"times of pruning should be whole numbers, got {given}")
    listed = tuple(sorted({operator.index(t) for t in given}))
    if not listed or listed[0] < 0:
        raise ValueError(f"times of pruning should be one or more numbers >= 0, got {given}")
    return listed
