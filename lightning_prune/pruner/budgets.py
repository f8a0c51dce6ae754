"""How a target spreads over tensors: whole numbers of zeros that add up exactly.

A schedule asks for a share of all selected weights; a `Budget` says how many zeros each tensor contributes.
All of it is arithmetic on sizes, so the same code counts weights and channels.
"""

from __future__ import annotations

import bisect
import math
import numbers
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Literal, get_args

from lightning_prune.prune.arguments import one_of
from lightning_prune.pruner.normalization import Normalization
from lightning_prune.targets.names import listing, matching, near

Scope = Literal["local", "global", "erk", "row"]


@dataclass(frozen=True)
class TensorSize:
    """Full name and shape of a tensor that is pruned, and in which units.

    Attributes:
        name: Full name.
        shape: Shape.
        unit: Weights that go as one, such as those of a channel.
        limit: The most of its units that may go, whatever the budget says; all by default.

    >>> TensorSize("conv.weight", (8, 3, 3, 3)).numel
    216
    """

    name: str
    shape: tuple[int, ...]
    unit: int = 1
    limit: int | None = None

    @property
    def numel(self) -> int:
        """Number of its weights."""
        return math.prod(self.shape)

    @property
    def units(self) -> int:
        """Number of its units."""
        return self.numel // self.unit


def apportion(total: int, ideal: Sequence[float], low: Sequence[int], high: Sequence[int]) -> list[int]:
    """Return the integers nearest to ``ideal`` that sum to ``total``, each within its bounds.

    Nearest is meant in the sum of squares. Where ``ideal`` sums to ``total`` and lies within the bounds, that
    is the method of largest remainders, the earlier position first among equal ones.

    Args:
        total: What they sum to.
        ideal: Shares before rounding.
        low: Smallest number for each.
        high: Largest number for each.

    Raises:
        ValueError: If lengths differ, a lower bound is above its upper one, or the bounds exclude ``total``.

    >>> apportion(10, [3.4, 3.4, 3.2], low=[0, 0, 0], high=[9, 9, 9])
    [4, 3, 3]
    >>> apportion(10, [3.4, 3.4, 3.2], low=[0, 0, 0], high=[9, 9, 2])
    [4, 4, 2]
    """
    if not len(ideal) == len(low) == len(high):
        raise ValueError(f"lengths differ: {len(ideal)} ideal shares, {len(low)} and {len(high)} bounds")
    for i, (least, most) in enumerate(zip(low, high, strict=True)):
        if least > most:
            raise ValueError(f"position {i}: lower bound {least} is above upper bound {most}")
    if not sum(low) <= total <= sum(high):
        raise ValueError(f"total {total} is out of reach: the bounds allow {sum(low)} to {sum(high)}")
    level = _fill(total, ideal, [1] * len(ideal), low, high)
    counts = [math.floor(x) for x in level]
    # Remainders that differ by rounding errors only are ties.
    by_remainder = sorted(range(len(level)), key=lambda i: (round(counts[i] - level[i], 6), i))
    for i in by_remainder[: total - sum(counts)]:
        counts[i] += 1
    return counts


def local(sizes: Sequence[TensorSize], target: float) -> list[float]:
    """Return the zeros of each tensor, before rounding, when every tensor goes to ``target``.

    >>> local([TensorSize("a", (10,)), TensorSize("b", (4, 5))], 0.25)
    [2.5, 5.0]
    """
    share = _share("target", target)
    return [share * size.numel for size in sizes]


def erk(sizes: Sequence[TensorSize], target: float) -> list[float]:
    """Return the zeros of each tensor, before rounding, by the Erdos-Renyi-kernel rule of RigL.

    Tensor l keeps the share ``eps * sum(shape_l) / prod(shape_l)`` of its weights, whatever its rank. A share
    that would pass 1 is capped there; ``eps`` is the one at which all together then keep exactly the share
    ``1 - target`` (Evci et al. 2020).

    >>> erk([TensorSize("a", (10, 10)), TensorSize("b", (2, 2))], 0.5)
    [52.0, 0.0]
    """
    numels = [size.numel for size in sizes]
    total = _share("target", target) * sum(numels)
    return _zeros(sizes, total, _erk_weights(sizes), [0] * len(sizes), numels)


