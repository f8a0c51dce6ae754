"""Random choice of entries of many tensors, every choice being equally likely."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lightning_prune.prune.kernels import as_array, positions, put
from lightning_prune.prune.pieces import checked_alive, checked_living, split_alike


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
    return _masks_from(keys, count, alive, living, generator)


def _random_bytes(like: Tensor, generator: torch.Generator | None) -> Tensor:
    """Bytes in the shape and format of a tensor; words are drawn, for a draw takes as long for a byte as for eight."""
    device = like.device if generator is None else generator.device
    words = torch.empty(like.numel() // 8 + 1, dtype=torch.int64, device=device)
    words.random_(torch.iinfo(torch.int64).min, None, generator=generator)
    return torch.empty_like(like, dtype=torch.uint8).copy_(words.view(torch.uint8)[: like.numel()].view(like.shape))


def _masks_from(
    keys: Sequence[Tensor],
    count: int,
    alive: Sequence[Tensor | None],
    living: int,
    generator: torch.Generator | None,
) -> list[Tensor]:
    """Turns random bytes, 0 where nothing lives, into masks in which `count` of the living entries are False."""
    home = keys[0].device
    found = torch.stack([torch.bincount(key.flatten(), minlength=256).to(home) for key in keys]).sum(0)
    found[0] -= sum(key.numel() for key in keys) - living
    upto = found.cumsum(0)
    byte = int(torch.searchsorted(upto, count))
    pieces, ties = list(split_alike(keys, alive, keys)), []
    for piece in pieces:
        key = as_array(piece.mask)
        ties.append(positions(piece.living(key == byte)))
        key[...] = key > byte
    spared = _chosen(sum(map(len, ties)), int(upto[byte]) - count, generator, home)
    for piece, places, part in zip(pieces, ties, torch.split(spared, [len(places) for places in ties]), strict=True):
        put(piece.mask, places, part)
    return [key.view(torch.bool) for key in keys]


def _chosen(size: int, number: int, generator: torch.Generator | None, home: torch.device) -> Tensor:
    """A boolean vector in which a random `number` of entries is true."""
    order = torch.randperm(size, generator=generator, device=home if generator is None else generator.device)
    return torch.zeros(size, dtype=torch.bool, device=home).index_fill_(0, order[:number].to(home), True)
