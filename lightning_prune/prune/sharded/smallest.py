"""Exact selection of the smallest entries of tensors that are split over ranks, without gathering them.

It goes as :mod:`lightning_prune.prune.kernels.smallest` does in one process: a sample brackets the threshold, one pass
over the entries writes the masks and collects what lies between the ends, and among those the threshold is found. What
is counted on the way is added up over the ranks, and order statistics are found digit by digit: floating-point
magnitudes are in the order of their bit patterns, so histograms of the leading 8 bits say in which bin the threshold
lies, then those of the next 8 bits within that bin, and so on. That takes some 24 KB for single precision, however
large the tensors. Of equal entries the first ones by position in the whole tensors are dropped.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from lightning_prune.prune.kernels.arrays import Array, as_array, count_true, positions, put
from lightning_prune.prune.kernels.bisection import Bracket, narrow
from lightning_prune.prune.kernels.pieces import NaNError, Piece, checked_alive, require_living, split, whole
from lightning_prune.prune.kernels.sharing import Box, Sharing, kth
from lightning_prune.prune.kernels.smallest import (
    BELOW_ALL,
    bits_of,
    number_of,
    sample,
    sample_ends,
    sample_step,
)

_DIRECT = 1 << 13  # up to so many living entries are searched without a sample


class _Part(NamedTuple):
    """One tensor's entries on this rank, whole and in pieces; none where it holds none."""

    wholes: list[Piece]
    pieces: list[Piece]
    box: Box
    counts: bool


class _Threshold(NamedTuple):
    """What is above the magnitude is kept, and what equals it but for the first ``dropped`` of ``equal`` ones."""

    magnitude: float
    dropped: int
    equal: int


def sharded_keep_masks(
    scores: Sequence[Tensor],
    count: int,
    *,
    alive: Sequence[Tensor | None],
    boxes: Sequence[Box],
    sharing: Sharing,
    names: Sequence[str] | None = None,
) -> list[Tensor]:
    """Masks out the ``count`` entries of smallest magnitude, over all tensors and all ranks together.

    The result is that of a stable sort of the whole tensors, one after another: of equal entries those at lower
    positions are dropped. Every rank has to call it.

    Args:
        scores: This rank's slice of each tensor; floating or complex.
        count: How many living entries to drop, over all ranks.
        alive: Which entries take part, one mask for each slice; ``None`` = all.
        boxes: Which slices they are.
        sharing: The ranks, and which slices this one counts.
        names: Names of the tensors for messages; their index by default.

    Returns:
        For each tensor this rank's slice of its mask, True = kept.

    Raises:
        ValueError: On every rank, if there are not as many living entries, or a living one is NaN.

    Example:
        >>> from lightning_prune.prune.kernels.sharing import ALONE
        >>> values = torch.tensor([3.0, -1.0, 2.0, 1.0])
        >>> sharded_keep_masks([values], 2, alive=[None], boxes=[Box.of_whole(values)], sharing=ALONE)
        [tensor([ True, False,  True, False])]
    """
    scores, alive = [score.detach().resolve_neg() for score in scores], checked_alive(scores, alive)
    living = require_living(scores, alive, count, sharing)
    masks = [torch.empty_like(score, dtype=torch.bool) for score in scores]
    wholes = whole(scores, alive, masks, drop_empty=False)
    parts = [
        _Part([piece] if piece.score.numel() else [], list(split([piece])), box, sharing.counts(index))
        for index, (piece, box) in enumerate(zip(wholes, boxes, strict=True))
    ]
    try:
        _Selection(parts, count, living, wholes[0].dtype, sharing).fill()
    except NaNError:
        raise ValueError(_first_nan(parts, sharing, names)) from None
    return masks


def _first_nan(parts: Sequence[_Part], sharing: Sharing, names: Sequence[str] | None) -> str:
    """Which is the first tensor with a NaN among its living entries, and how many it has."""
    here = [sum(_nans(piece) for piece in part.pieces) if part.counts else 0 for part in parts]
    counts = sharing.added(*here)
    index = next(index for index, found in enumerate(counts) if found)
    name = names[index] if names is not None else f"tensor {index}"
    return f"{name}: {counts[index]} of {math.prod(parts[index].box.whole)} entries are NaN and cannot be ranked"


