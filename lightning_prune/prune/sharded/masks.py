"""New masks of tensors of which all or some are split over ranks, ranked together as whole ones would be."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from lightning_prune.prune.kernels import moving
from lightning_prune.prune.kernels.hashing import stream
from lightning_prune.prune.kernels.random import random_keep_masks
from lightning_prune.prune.kernels.sharing import ALONE, Sharing
from lightning_prune.prune.kernels.signed import signed_keep_masks
from lightning_prune.prune.sharded.agreement import together
from lightning_prune.prune.sharded.ranks import OverRanks, lowest, several_ranks
from lightning_prune.prune.sharded.smallest import sharded_keep_masks
from lightning_prune.prune.sharded.tensors import (
    box_of,
    cut,
    dead_entries,
    holders_of,
    is_sharded,
    local,
    split_like,
    whole,
)


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


def signed_masks(
    scores: Sequence[Tensor], count: int, alive: Sequence[Tensor | None], names: Sequence[str] | None = None
) -> list[Tensor]:
    """The masks without the ``count`` smallest entries with their signs, negative ones first.

    Scores in single precision or less are ranked where they lie; in double precision all ranks see whole tensors.

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
    if any(score.dtype == torch.float64 for score in scores):
        return on_whole_tensors(lambda s, a: signed_keep_masks(s, count, alive=a, names=names), scores, alive)
    keys = [split_like(_order(local(score)), score) for score in scores]
    return magnitude_masks(keys, count, alive, names)


def moved_mask(
    weight: Tensor,
    alive: Tensor,
    scores: Tensor | None,
    count: int,
    *,
    strict: bool = True,
    signed: bool = False,
    name: str = "weight",
) -> Tensor:
    """The mask after the smallest weights were dropped and as many masked ones came back, as of a whole tensor.

    Args:
        weight: Plain or split; every rank has to call it for a split one.
        alive: Its boolean mask, split like it.
        scores: Split like it; see :func:`lightning_prune.prune.kernels.moving.moved_mask`.
        count: How many weights move, over all ranks.
        strict: Whether those that are dropped now cannot come back now.
        signed: Whether scores are ranked with their signs.
        name: For messages.

    Returns:
        A boolean mask, split like the weight.

    Raises:
        ValueError: On every rank, if a weight that is left, or a score of a masked one, is NaN.
    """
    if not is_sharded(weight):
        return moving.moved_mask(weight, alive, scores, count, strict=strict, signed=signed, name=name)
    stay = magnitude_masks([weight], count, [alive], [f"'{name}'"])[0]
    taken = alive if strict else stay
    masked, dropped = [split_like(~local(taken), weight)], dead_entries(taken) - count
    if scores is None:
        grown = random_masks([weight], dropped, masked)[0]
    else:
        grown = (signed_masks if signed else magnitude_masks)([scores], dropped, masked, [f"scores of '{name}'"])[0]
    return split_like(local(grown).logical_or_(local(stay)), weight)


def both(mask: Tensor, other: Tensor) -> Tensor:
    """A new mask of what two masks keep that are split alike."""
    return split_like(torch.logical_and(local(mask), local(other)), mask)


def _order(values: Tensor) -> Tensor:
    """Numbers of zero and above in the order of some values, which float64 holds exactly."""
    bits = (values.float() + 0.0).view(torch.int32).long()  # 0.0 makes a zero of the negative one
    keys = torch.where(bits < 0, -(bits & 0x7FFFFFFF), bits).double() + 2.0**31
    return keys.masked_fill_(values.isnan(), torch.nan)


def on_whole_tensors(
    compute: Callable[[Sequence[Tensor], Sequence[Tensor | None]], list[Tensor]],
    scores: Sequence[Tensor],
    alive: Sequence[Tensor | None],
) -> list[Tensor]:
    """Masks that are computed from whole tensors, split like the scores.

    Args:
        compute: Gives boolean masks for scores and masks so far.
        scores: Plain or split tensors; every rank has to call it for split ones.
        alive: Boolean masks, split like the scores; ``None`` = all.
    """
    if not any(map(is_sharded, scores)):
        return compute(scores, alive)
    everything = [whole(score) for score in scores]
    living = [None if mask is None else whole(mask) for mask in alive]
    with together():
        masks = compute(everything, living)
    return [cut(mask, score) for mask, score in zip(masks, scores, strict=True)]


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
