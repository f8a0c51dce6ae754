"""Hashes of integers and texts that are the same in every process and on every device."""

from __future__ import annotations

import functools
import hashlib

import numpy as np
import torch
from torch import Tensor

from lightning_prune.prune.kernels.arrays import Array, Scratch, as_array

GOLDEN = -7046029254386353131  # 2 ** 64 / golden ratio, odd, as a signed integer


def mix(keys: Tensor, scratch: Scratch | None = None) -> Tensor:
    """Scrambles integers one to one, so that neighbouring ones have nothing in common.

    The finalizer of splitmix64 (Steele, Lea & Flood 2014), in arithmetic that wraps around.

    Args:
        keys: int64, any shape; overwritten.
        scratch: Memory for what is computed on the way, by default new.

    Returns:
        int64, the same tensor.

    Example:
        >>> import torch
        >>> len(set(mix(torch.arange(1000)).tolist()))
        1000
    """
    array = as_array(keys)
    if isinstance(array, np.ndarray):
        _mix_words(array.view(np.uint64), scratch or Scratch())
        return keys
    keys ^= (keys >> 30) & (1 << 34) - 1  # shifts of signed integers keep the sign: it is cut off
    keys *= -4658895280553007687
    keys ^= (keys >> 27) & (1 << 37) - 1
    keys *= -7723592293110705685
    keys ^= (keys >> 31) & (1 << 33) - 1
    return keys


def _mix_words(words: Array, scratch: Scratch) -> None:
    """The same in numpy, which multiplies twice as fast and shifts without the sign."""
    shifted = scratch.like(words, torch.int64, "shifted").view(np.uint64)  # type: ignore[union-attr]
    for shift, factor in ((30, -4658895280553007687), (27, -7723592293110705685), (31, None)):
        np.right_shift(words, np.uint64(shift), out=shifted)
        np.bitwise_xor(words, shifted, out=words)
        if factor is not None:
            np.multiply(words, np.uint64(factor % 2**64), out=words)


def numbered(first: int, number: int, seed: int, device: torch.device, scratch: Scratch) -> Tensor:
    """Random words for consecutive integers: each is the hash of a seed and its integer.

    Args:
        first: The first integer.
        number: How many.
        seed: Of up to 63 bits.
        device: Where the words are wanted.
        scratch: On CPUs the words lie there until the next are.

    Returns:
        int64, a vector.
    """
    if device.type != "cpu":
        return mix(torch.arange(first, first + number, device=device).mul_(GOLDEN).add_(seed))
    multiples = _multiples(1 << max(number - 1, 0).bit_length())[:number]
    words = scratch.like(multiples, torch.int64, "words")
    np.add(multiples, np.int64((first * GOLDEN + seed + 2**63) % 2**64 - 2**63), out=words)
    return mix(torch.from_numpy(words), scratch)


@functools.lru_cache(maxsize=2)
def _multiples(number: int) -> Array:
    return np.arange(number) * np.int64(GOLDEN)


def stream(key: str) -> int:
    """A 63-bit integer that a text stands for, the same in every process.

    Args:
        key: What the integer is for.
    """
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "little") >> 1


def hashed(indices: Tensor, seed: int) -> Tensor:
    """Random 31-bit numbers that depend on nothing but a seed and indices, so not on which rank computes them.

    Args:
        indices: int64, any shape; overwritten.
        seed: Of up to 63 bits.

    Returns:
        int64 from 0, of the same shape.
    """
    return mix(indices.mul_(GOLDEN).add_(seed)).bitwise_right_shift_(32).bitwise_and_(2**31 - 1)
