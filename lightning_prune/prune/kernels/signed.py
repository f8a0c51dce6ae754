"""Exact selection of the smallest entries of many tensors with their signs, by two selections of magnitudes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lightning_prune.prune.kernels.arrays import as_array, count_true
from lightning_prune.prune.kernels.pieces import checked_alive
from lightning_prune.prune.kernels.smallest import keep_masks


def signed_keep_masks(
    scores: Sequence[Tensor],
    count: int,
    *,
    alive: Sequence[Tensor | None] | None = None,
    names: Sequence[str] | None = None,
) -> list[Tensor]:
    """Mask out the `count` smallest entries over all tensors together, negative ones first.

    The result equals that of a stable sort of the scores themselves, as :func:`keep_masks` does of their magnitudes.
    Negative scores with the largest magnitude go first; only when none is left, others with the smallest.

    Args:
        scores: Real tensors of any shapes and floating dtypes. They are read, never changed.
        count: How many living entries to drop, over all tensors.
        alive: For each tensor a mask of its shape, true where an entry takes part, or None if all do.
        names: Names of the tensors for error messages. Default: their index.

    Returns:
        One bool tensor for each score: True where the entry is kept.

    Raises:
        ValueError: If `count` is negative or more than the number of living entries, if a living entry is NaN, if a
            score is complex, or if the masks do not fit the scores.

    Example:
        >>> [mask.tolist() for mask in signed_keep_masks([torch.tensor([-5.0, 1.0, 2.0, -0.5])], 2)]
        [[False, True, True, False]]
    """
    scores = [score.detach() for score in scores]
    if any(score.is_complex() for score in scores):
        raise ValueError("complex scores have no order: give real ones")
    alive = checked_alive(scores, alive)
    negative = [_among(score < 0, mask) for score, mask in zip(scores, alive, strict=True)]
    number = sum(count_true(as_array(below)) for below in negative)
    if count < 0 or not number:
        return keep_masks(scores, count, alive=alive, names=names)
    # NaN is not below zero, so it is among these and refused by name
    others = [_among(~below, mask) for below, mask in zip(negative, alive, strict=True)]
    kept = keep_masks(scores, max(count - number, 0), alive=others, names=names)
    if number <= count:
        return kept
    # what is kept of the negative ones are the smallest magnitudes; of equal ones the last, so from behind
    backwards = [_flipped(score) for score in reversed(scores)]
    flipped = [_flipped(below) for below in reversed(negative)]
    dropped = keep_masks(backwards, number - count, alive=flipped)
    spared = [below & ~_flipped(mask) for below, mask in zip(negative, reversed(dropped), strict=True)]
    return [mask.logical_or_(more) for mask, more in zip(kept, spared, strict=True)]


def _among(condition: Tensor, alive: Tensor | None) -> Tensor:
    return condition if alive is None else condition.logical_and_(alive)


def _flipped(tensor: Tensor) -> Tensor:
    return torch.flip(tensor, tuple(range(tensor.dim())))
