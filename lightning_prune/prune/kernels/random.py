"""Random choice of entries of many tensors, every choice being equally likely."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lightning_prune.prune.kernels.arrays import as_array, count_true, positions, put
from lightning_prune.prune.kernels.bisection import Bracket, narrow
from lightning_prune.prune.kernels.pieces import Piece, checked_alive, checked_living, split, whole


def random_keep_masks(
    like: Sequence[Tensor],
    count: int,
    *,
    alive: Sequence[Tensor | None] | None = None,
    generator: torch.Generator | None = None,
) -> list[Tensor]:
    """Mask out `count` entries, every choice of them being equally likely.

    Each entry draws a random byte, and entries are dropped from the lowest byte up. Only among those that share the
    byte where the count is reached (one in 256) a random permutation decides.

    Args:
        like: Tensors whose shapes, devices and memory formats the masks take; their values are not read.
        count: How many living entries to drop, over all tensors.
        alive: For each tensor a mask of its shape, true where an entry takes part, or None if all do.
        generator: Source of the random numbers. Default: torch's global one of the first tensor's device, so
            ``torch.manual_seed`` reproduces the masks.

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
    living = checked_living(like, alive, count)
    if not like:
        return []
    keys = [_random_bytes(tensor, generator) for tensor in like]
    for key, mask in zip(map(as_array, keys), alive, strict=True):
        if mask is not None:
            key *= as_array(mask)
    pieces = list(split(whole(keys, alive, keys)))
    byte, upto = _last_byte(pieces, count, living)
    return _masks_from(keys, pieces, byte, upto - count, generator)


def _random_bytes(like: Tensor, generator: torch.Generator | None) -> Tensor:
    """Bytes in the shape and format of a tensor; words are drawn, for a draw takes as long for a byte as for eight."""
    device = like.device if generator is None else generator.device
    words = torch.empty(like.numel() // 8 + 1, dtype=torch.int64, device=device)
    words.random_(torch.iinfo(torch.int64).min, None, generator=generator)
    drawn = words.view(torch.uint8)[: like.numel()].view(like.shape)
    if device == like.device and drawn.stride() == like.stride():
        return drawn
    return torch.empty_like(like, dtype=torch.uint8).copy_(drawn)


def _last_byte(pieces: Sequence[Piece], count: int, living: int) -> tuple[int, int]:
    """The first byte up to which `count` living entries are found or more, and how many."""

    def upto(byte: int) -> int:
        return living - sum(count_true(as_array(piece.mask) > byte) for piece in pieces)

    expected = 256 * count // max(living, 1)  # seldom wrong by more than one
    bracket = narrow(Bracket(-1, 255, 0, living), count, upto, [expected, expected - 1])
    return bracket.high, bracket.upto_high


def _masks_from(
    keys: Sequence[Tensor], pieces: Sequence[Piece], byte: int, spared: int, generator: torch.Generator | None
) -> list[Tensor]:
    """Turns random bytes, 0 where nothing lives, into masks: True above `byte` and for `spared` of its entries."""
    ties = []
    for piece in pieces:
        key = as_array(piece.mask)
        ties.append(positions(piece.living(key == byte)))
        key[...] = key > byte
    chosen = _chosen(sum(map(len, ties)), spared, generator, keys[0].device)
    for piece, places, part in zip(pieces, ties, torch.split(chosen, [len(places) for places in ties]), strict=True):
        put(piece.mask, places, part)
    return [key.view(torch.bool) for key in keys]


def _chosen(size: int, number: int, generator: torch.Generator | None, home: torch.device) -> Tensor:
    """A boolean vector in which a random `number` of entries is true."""
    order = torch.randperm(size, generator=generator, device=home if generator is None else generator.device)
    return torch.zeros(size, dtype=torch.bool, device=home).index_fill_(0, order[:number].to(home), True)
