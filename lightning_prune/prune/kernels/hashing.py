"""Hashes of integers and texts that are the same in every process and on every device."""

from __future__ import annotations

import hashlib

from torch import Tensor

GOLDEN = -7046029254386353131  # 2 ** 64 / golden ratio, odd, as a signed integer


def mix(keys: Tensor) -> Tensor:
    """Scrambles integers one to one, so that neighbouring ones have nothing in common.

    The finalizer of splitmix64 (Steele, Lea & Flood 2014), in arithmetic that wraps around.

    Args:
        keys: int64, any shape; overwritten.

    Returns:
        int64, the same tensor.

    Example:
        >>> import torch
        >>> len(set(mix(torch.arange(1000)).tolist()))
        1000
    """
    keys ^= (keys >> 30) & (1 << 34) - 1  # shifts of signed integers keep the sign: it is cut off
    keys *= -4658895280553007687
    keys ^= (keys >> 27) & (1 << 37) - 1
    keys *= -7723592293110705685
    keys ^= (keys >> 31) & (1 << 33) - 1
    return keys


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
