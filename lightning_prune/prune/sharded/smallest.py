"""Exact selection of the smallest entries of tensors that are split over ranks, without gathering them.

Floating-point magnitudes are in the order of their bit patterns, so the ``count``-th smallest is found digit by digit:
histograms of the leading 11 bits are summed over the ranks, which says in which bin it lies, then of the next 11 bits
within that bin, and so on. That takes 3 sums of 16 KB for single precision and 6 for double, however large the tensors.
Of equal entries the first ones in the order of position are dropped: the ranks tell each other how many they have.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lightning_prune.prune.kernels.hashing import hashed
from lightning_prune.prune.sharded.tensors import Holders

_PIECE = 1 << 18
_DIGIT = 11


@dataclass(frozen=True)
class Entries:
    """The entries of one tensor that this rank holds, as non-negative integers to be ranked.

    Attributes:
        alive: Boolean, 1-d, which of them take part; ``None`` = all.
        size: Their number.
    """

    alive: Tensor | None
    size: int

    @property
    def highest(self) -> int:
        """The largest key that can be ranked; the same length for all tensors that are ranked together."""
        return 2**31 - 1

    @property
    def device(self) -> torch.device:
        """Where they are."""
        raise NotImplementedError

    def keys(self, start: int, stop: int) -> Tensor:
        """int64 keys of some entries."""
        raise NotImplementedError

    def pieces(self) -> Iterator[tuple[slice, Tensor, Tensor | None]]:
        """Places, keys and which of them take part, a piece at a time."""
        for start in range(0, self.size, _PIECE):
            place = slice(start, min(start + _PIECE, self.size))
            yield place, self.keys(place.start, place.stop), None if self.alive is None else self.alive[place]


@dataclass(frozen=True)
class Magnitudes(Entries):
    """Entries ranked by their magnitude.

    Attributes:
        values: Floating-point, 1-d.
        dtype: float32 or float64; all values of a ranking are compared in the same one.
    """

    values: Tensor
    dtype: torch.dtype

    @property
    def device(self) -> torch.device:
        """That of the values."""
        return self.values.device

    @property
    def highest(self) -> int:
        """The bit pattern of infinity; those of NaN are above it."""
        return 0x7F800000 if self.dtype == torch.float32 else 0x7FF0000000000000

    def keys(self, start: int, stop: int) -> Tensor:
        """The bit patterns of the magnitudes."""
        word = torch.int32 if self.dtype == torch.float32 else torch.int64
        return self.values[start:stop].abs().to(self.dtype).view(word).long()


@dataclass(frozen=True)
class Hashes(Entries):
    """Entries in a random order that is the same however they are split.

    Attributes:
        first: Position of the first one in the whole tensor.
        seed: Of this tensor at this event.
        where: Device of the masks.
    """

    first: int
    seed: int
    where: torch.device

    @property
    def device(self) -> torch.device:
        """Where the masks are to be."""
        return self.where

    def keys(self, start: int, stop: int) -> Tensor:
        """A hash of the seed and the position."""
        positions = torch.arange(self.first + start, self.first + stop, device=self.where)
        return hashed(positions, self.seed)


def sharded_keep_masks(
    entries: Sequence[Entries], count: int, holders: Holders, *, names: Sequence[str] | None = None
) -> list[Tensor]:
    """Masks out the ``count`` entries with the smallest keys, over all tensors and all ranks together.

    The result is that of a stable sort of the whole tensors, one after another: of equal entries those at lower
    positions are dropped. Every rank has to call it.

    Args:
        entries: This rank's rows of each tensor; the ranks hold them in the order of ``holders``.
        count: How many living entries to drop, over all ranks.
        holders: The ranks that hold the tensors.
        names: Names of the tensors for messages; their index by default.

    Returns:
        For each tensor this rank's part of its mask: boolean, 1-d, True = kept.

    Raises:
        ValueError: On every rank, if there are not as many living entries, or a living one is NaN.

    Example:
        >>> part = Magnitudes(None, 3, torch.tensor([3.0, -1.0, 2.0]), torch.float32)
        >>> [mask.tolist() for mask in sharded_keep_masks([part], 1, Holders())]
        [[True, False, True]]
    """
    _require_rankable(entries, count, holders, names)
    key, ties = _threshold(entries, count, holders) if count else (-1, 0)
    spare = _own_share(entries, key, ties, holders)
    return [_mask(part, key, own) for part, own in zip(entries, spare, strict=True)]


def _require_rankable(entries: Sequence[Entries], count: int, holders: Holders, names: Sequence[str] | None) -> None:
    found = [[_count(part), _count(part, part.highest)] for part in entries]
    living, nan = holders.total(torch.tensor(found, device=_device(entries))).cpu().unbind(1)
    if nan.any():
        which = int(nan.argmax())
        name = f"tensor {which}" if names is None else names[which]
        raise ValueError(f"{name}: {int(nan[which])} entries are NaN and cannot be ranked")
    if not 0 <= count <= int(living.sum()):
        raise ValueError(f"cannot drop {count} entries: the number must be from 0 to the {int(living.sum())} left")


def _device(entries: Sequence[Entries]) -> torch.device:
    return entries[0].device


def _count(part: Entries, above: int = -1) -> int:
    return sum(int(_living(keys > above, alive).count_nonzero()) for _, keys, alive in part.pieces())


def _living(condition: Tensor, alive: Tensor | None) -> Tensor:
    return condition if alive is None else condition.logical_and_(alive)


def _threshold(entries: Sequence[Entries], count: int, holders: Holders) -> tuple[int, int]:
    """The ``count``-th smallest key, and how many of the entries that have it are among the ``count``."""
    prefix, left = 0, entries[0].highest.bit_length()
    while left:
        width = min(_DIGIT, left)
        left -= width
        histogram = torch.zeros(2**width, dtype=torch.int64, device=_device(entries))
        for part in entries:
            for _, keys, alive in part.pieces():
                inside = _living(keys >> left + width == prefix, alive)
                digits = keys[inside].bitwise_right_shift_(left).bitwise_and_(2**width - 1)
                histogram += torch.bincount(digits, minlength=2**width)
        upto = holders.total(histogram).cumsum(0).cpu()
        digit = int(torch.searchsorted(upto, count))
        count -= int(upto[digit - 1]) if digit else 0
        prefix = prefix << width | digit
    return prefix, count


def _own_share(entries: Sequence[Entries], key: int, ties: int, holders: Holders) -> list[int]:
    """How many of the entries that equal the threshold go, in each tensor on this rank: the first by position."""
    equal = [_count(part, key - 1) - _count(part, key) for part in entries]
    everywhere = holders.gathered(torch.tensor(equal, device=_device(entries))).cpu()  # ranks, tensors
    before = everywhere.t().flatten().cumsum(0).view(len(entries), holders.size)[:, holders.index] - torch.tensor(equal)
    return [min(max(ties - int(earlier), 0), own) for earlier, own in zip(before, equal, strict=True)]


def _mask(part: Entries, key: int, spare: int) -> Tensor:
    """What is above the threshold, and what equals it but for the first ``spare``."""
    mask = torch.empty(part.size, dtype=torch.bool, device=part.device)
    for place, keys, alive in part.pieces():
        mask[place] = _living(keys >= key, alive)
        if spare:
            equal = _living(keys == key, alive).nonzero().view(-1)[:spare]
            mask[place][equal] = False
            spare -= len(equal)
    return mask
