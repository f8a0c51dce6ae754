"""Masks after the smallest weights were dropped and as many masked ones came back, in two passes over a tensor.

As in :mod:`lightning_prune.prune.kernels.smallest` a strided sample brackets each threshold, one pass writes what lies
above the bracket and collects the few entries within it, and those are ranked exactly. Here it is done for one tensor
whose memory is one run of numbers on a CPU, without an inverted mask: what comes back is written over what stays.
Everything else, and a sample that misleads, is left to the general selection.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from lightning_prune.prune.kernels.arrays import (
    Array,
    as_array,
    count_true,
    empty_like,
    living_entries,
    not_at_most,
    positions,
)
from lightning_prune.prune.kernels.random import random_keep_masks
from lightning_prune.prune.kernels.signed import signed_keep_masks
from lightning_prune.prune.kernels.smallest import all_but_smallest, bracket_of, coprime_from, keep_masks, sample_step

_PIECE = 1 << 19  # entries
_SMALL = 1 << 14  # candidates: for fewer the general selection is as fast
_DTYPES = (torch.float32, torch.float64)


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
    """The mask after the smallest weights were dropped and as many masked ones came back.

    Of equal weights the first ones are dropped, of equal scores the last ones come back.

    Args:
        weight: A tensor.
        alive: Its boolean mask (True = kept).
        scores: Of its shape; those with the largest come back. ``None``: random ones do.
        count: How many weights move; at most as many as are left, and with ``strict`` as are masked.
        strict: Whether those that are dropped now cannot come back now.
        signed: Whether scores are ranked with their signs instead of their magnitude.
        name: For messages.

    Returns:
        A boolean mask with as many zeros as before.

    Raises:
        ValueError: If a weight that is left, or a score of a masked one, is NaN.

    Example:
        >>> weight, alive = torch.tensor([3.0, 1.0, 0.0, 0.0]), torch.tensor([True, True, False, False])
        >>> moved_mask(weight, alive, torch.tensor([9.0, 9.0, 1.0, 2.0]), 1)
        tensor([ True, False, False,  True])
        >>> moved_mask(weight, alive, torch.tensor([9.0, 9.0, 1.0, 2.0]), 1, strict=False)
        tensor([ True,  True, False, False])
    """
    living = living_entries(alive)
    stay = _largest(weight, alive, living, living - count)
    if stay is None:
        stay = keep_masks([weight], count, alive=[alive], names=[f"'{name}'"])[0]
    taken, candidates = (alive, weight.numel() - living) if strict else (stay, weight.numel() - living + count)
    if scores is None:
        return random_keep_masks([weight], candidates - count, alive=[~taken])[0].logical_or_(stay)
    moved = None if signed else _largest(scores, taken, candidates, count, but=True, besides=stay)
    if moved is None:
        rank = signed_keep_masks if signed else keep_masks
        grown = rank([scores], candidates - count, alive=[~taken], names=[f"scores of '{name}'"])[0]
        moved = grown.logical_or_(stay)
    return moved


def _largest(
    values: Tensor, alive: Tensor, living: int, count: int, but: bool = False, besides: Tensor | None = None
) -> Tensor | None:
    """The mask of the `count` entries of largest magnitude among some; of equal ones the last.

    Args:
        values: Any tensor.
        alive: Which entries take part.
        living: Their number.
        count: How many are kept.
        but: The other entries take part instead.
        besides: What is kept, too.

    Returns:
        ``None`` if it has to be found in another way.
    """
    tensors = [values, alive] if besides is None else [values, alive, besides]
    if not 0 < count < living or living < _SMALL or not all(map(_is_run, tensors)) or values.dtype not in _DTYPES:
        return None
    mask = empty_like(values, torch.bool)
    numbers, part, *more = (as_array(tensor.detach().view(-1)) for tensor in tensors)
    search = _Search(numbers, part, but, living, living - count)
    found = search.fill(as_array(mask.view(-1)), more[0] if more else None)
    return mask if found else None


def _is_run(tensor: Tensor) -> bool:
    return tensor.is_cpu and type(tensor.detach()) is Tensor and tensor.is_contiguous() and not tensor.is_neg()


class _Search:
    """The threshold below which `dropped` of the entries that take part lie."""

    def __init__(self, numbers: Array, part: Array, but: bool, living: int, dropped: int) -> None:
        self._numbers, self._part, self._living, self._dropped = numbers, part, living, dropped
        self._but = but
        self._among = np.greater if but else np.logical_and  # of two conditions: the first and not the second

    def fill(self, mask: Array, besides: Array | None) -> bool:
        """Writes the mask; tells whether the sample's bracket has the threshold in it."""
        low, high = self._bracket()
        size = min(_PIECE, self._numbers.size)
        magnitudes, conditions = np.empty(size, self._numbers.dtype), np.empty(size, np.bool_)
        places, values, upto = [], [], self._living
        for start in range(0, self._numbers.size, size):
            here = slice(start, start + size)
            part, keep = self._part[here], mask[here]
            magnitude = np.absolute(self._numbers[here], out=magnitudes[: part.size])
            above = not_at_most(magnitude, low, conditions[: part.size])
            np.greater(magnitude, high, out=keep)
            between = np.bitwise_xor(above, keep, out=above)
            self._among(keep, part, out=keep)
            found = positions(between if low >= 0 else self._among(between, part, out=between))
            if low >= 0:
                found = found[part.take(found) != self._but]
            upto -= count_true(keep) + found.size
            values.append(magnitude[found])
            places.append(found + start)
            if besides is not None:
                np.logical_or(keep, besides[here], out=keep)
        return self._decide(np.concatenate(places), np.concatenate(values), self._dropped - upto, mask)

    def _decide(self, places: Array, values: Array, dropped: int, mask: Array) -> bool:
        """Keeps all but the first `dropped` of the stable order of what lies between."""
        if not 0 < dropped <= values.size or np.isnan(values).any():
            return False
        mask[places[all_but_smallest(values, dropped)]] = True
        return True

    def _bracket(self) -> tuple[float, float]:
        step = coprime_from(sample_step(self._numbers.size), self._numbers.size)
        drawn = np.absolute(self._numbers[step // 2 :: step])
        drawn = drawn[self._among(np.ones(drawn.size, np.bool_), self._part[step // 2 :: step])]
        return bracket_of(drawn, self._dropped / self._living)
