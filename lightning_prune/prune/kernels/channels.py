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

from lightning_prune.prune.kernels.arrays import Array, as_array, empty_like

_EACH = {1: 1, 8: 0x0101010101010101}  # True in each byte of a word, by its size
_MOST = 255  # of the bytes that are summed as bytes


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
    words = _words(array)
    each = _EACH[words.itemsize]
    single = len(words) == 1
    some = words[0] if single else np.bitwise_or.reduce(words, initial=0)
    every = words[0] if single else np.bitwise_and.reduce(words, initial=each)
    left = np.bitwise_or.reduce(some, axis=1, initial=0) != 0
    full = np.bitwise_and.reduce(every, axis=1, initial=each) == each
    return Living(torch.from_numpy(left), torch.from_numpy(full))


def _words(array: Array) -> Array:
    """The bytes of a mask, eight in a word where each row divides into words, for then there are fewer to reduce."""
    divides = array.flags.c_contiguous and array.shape[-1] > 0 and array.shape[-1] % 8 == 0
    return array.view(np.uint64 if divides else np.uint8)


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
    # Sums of bytes as bytes are the fastest, also of eight in a word at once, but hold no more than 255.
    total = np.zeros(array.shape[1], np.int64)
    if len(array) == 1:
        words = _words(array)[0]
        for start in range(0, words.shape[1], _MOST):
            sums = np.add.reduce(words[:, start : start + _MOST], axis=1, dtype=np.uint64)
            total += (
                sums.view(np.uint8).reshape(-1, 8).sum(1, dtype=np.int64)
                if words.itemsize == 8
                else sums.astype(np.int64)
            )
        return torch.from_numpy(total)
    bits = array.view(np.uint8)
    for start in range(0, len(bits), _MOST):
        total += bits[start : start + _MOST].sum(0, dtype=np.uint8).sum(1, dtype=np.int64)
    return torch.from_numpy(total)


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
