"""The norm of each channel of a tensor, without a copy of the tensor."""

from __future__ import annotations

import functools
import math
import numbers
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from lightning_prune.prune.kernels.channels import around, in_memory_order
from lightning_prune.prune.kernels.masking import kept

__all__ = ["channel_norms"]

_BLOCK = 1 << 17  # entries: a block and its magnitudes stay in a core's L2 cache


def channel_norms(t: Tensor, n: int | float | str, dim: int, alive: Tensor | None = None) -> Tensor:
    r"""The norm of every slice of `t` along `dim`.

    For a finite number `n` the norm of channel :math:`c` is :math:`(\sum_i |t_{c,i}|^n)^{1/n}` over all its entries,
    for ``inf`` and ``-inf`` the largest and the smallest magnitude. The values are those of
    :func:`torch.linalg.vector_norm`, to rounding. As there, a sum that leaves the range of the dtype it is formed in
    gives ``inf`` or 0; float16 and bfloat16 entries are summed as float32, so that large channels stay finite.

    Args:
        t: Floating or complex tensor of two or more dimensions; of complex entries the modulus counts.
        n: A positive number; ``inf``; ``-inf``; ``"fro"``, which is 2; or ``"nuc"``, the nuclear norm (sum of singular
            values) of each slice as a matrix of its first dimension by all its others. The nuclear norm of a slice
            that is a vector is its 2-norm.
        dim: The channel dimension; negative ones count from the end.
        alive: Boolean mask of the shape of `t`; entries where it is False count as 0. Default: all count.

    Returns:
        Tensor of shape ``(t.shape[dim],)``: float64 for double precision, else float32. Channels without entries
        have norm 0.

    Raises:
        ValueError: If `t` has fewer than two dimensions, or `n` is none of the above.
        IndexError: If `t` has no dimension `dim`.

    Example:
        >>> import torch
        >>> weight = torch.tensor([[3.0, 4.0], [0.0, 2.0]])
        >>> channel_norms(weight, 2, dim=0)
        tensor([5., 2.])
        >>> channel_norms(weight, float("inf"), dim=1)
        tensor([3., 4.])
    """
    power = order_of(n)
    dim = _checked_dim(t, dim)
    t = t.detach()
    dtype = torch.float64 if t.dtype in (torch.float64, torch.complex128) else torch.float32
    if n == "nuc" and t.dim() > 2:
        return _nuclear_norms(t if alive is None else kept(t, alive), dim)
    if t.numel() == 0:
        return torch.zeros(t.shape[dim], dtype=dtype, device=t.device)
    order = in_memory_order(t, dim)[0]  # norms do not depend on it
    mask = None if alive is None else around(alive, dim, order)
    return _vector_norms(around(t, dim, order), mask, power, dtype)


def order_of(n: object) -> float:
    """The order of a norm as a number: 2 for ``"fro"`` and ``"nuc"``.

    Raises:
        ValueError: If it is none.
    """
    if n in ("fro", "nuc"):
        return 2.0
    if isinstance(n, numbers.Real) and not isinstance(n, bool) and (float(n) > 0 or float(n) == -math.inf):
        return float(n)
    raise ValueError(f"n={n!r} is not the order of a norm: give a positive number, inf, -inf, 'fro' or 'nuc'")


def _checked_dim(t: Tensor, dim: int) -> int:
    if t.dim() < 2:
        raise ValueError(f"channels need a tensor of 2 or more dimensions, not one of shape {tuple(t.shape)}")
    if not -t.dim() <= dim < t.dim():
        raise IndexError(
            f"dim={dim} is out of range for a tensor of shape {tuple(t.shape)}: give {-t.dim()} to {t.dim() - 1}"
        )
    return dim % t.dim()


def _nuclear_norms(t: Tensor, dim: int) -> Tensor:
    matrices = t.movedim(dim, 0).flatten(2)
    if matrices.dtype in (torch.float16, torch.bfloat16):
        matrices = matrices.float()
    singular: Tensor = torch.linalg.svdvals(matrices)
    return singular.sum(1)


def _vector_norms(x: Tensor, alive: Tensor | None, power: float, dtype: torch.dtype) -> Tensor:
    before, channels, after = x.shape
    if before == 1 and power == 2.0:  # torch has a fast path for just this
        return torch.cat([_row_norms(block, dtype) for block in _row_blocks(x, alive, 0)])
    if channels * after <= _BLOCK:
        blocks = _blocks(x, alive, _BLOCK // (channels * after))
        sums = (_reduce(_terms(block, power, dtype), power, 0) for block in blocks)
        total = _reduce(_join(sums, power), power, 1)
    else:
        slices = (_row_blocks(x, alive, place) for place in range(before))
        total = _join((torch.cat([_reduce(_terms(b, power, dtype), power, 1) for b in s]) for s in slices), power)
    return total if math.isinf(power) else total.pow_(1 / power)


def _row_norms(rows: Tensor, dtype: torch.dtype) -> Tensor:
    norms: Tensor = torch.linalg.vector_norm(rows, 2, dim=1, dtype=None if rows.is_complex() else dtype)
    return norms


def _row_blocks(x: Tensor, alive: Tensor | None, place: int) -> Iterator[Tensor]:
    """Blocks of the channels at one of the places before them."""
    size = max(1, _BLOCK // x.shape[2])
    return _blocks(x[place], None if alive is None else alive[place], size)


def _blocks(x: Tensor, alive: Tensor | None, size: int) -> Iterator[Tensor]:
    """At most so many rows at a time, with zeros where nothing is left."""
    if alive is None:
        yield from torch.split(x, size)
        return
    for part, mask in zip(torch.split(x, size), torch.split(alive, size), strict=True):
        yield kept(part, mask)


def _terms(block: Tensor, power: float, dtype: torch.dtype) -> Tensor:
    if power == 2.0 and not block.is_complex():
        return block.to(dtype).square()
    magnitude = block.abs().to(dtype)
    return magnitude if math.isinf(power) else magnitude.pow_(power)


def _reduce(terms: Tensor, power: float, dim: int) -> Tensor:
    if math.isinf(power):
        return terms.amax(dim) if power > 0 else terms.amin(dim)
    return terms.sum(dim)


def _join(parts: Iterable[Tensor], power: float) -> Tensor:
    if math.isinf(power):
        return functools.reduce(torch.maximum if power > 0 else torch.minimum, parts)
    return functools.reduce(torch.add, parts)
