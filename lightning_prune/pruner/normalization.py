"""Making the scores of different tensors comparable in one ranking."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from lightning_prune.prune.sharded.tensors import cut, holders_of, is_sharded, local, split_like, whole

Normalization = Literal["l2", "lamp"]


def normalized(weight: Tensor, alive: Tensor | None, how: Normalization | None) -> Tensor:
    """Scores of one tensor for a ranking over many.

    Args:
        weight: The tensor, any shape; one that is split over ranks is gathered for LAMP, and every rank has to call it.
        alive: Boolean mask so far, ``None`` = nothing pruned.
        how: ``None``: the weights themselves. ``"l2"``: divided by the norm of the tensor's unpruned weights.
            ``"lamp"``: ``w_u^2 / sum of w_v^2 over unpruned v with |w_v| >= |w_u|`` (Lee et al. 2021, layer-adaptive
            magnitude pruning).

    Returns:
        Scores of the shape of ``weight``; for LAMP in at least float32.

    Raises:
        ValueError: If the normalization is unknown.

    Example:
        >>> normalized(torch.tensor([3.0, 1.0, 2.0]), None, "lamp")
        tensor([1.0000, 0.0714, 0.3077])
    """
    if how is None:
        return weight
    kept = weight if alive is None else torch.where(alive, weight, 0)
    if how == "l2":
        norm = _norm(kept)
        return split_like(local(weight) / norm.clamp_min(torch.finfo(norm.dtype).tiny), weight)
    if how == "lamp":
        return cut(_lamp(whole(kept)), weight)
    raise ValueError(f"normalize should be None, 'l2' or 'lamp', got {how!r}")


def _norm(weight: Tensor) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(local(weight))
    return holders_of(weight).total(norm.double().square()).sqrt().to(norm.dtype) if is_sharded(weight) else norm


def _lamp(weight: Tensor) -> Tensor:
    squares = weight.abs().flatten().to(torch.promote_types(weight.abs().dtype, torch.float32)).square()
    values, order = squares.sort(descending=True, stable=True)
    # Of equal weights each stands before itself and those after it, so the largest sum counts all of them.
    # Accelerators add up in another order from run to run.
    sums = values.cpu().cumsum(0).to(values.device)
    scores = values / sums.clamp_min(torch.finfo(values.dtype).tiny)
    return torch.empty_like(squares).scatter_(0, order, scores).view(weight.shape)
