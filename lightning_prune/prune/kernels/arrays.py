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


def kth_smallest(values: Array, k: int) -> float:
    """The k-th smallest of some values without NaN, counted from 1.

    Example:
        >>> kth_smallest(torch.tensor([3.0, 1.0, 2.0]), 2)
        2.0
    """
    # Accelerators sort: their ``kthvalue`` is forbidden by ``torch.use_deterministic_algorithms``.
    return float(np.partition(values, k - 1)[k - 1] if isinstance(values, np.ndarray) else values.sort().values[k - 1])


def put(tensor: Tensor, places: Array, values: Array | bool) -> None:
    """Writes values, which may be on another device, at indices in row-major order.

    Example:
        >>> mask = torch.tensor([[True, True], [True, True]])
        >>> put(mask, torch.tensor([0, 3]), False)
        >>> mask
        tensor([[False,  True],
                [ True, False]])
    """
    array = as_array(tensor)
    if isinstance(array, np.ndarray):
        array.put(_on_cpu(places), _on_cpu(values))
        return
    # By an index, since ``put_`` is forbidden by ``torch.use_deterministic_algorithms``.
    index = torch.unravel_index(torch.as_tensor(places, device=tensor.device), tensor.shape)
    tensor[index] = torch.as_tensor(values, dtype=tensor.dtype, device=tensor.device)


def _on_cpu(array: Array | bool) -> Any:
    return array.cpu().numpy() if isinstance(array, Tensor) else array
