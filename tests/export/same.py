"""Whether two trees of values are the same, bit by bit."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


def bits(tensor: Tensor) -> list[int]:
    """The bytes of a tensor, row by row."""
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
    return plain.reshape(-1).view(torch.uint8).tolist()


def same(one: Any, two: Any) -> bool:
    """Equal in types, values and bits; tensors also in dtype and shape."""
    if isinstance(one, Tensor):
        return isinstance(two, Tensor) and same_tensor(one, two)
    if type(one) is not type(two):
        return False
    if isinstance(one, Mapping):
        return list(one) == list(two) and all(same(one[key], two[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(two) and all(map(same, one, two))
    if isinstance(one, float) and math.isnan(one):
        return math.isnan(two)
    return bool(one == two)


def same_tensor(one: Tensor, two: Tensor) -> bool:
    return one.dtype == two.dtype and one.shape == two.shape and bits(one) == bits(two)