def _nans(piece: Piece) -> int:
    return count_true(piece.living(as_array(piece.score.isnan())))


@dataclass(frozen=True)
class _Selection:
    """The search for the threshold of one ranking, and the masks that it gives."""

    parts: Sequence[_Part]
    count: int
    living: int
    dtype: torch.dtype
    sharing: Sharing

    def fill(self) -> None:
        """Fills the masks of all parts."""
        if not self.count:
            self._refuse_nan()
            self._write(BELOW_ALL)
            return
        limit = 2 * _DIRECT + sum(math.prod(part.box.whole) for part in self.parts) // (16 * self.sharing.size)
        bracket = (BELOW_ALL, math.inf) if self.living <= _DIRECT else self._bracket()
        threshold = self._select_between(limit, *bracket) or self._bisect(limit, bracket)
        if threshold.dropped < threshold.equal:
            self._keep_last(threshold.magnitude, threshold.equal - threshold.dropped)

    def _pieces(self, counted: bool = False) -> Iterator[Piece]:
        for part in self.parts:
            yield from part.pieces if part.counts or not counted else ()

    def _refuse_nan(self) -> None:
        try:
            for piece in self._pieces():
                piece.magnitude()
            found = 0
        except NaNError:
            found = 1
        if self.sharing.added(found)[0]:
            raise NaNError

    def _bracket(self) -> tuple[float, float]:
        """Two values that enclose the threshold, but for a chance of about 1 in 400, judged by a sample."""
        step = sample_step(sum(math.prod(part.box.whole) for part in self.parts))
        drawn = [sample(piece, step) for part in self.parts if part.counts for piece in part.wholes]
        keys = self._keys(drawn, BELOW_ALL)
        size = self.sharing.added(len(keys))[0]
        low, high = sample_ends(size, self.count / self.living)
        places = [min(max(place, 1), size) for place in (low, high)]
        ends = [number_of(key, self.dtype) for key, _, _ in kth(keys, places, self._word, self.sharing)]
        return ends[0] if low >= 1 else BELOW_ALL, ends[1] if high <= size else math.inf

    @property
    def _word(self) -> int:
        return 31 if self.dtype == torch.float32 else 63

    def _keys(self, values: Sequence[Array], low: float) -> Tensor:
        """How far above a magnitude others are, in the order of bit patterns, from 0."""
        kind = torch.int32 if self.dtype == torch.float32 else torch.int64
        tensors = [torch.as_tensor(value, device="cpu" if not isinstance(value, Tensor) else None) for value in values]
        if not tensors:
            return torch.empty(0, dtype=torch.int64, device=self._home)
        return torch.cat([t.to(self._home) for t in tensors]).view(kind).long() - bits_of(low, self.dtype) - 1

    @property
    def _home(self) -> torch.device:
        return next((piece.score.device for piece in self._pieces()), torch.device("cpu"))

    def _select_between(self, limit: int, low: float, high: float) -> _Threshold | None:
        """Fills the masks, if the threshold lies above `low` and up to `high`, where at most `limit` entries do."""
        found = _Between()
        try:
            for part in self.parts:
                for piece in part.pieces:
                    found.look(piece, low, high, part.counts, limit)
            nan = 0
        except NaNError:
            nan = 1
        above, between, nans, over = self.sharing.added(found.above, found.between, nan, found.over)
        if nans:
            raise NaNError
        rank = self.count - (self.living - above)
        if over or not 0 < rank <= between:
            return None
        keys = self._keys([values for values, counts in zip(found.values, found.counts, strict=True) if counts], low)
        span = bits_of(high, self.dtype) - bits_of(low, self.dtype)
        key, dropped, equal = kth(keys, [rank], span.bit_length(), self.sharing)[0]
        magnitude = number_of(key + bits_of(low, self.dtype) + 1, self.dtype)
        for piece, places, values in zip(found.pieces, found.places, found.values, strict=True):
            put(piece.mask, places, values > magnitude)
        return _Threshold(magnitude, dropped, equal)

    def _bisect(self, limit: int, bracket: tuple[float, float]) -> _Threshold:
        """Fills the masks after counting passes that halve the bit patterns left, as one process would."""
        first, last = (bits_of(end, self.dtype) for end in bracket)
        pivots = [first - 1, first, last - 1, last]  # many equal values make an end of the bracket the threshold
        ends = Bracket(-1, bits_of(math.inf, self.dtype), 0, self.living)
        found = narrow(ends, self.count, self._upto, pivots, limit)
        low, high = number_of(found.low, self.dtype), number_of(found.high, self.dtype)
        threshold = self._select_between(limit, low, high)
        if threshold is None:
            self._write(high)
            threshold = _Threshold(high, self.count - found.upto_low, found.upto_high - found.upto_low)
        return threshold

    def _upto(self, pivot: int) -> int:
        """How many living magnitudes are at most `pivot`."""
        value = number_of(pivot, self.dtype)
        here = sum(count_true(piece.living(piece.magnitude() > value)) for piece in self._pieces(counted=True))
        return self.living - self.sharing.added(here)[0]

    def _write(self, magnitude: float) -> None:
        for piece in self._pieces():
            as_array(piece.mask)[...] = piece.living(piece.magnitude() > magnitude)

    def _keep_last(self, magnitude: float, spared: int) -> None:
        """Keeps the last entries by position of those that equal a magnitude."""
        here = [
            sum(count_true(_equal(piece, magnitude)) for piece in part.pieces) if part.counts else 0
            for part in self.parts
        ]
        for part, equal in reversed([*zip(self.parts, self.sharing.added(*here), strict=True)]):
            if equal and spared:
                self._keep_equal(part, magnitude, max(equal - spared, 0))
                spared -= min(spared, equal)

    def _keep_equal(self, part: _Part, magnitude: float, dropped: int) -> None:
        """Keeps what equals a magnitude in one tensor, but for the first by position."""
        entries = [positions(_equal(piece, magnitude)) for piece in part.pieces]
        places = list(_places(part, entries))
        last = -1
        if dropped:
            counted = torch.cat(places) if part.counts and places else torch.empty(0, dtype=torch.int64, device="cpu")
            bits = math.prod(part.box.whole).bit_length()
            last = kth(counted, [dropped], bits, self.sharing)[0][0]
        for piece, mine, where in zip(part.pieces, entries, places, strict=True):
            put(piece.mask, mine[as_array(where > last)], True)