@dataclass(frozen=True)
class Budget:
    """How many zeros each tensor has after an event.

    Args:
        scope: ``"local"``: every tensor to the target; ``"row"``: every output of every tensor; ``"erk"``: the
            Erdos-Renyi-kernel rule; ``"global"``: one ranking over all tensors decides, within `bounds`.
        overrides: Share of zeros at the schedule's end, by full name, name of a layer or glob; 0.0 leaves it
            alone. Names beat globs, inner ones outer ones; of several globs that match, the last one counts.
            With an ``amount`` instead of a schedule: the tensor's own amount.
            Until the end these tensors follow the schedule in proportion: ``override * target / final``.
        max_sparsity: Largest share of zeros in any one tensor, rounded down to whole weights; it holds for
            overridden tensors too. Default: all but one weight of each tensor; 1.0 allows to empty it.
        normalize: ``"l2"`` or ``"lamp"``: makes weights of different tensors comparable with ``scope="global"``.

    Raises:
        TypeError: If a share is no number.
        ValueError: If a share is outside [0, 1], an override above ``max_sparsity``, the scope or the normalization
            unknown, or tensors are to be compared without ``scope="global"``.

    >>> sizes = [TensorSize("stem.weight", (4, 5)), TensorSize("fc.weight", (8, 10))]
    >>> Budget("local", overrides={"stem.*": 0.0}).plan(sizes, target=0.5, final=0.5, zeros_now=[0, 0])
    [0, 50]
    """

    scope: Scope = "local"
    overrides: Mapping[str, float] = field(default_factory=dict, hash=False)
    max_sparsity: float | None = None
    normalize: Normalization | None = None

    def __post_init__(self) -> None:
        if self.scope not in get_args(Scope):
            raise ValueError(f"scope={self.scope!r}; known scopes: {', '.join(get_args(Scope))}")
        shares = {name: _share(f"overrides[{name!r}]", share) for name, share in self.overrides.items()}
        object.__setattr__(self, "overrides", shares)
        if self.max_sparsity is not None:
            object.__setattr__(self, "max_sparsity", _share("max_sparsity", self.max_sparsity))
            for name, share in shares.items():
                if share > self.max_sparsity:
                    raise ValueError(f"overrides[{name!r}]={share} is above max_sparsity={self.max_sparsity}")
        one_of("normalize", self.normalize, (None, *get_args(Normalization)))
        if self.normalize is not None and self.scope != "global":
            raise ValueError(f"normalize={self.normalize!r} compares tensors: it needs scope='global'")

    def plan(
        self,
        sizes: Sequence[TensorSize],
        target: float,
        final: float,
        zeros_now: Sequence[int],
    ) -> list[int]:
        """Return the zeros of each tensor after this event; they sum to ``round(target * weights)``.

        Overridden and capped tensors get what they may, the others make up for it by the scope's rule, and no
        tensor loses zeros that it has.

        Args:
            sizes: The tensors.
            target: Share of zeros among all of them now, in [0, 1].
            final: Share of zeros at the schedule's end.
            zeros_now: Zeros that each tensor has before the event.

        Raises:
            ValueError: If the total cannot be reached, an override matches no tensor, ``target`` is above
                ``final``, ``zeros_now`` does not fit, or the scope is ``"global"``, which has no plan.
        """
        if self.scope == "global":
            raise ValueError("scope='global' has no plan per tensor: rank all weights within Budget.bounds")
        low, high = self.bounds(sizes, target, final, zeros_now)
        total = round(target * sum(size.numel for size in sizes))
        weights = _erk_weights(sizes) if self.scope == "erk" else [size.numel for size in sizes]
        return apportion(total, _zeros(sizes, total, weights, low, high), low, high)

    def bounds(
        self, sizes: Sequence[TensorSize], target: float, final: float, zeros_now: Sequence[int]
    ) -> tuple[list[int], list[int]]:
        """Return the fewest and the most zeros of each tensor after this event; equal for overridden ones.

        Arguments and errors are those of `plan`, for every scope.

        >>> sizes = [TensorSize("stem.weight", (4, 5)), TensorSize("fc.weight", (8, 10))]
        >>> Budget("global", overrides={"stem.*": 0.4}).bounds(sizes, target=0.4, final=0.8, zeros_now=[0, 3])
        ([4, 3], [4, 79])
        """
        target, final = _share("target", target), _share("final", final)
        if target > final:
            raise ValueError(f"target={target} is above final={final}, the share at the schedule's end")
        _check_zeros(sizes, zeros_now)
        shares = self.override_shares([size.name for size in sizes])
        progress = target / final if final else 1.0
        low, high = [*zeros_now], [max(self._most(s), z) for s, z in zip(sizes, zeros_now, strict=True)]
        for i, share in shares.items():
            low[i] = high[i] = min(max(round(share * progress * sizes[i].numel), low[i]), high[i])
        self._check_reachable(sizes, round(target * sum(size.numel for size in sizes)), low, high)
        return low, high

    def cap(self, units: int) -> int:
        """Return how many of a tensor's units (weights or channels) may be zero.

        >>> Budget().cap(100), Budget(max_sparsity=0.29).cap(100)
        (99, 29)
        """
        if self.max_sparsity is None:
            return max(units - 1, 0)
        # 0.29 * 100 is below 29 in floats; the share is meant as it is written.
        return math.floor(Fraction(str(self.max_sparsity)) * units)

    def _most(self, size: TensorSize) -> int:
        """The most zeros that whole units of a tensor can give."""
        most = self.cap(size.units)
        return size.unit * (most if size.limit is None else min(most, size.limit))

    def override_shares(self, names: Sequence[str]) -> dict[int, float]:
        """Return the overrides of those tensors that have one, by position.

        Raises:
            ValueError: If an override matches no name.

        >>> Budget(overrides={"stem.*": 0.0}).override_shares(["stem.weight", "fc.weight"])
        {0: 0.0}
        """
        found = {pattern: matching(pattern, names) for pattern in self.overrides}
        for pattern, meant in found.items():
            if not meant:
                close = near(pattern, names) or names[:3]
                raise ValueError(f"overrides[{pattern!r}] matches no tensor; near names: {', '.join(close)}")
        # names that are written out come last and so count: first those of layers, from the outer to the inner ones
        written = [pattern for pattern in found if any(name.startswith(pattern) for name in found[pattern])]
        order = [pattern for pattern in found if pattern not in written] + sorted(written, key=len)
        share_of = {name: self.overrides[pattern] for pattern in order for name in found[pattern]}
        return {i: share_of[name] for i, name in enumerate(names) if name in share_of}

    def among(self, names: Sequence[str]) -> Budget:
        """Return the budget without the overrides that match none of the tensors, which may join later."""
        here = {pattern: share for pattern, share in self.overrides.items() if matching(pattern, names)}
        return replace(self, overrides=here)

    def _check_reachable(
        self, sizes: Sequence[TensorSize], total: int, low: Sequence[int], high: Sequence[int]
    ) -> None:
        weights = sum(size.numel for size in sizes)
        asked = f"{total} zeros of {weights} weights cannot be reached"
        if total > sum(high):
            held = _listed(sizes, high, [size.numel - n for size, n in zip(sizes, high, strict=True)])
            cause = f"by max_sparsity={self.max_sparsity}, what is pruned as one, or overrides"
            raise ValueError(f"{asked}: {sum(high)} at most. Capped {cause}: {held}")
        if total < sum(low):
            held = _listed(sizes, low, low)
            raise ValueError(f"{asked}: {sum(low)} at least. Set by overrides or zero already: {held}")


