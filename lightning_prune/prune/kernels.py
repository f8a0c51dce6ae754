"""Entries of tensors as arrays whose comparisons, counts and searches are fast.

On CPUs those are numpy arrays over the same memory: torch writes the boolean result of a comparison entry by entry, and
looks at each entry of a mask to find the few that are true, which takes five to fifteen times as long as numpy does.
Elsewhere they are the tensors. Operators such as ``>``, ``&=`` and ``[...] =`` mean the same for both.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

Array = Any  # a numpy array or a tensor


def as_array(tensor: Tensor) -> Array:
    """The entries of a tensor without gradient: a numpy array over the same memory on CPUs, else the tensor itself.

    Example:
        >>> as_array(torch.tensor([1.0, 3.0])) > 2.0
        array([False,  True])
    """
    return tensor.numpy() if tensor.is_cpu and type(tensor) is Tensor else tensor


def count_true(mask: Array) -> int:
    """How many entries of a boolean array are true.

    Example:
        >>> count_true(torch.tensor([True, False, True]))
        2
    """
    return int(np.count_nonzero(mask) if isinstance(mask, np.ndarray) else mask.count_nonzero())


def positions(mask: Array) -> Array:
    """Where a boolean array is true: indices into its entries in row-major order, ascending.

    Example:
        >>> positions(torch.tensor([[True, False], [False, True]]))
        tensor([0, 3])
    """
    return np.flatnonzero(mask) if isinstance(mask, np.ndarray) else mask.flatten().nonzero().view(-1)


def put(tensor: Tensor, places: Array, values: Array) -> None:
    """Writes values, which may be of another device or dtype, at indices in row-major order.

    Example:
        >>> mask = torch.tensor([[True, True], [True, True]])
        >>> put(mask, torch.tensor([0, 3]), torch.tensor([False, False]))
        >>> mask
        tensor([[False,  True],
                [ True, False]])
    """
    tensor.put_(torch.as_tensor(places, device=tensor.device), torch.as_tensor(values).to(tensor))
