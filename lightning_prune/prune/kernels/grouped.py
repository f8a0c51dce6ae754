"""Selection of small entries that compete within groups: n of each m in a row, or all of an output's weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from lightning_prune.prune.kernels.signed import signed_keep_masks
from lightning_prune.prune.kernels.smallest import keep_masks


class Grouping(NamedTuple):
    """How the entries of a tensor form groups: dimension `source` moves to `destination`, then rows of `length`.

    >>> Grouping(1, -1, 2).split(torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8]])).tolist()
    [[1, 2], [3, 4], [5, 6], [7, 8]]
    """

    source: int
    destination: int
    length: int

    def split(self, t: Tensor) -> Tensor:
        """The entries as a matrix, one group in each row."""
        return t.movedim(self.source, self.destination).reshape(-1, self.length)

    def join(self, groups: Tensor, like: Tensor) -> Tensor:
        """The tensor of the shape of ``like`` whose groups these are."""
        shape = like.movedim(self.source, self.destination).shape
        return groups.reshape(shape).movedim(self.destination, self.source)


def grouped_keep_masks(
    scores: Sequence[Tensor],
    count: int,
    groupings: Sequence[Grouping],
    *,
    alive: Sequence[Tensor | None],
    names: Sequence[str] | None = None,
    signed: bool = False,
) -> list[Tensor]:
    """Mask out `count` entries over all tensors: all groups lose one before any loses another.

    An entry's level is how many of its group are smaller or already masked. Whole levels go one after another; of the
    last one, which goes in part, the smallest entries do. So groups are as equally full as `count` allows.

    Args:
        scores: Tensors of any shapes.
        count: How many living entries to drop.
        groupings: How each tensor is divided into groups.
        alive: For each tensor a mask of its shape, true where an entry takes part, or None if all do.
        names: Names of the tensors for error messages.
        signed: Rank by the scores themselves instead of by their magnitudes.

    Returns:
        One bool tensor for each score: True where the entry is kept.

    Raises:
        ValueError: If `count` is more than there are, or a living entry is NaN.

    Example:
        >>> weight = torch.tensor([[1.0, 2.0, 3.0, 4.0], [8.0, 7.0, 6.0, 5.0]])
        >>> grouped_keep_masks([weight], 4, [Grouping(1, -1, 4)], alive=[None])[0].int().tolist()
        [[0, 0, 1, 1], [1, 1, 0, 0]]
    """
    living = [torch.ones_like(s, dtype=torch.bool) if a is None else a for s, a in zip(scores, alive, strict=True)]
    levels = [_levels(s, a, g, signed) for s, a, g in zip(scores, living, groupings, strict=True)]
    upto = _sizes(levels, living).cumsum(0)
    last = int(torch.searchsorted(upto, count, right=True))
    count -= int(upto[last - 1]) if last else 0
    candidates = [a & (level == last) for a, level in zip(living, levels, strict=True)]
    rank = signed_keep_masks if signed else keep_masks
    kept = rank(scores, count, alive=candidates, names=names)
    return [part | (a & (level > last)) for part, a, level in zip(kept, living, levels, strict=True)]


def room_of(alive: Tensor | None, like: Tensor, grouping: Grouping, n: int) -> int:
    """How many entries may go until each group has `n` living ones left.

    Args:
        alive: Boolean mask, ``None`` = all live.
        like: The tensor.
        grouping: How it is divided.
        n: What each group keeps.

    Example:
        >>> alive = torch.tensor([[True, True, False, False], [True, True, True, True]])
        >>> room_of(alive, alive, Grouping(1, -1, 4), 2)
        2
    """
    if alive is None:
        return like.numel() // grouping.length * (grouping.length - n)
    return int((grouping.split(alive).sum(1) - n).clamp_min(0).sum())


def _levels(scores: Tensor, alive: Tensor, grouping: Grouping, signed: bool) -> Tensor:
    """For each entry how many of its group come before it: dead ones, smaller ones, of equal ones the earlier."""
    keys, living = grouping.split(scores if signed else scores.abs()), grouping.split(alive)
    order = keys.argsort(dim=1, stable=True)
    dead_first = living.gather(1, order).byte().argsort(dim=1, stable=True)
    order = order.gather(1, dead_first)
    places = torch.arange(grouping.length, device=scores.device).expand_as(order)
    return grouping.join(torch.empty_like(order).scatter_(1, order, places), scores)


def _sizes(levels: Sequence[Tensor], living: Sequence[Tensor]) -> Tensor:
    """Number of living entries of each level, over all tensors."""
    counts = [torch.bincount(level[a]).cpu() for level, a in zip(levels, living, strict=True)]
    total = torch.zeros(max((len(c) for c in counts), default=0), dtype=torch.int64)
    for c in counts:
        total[: len(c)] += c
    return total
