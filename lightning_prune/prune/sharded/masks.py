"""New masks of tensors of which all or some are split over ranks, ranked together as whole ones would be."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from lightning_prune.prune.kernels.hashing import stream
from lightning_prune.prune.kernels.random import random_keep_masks
from lightning_prune.prune.kernels.sharing import ALONE, Sharing
from lightning_prune.prune.sharded.ranks import OverRanks, lowest, several_ranks
from lightning_prune.prune.sharded.smallest import sharded_keep_masks
from lightning_prune.prune.sharded.tensors import box_of, holders_of, local, split_like


def magnitude_masks(
    scores: Sequence[Tensor], count: int, alive: Sequence[Tensor | None], names: Sequence[str] | None = None
) -> list[Tensor]:
    """The masks without the ``count`` entries of smallest magnitude, as those of whole tensors.

    Args:
        scores: Plain tensors, which every rank holds, and split ones. Every rank has to call it.
        count: How many living entries to drop, over all tensors.
        alive: Boolean masks, split like the scores; ``None`` = all.
        names: Names of the tensors for messages.

    Returns:
        Boolean masks, split like the scores.

    Raises:
        ValueError: On every rank, if there are not as many living entries, or a living one is NaN.
    """
    parts, living = [local(score) for score in scores], [_local(mask) for mask in alive]
    boxes = [box_of(score) for score in scores]
    masks = sharded_keep_masks(parts, count, alive=living, boxes=boxes, sharing=_sharing(scores), names=names)
    return [split_like(mask, score) for mask, score in zip(masks, scores, strict=True)]


def random_masks(
    like: Sequence[Tensor], count: int, alive: Sequence[Tensor | None], generator: torch.Generator | None = None
) -> list[Tensor]:
    """The masks without ``count`` random entries: those of whole tensors with the seed that rank 0 has.

    Args:
        like: Plain tensors, which every rank holds, and split ones. Every rank has to call it.
        count: How many living entries to drop, over all tensors.
        alive: Boolean masks, split like the tensors; ``None`` = all.
        generator: Source of the seed; torch's global one by default.

    Returns:
        Boolean masks, split like the tensors.
    """
    boxes, sharing = [box_of(tensor) for tensor in like], _sharing(like)
    parts, living = [local(tensor) for tensor in like], [_local(mask) for mask in alive]
    masks = random_keep_masks(parts, count, alive=living, generator=generator, boxes=boxes, sharing=sharing)
    return [split_like(mask, tensor) for mask, tensor in zip(masks, like, strict=True)]


def _local(mask: Tensor | None) -> Tensor | None:
    return None if mask is None else local(mask)


def _sharing(tensors: Sequence[Tensor]) -> Sharing:
    """The ranks, of which the lowest counts a slice that several hold."""
    if not several_ranks():
        return ALONE
    ranks = dist.get_world_size()
    if all(holders_of(tensor).size == ranks for tensor in tensors):
        return OverRanks((True,) * len(tensors))
    return OverRanks(lowest([stream(str(box_of(tensor))) for tensor in tensors]))
