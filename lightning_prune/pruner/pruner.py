"""One pruning event: from what is asked for to the new masks. Pure: nothing is changed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from torch import Tensor

from lightning_prune.prune.amounts import compute_nparams_to_prune
from lightning_prune.prune.checks import naming, require_maskable
from lightning_prune.prune.functional import global_masks
from lightning_prune.prune.kernels.grouped import grouped_keep_masks
from lightning_prune.prune.masks import AnyMethod, next_mask
from lightning_prune.prune.methods import L1Unstructured
from lightning_prune.prune.sharded.masks import on_whole_tensors
from lightning_prune.prune.sharded.tensors import holders_of
from lightning_prune.pruner.budgets import Budget, TensorSize
from lightning_prune.pruner.candidates import Candidate, candidates_of
from lightning_prune.pruner.channels import dropped_channels, kept_channels, require_channel_scores
from lightning_prune.pruner.granularity import Channels, Granularity, Grouped, Rows
from lightning_prune.pruner.method import Recipe
from lightning_prune.pruner.normalization import normalized
from lightning_prune.schedules.plan import Demand
from lightning_prune.targets.target import Target, refuse_divided
from lightning_prune.targets.unfit import refuse_unfit


@dataclass(frozen=True)
class Quota:
    """How much an event drops, of what is left.

    Attributes:
        count: Of all tensors together.
        least: At least so much of each.
        most: At most so much of each. Where that equals ``least``, the tensor is ranked by itself.
        in_weights: Whether numbers count weights where units differ in size between tensors; else units.
    """

    count: int
    least: list[int]
    most: list[int]
    in_weights: bool = False


class Room(NamedTuple):
    """Units of a tensor.

    Attributes:
        units: How many there are.
        dead: How many are gone.
        more: How many more the budget lets go.
    """

    units: int
    dead: int
    more: int


@dataclass(frozen=True)
class Pruner:
    """Turns demands into masks.

    Attributes:
        recipe: The pruning method.
        budget: How a demand spreads over the tensors.
        final: Target share of zeros at the end of the plan, ``None`` for amounts.
    """

    recipe: Recipe
    budget: Budget
    final: float | None = None

    @property
    def granularity(self) -> Granularity:
        """What is pruned as one."""
        return Rows() if self.budget.scope == "row" else self.recipe.granularity

    def masks(
        self,
        targets: Sequence[Target],
        demand: Demand,
        scores: Sequence[Tensor] | None = None,
        alive: Sequence[Tensor | None] | None = None,
    ) -> list[Tensor | None]:
        """The boolean masks (True = kept) of all targets after the event; ``None`` where nothing is pruned yet.

        Args:
            targets: All tensors that are pruned together.
            demand: What the event is asked for.
            scores: Importance of their entries, one tensor of its shape for each; the parameters by default.
            alive: Masks to start from instead of those that the tensors have.

        Raises:
            ValueError: If the demand cannot be met, or scores do not fit.
        """
        candidates = candidates_of(targets, scores, alive)
        if demand.sparsity is not None:
            return self._drop(candidates, self._quota_of_target(candidates, demand.sparsity))
        if demand.amount is not None:
            return self._drop(candidates, self._quota_of_amount(candidates, demand.amount))
        if self.budget.scope != "global":
            return [self._mask(c, None) for c in candidates]
        ranked = self._comparable(candidates)
        return [*self._seen_as_one(self.recipe.make(None), ranked)]

    def counted(self, targets: Sequence[Target]) -> list[Target]:
        """The tensors whose weights count for targets: all of them, unless biases and norms are masked along."""
        return list(targets)

    def slack(self, targets: Sequence[Target]) -> int:
        """How many weights rounding to whole units can miss a target by, at most."""
        return self.granularity.slack(targets)

    def among(self, targets: Sequence[Target]) -> Pruner:
        """Without the overrides of tensors that are not there yet."""
        return replace(self, budget=self.budget.among([t.name for t in targets]))

    def check(self, targets: Sequence[Target]) -> None:
        """Refuses, before anything is pruned, what an event would have to refuse later.

        Args:
            targets: All tensors that are pruned together.

        Raises:
            ValueError: If a tensor has no channels for a structured method or does not divide into blocks or groups,
                an override matches no tensor, the target at the end is out of reach, or a method cannot prune tensors
                together or takes no amount for an override.
            IndexError: If a tensor has not the dimension that counts its channels.
            TypeError: If a mask cannot be put on a tensor.
        """
        refuse_unfit(targets, self._check_tensor)
        self._check_method(targets)
        sizes = self._sizes(targets)
        if self.final is not None:
            self.budget.bounds(sizes, self.final, self.final, [0] * len(sizes))
        self.budget.override_shares([t.name for t in targets])

    def _check_tensor(self, target: Target) -> None:
        _require_prunable(target)
        self.granularity.check(target)

    def _check_method(self, targets: Sequence[Target]) -> None:
        cls, scope = self.recipe.cls, self.budget.scope
        if self.budget.overrides and not self.recipe.takes_amount:
            raise ValueError(
                f"overrides={dict(self.budget.overrides)} say how much to prune, which {cls.__name__} decides itself: "
                "choose tensors by parameters= and exclude=, or use a method that takes an amount"
            )
        if scope == "row" and cls is not L1Unstructured:
            raise ValueError(f"scope='row' compares single weights by 'l1_unstructured', not by {cls.__name__}")
        if scope == "global" and isinstance(self.granularity, Channels):
            require_channel_scores(self.recipe.make(0, self.granularity.dim(targets[0])))
        elif scope == "global" and (kind := getattr(cls, "PRUNING_TYPE", None)) != "unstructured":
            raise ValueError(f"{cls.__name__} of type {kind!r} cannot prune many tensors together: use scope='local'")
        if self.budget.normalize == "lamp" and self.recipe.signed:
            raise ValueError(
                "normalize='lamp' takes squares of scores, but these have signs: use 'l2', or leave it out"
            )

    def _sizes(self, targets: Iterable[Target]) -> list[TensorSize]:
        units = self.granularity
        return [TensorSize(t.name, tuple(t.parameter.shape), units.size(t), units.limit(t)) for t in targets]

    def _quota_of_target(self, candidates: Sequence[Candidate], sparsity: float) -> Quota:
        """What leads to a share of zeros among all weights."""
        zeros = [c.zeros for c in candidates]
        wanted = round(sparsity * sum(c.numel for c in candidates))
        if wanted <= sum(zeros):
            return Quota(0, [0] * len(zeros), [0] * len(zeros))
        sizes, final = self._sizes(c.target for c in candidates), max(sparsity, self.final or 0.0)
        if self.budget.scope != "global":
            after = self.budget.plan(sizes, sparsity, final, zeros)
            each = [self._units_to(c, n) for c, n in zip(candidates, after, strict=True)]
            return Quota(sum(each), each, each)
        low, high = self.budget.bounds(sizes, sparsity, final, zeros)
        quota = Quota(wanted - sum(zeros), _minus(low, zeros), _minus(high, zeros), in_weights=True)
        return quota if isinstance(self.granularity, Channels) else self._in_units(quota, sizes)

    def _units_to(self, candidate: Candidate, zeros: int) -> int:
        """How many units more have to go for a number of zeros, or for the nearest that whole units can give."""
        units, dead, most = self._room(candidate)
        return max(0, min(round(zeros * units / max(candidate.numel, 1)) - dead, most))

    def _room(self, candidate: Candidate) -> Room:
        target = candidate.target
        units, dead = self.granularity.units(target), self.granularity.dead(target, candidate.alive)
        return Room(units, dead, max(0, min(self.budget.cap(units), self.granularity.limit(target)) - dead))

    @staticmethod
    def _in_units(quota: Quota, sizes: Sequence[TensorSize]) -> Quota:
        """Numbers of units of one size, the same in all tensors, instead of weights."""
        size = sizes[0].unit
        if size == 1:
            return replace(quota, in_weights=False)
        least = [-(-n // size) for n in quota.least]
        most = [max(n // size, low) for n, low in zip(quota.most, least, strict=True)]
        return Quota(min(max(round(quota.count / size), sum(least)), sum(most)), least, most)

    def _quota_of_amount(self, candidates: Sequence[Candidate], amount: int | float) -> Quota:
        """An amount of what is left of each tensor, or of all together, up to what the budget lets go."""
        rooms = [self._room(c) for c in candidates]
        least, most, count = [0] * len(candidates), [room.more for room in rooms], 0
        together = self._together(candidates)
        for ranked, wanted, room in self._asked(candidates, rooms, amount, together):
            count += min(wanted, room)
            if ranked is not together:
                least[ranked[0]] = most[ranked[0]] = min(wanted, room)
        return Quota(count, least, most)

    def kept_back(self, targets: Sequence[Target], amount: int | float) -> list[str]:
        """What stays, in words, where an amount asks for more than the budget lets go.

        Args:
            targets: All tensors that are pruned together.
            amount: What the first event is asked for.

        Example:
            >>> from torch import nn
            >>> from lightning_prune.pruner.method import make_recipe
            >>> from lightning_prune.targets.select import select
            >>> pruner = Pruner(make_recipe("l1_unstructured", 2, None, None), Budget())
            >>> pruner.kept_back(select(nn.Linear(4, 8)), amount=1.0), pruner.kept_back(select(nn.Linear(4, 8)), 0.9)
            (["1 of 32 of 'weight'"], [])
        """
        candidates = candidates_of(targets)
        rooms = [self._room(c) for c in candidates]
        asked = self._asked(candidates, rooms, amount, self._together(candidates))
        short = {candidates[i].name: rooms[i] for ranked, wanted, more in asked if wanted > more for i in ranked}
        return [f"{r.units - r.dead - r.more:,} of {r.units:,} of '{name}'" for name, r in short.items()]

    def _together(self, candidates: Sequence[Candidate]) -> list[int]:
        """Which tensors are ranked as one, by position: none but for a global scope, and none with an override."""
        own = self.budget.override_shares([c.name for c in candidates])
        return [i for i in range(len(candidates)) if i not in own and self.budget.scope == "global"]

    def _asked(
        self, candidates: Sequence[Candidate], rooms: Sequence[Room], amount: int | float, together: list[int]
    ) -> Iterator[tuple[list[int], int, int]]:
        """What is ranked as one, by position; how many of its units an amount asks for, and how many may go."""
        own = self.budget.override_shares([c.name for c in candidates])
        for ranked in [together, *([i] for i in range(len(rooms)) if i not in together)]:
            left = sum(rooms[i].units - rooms[i].dead for i in ranked)
            share = own.get(ranked[0], amount) if ranked else amount
            yield ranked, compute_nparams_to_prune(share, left) if ranked else 0, sum(rooms[i].more for i in ranked)

    def _drop(self, candidates: Sequence[Candidate], quota: Quota) -> list[Tensor | None]:
        """The masks after a quota: single tensors' shares by themselves, what is free in one ranking."""
        masks = [c.alive for c in candidates]
        fixed = [i for i, (low, high) in enumerate(zip(quota.least, quota.most, strict=True)) if low >= high]
        for i in fixed:
            number = quota.least[i]
            units = self._units_to(candidates[i], number + candidates[i].zeros) if quota.in_weights else number
            masks[i] = self._mask(candidates[i], units)
        free = [i for i in range(len(masks)) if i not in fixed]
        count = quota.count - sum(quota.least[i] for i in fixed)
        together = self._ranked([candidates[i] for i in free], count, [quota.most[i] for i in free], quota.in_weights)
        for i, mask in zip(free, together, strict=True):
            masks[i] = mask
        return masks

    def _ranked(
        self, candidates: Sequence[Candidate], count: int, most: Sequence[int], in_weights: bool
    ) -> list[Tensor | None]:
        """The masks after ``count`` went over all tensors in one ranking, at most so much of each."""
        if not candidates or count <= 0:
            return [c.alive for c in candidates]
        if isinstance(self.granularity, Channels):
            return self._ranked_channels(candidates, count, most, in_weights)
        ranked = self._comparable(candidates)
        masks = self._mask_together(ranked, count)
        over = [i for i, (c, mask) in enumerate(zip(ranked, masks, strict=True)) if self._gone(c, mask) > most[i]]
        if not over:
            return masks
        rest = [i for i in range(len(ranked)) if i not in over]
        count -= sum(most[i] for i in over)
        others = self._ranked([candidates[i] for i in rest], count, [most[i] for i in rest], in_weights)
        found = dict(zip(rest, others, strict=True)) | {i: self._mask(candidates[i], most[i]) for i in over}
        return [found[i] for i in range(len(ranked))]

    def _gone(self, candidate: Candidate, mask: Tensor | None) -> int:
        units = self.granularity
        return units.dead(candidate.target, mask) - units.dead(candidate.target, candidate.alive)

    def _ranked_channels(
        self, candidates: Sequence[Candidate], count: int, most: Sequence[int], in_weights: bool
    ) -> list[Tensor | None]:
        dims = [self._dim(c) for c in candidates]
        methods = [self.recipe.make(0, dim) for dim in dims]
        dropped = dropped_channels(methods, candidates, dims, count, most, count_channels=not in_weights)
        return [kept_channels(c, dim, dead) for c, dim, dead in zip(candidates, dims, dropped, strict=True)]

    def _dim(self, candidate: Candidate) -> int:
        dim = self.granularity.dim(candidate.target)
        assert dim is not None
        return dim

    def _comparable(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """With scores that compare between tensors."""
        if self.budget.normalize is None:
            return list(candidates)
        return [c.scored(normalized(c.scores, c.alive, self.budget.normalize)) for c in candidates]

    def _mask(self, candidate: Candidate, units: int | None) -> Tensor | None:
        """The mask of one tensor after dropping so many more of its units, ``None`` = as many as the method likes."""
        if units is not None and units <= 0:
            return candidate.alive
        with naming(f"'{candidate.name}' of shape {candidate.shape}"):
            return self._mask_alone(candidate, units)

    def _mask_alone(self, candidate: Candidate, units: int | None) -> Tensor:
        if units is not None and isinstance(self.granularity, Grouped):
            return self._within_groups(self.granularity, [candidate], units)[0]
        method = self.recipe.make(units, self.granularity.dim(candidate.target))
        return next_mask(method, candidate.scores, candidate.alive)

    def _mask_together(self, candidates: Sequence[Candidate], units: int) -> list[Tensor | None]:
        """The masks of many tensors after dropping so many units, ranked as one."""
        if units <= 0:
            return [c.alive for c in candidates]
        if isinstance(self.granularity, Grouped):
            return [*self._within_groups(self.granularity, candidates, units)]
        return [*self._seen_as_one(self.recipe.make(units), candidates)]

    def _within_groups(self, units: Grouped, candidates: Sequence[Candidate], count: int) -> list[Tensor]:
        names, groupings = [c.name for c in candidates], [units.grouping(c.target) for c in candidates]

        def masks(scores: Sequence[Tensor], alive: Sequence[Tensor | None]) -> list[Tensor]:
            return grouped_keep_masks(scores, count, groupings, alive=alive, names=names, signed=self.recipe.signed)

        return on_whole_tensors(masks, [c.scores for c in candidates], [c.alive for c in candidates])

    def _seen_as_one(self, method: AnyMethod, candidates: Sequence[Candidate]) -> list[Tensor]:
        names = [c.name for c in candidates]
        return global_masks(method, [c.scores for c in candidates], [c.alive for c in candidates], names)


def _require_prunable(target: Target) -> None:
    refuse_divided(target)
    with naming(f"'{target.name}' cannot be pruned"):
        holders_of(target.parameter)
    for module, name in target.owners:
        with naming(f"'{target.name}' cannot be pruned"):
            require_maskable(module, name)


def _minus(counts: Sequence[int], zeros: Sequence[int]) -> list[int]:
    return [count - zero for count, zero in zip(counts, zeros, strict=True)]
