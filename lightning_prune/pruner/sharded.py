"""Pruning events of models whose parameters are split over ranks, as whole ones would be pruned.

Magnitudes are ranked exactly over all ranks, random choices are hashes of positions, and norms of channels are summed,
so no weight leaves its rank. A method of another kind is shown one whole tensor after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lightning_prune.distributed import require_same_masks, together
from lightning_prune.prune.kernels.hashing import stream
from lightning_prune.prune.kernels.smallest import keep_masks
from lightning_prune.prune.methods import L1Unstructured, LnStructured, RandomStructured, RandomUnstructured
from lightning_prune.prune.sharded.smallest import Entries, Hashes, Magnitudes, sharded_keep_masks
from lightning_prune.prune.sharded.tensors import cut, first_row, holders_of, is_sharded, local, split_like, whole
from lightning_prune.pruner.channels import channel_scores, kept_channels, living_channels
from lightning_prune.pruner.pruner import Pruner
from lightning_prune.targets.select import Target


@dataclass(frozen=True)
class ShardedPruner(Pruner):
    """A :class:`Pruner` for parameters that are ``DTensor``s split by rows; every rank has to call it.

    Its masks are split like the parameters. They are those of the whole tensors, but for random entries, which are
    other ones than in a single process, though the same for every number of ranks.
    """

    def check(self, targets: Sequence[Target]) -> None:
        """Refuses, besides what :meth:`Pruner.check` refuses, what cannot be pruned in parts.

        Args:
            targets: All tensors that are pruned together.

        Raises:
            ValueError: If a tensor is not split by rows, or not over the same ranks as the others; if scores are to be
                normalized; or if a method of another kind is to prune all tensors together.
        """
        super().check(targets)
        first = next(t for t in targets if is_sharded(t.parameter))
        for target in targets:
            _require_rows(target, first)
        if self.budget.normalize is not None:
            raise ValueError(f"normalize={self.budget.normalize!r} is not there for sharded models: leave it out")
        if self.budget.scope == "global" and not (self.recipe.structured or self._ranks_entries):
            raise ValueError(
                f"{self.recipe.cls.__name__} would have to see all tensors of a sharded model at once: use "
                "scope='local', 'l1_unstructured' or 'random_unstructured'"
            )

    @property
    def _ranks_entries(self) -> bool:
        return self.recipe.cls in (L1Unstructured, RandomUnstructured)

    def _computed(self, target: Target, count: int | float | None, weight: Tensor, alive: Tensor | None) -> Tensor:
        if self._ranks_entries:
            return self._smallest([target], int(count or 0))[0]
        if self.recipe.cls in (LnStructured, RandomStructured):
            return self._fewer_channels(target, int(count or 0))
        weight_of_all, alive_of_all = whole(weight), None if alive is None else whole(alive)
        with together():
            mask = super()._computed(target, count, weight_of_all, alive_of_all)
        require_same_masks({target.name: mask})
        return cut(mask, weight)

    def _rank(
        self, targets: Sequence[Target], scores: Sequence[Tensor], which: Sequence[int], count: int
    ) -> list[Tensor | None]:
        if count <= 0 or not which:
            return [targets[i].alive for i in which]
        return [*self._smallest([targets[i] for i in which], count)]

    def _smallest(self, targets: Sequence[Target], count: int) -> list[Tensor]:
        """The masks without the ``count`` least important entries, over all targets."""
        parameters = [t.parameter for t in targets]
        entries = self._hashes(targets) if self.recipe.cls is RandomUnstructured else _magnitudes(targets)
        masks = sharded_keep_masks(entries, count, holders_of(parameters[0]), names=[t.name for t in targets])
        return [split_like(m.view(local(p).shape), p.detach()) for m, p in zip(masks, parameters, strict=True)]

    def _hashes(self, targets: Sequence[Target]) -> list[Entries]:
        salt = int(torch.randint(2**62, ()))  # from the generator that the event has seeded alike on every rank
        entries: list[Entries] = []
        for target in targets:
            part = local(target.parameter.detach())
            first = first_row(target.parameter) * (target.parameter.numel() // max(1, target.parameter.shape[0]))
            entries.append(Hashes(_living(target), part.numel(), first, stream(f"{salt}:{target.name}"), part.device))
        return entries

    def _fewer_channels(self, target: Target, count: int) -> Tensor:
        dim = self.recipe.channel_dim(target)
        method, living = self.recipe.make(count, dim), living_channels(target, dim)
        scores = channel_scores(method, target, dim)
        dropped = living & ~keep_masks([scores], count, alive=[living], names=[target.name])[0]
        mask = kept_channels(target, dim, dropped)
        assert mask is not None
        return mask


def _living(target: Target) -> Tensor | None:
    return None if target.alive is None else local(target.alive).reshape(-1)


def _magnitudes(targets: Sequence[Target]) -> list[Entries]:
    double = any(t.parameter.dtype in (torch.float64, torch.complex128) for t in targets)
    dtype = torch.float64 if double else torch.float32
    parts = [local(t.parameter.detach()).reshape(-1) for t in targets]
    return [Magnitudes(_living(t), p.numel(), p, dtype) for t, p in zip(targets, parts, strict=True)]


def _require_rows(target: Target, first: Target) -> None:
    if not is_sharded(target.parameter):
        raise ValueError(
            f"'{target.name}' is not sharded, but '{first.name}' is: shard all that is pruned, or exclude it"
        )
    try:
        same = holders_of(target.parameter) == holders_of(first.parameter)
    except ValueError as error:
        raise ValueError(f"'{target.name}' cannot be pruned: {error}") from error
    if not same:
        raise ValueError(
            f"'{target.name}' is sharded over other ranks than '{first.name}': prune them by two callbacks"
        )