class _Between:
    """What one pass finds between two magnitudes."""

    def __init__(self) -> None:
        self.pieces: list[Piece] = []
        self.places: list[Array] = []
        self.values: list[Array] = []
        self.counts: list[bool] = []
        self.above = self.between = self.over = self._held = 0

    def look(self, piece: Piece, low: float, high: float, counts: bool, limit: int) -> None:
        """Fills the mask of a piece with what is above, and collects what is between."""
        magnitude = piece.magnitude()
        keep, above = piece.living(magnitude > high), piece.living(magnitude > low)
        as_array(piece.mask)[...] = keep
        places = positions(above ^ keep)
        self._held += len(places)
        if counts:
            self.above += count_true(above)
            self.between += len(places)
        if self._held > limit:
            self.over = 1
            return
        self.pieces.append(piece)
        self.places.append(places)
        self.values.append(magnitude.take(places))
        self.counts.append(counts)


def _equal(piece: Piece, magnitude: float) -> Array:
    return piece.living(piece.magnitude() == magnitude)


def _places(part: _Part, entries: Sequence[Array]) -> Iterator[Tensor]:
    """Where entries of the pieces of a slice are in the whole tensor."""
    start = 0
    for piece, mine in zip(part.pieces, entries, strict=True):
        yield part.box.positions(torch.as_tensor(mine, device=piece.mask.device) + start)
        start += piece.mask.numel()