def as_budget(scope: Scope | Budget) -> Budget:
    """A budget, given as one or as its scope.

    >>> as_budget("erk")
    Budget(scope='erk', overrides={}, max_sparsity=None, normalize=None)
    """
    return scope if isinstance(scope, Budget) else Budget(scope)


def _listed(sizes: Sequence[TensorSize], limit: Sequence[int], weight: Sequence[int], most: int = 8) -> str:
    holding = sorted((i for i, held in enumerate(weight) if held), key=lambda i: -weight[i])
    return listing([f"{sizes[i].name} ({_in_units(sizes[i], limit[i])})" for i in holding], most)


def _in_units(size: TensorSize, weights: int) -> str:
    if size.unit == 1:
        return f"{weights} of {size.numel}"
    return f"{weights // size.unit} of {size.units} units of {size.unit} weights"


def _share(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name}={value!r} is no number; a share in [0, 1] is needed")
    share = float(value)
    if not 0 <= share <= 1:
        raise ValueError(f"{name}={value!r} is outside [0, 1]")
    return share


def _check_zeros(sizes: Sequence[TensorSize], zeros_now: Sequence[int]) -> None:
    if len(sizes) != len(zeros_now):
        raise ValueError(f"zeros_now has {len(zeros_now)} numbers for {len(sizes)} tensors")
    for size, zeros in zip(sizes, zeros_now, strict=True):
        if not 0 <= zeros <= size.numel:
            raise ValueError(f"{size.name}: {zeros} zeros now, of {size.numel} weights")


