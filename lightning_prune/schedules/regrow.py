"""Regrowth as values: at which steps weights move, how many, and which of the masked ones come back.

A sparse network that is trained from its first step finds better connections when some are moved now and then: the
smallest weights are dropped, and as many of those that are masked begin anew at 0. Like schedules these are frozen
values that know times alone; what happens at an update is in :mod:`lightning_prune.fit.regrowing`.

Your own is one method that scores the weights:

>>> class ByWeightDecay(Regrow):
...     def scores(self, weight, gradient):
...         return (gradient - 0.01 * weight).abs()
>>> ByWeightDecay(every=10, until=40, unit="step").updates()[1]
(20, 0.15)
"""

from __future__ import annotations

import math
import operator
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, get_args

from torch import Tensor

from lightning_prune.schedules.base import Unit, as_count, nearest_step

Decay = Literal["cosine", "linear", "constant"]
Initial = Literal["random", "method"]


@dataclass(frozen=True, kw_only=True)
class Regrow(ABC):
    """Base of regrowth: times, the share that moves, and a score for what comes back.

    Updates are at ``begin + every``, ``begin + 2 every`` and so on, before ``until``. At time t the share of the
    weights that are left of each tensor which moves is, with x = (t - begin) / (until - begin): ``"cosine"``:
    ``fraction / 2 * (1 + cos(pi x))``; ``"linear"``: ``fraction * (1 - x)``; ``"constant"``: ``fraction``.
    Values compare, hash, pickle, and ``eval(repr(value)) == value``.

    Args:
        fraction: Share of the weights left that moves at first, in [0, 1].
        every: Time between two updates: optimizer steps, or epochs with ``unit="epoch"``, where an update is at the
            first optimizer step of the epoch.
        begin: Time from which on the first interval counts.
        until: No update is at this time or later.
        unit: What ``begin`` and ``until`` count: ``"fraction"`` of the run, ``"step"`` or ``"epoch"``.
        decay: How the share falls.
        initial: What masks weights before the first optimizer step: ``"random"`` draws them at random, in the numbers
            that schedule and scope say, since no weight has been trained; ``"method"`` ranks them by ``method=`` there
            too, as for a model that is trained already.
        strict: Whether weights that are dropped at an update cannot come back at the same one.
        window: Optimizer steps over which gradients are averaged for an update, its own included; ``every`` averages
            all since the last update. More than one takes a tensor of the weights' size and a pass in each of them.

    Raises:
        TypeError: If a number is none, or ``every`` no whole one.
        ValueError: If a number is out of range or a word unknown.
    """

    signed: ClassVar[bool] = False
    """Whether scores are ranked with their signs; else by their magnitude."""

    fraction: float = 0.3
    every: int = 100
    begin: int | float = 0
    until: int | float = 0.75
    unit: Unit = "fraction"
    decay: Decay = "cosine"
    initial: Initial = "random"
    strict: bool = True
    window: int = 1

    def __post_init__(self) -> None:
        for name, known in (("unit", Unit), ("decay", Decay), ("initial", Initial)):
            if getattr(self, name) not in get_args(known):
                raise ValueError(f"{self._named(name)}; known: {', '.join(get_args(known))}")
        if not isinstance(self.strict, bool):
            raise TypeError(f"{self._named('strict')}; True or False is needed")
        self._require_share("fraction")
        self._require_count("every", 1)
        self._require_count("window", 1)
        for name in ("begin", "until"):
            if self.unit == "fraction":
                self._require_share(name)
            else:
                self._require_count(name, 0)
        if self.until < self.begin:
            raise ValueError(f"{self._named('until')} lies before begin={self.begin!r}")

    @abstractmethod
    def scores(self, weight: Tensor, gradient: Tensor) -> Tensor | None:
        """How much each weight should come back; of the masked ones those of the largest scores do.

        Random numbers are the same on every rank, and none of those that training draws.

        Args:
            weight: A tensor that is pruned, with zeros; not to be changed. Of one that is split over ranks, as by
                ``fully_shard``, this rank's part.
            gradient: The gradient of the step that is about to be made, or the mean over the ``window``, of all its
                weights, masked ones too; averaged over accumulated batches and ranks, not clipped. Not to be changed.

        Returns:
            A floating-point tensor of the same shape; ``None`` lets random weights come back.
        """

    def is_update(self, t: int) -> bool:
        """Tell whether weights move at ``t``.

        Raises:
            ValueError: With ``unit="fraction"``; ask ``in_steps(total_steps)`` instead.

        >>> [t for t in range(40) if RigL(every=10, until=30, unit="step").is_update(t)]
        [10, 20]
        """
        self._refuse_fractions()
        return self.begin < t < self.until and (t - self.begin) % self.every == 0

    def latest(self, after: int, now: int) -> int | None:
        """The last update at a time ``after < t <= now``, ``None`` if there is none.

        >>> rigl = RigL(every=10, until=30, unit="step")
        >>> rigl.latest(0, 9), rigl.latest(9, 15), rigl.latest(0, 99)
        (None, 10, 20)
        """
        self._refuse_fractions()
        last = min(now, int(self.until) - 1)
        time = last - (last - int(self.begin)) % self.every
        return time if time > max(after, int(self.begin)) else None

    def share(self, t: int | float) -> float:
        """Share of the weights left that moves at an update at ``t``.

        >>> [round(RigL(every=1, until=4, unit="step").share(t), 4) for t in range(4)]
        [0.3, 0.2561, 0.15, 0.0439]
        """
        x = (t - self.begin) / (self.until - self.begin) if self.until > self.begin else 1.0
        left = {"cosine": (1 + math.cos(math.pi * x)) / 2, "linear": 1 - x, "constant": 1.0}[self.decay]
        return self.fraction * left

    def updates(self) -> list[tuple[int, float]]:
        """All updates with the share that moves; of fractions ask ``in_steps(total_steps)``.

        >>> RigL(fraction=0.4, every=100, until=300, decay="linear", unit="step").updates()
        [(100, 0.2666666666666667), (200, 0.13333333333333336)]
        """
        self._refuse_fractions()
        times = range(int(self.begin) + self.every, int(self.until), self.every)
        return [(t, self.share(t)) for t in times]

    def in_steps(self, total_steps: int) -> Regrow:
        """Return the equal value with ``unit="step"``, or itself if it does not count in fractions.

        >>> RigL(until=0.5).in_steps(2_000).until
        1000
        """
        if self.unit != "fraction":
            return self
        begin, until = nearest_step(self.begin, total_steps), nearest_step(self.until, total_steps)
        return replace(self, unit="step", begin=begin, until=until)

    def _named(self, name: str) -> str:
        return f"{type(self).__name__}: {name}={getattr(self, name)!r}"

    def _require_share(self, name: str) -> None:
        value: Any = getattr(self, name)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise TypeError(f"{self._named(name)} is no number; a share in [0, 1] is needed")
        if not 0 <= value <= 1:
            hint = '; give unit="step" or "epoch" for times in these' if name in ("begin", "until") else ""
            raise ValueError(f"{self._named(name)} is outside [0, 1]{hint}")

    def _require_count(self, name: str, least: int) -> None:
        value = as_count(getattr(self, name))
        if isinstance(value, bool) or not hasattr(value, "__index__"):
            raise TypeError(f"{self._named(name)} is no whole number")
        object.__setattr__(self, name, operator.index(value))
        if operator.index(value) < least:
            raise ValueError(f"{self._named(name)} is below {least}")

    def _refuse_fractions(self) -> None:
        if self.unit == "fraction":
            raise ValueError(f"{self!r} counts in fractions of a run: use in_steps(total_steps)")


