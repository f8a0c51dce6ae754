"""The masked value of a tensor, zeros written under a mask, and whether they are there.

All three are ``where(mask, tensor, 0)`` in some form. On CPUs the kernels of ``torch.where`` and ``masked_fill_``
branch at every entry, which takes ten to thirty times as long as a product, and a product makes NaN of a masked inf.
So there the same values come from kernels that are vectorized:

* the gradient of ReLU, ``threshold_backward(w, mask, 0)``, which is ``where(mask > 0, w, 0)`` for a mask in the
  dtype of ``w``; of a boolean mask below 2**18 entries such a form is kept;
* the product of the bits of ``w``, taken as integers, with a mask of 0 and 1; on one thread numpy's, which widens the
  mask piece by piece in the cache and takes half to three quarters of the time of torch's.

Everything else (other devices, complex numbers, tensor subclasses, tracers, compilers, ``torch.func``) gets
``torch.where``.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.utils.weak import WeakIdKeyDictionary

_PIECE = 2**18  # entries whose mask, widened to the size of the weights (1 MiB of float32), stays in the cache
_BITS = {
    torch.float16: torch.int16,
    torch.bfloat16: torch.int16,
    torch.float32: torch.int32,
    torch.float64: torch.int64,
}
_UNFILLED = {  # dtypes that torch stores and does not fill, and ones of their size whose 0 has the same bits
    torch.uint16: torch.int16,
    torch.uint32: torch.int32,
    torch.uint64: torch.int64,
    **{kind: torch.uint8 for name, kind in vars(torch).items() if name.startswith("float8_")},
}
_PLAIN = (Tensor, nn.Parameter)

_known: WeakIdKeyDictionary = WeakIdKeyDictionary()  # of small masks, the numbers that the threshold kernel wants

_threshold = torch.ops.aten.threshold_backward.default


def masked(tensor: Tensor, mask: Tensor) -> Tensor:
    """``where(mask, tensor, 0)``: 0 under the mask, and no gradient, even where there is inf or NaN.

    Args:
        tensor: Any tensor.
        mask: Boolean, or 0 and 1 in the dtype of ``tensor``; its shape.

    Returns:
        A new tensor, differentiable any number of times.

    Example:
        >>> masked(torch.tensor([1.0, torch.inf]), torch.tensor([True, False]))
        tensor([1., 0.])
    """
    if _is_plain(tensor):
        numbers = _numbers(mask, tensor)
        # The threshold kernel gives the format of the mask, and its own strides to dimensions of size 1.
        if numbers is not None and numbers.stride() == tensor.stride():
            value: Tensor = _threshold(tensor, numbers, 0)
            if value.stride() == tensor.stride():
                return value
        if mask.dtype is torch.bool:
            product = _MaskedBits.apply if _derived() else _product
            return cast(Tensor, product(tensor, mask))
    return torch.where(mask if mask.dtype is torch.bool else mask != 0, tensor, 0)


def kept(tensor: Tensor, mask: Tensor) -> Tensor:
    """``where(mask, tensor, 0)`` without derivatives, for masks that are needed once.

    Args:
        tensor: Any tensor.
        mask: Boolean, its shape, on its device.

    Example:
        >>> kept(torch.tensor([1.0, torch.inf]), torch.tensor([True, False]))
        tensor([1., 0.])
    """
    tensor = tensor.detach()
    return _product(tensor, mask) if _is_plain(tensor) and mask.dtype is torch.bool else torch.where(mask, tensor, 0)


def _numbers(mask: Tensor, tensor: Tensor) -> Tensor | None:
    """The mask as 0 and 1 in the dtype of a tensor, if it is that already or small."""
    if mask.dtype is tensor.dtype:
        return mask
    return _known_numbers(mask, tensor.dtype) if mask.dtype is torch.bool and tensor.numel() < _PIECE else None


def _known_numbers(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """A boolean mask as 0 and 1 in a dtype, kept as long as the mask lives and is not written into."""
    if mask.is_inference():
        return mask.to(dtype)
    version, numbers = _known.get(mask, (None, mask))  # type: ignore[no-untyped-call]
    if version != mask._version or numbers.dtype is not dtype:
        with torch.inference_mode(False):  # what is kept has to be fit for training
            numbers = mask.view(torch.uint8).to(dtype)  # from bool it takes ten times as long
        if type(numbers) is Tensor:
            _known[mask] = (mask._version, numbers)
    return cast(Tensor, numbers)


def _derived() -> bool:
    """Whether derivatives may be wanted; they seldom are in a backward."""
    return torch.is_grad_enabled() or forward_ad._current_level >= 0


def _product(tensor: Tensor, mask: Tensor) -> Tensor:
    """The product of the bits of a tensor with a boolean mask."""
    value = torch.empty_like(tensor)
    bits, out = _bits(tensor), _bits(value)
    if _by_numpy(tensor):
        np.multiply(bits.numpy(), mask.numpy(), out.numpy())
    else:
        out.copy_(mask).mul_(bits)
    return value


def write_zeros(tensor: Tensor, mask: Tensor) -> None:
    """Writes zeros into a tensor, in place, where the mask is False.

    Args:
        tensor: Any tensor.
        mask: Boolean, its shape, on its device.

    Example:
        >>> weight = torch.tensor([1.0, torch.nan])
        >>> write_zeros(weight, torch.tensor([True, False]))
        >>> weight
        tensor([1., 0.])
    """
    tensor = tensor.detach()
    if tensor.dtype in _UNFILLED:
        tensor.view(_UNFILLED[tensor.dtype]).masked_fill_(~mask, 0)
        return
    if not _has_bits(tensor) or _transformed(tensor):
        tensor.masked_fill_(~mask, 0)
        return
    bits = _bits(tensor)
    # Of two entries in one place torch says so, numpy would multiply both.
    if _by_numpy(bits) and 0 not in bits.stride():
        array = bits.numpy()
        np.multiply(array, mask.numpy(), array)
    else:
        bits.mul_(mask)
    torch.autograd.graph.increment_version(tensor)  # a view of another dtype has none in inference mode


class ZeroWriter:
    """Writes zeros under a mask that stays the same for many calls.

    Of a small mask it keeps 0 and 1 as integers of the size of the weights too: the product of two tensors of one
    kind takes half the time of one that widens a mask.

    Example:
        >>> weight, write = torch.tensor([1.0, torch.nan]), ZeroWriter()
        >>> write(weight, torch.tensor([True, False]))
        >>> weight
        tensor([1., 0.])
    """

    def __init__(self) -> None:
        self._mask: Tensor | None = None
        self._version = 0
        self._numbers: Tensor | None = None

    def __call__(self, tensor: Tensor, mask: Tensor) -> None:
        """Does what :func:`write_zeros` does.

        Args:
            tensor: Any tensor.
            mask: Boolean, its shape, on its device.
        """
        tensor = tensor.detach()
        if mask.numel() < _PIECE and _is_plain(tensor) and not mask.is_inference():
            bits = _bits(tensor)
            bits.mul_(self._widened(mask, bits.dtype))
            torch.autograd.graph.increment_version(tensor)  # a view of another dtype has none in inference mode
        else:
            write_zeros(tensor, mask)

    def _widened(self, mask: Tensor, dtype: torch.dtype) -> Tensor:
        numbers = self._numbers
        if mask is not self._mask or mask._version != self._version or numbers is None or numbers.dtype is not dtype:
            numbers = self._numbers = mask.view(torch.uint8).to(dtype)
            self._mask, self._version = mask, mask._version
        return numbers


def zero_under(tensor: Tensor, mask: Tensor) -> bool:
    """Whether a tensor is 0 wherever the mask is False.

    Args:
        tensor: Any tensor with values, so not on the meta device.
        mask: Boolean, its shape, on its device.

    Example:
        >>> zero_under(torch.tensor([1.0, 0.0]), torch.tensor([True, False]))
        True
    """
    tensor = tensor.detach()
    if not _has_bits(tensor) or not tensor.numel():
        return not bool(((tensor != 0) & ~mask).any())
    return not any(
        _any_nonzero((~keep).to(bits.dtype).mul_(bits), tensor.dtype) for bits, keep in _pieces(tensor, mask)
    )


def sum_where(tensor: Tensor, mask: Tensor) -> Tensor:
    """The sum of the entries where the mask is True, without a copy of the tensor; half precision adds up in single.

    Args:
        tensor: Real.
        mask: Boolean, its shape, on its device.

    Example:
        >>> sum_where(torch.tensor([1.0, torch.inf, 2.0]), torch.tensor([True, False, True]))
        tensor(3.)
    """
    tensor = tensor.detach()
    dtype = torch.promote_types(tensor.dtype, torch.float32)
    if not _is_plain(tensor):
        return torch.where(mask, tensor, 0).sum(dtype=dtype)
    parts = (kept(bits.view(tensor.dtype), keep).sum(dtype=dtype) for bits, keep in _pieces(tensor, mask))
    return functools.reduce(torch.add, parts)


def _by_numpy(tensor: Tensor) -> bool:
    """Whether numpy is faster, and no mode of torch wants to know what is written."""
    return tensor.is_cpu and torch.get_num_threads() == 1 and not torch._C._len_torch_dispatch_stack()


def _bits(tensor: Tensor) -> Tensor:
    return tensor.view(_BITS[tensor.dtype])


def _any_nonzero(bits: Tensor, dtype: torch.dtype) -> bool:
    """Whether any number is not 0; looks for bits first, which is fast, and they may be those of -0.0."""
    if bits.is_contiguous() and not bool(bits.view(-1).view(torch.uint8).amax()):
        return False
    return bool((bits.view(dtype) != 0).any())


def _pieces(tensor: Tensor, mask: Tensor) -> Iterable[tuple[Tensor, Tensor]]:
    """Bits of the tensor, as views, with their masks: in pieces of the order of memory, or else as a whole."""
    bits = _bits(tensor)
    if bits.numel() <= _PIECE or not (bits.is_contiguous() and mask.is_contiguous()):
        return [(bits, mask)]
    return zip(torch.split(bits.view(-1), _PIECE), torch.split(mask.view(-1), _PIECE), strict=True)


def _has_bits(tensor: Tensor) -> bool:
    """Whether the memory holds the bits of the numbers; in the imaginary part of a conjugate the signs are others."""
    return _is_real(tensor) and not tensor.is_neg()


def _is_real(tensor: Tensor) -> bool:
    return tensor.dtype in _BITS and type(tensor) in _PLAIN


def _is_plain(tensor: Tensor) -> bool:
    """Whether this is eager work on real numbers on a CPU."""
    # The type is asked for first: a proxy of ``torch.fx`` has no other answers.
    return _is_real(tensor) and tensor.is_cpu and not _transformed(tensor) and not tensor.is_neg()


def _transformed(tensor: Tensor) -> bool:
    """Whether a compiler, a tracer, a transform of ``torch.func`` or a batch of gradients is at work."""
    return bool(
        torch.compiler.is_compiling()
        or torch._C._are_functorch_transforms_active()
        or torch._C._functorch.is_legacy_batchedtensor(tensor)
        or torch._C._is_tracing()
    )


class _MaskedBits(torch.autograd.Function):
    """The product with derivatives; it takes a byte per weight from the forward to the backward."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, mask: Tensor) -> Tensor:
        ctx.save_for_backward(mask)
        ctx.save_for_forward(mask)
        return _product(tensor, mask)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return masked(gradient, *ctx.saved_tensors), None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, _: None) -> Tensor:
        return masked(tangent, *ctx.saved_tensors)
