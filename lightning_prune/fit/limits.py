"""How long a fit can last, and whether a plan fits into it."""

from __future__ import annotations

from dataclasses import dataclass

from lightning_prune.schedules.plan import Clock, Plan


@dataclass(frozen=True)
class Limits:
    """The longest that a fit can last; events are at times below it.

    Attributes:
        epochs: Number of epochs, ``None`` or -1 = no limit that is known.
        steps: Number of optimizer steps, ``None`` or -1 = no limit that is known.

    Example:
        >>> Limits(epochs=20).of("epoch")
        20
    """

    epochs: int | None = None
    steps: int | None = None

    def of(self, unit: Clock) -> int | None:
        """The limit in a unit."""
        limit = self.epochs if unit == "epoch" else self.steps
        return None if limit is None or limit < 0 else limit


def require_room(plan: Plan, limits: Limits) -> None:
    """Refuses a plan that the fit cannot finish.

    Args:
        plan: When something is due.
        limits: How long the fit can last.

    Raises:
        ValueError: If the plan's last event is at or after the end.

    Example:
        >>> from lightning_prune.schedules.plan import AmountPlan
        >>> require_room(AmountPlan(0.5, "epoch", (3, 19)), Limits(epochs=20))
    """
    last, unit, limit = plan.last, plan.unit, limits.of(plan.unit)
    if last is None or not limit or last < limit:  # a fit of nothing leaves nothing unfinished
        return
    raise ValueError(
        f"the plan's last event is at {unit} {last}, but the fit ends before it, after {limit} {unit}s (the last "
        f"{unit} is {limit - 1}): let the Trainer run for {last + 1} {unit}s or more, end the plan at {unit} "
        f"{limit - 1}, or pass allow_unfinished=True"
    )


def bound(plan: Plan, limits: Limits) -> Plan:
    """The plan with its times in epochs or steps, not in fractions of the run.

    Args:
        plan: When something is due.
        limits: How long the fit can last.

    Raises:
        ValueError: If it counts in fractions of a run that has no known number of steps.
    """
    if limits.steps is not None:
        return plan.bound_to(limits.steps)
    if plan.counts_fractions:
        raise ValueError(
            f"{plan} counts in fractions of the run, but how many steps this one has is not known (no limit, data "
            "without a length, manual optimization or changing accumulation): set max_steps, or give the schedule "
            "in epochs or steps"
        )
    return plan