class SET(Regrow):
    """Sparse evolutionary training, Mocanu et al. (2018): random weights come back.

    The paper moves 30 % after each epoch, of the positive weights the smallest and of the negative ones the largest:
    the smallest magnitudes of both kinds alike, while here the smallest of all. Its share does not decay; that is
    ``SET(every=1, until=..., unit="epoch", decay="constant")``.

    >>> SET(every=1, until=30, unit="epoch", decay="constant").share(20)
    0.3
    """

    def scores(self, weight: Tensor, gradient: Tensor) -> Tensor | None:  # noqa: D102
        return None


class RigL(Regrow):
    """Rigging the lottery, Evci et al. (2020): those weights come back whose loss falls fastest, by ``|gradient|``.

    The paper's code makes no optimizer step at an update, and lets weights that were dropped come back at once. Here
    the step is made, and ``strict`` lets others come first; on LeNet-300-100 at 98 % zeros the first changes nothing
    and the second is not worse. With a rising schedule, such as ``Cubic``, it is gradual pruning with repair, GraNet
    of Liu et al. (2021).

    >>> RigL(fraction=0.5, every=1, until=30, unit="epoch").share(15)
    0.25
    """

    def scores(self, weight: Tensor, gradient: Tensor) -> Tensor | None:  # noqa: D102
        return gradient  # ranked by its magnitude
