"""One pruning event: from what is asked for to the new masks. Pure: nothing is changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from lightning_prune.prune.amounts import compute_nparams_to_prune
from lightning_prune.prune.attribute import Layout
from lightning_prune.prune.checks import naming, require_prunable
from lightning_prune.prune.functional import global_masks
from lightning_prune.prune.masks import next_mask
from lightning_prune.prune.sharded.tensors import dead_entries, holders_of
from lightning_prune.pruner.budgets import Budget, TensorSize
from lightning_prune.pruner.channels import channel_counts, global_channels, kept_channels, require_channel_scores
from lightning_prune.pruner.method import Recipe
from lightning_prune.pruner.normalization import normalized
from lightning_prune.schedules.plan import Demand
from lightning_prune.targets.target import Target, refuse_divided


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

    def masks(self, targets: Sequence[Target], demand: Demand) -> list[Tensor | None]:
        """The boolean masks (True = kept) of all targets after the event; ``None`` where nothing is pruned yet.

        Args:
            targets: All tensors that are pruned together.
            demand: What the event is asked for.

        Raises:
            ValueError: If the demand cannot be met.
        """
        if demand.sparsity is None:
            return self._by_amount(targets, demand.amount)
        zeros = [t.zeros for t in targets]
        wanted = round(demand.sparsity * sum(t.parameter.numel() for t in targets))
        if wanted <= sum(zeros):
            return [t.alive for t in targets]
        sizes = _sizes(targets)
        final = max(demand.sparsity, self.final or 0.0)
        if self.budget.scope == "global":
            low, high = self.budget.bounds(sizes, demand.sparsity, final, zeros)
            return self._global(targets, wanted - sum(zeros), _minus(low, zeros), _minus(high, zeros))
        after = self.budget.plan(sizes, demand.sparsity, final, zeros)
        return [self._to_zeros(t, count) for t, count in zip(targets, after, strict=True)]

    def among(self, targets: Sequence[Target]) -> Pruner:
        """Without the overrides of tensors that are not there yet."""
        return replace(self, budget=self.budget.among([t.name for t in targets]))

    def check(self, targets: Sequence[Target]) -> None:
        """Refuses, before anything is pruned, what an event would have to refuse later.

        Args:
            targets: All tensors that are pruned together.

        Raises:
            ValueError: If a tensor has no channels for a structured method, an override matches no tensor, the
                target at the end is out of the budget's reach, or a method cannot prune tensors together.
            IndexError: If a tensor has not the dimension that counts its channels.
            TypeError: If a mask cannot be put on a tensor.
        """
        for target in targets:
            _require_prunable(target)
        if self.recipe.structured:
            for target in targets:
                self.recipe.channel_dim(target)
        if self.budget.scope == "global":
            self._check_together(targets)
        sizes = _sizes(targets)
        if self.final is not None:
            self.budget.bounds(sizes, self.final, self.final, [0] * len(sizes))
        self.budget.override_shares([t.name for t in targets])

    def _check_together(self, targets: Sequence[Target]) -> None:
        kind = getattr(self.recipe.cls, "PRUNING_TYPE", None)
        if self.recipe.structured:
            require_channel_scores(self.recipe.make(0, self.recipe.channel_dim(targets[0])))
        elif kind != "unstructured":
            raise ValueError(
                f"{self.recipe.cls.__name__} of type {kind!r} cannot prune many tensors together: use scope='local'"
            )

    def _to_zeros(self, target: Target, zeros: int) -> Tensor | None:
        """The mask of one tensor with that many zeros, or the nearest number that whole channels can give."""
        if self.recipe.structured:
            dim = self.recipe.channel_dim(target)
            channels, dead = channel_counts(target, dim)
            wanted = round(zeros * channels / target.parameter.numel())
            return self._local(target, min(wanted, self.budget.cap(channels)) - dead)
        return self._local(target, zeros - target.zeros)

    def _local(self, target: Target, count: int | float | None) -> Tensor | None:
        """The mask of one tensor after dropping ``count`` more of its units."""
        if count is not None and count <= 0:
            return target.alive
        with naming(f"'{target.name}' of shape {tuple(target.parameter.shape)}"):
            return self._computed(target, count, target.parameter.detach(), target.alive)

    def _computed(self, target: Target, count: int | float | None, weight: Tensor, alive: Tensor | None) -> Tensor:
        dim = self.recipe.channel_dim(target) if self.recipe.structured else None
        return next_mask(self.recipe.make(count, dim), weight, alive)

    def _by_amount(self, targets: Sequence[Target], amount: int | float | None) -> list[Tensor | None]:
        overridden = self.budget.override_shares([t.name for t in targets])
        own = {i: self._of_left(targets[i], share) for i, share in overridden.items()}
        others = [i for i in range(len(targets)) if i not in own]
        if self.budget.scope != "global":
            own.update({i: self._of_left(targets[i], amount) for i in others})
            return [own[i] for i in range(len(targets))]
        together = [targets[i] for i in others]
        masks = self._decided_together(together) if amount is None else self._global_amount(together, amount)
        own.update(dict(zip(others, masks, strict=True)))
        return [own[i] for i in range(len(targets))]

    def _decided_together(self, targets: Sequence[Target]) -> list[Tensor | None]:
        """The masks of a method that takes no amount and sees all tensors as one."""
        scores = [normalized(t.parameter.detach(), t.alive, self.budget.normalize) for t in targets]
        masks = global_masks(self.recipe.make(None), scores, [t.alive for t in targets], [t.name for t in targets])
        return list(masks)

    def _of_left(self, target: Target, amount: int | float | None) -> Tensor | None:
        """The mask of one tensor after an amount of what is left of it, up to what the budget lets go."""
        if amount is None:
            return self._local(target, None)
        units, dead = self._units(target)
        return self._local(target, min(compute_nparams_to_prune(amount, units - dead), self.budget.cap(units) - dead))

    def _units(self, target: Target) -> tuple[int, int]:
        if self.recipe.structured:
            return channel_counts(target, self.recipe.channel_dim(target))
        return target.parameter.numel(), target.zeros

    def _global_amount(self, targets: Sequence[Target], amount: int | float) -> list[Tensor | None]:
        units = [self._units(t) for t in targets]
        count = compute_nparams_to_prune(amount, sum(total - dead for total, dead in units))
        room = [self.budget.cap(total) - dead for total, dead in units]
        if self.recipe.structured:
            return self._structured(targets, sum(room) if count > sum(room) else count, room, count_channels=True)
        return self._global(targets, min(count, sum(room)), [0] * len(targets), room)

    def _global(
        self, targets: Sequence[Target], count: int, least: Sequence[int], most: Sequence[int]
    ) -> list[Tensor | None]:
        """Drops ``count`` more over all targets in one ranking, at least and at most so many of each."""
        if self.recipe.structured:
            return self._structured(targets, count, most, count_channels=False)
        scores = [normalized(t.parameter.detach(), t.alive, self.budget.normalize) for t in targets]
        masks: list[Tensor | None] = [t.alive for t in targets]
        free = [i for i in range(len(targets)) if least[i] < most[i]]
        fixed = {i: least[i] for i in range(len(targets)) if i not in free}
        while True:
            for i, number in fixed.items():
                masks[i] = self._rank(targets, scores, [i], number)[0]
            count -= sum(fixed.values())
            ranked = self._rank(targets, scores, free, count)
            fixed = {i: most[i] for i, mask in zip(free, ranked, strict=True) if _dropped(targets[i], mask) > most[i]}
            if not fixed:
                break
            free = [i for i in free if i not in fixed]
        for i, mask in zip(free, ranked, strict=True):
            masks[i] = mask
        return masks

    def _rank(
        self, targets: Sequence[Target], scores: Sequence[Tensor], which: Sequence[int], count: int
    ) -> list[Tensor | None]:
        if count <= 0 or not which:
            return [targets[i].alive for i in which]
        chosen = [targets[i] for i in which]
        method = self.recipe.make(count)
        masks: list[Tensor | None] = []
        masks += global_masks(method, [scores[i] for i in which], [t.alive for t in chosen], [t.name for t in chosen])
        return masks

    def _structured(
        self, targets: Sequence[Target], count: int, room: Sequence[int], count_channels: bool
    ) -> list[Tensor | None]:
        dims = [self.recipe.channel_dim(t) for t in targets]
        methods = [self.recipe.make(0, dim) for dim in dims]
        dropped = global_channels(methods, targets, dims, count, room, count_channels)
        return [kept_channels(t, dim, dead) for t, dim, dead in zip(targets, dims, dropped, strict=True)]


def _require_prunable(target: Target) -> None:
    refuse_divided(target)
    with naming(f"'{target.name}' cannot be pruned"):
        holders_of(target.parameter)
    for module, name in target.owners:
        with naming(f"'{target.name}' cannot be pruned"):
            require_prunable(module, name, Layout.KEPT)


def _sizes(targets: Sequence[Target]) -> list[TensorSize]:
    return [TensorSize(t.name, tuple(t.parameter.shape)) for t in targets]


def _minus(counts: Sequence[int], zeros: Sequence[int]) -> list[int]:
    return [count - zero for count, zero in zip(counts, zeros, strict=True)]


def _dropped(target: Target, mask: Tensor | None) -> int:
    return 0 if mask is None else dead_entries(mask) - target.zeros
