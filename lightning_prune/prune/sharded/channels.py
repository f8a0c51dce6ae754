"""Channels of tensors that are split over ranks: what is counted or measured of them in each slice is added up."""

from __future__ import annotations

import math

from torch import Tensor

from lightning_prune.prune.kernels.channels import counts
from lightning_prune.prune.kernels.norms import channel_norms
from lightning_prune.prune.sharded.tensors import box_of, holders_of, is_sharded, local, split_dims


def nonzero_channels(tensor: Tensor, dim: int) -> Tensor:
    """One bool for each slice along ``dim``: whether any of its entries is not zero, over all ranks.

    Args:
        tensor: Plain or split; every rank has to call it for a split one.
        dim: The dimension, from the front.

    Example:
        >>> import torch
        >>> nonzero_channels(torch.tensor([[1.0, 0.0], [2.0, 0.0]]), dim=1)
        tensor([ True, False])
    """
    return channel_sums(tensor != 0, dim) > 0


def channel_sums(mask: Tensor, dim: int) -> Tensor:
    """How many entries of a boolean mask are True in each slice along ``dim``, over all ranks.

    Args:
        mask: Plain or split; every rank has to call it for a split one.
        dim: The dimension, from the front.

    Returns:
        int64, 1-d of length ``mask.shape[dim]``, the same on every rank.

    Example:
        >>> import torch
        >>> channel_sums(torch.tensor([[True, False], [True, True]]), dim=1)
        tensor([2, 1])
    """
    return _over_ranks(counts(local(mask), dim), mask, dim)


def sharded_channel_norms(part: Tensor, tensor: Tensor, n: int | float | str, dim: int) -> Tensor | None:
    """The norms that :func:`~lightning_prune.prune.kernels.norms.channel_norms` gives of a whole tensor.

    Args:
        part: This rank's slice.
        tensor: How it is split.
        n: The norm.
        dim: The channels' dimension.

    Returns:
        One norm for each channel, the same on every rank; ``None`` for a nuclear norm of slices that are split.
    """
    norms = channel_norms(part, n, dim) if part.numel() else part.abs().new_zeros(part.shape[dim])
    if split_dims(tensor) <= {dim}:
        return _over_ranks(norms, tensor, dim)
    if n == "nuc" and tensor.dim() > 2:
        return None
    power = 2.0 if isinstance(n, str) else float(n)
    if math.isinf(power):
        return _extremes(norms, tensor, dim, sign=1 if power > 0 else -1)
    return _over_ranks(norms.double() ** power, tensor, dim).pow(1 / power).to(norms.dtype)


def _extremes(norms: Tensor, tensor: Tensor, dim: int, sign: int) -> Tensor:
    """The largest or, with a negative sign, smallest of the norms of the slices of a channel."""
    values = norms.new_full((tensor.shape[dim],), -math.inf)
    if local(tensor).numel():
        _part_of(values, tensor, dim).copy_(sign * norms)
    return sign * holders_of(tensor).largest(values)


def _over_ranks(values: Tensor, tensor: Tensor, dim: int) -> Tensor:
    """Values of the channels of a slice, added up over ranks."""
    if not is_sharded(tensor):
        return values
    everywhere = values.new_zeros(tensor.shape[dim])
    _part_of(everywhere, tensor, dim).copy_(values)
    return holders_of(tensor).total(everywhere)


def _part_of(values: Tensor, tensor: Tensor, dim: int) -> Tensor:
    """Of one value for each channel those of the slice that this rank holds."""
    return values[box_of(tensor).slices[dim]]
