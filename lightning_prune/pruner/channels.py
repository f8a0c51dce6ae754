"""Whole channels: counting them and ranking those of many tensors together."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from lightning_prune.prune.masks import AnyMethod
from lightning_prune.prune.methods import LnStructured, RankedStructured, scores_of_channels
from lightning_prune.prune.sharded.channels import channel_sums
from lightning_prune.prune.sharded.tensors import cut, is_sharded
from lightning_prune.targets.select import Target


def channel_counts(target: Target, dim: int) -> tuple[int, int]:
    """Number of channels along ``dim``, and how many of them are dead (nothing of them is unpruned)."""
    channels = target.parameter.shape[dim]
    alive = living_channels(target, dim)
    return channels, channels - int(alive.count_nonzero())


def living_channels(target: Target, dim: int) -> Tensor:
    """One bool for each channel along ``dim``: whether it still has an unpruned entry."""
    parameter, alive = target.parameter, target.alive
    if alive is None:
        return torch.ones(parameter.shape[dim], dtype=torch.bool, device=parameter.device)
    return channel_sums(alive, dim) > 0


def kept_channels(target: Target, dim: int, dropped: Tensor) -> Tensor | None:
    """The mask of a target without some channels (one bool each, True = dropped)."""
    if not bool(dropped.any()):
        return target.alive
    shape = [-1 if d == dim else 1 for d in range(target.parameter.dim())]
    keep = (~dropped).view(shape).expand(target.parameter.shape)
    if is_sharded(target.parameter):
        part = cut(keep, target.parameter.detach())
        return part if target.alive is None else part & target.alive
    like = torch.empty_like(target.parameter, dtype=torch.bool, requires_grad=False).copy_(keep)
    return like if target.alive is None else like & target.alive


def global_channels(
    methods: Sequence[AnyMethod],
    targets: Sequence[Target],
    dims: Sequence[int],
    count: int,
    room: Sequence[int],
    count_channels: bool,
) -> list[Tensor]:
    """Ranks the channels of many tensors together and drops the least important ones.

    Norms are made comparable by the size of a channel: ``norm_n / size ** (1 / n)``, the n-th root of the mean of
    ``|w| ** n``. Each tensor keeps at least one channel.

    Args:
        methods: One structured method for each target.
        targets: The tensors.
        dims: Their channels' dimensions.
        count: How much to drop: channels, or weights (then the nearest number that whole channels can give).
        room: The most of each tensor, in the same unit.
        count_channels: Whether channels are counted.

    Returns:
        One bool for each channel of each tensor: True = dropped.

    Raises:
        ValueError: If a method does not score channels.
    """
    scores = [_comparable(m, t, dim) for m, t, dim in zip(methods, targets, dims, strict=True)]
    living = [living_channels(t, dim) for t, dim in zip(targets, dims, strict=True)]
    sizes = [_weights_left(t, dim) for t, dim in zip(targets, dims, strict=True)]
    order = sorted(
        (float(score), i, channel)
        for i, values in enumerate(scores)
        for channel, score in enumerate(values.tolist())
        if living[i][channel]
    )
    dropped = [torch.zeros_like(alive) for alive in living]
    left, room = [int(alive.sum()) for alive in living], list(room)
    for _, i, channel in order:
        cost = 1 if count_channels else int(sizes[i][channel])
        if cost > room[i] or left[i] <= 1:
            continue
        if count <= 0 or cost > 2 * count:
            break
        dropped[i][channel] = True
        left[i], room[i], count = left[i] - 1, room[i] - cost, count - cost
    return dropped


def _weights_left(target: Target, dim: int) -> list[int]:
    parameter, alive = target.parameter, target.alive
    channels = parameter.shape[dim]
    if alive is None:
        return [parameter.numel() // channels] * channels
    return [int(n) for n in channel_sums(alive, dim)]


def require_channel_scores(method: AnyMethod) -> RankedStructured:
    """The method, or a ValueError if it cannot rank the channels of many tensors together."""
    if not isinstance(method, RankedStructured):
        raise ValueError(
            f"{type(method).__name__} cannot rank the channels of many tensors together (it has no "
            "channel_scores): use scope='local', or subclass lightning_prune.prune.LnStructured"
        )
    return method


def channel_scores(method: AnyMethod, target: Target, dim: int) -> Tensor:
    """The score of each channel along ``dim`` that is left of a target."""
    parameter, alive = target.parameter.detach(), target.alive
    masked = parameter if alive is None else torch.where(alive, parameter, 0)
    return scores_of_channels(require_channel_scores(method), masked)


def _comparable(method: AnyMethod, target: Target, dim: int) -> Tensor:
    size = target.parameter.numel() // target.parameter.shape[dim]
    return channel_scores(method, target, dim).double() / _norm_of_ones(require_channel_scores(method), size)


def _norm_of_ones(method: RankedStructured, size: int) -> float:
    """The norm of a channel of ones, by which norms of channels of different sizes compare."""
    n = getattr(method, "n", None) if isinstance(method, LnStructured) else None
    if n is None or (isinstance(n, (int, float)) and math.isinf(n)):
        return 1.0
    return float(size ** (1 / (2 if isinstance(n, str) else n)))
