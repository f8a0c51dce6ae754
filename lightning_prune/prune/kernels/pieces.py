"""Many tensors in pieces that fit in the cache, and which of their entries take part in a choice."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from lightning_prune.prune.kernels.arrays import Array, Scratch, as_array, living_entries, magnitude
from lightning_prune.prune.kernels.sharing import ALONE, Sharing

_PIECE_CPU = 1 << 19  # entries: what is computed of a piece stays in a core's caches
_PIECE_DEVICE = 1 << 24  # entries: accelerators want few, large kernels
_EXACT_IN_FLOAT32 = (torch.float32, torch.float16, torch.bfloat16)


class NaNError(Exception):
    """A living entry is not a number."""


class Piece(NamedTuple):
    """The same few rows of a score tensor, of its living entries and of the mask to fill."""

    score: Tensor
    alive: Tensor | None
    mask: Tensor
    dtype: torch.dtype

    def magnitude(self, scratch: Scratch | None = None) -> Array:
        """Magnitudes of the scores, in the dtype in which all tensors are compared.

        Args:
            scratch: Where to put them, by default into new memory.

        Raises:
            NaNError: If a living entry is not a number.
        """
        found = self.any_magnitude(scratch)
        if math.isnan(found.max()) and self.living(found != found).any():
            raise NaNError
        return found

    def any_magnitude(self, scratch: Scratch | None = None) -> Array:
        """The same, but living entries may be NaN."""
        numbers = as_array(real(self.score, self.dtype))
        return magnitude(numbers, None if scratch is None else scratch.like(numbers, self.dtype, "magnitude"))

    def living(self, condition: Array) -> Array:
        """A condition, where an entry takes part."""
        if self.alive is not None:
            condition &= as_array(self.alive)
        return condition


def whole(
    scores: Sequence[Tensor], alive: Sequence[Tensor | None], masks: Sequence[Tensor], drop_empty: bool = True
) -> list[Piece]:
    """Tensors that are compared with each other, each in one piece; by default without those that have no entries."""
    dtype = torch.float32 if all(score.dtype in _EXACT_IN_FLOAT32 for score in scores) else torch.float64
    return [
        Piece(*tensors, dtype)
        for tensors in zip(scores, alive, masks, strict=True)
        if tensors[0].numel() or not drop_empty
    ]


def split(pieces: Iterable[Piece]) -> Iterator[Piece]:
    """Cuts the tensors of each piece at the same places, in row-major order."""
    for score, alive, mask, dtype in pieces:
        if not score.numel():
            continue
        size = _piece_size(score)
        livings = itertools.repeat(None) if alive is None else _split(alive, size)
        for part in zip(_split(score, size), livings, _split(mask, size), strict=False):
            yield Piece(*part, dtype)


def _piece_size(tensor: Tensor) -> int:
    return _PIECE_CPU if tensor.device.type == "cpu" else _PIECE_DEVICE


def _split(tensor: Tensor, size: int) -> Iterator[Tensor]:
    """Views of at most `size` entries in row-major order; where they are cut depends on the shape only."""
    parts = math.ceil(tensor.numel() / size)
    if parts == 1:
        yield tensor.view(1) if tensor.dim() == 0 else tensor
    elif parts <= len(tensor):
        yield from torch.split(tensor, len(tensor) // parts)
    else:
        for row in tensor:
            yield from _split(row, size)


def real(score: Tensor, dtype: torch.dtype) -> Tensor:
    """Real numbers with the magnitudes of scores; a modulus is NaN if either part is."""
    if score.is_complex():
        return score.to(torch.complex128).abs().masked_fill_(score.isnan(), math.nan)
    return score.to(dtype)


def checked_alive(tensors: Sequence[Tensor], alive: Sequence[Tensor | None] | None) -> Sequence[Tensor | None]:
    """Boolean masks of what lives in each tensor, ``None`` for all.

    Raises:
        ValueError: If they do not fit the tensors.
    """
    if alive is None:
        return [None] * len(tensors)
    if len(alive) != len(tensors):
        raise ValueError(f"alive has {len(alive)} masks for {len(tensors)} tensors; give one, or None, for each")
    for index, (tensor, mask) in enumerate(zip(tensors, alive, strict=True)):
        if mask is not None and mask.shape != tensor.shape:
            raise ValueError(
                f"alive[{index}] has shape {tuple(mask.shape)}; its tensor has shape {tuple(tensor.shape)}"
            )
    return [None if mask is None else mask.detach().as_subclass(Tensor).to(torch.bool) for mask in alive]


def require_living(
    tensors: Sequence[Tensor], alive: Sequence[Tensor | None], count: int, sharing: Sharing = ALONE
) -> int:
    """The number of living entries.

    Raises:
        ValueError: If it is less than the count to drop, or that is negative.
    """
    here = sum(
        tensor.numel() if mask is None else living_entries(mask)
        for index, (tensor, mask) in enumerate(zip(tensors, alive, strict=True))
        if sharing.counts(index)
    )
    living = sharing.added(here)[0]
    if not 0 <= count <= living:
        raise ValueError(f"cannot drop {count} entries: the number must be from 0 to the {living} that are left")
    return living
