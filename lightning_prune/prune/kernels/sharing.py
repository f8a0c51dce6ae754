"""How a choice among entries is made by several processes of which each holds some: they add up what they count."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

_DIGIT = 8  # bits: a histogram takes 2 KB


class Sharing:
    """One process that holds all entries, and exchanges nothing."""

    @property
    def size(self) -> int:
        """The number of processes."""
        return 1

    def counts(self, index: int) -> bool:
        """Whether this process counts the entries of the tensor at ``index``, which others may hold too."""
        return True

    def total(self, values: Tensor) -> Tensor:
        """The sum of an int64 tensor over the processes; may overwrite it."""
        return values

    def first(self, number: int) -> int:
        """The number that the first process has."""
        return number

    def added(self, *numbers: int) -> list[int]:
        """The sums of numbers over the processes."""
        return self.total(torch.tensor(numbers, dtype=torch.int64, device="cpu")).tolist()


ALONE = Sharing()


@dataclass(frozen=True)
class Box:
    """The slice of a whole tensor that a process holds.

    Attributes:
        start: Where it begins in each dimension.
        shape: Its sizes.
        whole: The sizes of the whole tensor.

    Example:
        >>> Box((1, 2), (2, 2), (3, 4)).positions(torch.arange(4))
        tensor([ 6,  7, 10, 11])
    """

    start: tuple[int, ...]
    shape: tuple[int, ...]
    whole: tuple[int, ...]

    @classmethod
    def of_whole(cls, tensor: Tensor) -> Box:
        """All of a plain tensor."""
        return cls((0,) * tensor.dim(), tuple(tensor.shape), tuple(tensor.shape))

    @property
    def slices(self) -> tuple[slice, ...]:
        """The index that cuts it out of the whole tensor."""
        return tuple(slice(first, first + size) for first, size in zip(self.start, self.shape, strict=True))

    @functools.cached_property
    def run(self) -> int | None:
        """The position of its first entry if its entries follow one another in the whole tensor, else ``None``."""
        split = next((d for d, size in enumerate(self.shape) if size != 1), len(self.shape))
        consecutive = self.shape[split + 1 :] == self.whole[split + 1 :] or not math.prod(self.shape)
        return sum(first * step for first, step in zip(self.start, self._steps, strict=True)) if consecutive else None

    @property
    def flat(self) -> Box:
        """The same entries as a vector, if they follow one another."""
        return self if self.run is None else Box((self.run,), (math.prod(self.shape),), (math.prod(self.whole),))

    def positions(self, entries: Tensor) -> Tensor:
        """Where entries are in the whole tensor, counted in row-major order.

        Args:
            entries: Where they are in the slice, so counted; int64.
        """
        if self.run is not None:
            return entries + self.run
        found, left = torch.zeros_like(entries), entries
        for size, first, step in zip(reversed(self.shape), reversed(self.start), reversed(self._steps), strict=True):
            found += (left % size + first) * step
            left = left // size
        return found

    @functools.cached_property
    def _steps(self) -> tuple[int, ...]:
        """Entries from one index to the next in each dimension of the whole tensor."""
        return tuple(math.prod(self.whole[d + 1 :]) for d in range(len(self.whole)))


def kth(keys: Tensor, which: Sequence[int], bits: int, sharing: Sharing) -> list[tuple[int, int, int]]:
    """Order statistics of integers that several processes hold, found digit by digit from sums of histograms.

    Args:
        keys: This process's, int64, from 0 and below ``2 ** bits``.
        which: For each result the place in the order of all keys, from 1.
        bits: The same for all processes.
        sharing: The processes.

    Returns:
        For each place the key there, how many of the keys up to that place equal it, and how many equal it in all.

    Example:
        >>> kth(torch.tensor([5, 3, 5, 9]), [1, 2], 4, ALONE)
        [(3, 1, 1), (5, 1, 2)]
    """
    prefixes, places, equal = [0] * len(which), [*which], [0] * len(which)
    left = max(bits, 1)
    while left:
        width = min(_DIGIT, left)
        left -= width
        histograms = torch.stack([_histogram(keys, prefix, left, width) for prefix in prefixes])
        upto = sharing.total(histograms).cpu().cumsum(1)
        for i, sums in enumerate(upto):
            digit = int(torch.searchsorted(sums, places[i]))
            before = int(sums[digit - 1]) if digit else 0
            prefixes[i], places[i], equal[i] = (
                prefixes[i] << width | digit,
                places[i] - before,
                int(sums[digit]) - before,
            )
    return list(zip(prefixes, places, equal, strict=True))


def smallest(keys: Tensor, places: Tensor, counted: Tensor, count: int, sharing: Sharing) -> Tensor:
    """Which of some entries are among the ``count`` of smallest keys; of equal ones the first by place.

    Args:
        keys: 31-bit, int64, 1-d.
        places: int64, 1-d, each entry's own.
        counted: Boolean, 1-d: others hold what is not counted here.
        count: How many, of all processes.
        sharing: The processes.
    """
    if count <= 0:
        return torch.zeros_like(counted)
    key, wanted, equal = kth(keys[counted], [count], 31, sharing)[0]
    same = keys == key
    if wanted == equal:
        return (keys < key) | same
    last = kth(places[counted & same], [wanted], 63, sharing)[0][0]
    return (keys < key) | (same & (places <= last))


def _histogram(keys: Tensor, prefix: int, shift: int, width: int) -> Tensor:
    inside = keys[keys >> shift + width == prefix]
    return torch.bincount(inside.bitwise_right_shift(shift).bitwise_and_(2**width - 1), minlength=2**width)
