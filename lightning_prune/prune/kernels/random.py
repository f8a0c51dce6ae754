"""Random choice of entries of many tensors, every choice being equally likely.

Random numbers are hashes of a seed and of positions in the whole tensors, so they do not depend on which process holds
an entry, on its device or on the memory format.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from lightning_prune.prune.kernels.arrays import (
    Array,
    Scratch,
    as_array,
    count_true,
    empty_like,
    equal,
    greater,
    positions,
    put,
    remembered,
)
from lightning_prune.prune.kernels.bisection import Bracket, narrow
from lightning_prune.prune.kernels.hashing import hashed, numbered, stream
from lightning_prune.prune.kernels.pieces import Piece, checked_alive, require_living, split, whole
from lightning_prune.prune.kernels.sharing import ALONE, Box, Sharing, smallest

_RUN = 1 << 19  # entries whose bytes are drawn at once: their words stay in the cache


def random_keep_masks(
    like: Sequence[Tensor],
    count: int,
    *,
    alive: Sequence[Tensor | None] | None = None,
    generator: torch.Generator | None = None,
    boxes: Sequence[Box] | None = None,
    sharing: Sharing = ALONE,
) -> list[Tensor]:
    """Mask out `count` entries, every choice of them being equally likely.

    Each entry draws a random byte, and entries are dropped from the lowest byte up. Only among those that share the
    byte where the count is reached (one in 256) another random number decides.

    Args:
        like: Tensors whose shapes, devices and memory formats the masks take; their values are not read.
        count: How many living entries to drop, over all tensors.
        alive: For each tensor a mask of its shape, true where an entry takes part, or None if all do.
        generator: Source of the one random number that all others come from. Default: torch's global one of the CPU,
            so ``torch.manual_seed`` reproduces the masks.
        boxes: Which slice of a whole tensor each one is. Default: all of it.
        sharing: The processes that hold the whole tensors.

    Returns:
        One bool tensor for each tensor of `like`: True where the entry is kept.

    Raises:
        ValueError: If `count` is negative or more than the number of living entries, or if the masks do not fit.

    Example:
        >>> import torch
        >>> _ = torch.manual_seed(0)
        >>> masks = random_keep_masks([torch.empty(3, 4), torch.empty(8)], 5)
        >>> sum(int(mask.sum()) for mask in masks)
        15
    """
    alive = checked_alive(like, alive)
    living = require_living(like, alive, count, sharing)
    boxes = [Box.of_whole(tensor) for tensor in like] if boxes is None else boxes
    home = "cpu" if generator is None else generator.device
    salt = sharing.first(int(torch.randint(2**62, (), generator=generator, device=home)))
    keys = [
        _random_bytes(tensor, mask, box, stream(f"{salt}:{index}"))
        for index, (tensor, mask, box) in enumerate(zip(like, alive, boxes, strict=True))
    ]
    parts = [list(split(whole([key], [mask], [key]))) for key, mask in zip(keys, alive, strict=True)]
    byte, upto = _last_byte(parts, count, living, sharing)
    _keep_above(parts, boxes, byte, upto - count, salt, sharing)
    masks = [key.view(torch.bool) for key in keys]
    if len(masks) == 1 and sharing is ALONE:
        remembered(masks[0], living - count)
    return masks


def _random_bytes(like: Tensor, alive: Tensor | None, box: Box, seed: int) -> Tensor:
    """Bytes in the shape and format of a tensor, 0 where nothing lives: eight positions in the whole share a word."""
    empty = empty_like(like, torch.uint8)
    drawn = empty if empty.is_contiguous() else torch.empty(like.shape, dtype=torch.uint8, device=like.device)
    box = box.flat
    rows, row = drawn.view(box.shape), math.prod(box.whole[1:])
    living = None if alive is None else alive.reshape(box.shape).view(torch.uint8)
    scratch = Scratch()
    step, columns = max(1, _RUN // max(1, row)), (slice(None), *box.slices[1:])
    for start in range(0, len(rows), step):
        part = rows[start : start + step]
        whole_rows = _bytes((box.start[0] + start) * row, len(part) * row, seed, like.device, scratch)
        found = whole_rows.view(len(part), *box.whole[1:])[columns]
        if living is None:
            part.copy_(found)
        else:
            torch.mul(found, living[start : start + step], out=part)
    return drawn if drawn is empty else empty.copy_(drawn)


def _bytes(first: int, size: int, seed: int, device: torch.device, scratch: Scratch) -> Tensor:
    start, end = first >> 3, (first + size + 7) >> 3
    return numbered(start, end - start, seed, device, scratch).view(torch.uint8)[first & 7 :][:size]


def _last_byte(parts: Sequence[list[Piece]], count: int, living: int, sharing: Sharing) -> tuple[int, int]:
    """The first byte up to which `count` living entries are found or more, and how many."""
    counted = [piece for index, pieces in enumerate(parts) if sharing.counts(index) for piece in pieces]

    scratch = Scratch()

    def above(piece: Piece, byte: int) -> int:
        key = as_array(piece.mask)
        return count_true(greater(key, byte, scratch.like(key, torch.bool, "above")))

    def upto(byte: int) -> int:
        return living - sharing.added(sum(above(piece, byte) for piece in counted))[0]

    expected = 256 * count // max(living, 1)  # seldom wrong by more than one
    bracket = narrow(Bracket(-1, 255, 0, living), count, upto, [expected, expected - 1])
    return bracket.high, bracket.upto_high


class _Ties(NamedTuple):
    """Entries of a tensor that share the byte where the count is reached, those of each piece for themselves."""

    pieces: list[Piece]
    entries: list[Array]
    number: Tensor
    order: Tensor
    counted: Tensor


def _keep_above(
    parts: Sequence[list[Piece]], boxes: Sequence[Box], byte: int, spared: int, salt: int, sharing: Sharing
) -> None:
    """Turns random bytes, 0 where nothing lives, into masks: True above `byte` and for `spared` of its entries."""
    ties = list(_ties(parts, boxes, byte, salt, sharing))
    number, order = _joined([tie.number for tie in ties]), _joined([tie.order for tie in ties])
    counted = _joined([tie.counted for tie in ties])
    sharers = sharing.added(int(counted.count_nonzero()))[0]
    kept = ~smallest(number, order, counted.bool(), sharers - spared, sharing)
    places = [(piece.mask, entries) for tie in ties for piece, entries in zip(tie.pieces, tie.entries, strict=True)]
    for (mask, entries), part in zip(places, torch.split(kept, [len(e) for _, e in places]), strict=True):
        put(mask, entries, part)


def _ties(
    parts: Sequence[list[Piece]], boxes: Sequence[Box], byte: int, salt: int, sharing: Sharing
) -> Iterator[_Ties]:
    before, scratch = 0, Scratch()
    for index, (pieces, box) in enumerate(zip(parts, boxes, strict=True)):
        entries = [_take_ties(piece, byte, scratch) for piece in pieces]
        starts = itertools.accumulate((piece.mask.numel() for piece in pieces), initial=0)
        devices = [piece.mask.device for piece in pieces]
        found = [torch.as_tensor(e, device=d) + start for e, d, start in zip(entries, devices, starts, strict=False)]
        places = box.positions(_joined(found))
        counted = torch.full_like(places, sharing.counts(index))
        yield _Ties(pieces, entries, hashed(places.clone(), stream(f"{salt}:{index}:again")), places + before, counted)
        before += math.prod(box.whole)


def _take_ties(piece: Piece, byte: int, scratch: Scratch) -> Array:
    """The entries of a piece that have this byte; what is above it becomes True, the rest False."""
    key = as_array(piece.mask)
    ties = equal(key, byte, scratch.like(key, torch.bool, "ties"))
    entries = positions(ties if byte else piece.living(ties))
    if isinstance(key, np.ndarray):
        greater(key, byte, key.view(np.bool_))
    else:
        key.copy_(key > byte)
    return entries


def _joined(tensors: Sequence[Tensor]) -> Tensor:
    return (
        torch.cat([t.to(tensors[0].device) for t in tensors])
        if tensors
        else torch.empty(0, dtype=torch.int64, device="cpu")
    )
