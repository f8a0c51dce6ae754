"""Channels of a mask: which of them have an entry left, which all, and masks made of one bool for each.

A mask is read as (entries before, channels, entries after) in the order of memory. On CPUs the reductions are numpy's
over bytes, which take a tenth of the time of torch's over booleans.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from lightning_prune.prune.kernels.arrays import as_array, empty_like


class Living(NamedTuple):
    """What is left of each channel: whether any of its entries is, and whether all are."""

    any: Tensor
    all: Tensor

    @property
    def whole(self) -> bool:
        """Whether each channel is left as a whole or not at all."""
        return bool((self.any == self.all).all())


def in_memory_order(t: Tensor, dim: int) -> tuple[list[int], int]:
    """The dimensions of a tensor from the largest stride to the smallest, and at which of these places `dim` is."""
    order = sorted(range(t.dim()), key=t.stride, reverse=True)
    return order, order.index(dim)


def around(t: Tensor, dim: int, order: list[int] | None = None) -> Tensor:
    """`t` as (entries before, channels, entries after), in the order of memory or another order of its dimensions.

    Example:
        >>> around(torch.ones(2, 3, 4, 5), 1).shape
        torch.Size([2, 3, 20])
    """
    order = order or in_memory_order(t, dim)[0]
    place = order.index(dim)
    t = t.permute(order)
    return t.reshape(math.prod(t.shape[:place]), t.shape[place], math.prod(t.shape[place + 1 :]))


def living(mask: Tensor, dim: int) -> Living:
    """Which channels of a boolean mask have an entry that is True, and of which all entries are.

    Args:
        mask: Boolean, any shape.
        dim: The dimension of the channels, from the front.

    Returns:
        Two boolean vectors of length ``mask.shape[dim]``.

    Example:
        >>> living(torch.tensor([[True, False], [True, True]]), dim=1)
        Living(any=tensor([True, True]), all=tensor([ True, False]))
    """
    x = around(mask, dim)
    array = as_array(x)
    if not isinstance(array, np.ndarray):
        return Living(x.any(2).any(0), x.all(2).all(0))
    bits = array.view(np.uint8)
    rows = (np.bitwise_or.reduce(bits, axis=0, initial=0), np.bitwise_and.reduce(bits, axis=0, initial=1))
    found = np.bitwise_or.reduce(rows[0], axis=1, initial=0), np.bitwise_and.reduce(rows[1], axis=1, initial=1)
    return Living(*(torch.from_numpy(each.view(np.bool_)) for each in found))


def counts(mask: Tensor, dim: int) -> Tensor:
    """How many entries of each channel of a boolean mask are True.

    Args:
        mask: Boolean, any shape.
        dim: The dimension of the channels, from the front.

    Returns:
        int64, of length ``mask.shape[dim]``.

    Example:
        >>> counts(torch.tensor([[True, False], [True, True]]), dim=1)
        tensor([2, 1])
    """
    x = around(mask, dim)
    array = as_array(x)
    if not isinstance(array, np.ndarray):
        return x.sum((0, 2))
    bits = array.view(np.uint8)
    if len(bits) == 1:  # sums of bytes as bytes are the fastest, but hold no more than 255
        return torch.from_numpy(bits[0].sum(1, dtype=np.uint32).astype(np.int64))
    total = np.zeros(bits.shape[1:], np.int64)
    for start in range(0, len(bits), 255):
        total += bits[start : start + 255].sum(0, dtype=np.uint8)
    return torch.from_numpy(total.sum(1))


def spread(channels: Tensor, dim: int, like: Tensor) -> Tensor:
    """The mask that keeps or drops whole channels.

    Args:
        channels: One bool for each channel.
        dim: The dimension of the channels, from the front.
        like: A tensor whose shape, device and memory format the mask takes.

    Returns:
        A boolean mask.

    Example:
        >>> spread(torch.tensor([True, False]), 0, torch.empty(2, 3))
        tensor([[ True,  True,  True],
                [False, False, False]])
    """
    shape = [-1 if d == dim else 1 for d in range(like.dim())]
    return empty_like(like, torch.bool).copy_(channels.view(shape))
