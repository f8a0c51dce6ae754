"""Exact selection of the smallest entries of many tensors, ranked together and read in place.

Magnitude pruning asks one question: which `count` entries, over all these tensors, are smallest in magnitude? A
``topk`` over their concatenation, as in torch.nn.utils.prune, answers it with some 40 bytes and 200 nanoseconds a
weight. Here the answer takes one pass over pieces that fit in the cache, and no copy of the weights:

1. a strided sample brackets the threshold between two values;
2. the pass writes ``magnitude > upper end`` into the masks, counts what lies up to the lower end and collects the few
   entries between the ends;
3. these are ranked exactly, and those to keep are written into the masks.

A sample can mislead and ties can pile up inside the bracket. Both only cost time: bisection over the bit patterns
of the magnitudes then finds the threshold in at most 31 counting passes (63 for double precision).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lightning_prune.prune.kernels.arrays import (
    Array,
    Scratch,
    as_array,
    count_true,
    differ,
    empty_like,
    greater,
    kth_smallest,
    not_at_most,
    positions,
    put,
    remembered,
)
from lightning_prune.prune.kernels.bisection import Bracket, narrow
from lightning_prune.prune.kernels.pieces import NaNError, Piece, checked_alive, real, require_living, split, whole

_DIRECT = 1 << 13  # up to so many living entries are collected and searched without a sample
BELOW_ALL = -1.0  # less than every magnitude
WORD: dict[torch.dtype, tuple[type[np.floating[Any]], type[np.integer[Any]]]] = {
    torch.float32: (np.float32, np.int32),
    torch.float64: (np.float64, np.int64),
}


def keep_masks(
    scores: Sequence[Tensor],
    count: int,
    *,
    alive: Sequence[Tensor | None] | None = None,
    names: Sequence[str] | None = None,
) -> list[Tensor]:
    """Mask out the `count` entries of smallest magnitude, over all tensors together.

    The result equals that of a stable sort of ``|score|``: exactly `count` entries are dropped, and of equal ones the
    earlier are dropped first, ordered by tensor and then by row-major index (whatever the memory format). Tensors of
    different floating dtypes are compared without rounding; complex entries are ranked by their modulus.

    Args:
        scores: Tensors of any shapes, strides and floating or complex dtypes. They are read, never changed.
        count: How many living entries to drop, over all tensors.
        alive: For each tensor a mask of its shape, true where an entry takes part, or None if all do.
            Entries that do not take part are False in the result. Default: all take part.
        names: Names of the tensors for error messages. Default: their index.

    Returns:
        One bool tensor for each score, of its shape, device and memory format: True where the entry is kept.

    Raises:
        ValueError: If `count` is negative or more than the number of living entries, if a living entry is NaN, or if
            the masks do not fit the scores.

    Example:
        >>> import torch
        >>> masks = keep_masks([torch.tensor([3.0, -1.0, 2.0]), torch.tensor([-1.0, 0.5])], 2)
        >>> [mask.tolist() for mask in masks]
        [[True, False, True], [True, False]]
    """
    scores = [score.detach().resolve_neg() for score in scores]
    alive = checked_alive(scores, alive)
    living = require_living(scores, alive, count)
    masks = [empty_like(score, torch.bool) for score in scores]
    try:
        _fill_masks(whole(scores, alive, masks), count, living)
    except NaNError:
        raise ValueError(_first_nan(scores, alive, names)) from None
    if len(masks) == 1:
        remembered(masks[0], living - count)
    return masks


def _first_nan(scores: Sequence[Tensor], alive: Sequence[Tensor | None], names: Sequence[str] | None) -> str:
    """Which is the first tensor with a NaN among its living entries, and how many it has."""
    counts = [
        int((score.isnan() if mask is None else score.isnan() & mask).sum())
        for score, mask in zip(scores, alive, strict=True)
    ]
    index = next(index for index, found in enumerate(counts) if found)
    name = names[index] if names is not None else f"tensor {index}"
    return f"{name}: {counts[index]} of {scores[index].numel()} entries are NaN and cannot be ranked"


def _fill_masks(wholes: Sequence[Piece], count: int, living: int) -> None:
    pieces = list(split(wholes))
    if not count:
        _write_masks(pieces, BELOW_ALL, 0)
        return
    limit = 2 * _DIRECT + sum(piece.score.numel() for piece in pieces) // 16
    bracket = (BELOW_ALL, math.inf) if living <= _DIRECT else _bracket(wholes, count / living)
    if not _select_between(pieces, count, living, limit, *bracket):
        _bisect(pieces, count, living, limit, bracket)


def _bracket(wholes: Sequence[Piece], quantile: float) -> tuple[float, float]:
    """Two values that enclose the quantile, but for a chance of about 1 in 400, judged by a sample."""
    step = sample_step(sum(piece.score.numel() for piece in wholes))
    drawn = torch.cat([sample(piece, step).to(wholes[0].score.device) for piece in wholes])
    return bracket_of(as_array(drawn), quantile)


def bracket_of(drawn: Array, quantile: float) -> tuple[float, float]:
    """Two values that enclose a quantile, judged by a sample of magnitudes."""
    low, high = sample_ends(len(drawn), quantile)
    return (
        kth_smallest(drawn, low) if low >= 1 else BELOW_ALL,
        kth_smallest(drawn, high) if high <= len(drawn) else math.inf,
    )


def sample_ends(size: int, quantile: float) -> tuple[int, int]:
    """The places in the order of a sample that enclose a quantile; below 1 or above the size if it is too small."""
    margin = 3 * math.sqrt(size * quantile * (1 - quantile)) + 3
    return math.floor(size * quantile - margin), math.ceil(size * quantile + margin)


def sample_step(size: int) -> int:
    """Each how many-th of some entries is looked at."""
    # A larger sample takes longer, but leaves less between the ends: n ** (2 / 3) of n entries balance the two.
    return max(16, round(math.pow(size, 1 / 3)))


def coprime_from(step: int, size: int) -> int:
    """The first step from one on that visits all columns: one with a factor in common with the row length does not."""
    while math.gcd(step, size) > 1:
        step += 1
    return step


def sample(piece: Piece, step: int) -> Tensor:
    """Magnitudes of some living entries of a tensor, at equal distances."""
    size = piece.score.numel()
    step = coprime_from(step, size)
    index = torch.arange(min(step, size) // 2, size, step, device=piece.score.device)
    drawn = real(piece.score.take(index), piece.dtype).abs()
    return drawn if piece.alive is None else drawn[piece.alive.take(index)]


def _select_between(pieces: Sequence[Piece], count: int, living: int, limit: int, low: float, high: float) -> bool:
    """Fills the masks, if the threshold lies above `low` and up to `high`, where at most `limit` entries do."""
    home, scratch = pieces[0].score.device, Scratch()
    places, values = (as_array(torch.empty(limit, dtype=kind, device=home)) for kind in (torch.int64, pieces[0].dtype))
    upto_low, ends = living, [0]
    for piece in pieces:
        magnitude = piece.any_magnitude(scratch)
        keep, between = _compare(piece, magnitude, low, high, scratch)
        found = positions(between)
        if piece.alive is not None and low >= 0:
            found = found[as_array(piece.alive).take(found)]
        upto_low -= count_true(keep) + len(found)
        start, end = ends[-1], ends[-1] + len(found)
        if end > limit:
            return False
        places[start:end], values[start:end] = found, magnitude.take(found)
        ends.append(end)
    if (values[: ends[-1]] != values[: ends[-1]]).any():
        raise NaNError
    if not upto_low < count <= upto_low + ends[-1]:
        return False
    kept = all_but_smallest(values[: ends[-1]], count - upto_low)
    for piece, (start, end) in zip(pieces, itertools.pairwise(ends), strict=True):
        put(piece.mask, places[start:end], kept[start:end])
    return True


def _compare(piece: Piece, magnitude: Array, low: float, high: float, scratch: Scratch) -> tuple[Array, Array]:
    """Writes into the mask what lives above `high`; gives it, and what is neither above nor up to `low`, NaN included.

    Those are few, so that it is cheaper to ask each whether it lives; but without a low end they are many, and do live.
    """
    above = not_at_most(magnitude, low, scratch.like(magnitude, torch.bool, "above"))
    keep = as_array(piece.mask)
    if isinstance(keep, np.ndarray):
        greater(magnitude, high, keep)
    else:
        keep.copy_(magnitude > high)
    between = differ(above, keep, scratch.like(magnitude, torch.bool, "between"))
    return piece.living(keep), piece.living(between) if low < 0 else between


def all_but_smallest(values: Array, dropped: int) -> Array:
    """Which values are kept: all but the first `dropped` of a stable sort."""
    value = kth_smallest(values, dropped)
    keep = values > value
    keep[positions(values == value)[dropped - count_true(values < value) :]] = True
    return keep


def _bisect(pieces: Sequence[Piece], count: int, living: int, limit: int, bracket: tuple[float, float]) -> None:
    """Fills the masks after counting passes that halve the bit patterns left; starts with the ends of the bracket.

    Bit patterns of magnitudes, read as integers, have the order of the magnitudes. The threshold's is above `low`,
    and at most `high`.
    """
    dtype = pieces[0].dtype
    first, last = (bits_of(end, dtype) for end in bracket)
    pivots = [first - 1, first, last - 1, last]  # many equal values make an end of the bracket the threshold

    def upto(pivot: int) -> int:
        return _upto(pieces, living, number_of(pivot, dtype))

    found = narrow(Bracket(-1, bits_of(math.inf, dtype), 0, living), count, upto, pivots, limit)
    low, high = number_of(found.low, dtype), number_of(found.high, dtype)
    if not _select_between(pieces, count, living, limit, low, high):
        _write_masks(pieces, high, found.upto_high - count)


def bits_of(magnitude: float, dtype: torch.dtype) -> int:
    """The bit pattern of a magnitude as an integer, in the order of magnitudes; -1 for less than all."""
    floating, word = WORD[dtype]
    return -1 if magnitude == BELOW_ALL else int(floating(magnitude).view(word))


def number_of(bits: int, dtype: torch.dtype) -> float:
    """The magnitude of which :func:`bits_of` gives these bits."""
    floating, word = WORD[dtype]
    return BELOW_ALL if bits < 0 else float(word(bits).view(floating))


def _upto(pieces: Sequence[Piece], living: int, pivot: float) -> int:
    """How many living magnitudes are at most `pivot`."""
    return living - sum(count_true(piece.living(condition)) for piece, condition in _above(pieces, pivot))


def _above(pieces: Iterable[Piece], pivot: float) -> Iterator[tuple[Piece, Array]]:
    """Which magnitudes of each piece are greater than `pivot`; overwritten by the next."""
    scratch = Scratch()
    for piece in pieces:
        magnitude = piece.magnitude(scratch)
        yield piece, greater(magnitude, pivot, scratch.like(magnitude, torch.bool, "above"))


def _write_masks(pieces: Sequence[Piece], value: float, spared: int) -> None:
    """Keep what is above `value`, and the last `spared` of what equals it."""
    scratch = Scratch()
    for piece in reversed(pieces):
        magnitude = piece.magnitude(scratch)
        as_array(piece.mask)[...] = piece.living(magnitude > value)
        if spared:
            ties = positions(piece.living(magnitude == value))[-spared:]
            put(piece.mask, ties, True)
            spared -= len(ties)
