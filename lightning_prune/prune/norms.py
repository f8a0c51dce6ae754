"""The norm of each channel of a tensor."""

from __future__ import annotations

import math
from typing import SupportsFloat

import torch
from torch import Tensor

__all__ = ["channel_norms"]


def channel_norms(t: Tensor, n: int | float | str, dim: int) -> Tensor:
    """The norm of every slice of `t` along `dim`.

    Args:
        t: Tensor with at least two dimensions, floating or complex.
        n: A positive number, ``inf``, ``-inf``, ``"fro"`` or ``"nuc"``.
        dim: The channel dimension; may be negative.

    Returns:
        Real tensor of shape ``(t.shape[dim],)``.

    Raises:
        ValueError: If `t` has fewer than two dimensions or `n` is none of the above.
        IndexError: If `t` has no dimension `dim`.

    Example:
        >>> import torch
        >>> channel_norms(torch.tensor([[3.0, 4.0], [0.0, 2.0]]), 2, dim=0)
        tensor([5., 2.])
    """
    order = _order(n)
    _check_dim(t, dim)
    channels = t.detach().movedim(dim, 0)
    if order == "nuc" and channels.dim() > 2:
        nuclear: Tensor = torch.linalg.matrix_norm(channels.flatten(2), "nuc")
        return nuclear
    power = 2.0 if isinstance(order, str) else order
    norms: Tensor = torch.linalg.vector_norm(
        channels.flatten(1).abs().to(torch.promote_types(t.abs().dtype, torch.float32)), power, dim=1
    )
    return norms


def _order(n: int | float | str) -> float | str:
    if n in ("fro", "nuc"):
        return str(n)
    if isinstance(n, SupportsFloat) and not isinstance(n, bool):
        value = float(n)
        if value > 0 or value == -math.inf:
            return value
    raise ValueError(f"n={n!r} is no order of a norm: give a positive number, inf, -inf, 'fro' or 'nuc'")


def _check_dim(t: Tensor, dim: int) -> None:
    if t.dim() < 2:
        raise ValueError(f"channels need at least 2 dimensions; the tensor has shape {tuple(t.shape)}")
    if not -t.dim() <= dim < t.dim():
        raise IndexError(f"dim={dim} is out of range for shape {tuple(t.shape)}")