def _erk_weights(sizes: Sequence[TensorSize]) -> list[int]:
    """Weights kept are in proportion to these: eps * sum / prod of prod weights is eps * sum."""
    return [sum(size.shape) or 1 for size in sizes]


def _zeros(
    sizes: Sequence[TensorSize],
    total: float,
    weights: Sequence[int],
    low: Sequence[int],
    high: Sequence[int],
) -> list[float]:
    """Return zeros within bounds that sum to ``total``, where what is kept is proportional to ``weights``."""
    numels = [float(size.numel) for size in sizes]
    fewest = [n - most for n, most in zip(numels, high, strict=True)]
    most = [n - least for n, least in zip(numels, low, strict=True)]
    kept = _fill(sum(numels) - total, [0] * len(numels), weights, fewest, most)
    return [n - k for n, k in zip(numels, kept, strict=True)]


def _fill(
    total: float,
    offset: Sequence[float],
    slope: Sequence[float],
    low: Sequence[float],
    high: Sequence[float],
) -> list[float]:
    """Return ``offset + slope * level`` clamped to the bounds, at the level where they sum to ``total``.

    The sum rises with the level in straight pieces, which join where a term meets a bound. The piece that
    holds ``total`` is found among the joints; on it the level is a division.
    """

    def at(level: float) -> list[float]:
        line = zip(offset, slope, low, high, strict=True)
        return [min(max(o + s * level, least), most) for o, s, least, most in line]

    rising = [i for i, s in enumerate(slope) if s > 0]
    starts = {i: (low[i] - offset[i]) / slope[i] for i in rising}
    stops = {i: (high[i] - offset[i]) / slope[i] for i in rising}
    joints = sorted({*starts.values(), *stops.values()})
    if not joints:
        return at(0)
    found = bisect.bisect_left(joints, total, key=lambda level: math.fsum(at(level)))
    # At the last joint the sum may miss its bound by rounding errors.
    joint = joints[min(found, len(joints) - 1)]
    free = [i for i in rising if starts[i] < joint <= stops[i]]
    if not free:
        return at(joint)
    excess = math.fsum(at(joint)) - total
    return at(joint - excess / sum(slope[i] for i in free))
