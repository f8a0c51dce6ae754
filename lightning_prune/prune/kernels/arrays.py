"""Entries of tensors as arrays whose comparisons, counts and searches are fast.

On CPUs those are numpy arrays over the same memory: torch writes the boolean result of a comparison entry by entry, and
looks at each entry of a mask to find the few that are true, which takes five to fifteen times as long as numpy does.
Elsewhere they are the tensors. Operators such as ``>``, ``&=`` and ``[...] =`` mean the same for both.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

Array = Any  # a numpy array or a tensor

_PART = 1 << 16
_REMEMBERED = 1 << 18  # entries from which counting a mask takes longer than to remember the number
_EVERY = 61  # entries of which one is looked at to judge how many are true; prime, so that it visits all columns
_LARGE = 1 << 22  # bytes from which numpy asks the system for large pages
_IN_NUMPY = (torch.bool, torch.uint8, torch.int32, torch.int64, torch.float16, torch.float32, torch.float64)
_NUMPY_OF = {
    torch.bool: np.bool_,
    torch.uint8: np.uint8,
    torch.int64: np.int64,
    torch.float32: np.float32,
    torch.float64: np.float64,
}

_living: WeakIdKeyDictionary = WeakIdKeyDictionary()  # of large masks, their version and how many entries are True


def as_array(tensor: Tensor) -> Array:
    """The entries of a tensor without gradient: a numpy array over the same memory on CPUs, else the tensor itself.

    Example:
        >>> as_array(torch.tensor([1.0, 3.0])) > 2.0
        array([False,  True])
    """
    return tensor.numpy() if tensor.is_cpu and type(tensor) is Tensor else tensor


def empty_like(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """A tensor without values, of the shape, device and memory format of another one; it takes no gradient.

    The system hands memory out in pages of 4 KiB, and to map each of them when it is first written takes longer than to
    choose what is written. numpy asks for pages of 2 MiB where they can be had, torch does not.

    Example:
        >>> empty_like(torch.ones(2, 3).T, torch.bool).stride()
        (1, 3)
    """
    if dtype not in _NUMPY_OF or not _on_plain_cpu(tensor) or tensor.numel() * dtype.itemsize < _LARGE:
        return torch.empty_like(tensor, dtype=dtype, requires_grad=False)
    strides = torch.empty_like(tensor, dtype=dtype, device="meta").stride()
    memory: Array = np.empty(tensor.numel(), _NUMPY_OF[dtype])
    shaped = np.lib.stride_tricks.as_strided(memory, tensor.shape, [step * dtype.itemsize for step in strides])
    return torch.from_numpy(shaped)


def as_bool(mask: Tensor) -> Tensor:
    """A mask of 0 and 1 in any dtype as booleans; a boolean one as it is.

    Example:
        >>> as_bool(torch.tensor([1.0, 0.0]))
        tensor([ True, False])
    """
    if mask.dtype is torch.bool:
        return mask
    mask = mask.detach()
    if mask.dtype not in _IN_NUMPY or not _on_plain_cpu(mask):
        return mask != 0
    found = empty_like(mask, torch.bool)
    np.not_equal(mask.numpy(), 0, out=found.numpy())
    return found


def is_binary(mask: Tensor) -> bool:
    """Whether a mask holds nothing but 0 and 1.

    Example:
        >>> is_binary(torch.tensor([1.0, 0.0])), is_binary(torch.tensor([1.0, 0.5]))
        (True, False)
    """
    mask = mask.detach()
    if mask.dtype is torch.bool or not mask.numel():
        return True
    if mask.dtype not in _IN_NUMPY or not _on_plain_cpu(mask):
        return not bool(((mask != 0) & (mask != 1)).any())
    rows = mask.view(1) if mask.dim() == 0 else mask
    parts = torch.split(rows, max(1, _PART // max(1, rows[0].numel())))  # what is compared stays in the cache
    return all(bool(((part == 0) | (part == 1)).all()) for part in (part.numpy() for part in parts))


def as_numbers(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """A boolean mask as 0 and 1 in another dtype; for ``torch.bool`` as it is.

    Example:
        >>> as_numbers(torch.tensor([True, False]), torch.float32)
        tensor([1., 0.])
    """
    if dtype is torch.bool or not _on_plain_cpu(mask):
        return mask.to(dtype)
    return empty_like(mask, dtype).copy_(mask.view(torch.uint8))  # from bool it takes ten times as long


def _on_plain_cpu(tensor: Tensor) -> bool:
    """Whether this is memory that others may read: neither a subclass nor a view with other signs."""
    strided = type(tensor) in (Tensor, nn.Parameter) and tensor.is_cpu and tensor.layout is torch.strided
    return strided and not tensor.is_neg() and not tensor.is_conj()


class Scratch:
    """Arrays for what is computed of one piece after the other, overwritten by the next.

    If each piece took new memory, the system would map its pages anew, which takes longer than to compute what is
    written there. Accelerators have allocators that keep what is freed: for them there is nothing here.
    """

    def __init__(self) -> None:
        self._held: dict[str, Array] = {}

    def like(self, array: Array, dtype: torch.dtype, use: str) -> Array | None:
        """An array of the shape and memory format of another one.

        Args:
            array: The other one.
            dtype: ``torch.bool``, or that of some numbers.
            use: What it is for; the next one for the same use lies in the same memory.

        Returns:
            The array, or ``None`` for tensors.
        """
        if not isinstance(array, np.ndarray):
            return None
        held = self._held.get(use)
        if held is None or len(held) < array.size or held.dtype != _NUMPY_OF[dtype]:
            held = self._held[use] = np.empty(array.size, _NUMPY_OF[dtype])
        if array.flags.c_contiguous:
            return held[: array.size].reshape(array.shape)
        order = sorted(range(array.ndim), key=array.strides.__getitem__, reverse=True)
        places = sorted(range(array.ndim), key=order.__getitem__)
        return held[: array.size].reshape([array.shape[d] for d in order]).transpose(places)


def magnitude(numbers: Array, out: Array | None = None) -> Array:
    """Absolute values; written into `out` if that is given, as below."""
    return np.absolute(numbers, out=out) if isinstance(numbers, np.ndarray) else numbers.abs()


def greater(numbers: Array, than: float, out: Array | None = None) -> Array:
    """Whether each number is greater than one."""
    return np.greater(numbers, than, out=out) if isinstance(numbers, np.ndarray) else numbers > than


def equal(numbers: Array, to: float, out: Array | None = None) -> Array:
    """Whether each number equals one."""
    return np.equal(numbers, to, out=out) if isinstance(numbers, np.ndarray) else numbers == to


def not_at_most(numbers: Array, bound: float, out: Array | None = None) -> Array:
    """Whether each number, none of which is negative, is greater than a bound, or NaN."""
    if not isinstance(numbers, np.ndarray):
        return ~(numbers <= bound)
    word = np.dtype(f"i{numbers.itemsize}")  # the bits, as integers, have the order of the numbers; NaN is the largest
    bits = numbers.dtype.type(bound).view(word) if bound >= 0 else word.type(-1)
    return np.greater(numbers.view(word), bits, out=out)


def differ(conditions: Array, others: Array, out: Array | None = None) -> Array:
    """Where one of two conditions holds."""
    return np.bitwise_xor(conditions, others, out=out) if isinstance(conditions, np.ndarray) else conditions ^ others


def count_true(mask: Array) -> int:
    """How many entries of a boolean array are true.

    Example:
        >>> count_true(torch.tensor([True, False, True]))
        2
    """
    return int(np.count_nonzero(mask) if isinstance(mask, np.ndarray) else mask.count_nonzero())


def living_entries(mask: Tensor) -> int:
    """How many entries of a boolean mask are True; of a large one counted once, until it is written into.

    Args:
        mask: Boolean, not split over ranks. Who writes into its memory past torch has to raise its version.

    Example:
        >>> living_entries(torch.tensor([True, False, True]))
        2
    """
    if mask.numel() < _REMEMBERED or mask.is_inference():
        return count_true(as_array(mask))
    version, number = _living.get(mask, (None, 0))  # type: ignore[no-untyped-call]
    return int(number) if version == mask._version else remembered(mask, count_true(as_array(mask)))


def remembered(mask: Tensor, number: int) -> int:
    """Notes how many entries of a new mask are True, so that it need not be counted; gives the number."""
    if mask.numel() >= _REMEMBERED and not mask.is_inference():
        _living[mask] = (mask._version, number)
    return number


def positions(mask: Array) -> Array:
    """Where a boolean array is true: indices into its entries in row-major order, ascending.

    Example:
        >>> positions(torch.tensor([[True, False], [False, True]]))
        tensor([0, 3])
    """
    if not isinstance(mask, np.ndarray):
        return mask.flatten().nonzero().view(-1)
    if not mask.flags.c_contiguous or mask.size % 8:
        return np.flatnonzero(mask)
    looked_at = mask.reshape(-1)[:: _EVERY if mask.size > 1 << 12 else 1]
    few = 10 * np.count_nonzero(looked_at) < looked_at.size
    return _few_positions(mask) if few else np.flatnonzero(mask)


def _few_positions(mask: Array) -> Array:
    """The same where few are true: which words of eight hold any, then where in them, in half the time of numpy's."""
    words = mask.reshape(-1).view(np.uint64)
    held = np.flatnonzero(words != 0)
    within = np.flatnonzero(words.take(held).view(np.bool_))
    found = held.take(within >> 3)
    found <<= 3
    within &= 7
    found += within
    return found


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
        if array.flags.c_contiguous:
            array.reshape(-1)[_on_cpu(places)] = _on_cpu(values)
        else:
            array.put(_on_cpu(places), _on_cpu(values))
        return
    # By an index, since ``put_`` is forbidden by ``torch.use_deterministic_algorithms``.
    index = torch.unravel_index(torch.as_tensor(places, device=tensor.device), tensor.shape)
    tensor[index] = torch.as_tensor(values, dtype=tensor.dtype, device=tensor.device)


def _on_cpu(array: Array | bool) -> Any:
    return array.cpu().numpy() if isinstance(array, Tensor) else array
