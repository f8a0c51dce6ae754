"""Whole channels: counting them and ranking those of many tensors together."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from lightning_prune.prune.kernels.channels import spread
from lightning_prune.prune.masks import AnyMethod
from lightning_prune.prune.methods import LnStructured, RankedStructured, scores_of_channels
from lightning_prune.prune.sharded.channels import channel_sums
from lightning_prune.prune.sharded.tensors import cut, is_sharded
from lightning_prune.pruner.candidates import Candidate


def living_channels(candidate: Candidate, dim: int) -> Tensor:
    """One bool for each channel along ``dim``: whether it still has an unpruned entry."""
    alive = candidate.alive
    if alive is None:
        return torch.ones(candidate.shape[dim], dtype=torch.bool, device=candidate.scores.device)
    return channel_sums(alive, dim) > 0


def kept_channels(candidate: Candidate, dim: int, dropped: Tensor) -> Tensor | None:
    """The mask of a tensor without some channels (one bool each, True = dropped)."""
    alive, parameter = candidate.alive, candidate.target.parameter
    if not bool(dropped.any()):
        return alive
    if is_sharded(parameter):
        shape = [-1 if d == dim else 1 for d in range(parameter.dim())]
        part = cut((~dropped).view(shape).expand(parameter.shape), parameter.detach())
        return part if alive is None else part & alive
    keep = spread(~dropped, dim, parameter.detach())
    return keep if alive is None else keep.logical_and_(alive)


def dropped_channels(
    methods: Sequence[AnyMethod],
    candidates: Sequence[Candidate],
    dims: Sequence[int],
    count: int,
    room: Sequence[int],
    count_channels: bool,
) -> list[Tensor]:
    """Ranks the channels of many tensors together and drops the least important ones.

    Norms are made comparable by the size of a channel: ``norm_n / size ** (1 / n)``, the n-th root of the mean of
    ``|w| ** n``. Sums of scores are compared as they are.

    Args:
        methods: One structured method for each tensor.
        candidates: The tensors.
        dims: Their channels' dimensions.
        count: How much to drop: channels, or weights (then the nearest number that whole channels can give).
        room: The most of each tensor, in the same unit.
        count_channels: Whether channels are counted.

    Returns:
        One bool for each channel of each tensor: True = dropped.

    Raises:
        ValueError: If a method does not score channels.
    """
    scores = [_comparable(m, c, dim) for m, c, dim in zip(methods, candidates, dims, strict=True)]
    living = [living_channels(c, dim) for c, dim in zip(candidates, dims, strict=True)]
    sizes = [_weights_left(c, dim) for c, dim in zip(candidates, dims, strict=True)]
    order = sorted(
        (float(score), i, channel)
        for i, values in enumerate(scores)
        for channel, score in enumerate(values.tolist())
        if living[i][channel]
    )
    dropped = [torch.zeros_like(alive) for alive in living]
    room = list(room)
    for _, i, channel in order:
        cost = 1 if count_channels else int(sizes[i][channel])
        if cost > room[i]:
            continue
        if count <= 0 or cost > 2 * count:
            break
        dropped[i][channel] = True
        room[i], count = room[i] - cost, count - cost
    return dropped


def _weights_left(candidate: Candidate, dim: int) -> list[int]:
    channels, alive = candidate.shape[dim], candidate.alive
    if alive is None:
        return [candidate.numel // channels] * channels
    return [int(n) for n in channel_sums(alive, dim)]


def require_channel_scores(method: AnyMethod) -> RankedStructured:
    """The method, or a ValueError if it cannot rank the channels of many tensors together."""
    if not isinstance(method, RankedStructured):
        raise ValueError(
            f"{type(method).__name__} cannot rank the channels of many tensors together (it has no "
            "channel_scores): use scope='local', or subclass lightning_prune.prune.LnStructured"
        )
    return method


def channel_scores(method: AnyMethod, candidate: Candidate, dim: int) -> Tensor:
    """The score of each channel along ``dim``, of what is left of a tensor."""
    scores, alive, ranked = candidate.scores, candidate.alive, require_channel_scores(method)
    if not is_sharded(scores):
        return ranked.living_scores(scores, alive)
    return scores_of_channels(ranked, scores if alive is None else torch.where(alive, scores, 0))


def _comparable(method: AnyMethod, candidate: Candidate, dim: int) -> Tensor:
    size = candidate.numel // candidate.shape[dim]
    return channel_scores(method, candidate, dim).double() / _norm_of_ones(require_channel_scores(method), size)


def _norm_of_ones(method: RankedStructured, size: int) -> float:
    """The norm of a channel of ones, by which norms of channels of different sizes compare."""
    n = getattr(method, "n", None) if isinstance(method, LnStructured) else None
    if n is None or n == "sum" or (isinstance(n, (int, float)) and math.isinf(n)):
        return 1.0
    return float(size ** (1 / (2 if isinstance(n, str) else n)))
