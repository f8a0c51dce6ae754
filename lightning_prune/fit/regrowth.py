"""What regrowth did so far, in numbers."""

from __future__ import annotations

from dataclasses import dataclass

from lightning_prune.schedules.plan import Clock


@dataclass(frozen=True)
class Regrowth:
    """Where regrowth stands.

    Attributes:
        updates: Updates so far.
        time: Epoch or step of the latest one.
        moved: Weights that were dropped at it, which as many others replaced.
        left: Weights that are not masked.
        ever: Weights that were unmasked at any update or the start.
        total: Selected weights.
        unit: What ``time`` counts.

    Example:
        >>> found = Regrowth(updates=3, time=300, moved=5, left=50, ever=80, total=1000)
        >>> found.churn, found.explored
        (0.1, 0.08)
    """

    updates: int
    time: int
    moved: int
    left: int
    ever: int
    total: int
    unit: Clock = "step"

    @property
    def churn(self) -> float:
        """Share of the weights left that the latest update replaced."""
        return self.moved / self.left if self.left else 0.0

    @property
    def explored(self) -> float:
        """Share of the selected weights that were ever unmasked since the first masks."""
        return self.ever / self.total if self.total else 0.0
