"""Masks after the smallest weights were dropped and as many masked ones came back, in two passes over a tensor.

What moves are the few smallest of what is left and the few largest of what is masked. As in
:mod:`lightning_prune.prune.kernels.smallest` a strided sample brackets each threshold; one pass collects what lies on
its side, and only what lies within the bracket is ranked. Here it is done for one tensor whose memory is one run of
numbers on a CPU. Everything else, and a sample that misleads, is left to the general selection.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from lightning_prune.prune.kernels.arrays import (
    Array,
    Scratch,
    as_array,
    count_true,
    empty_like,
    living_entries,
    not_at_most,
    positions,
    put,
    remembered,
)
from lightning_prune.prune.kernels.random import random_keep_masks
from lightning_prune.prune.kernels.signed import signed_keep_masks
from lightning_prune.prune.kernels.smallest import all_but_smallest, bracket_of, coprime_from, keep_masks, sample_step

_PIECE = 1 << 19  # entries
_SMALL = 1 << 14  # candidates: for fewer the general selection is as fast
_NAMES = {4: torch.float32, 8: torch.float64}
_DTYPES = tuple(_NAMES.values())


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
    stay = _without_smallest(weight, alive, living, count)
    if stay is None:
        stay = keep_masks([weight], count, alive=[alive], names=[f"'{name}'"])[0]
    taken, candidates = (alive, weight.numel() - living) if strict else (stay, weight.numel() - living + count)
    if scores is None:
        return random_keep_masks([weight], candidates - count, alive=[~taken])[0].logical_or_(stay)
    places = None if signed else _outermost(scores, taken, candidates, count, smallest=False)
    if places is None:
        rank = signed_keep_masks if signed else keep_masks
        grown = rank([scores], candidates - count, alive=[~taken], names=[f"scores of '{name}'"])[0]
        return grown.logical_or_(stay)
    put(stay, places, True)
    remembered(stay, living)
    return stay


def _without_smallest(weight: Tensor, alive: Tensor, living: int, count: int) -> Tensor | None:
    """A new mask without the smallest of what is left; ``None`` if it has to be found in another way."""
    places = _outermost(weight, alive, living, count, smallest=True)
    if places is None:
        return None
    stay = empty_like(weight, torch.bool).copy_(alive)
    put(stay, places, False)
    return stay


def _outermost(values: Tensor, flags: Tensor, number: int, count: int, smallest: bool) -> Array | None:
    """The places of the `count` smallest magnitudes where flags are True, or of the largest where they are False.

    Of equal ones the first are the smallest.

    Args:
        values: Any tensor.
        flags: Boolean, its shape.
        number: How many entries take part.
        count: How many are looked for.
        smallest: Which end.

    Returns:
        ``None`` if they have to be found in another way.
    """
    runs = _is_run(values) and _is_run(flags) and values.dtype in _DTYPES
    if not 0 < count < number or number < _SMALL or not runs:
        return None
    numbers, among = (as_array(tensor.detach().view(-1)) for tensor in (values, flags))
    low, high = _bracket(numbers, among, count / number, smallest)
    found = _collected(numbers, among, high if smallest else low, smallest)
    if found is None:
        return None
    places, magnitudes = found
    chosen = magnitudes <= low if smallest else magnitudes > high
    rest = np.flatnonzero(~chosen)
    wanted = count - count_true(chosen)
    if not 0 < wanted < rest.size or np.isnan(magnitudes).any():
        return None
    larger = all_but_smallest(magnitudes[rest], wanted if smallest else rest.size - wanted)
    chosen[rest] = ~larger if smallest else larger
    return places[chosen]


def _collected(numbers: Array, among: Array, bound: float, smallest: bool) -> tuple[Array, Array] | None:
    """The places and magnitudes of all that takes part up to a bound, or above it; ``None`` if some of it is NaN."""
    places, magnitudes, scratch = [], [], Scratch()
    for start in range(0, numbers.size, _PIECE):
        here = slice(start, start + _PIECE)
        flags = among[here]
        magnitude = np.absolute(numbers[here], out=scratch.like(flags, _NAMES[numbers.dtype.itemsize], "magnitude"))
        above = not_at_most(magnitude, bound, scratch.like(flags, torch.bool, "above"))
        if smallest and math.isnan(magnitude.max()) and bool(np.isnan(magnitude[flags]).any()):
            return None
        taking_part = np.greater(flags, above, out=above) if smallest else np.greater(above, flags, out=above)
        found = positions(taking_part)
        magnitudes.append(magnitude.take(found))
        places.append(found + start)
    return np.concatenate(places), np.concatenate(magnitudes)


def _is_run(tensor: Tensor) -> bool:
    return tensor.is_cpu and type(tensor.detach()) is Tensor and tensor.is_contiguous() and not tensor.is_neg()


def _bracket(numbers: Array, among: Array, share: float, smallest: bool) -> tuple[float, float]:
    step = coprime_from(sample_step(numbers.size), numbers.size)
    drawn, flags = np.absolute(numbers[step // 2 :: step]), among[step // 2 :: step]
    return bracket_of(drawn[flags == smallest], share if smallest else 1 - share)
