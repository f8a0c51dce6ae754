"""The next mask of a tensor: what a pruning method leaves of what the ones before it left."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.utils.prune as torch_prune
from torch import Tensor, nn

from lightning_prune.prune.checks import describe, require_binary, require_channels, require_parameter, require_shape
from lightning_prune.prune.kernels.channels import living
from lightning_prune.prune.sharded.agreement import require_same_masks, together
from lightning_prune.prune.sharded.tensors import cut, is_sharded, whole

AnyMethod = torch_prune.BasePruningMethod


def next_mask(method: AnyMethod, scores: Tensor, alive: Tensor | None) -> Tensor:
    """The boolean mask after ``method``: never True where ``alive`` is not.

    Args:
        method: Method of this package or of torch.
        scores: Importance scores, shape of the tensor.
        alive: Boolean mask so far, ``None`` = nothing pruned.

    Returns:
        Boolean mask, True = kept, on the device of ``scores``.

    Raises:
        ValueError: If the method gives a mask of a wrong shape or with values other than 0 and 1.
    """
    if _makes_keep_masks(method):
        keep: Tensor = method.keep_mask(scores, alive)  # type: ignore[attr-defined]
        return keep
    if is_sharded(scores):
        return _next_of_whole(method, scores, alive)
    region = _region(method, scores if alive is None else alive, first=alive is None)
    part = _shown(scores, region)
    dtype = part.real.dtype if part.is_complex() else part.dtype
    default = torch.ones_like(part, dtype=dtype) if alive is None else alive[region].to(dtype)
    found = _as_binary(method, compute_mask(method, part, default), default)
    if alive is None:
        return torch.empty_like(scores, dtype=torch.bool).copy_(found)
    keep = alive.clone()
    keep[region] &= found
    return keep


def next_mask_as_given(method: AnyMethod, t: Tensor, alive: Tensor) -> Tensor:
    """As :func:`next_mask`, but channels are scored by all of ``t``, as by the container of torch."""
    if getattr(method, "PRUNING_TYPE", None) != "structured" or not _makes_keep_masks(method):
        return next_mask(method, t, alive)
    region = _region(method, alive, first=False)
    keep = alive.clone()
    keep[region] &= next_mask(method, t[region], None)
    return keep


def _makes_keep_masks(method: AnyMethod) -> bool:
    """Whether a method makes boolean masks itself, and no subclass has another ``compute_mask``."""
    return getattr(type(method).compute_mask, "of_keep_mask", False) is True


def _next_of_whole(method: AnyMethod, scores: Tensor, alive: Tensor | None) -> Tensor:
    """The mask of a tensor that is split over ranks, by a method that has to see all of it."""
    everything, living = whole(scores), None if alive is None else whole(alive)
    with together():
        mask = next_mask(method, everything, living)
    require_same_masks({"all that it was shown": mask})
    return cut(mask, scores)


def _shown(scores: Tensor, region: Any) -> Tensor:
    """The part of the scores that a method is shown, with the part of the gradient that they have."""
    part = scores.clone() if region is ... else scores[region]
    gradient = scores.grad
    if gradient is not None:
        gradient = gradient.to_dense() if gradient.is_sparse else gradient
        part.grad = gradient.clone() if region is ... else gradient[region]
    return part


def _region(method: AnyMethod, alive: Tensor, first: bool) -> Any:
    """Index of the part of the tensor that a method of this type is shown: at first all of it, in its shape."""
    kind = getattr(method, "PRUNING_TYPE", None)
    if first and kind in ("unstructured", "structured"):
        return ...
    if kind == "unstructured":
        return alive
    if kind == "structured":
        dim = require_channels(alive, method.dim)  # type: ignore[attr-defined]
        return (*[slice(None)] * dim, living(alive, dim).any)
    if kind == "global":
        return ...
    raise ValueError(
        f"{type(method).__name__}.PRUNING_TYPE should be 'unstructured', 'structured' or 'global', got {kind!r}"
    )


def _as_binary(method: AnyMethod, mask: Tensor, like: Tensor) -> Tensor:
    name = type(method).__name__
    require_shape(mask, like, f"the mask of {name}", "its input")
    require_binary(mask, f"the mask of {name}")
    return mask.to(device=like.device, dtype=torch.bool)


def direct_mask(method: AnyMethod, t: Tensor, default_mask: Tensor | None) -> Tensor:
    """What ``method.compute_mask`` gives for a whole tensor; ``None`` stands for a mask of ones."""
    if default_mask is None and _makes_keep_masks(method):
        keep: Tensor = method.keep_mask(t, None)  # type: ignore[attr-defined]
        return keep
    ones = torch.ones_like(t.real if t.is_complex() else t) if default_mask is None else default_mask
    return compute_mask(method, t, ones)


def compute_mask(method: torch_prune.BasePruningMethod, t: Tensor, default_mask: Tensor) -> Tensor:
    """``method.compute_mask``, which torch leaves untyped."""
    mask: Tensor = method.compute_mask(t, default_mask)  # type: ignore[no-untyped-call]
    return mask


def scores_of(module: nn.Module, name: str, given: Tensor | None) -> Tensor:
    """What to rank the entries of ``module.name`` by: the scores that are given, or the parameter as it is now."""
    parameter = require_parameter(module, name)
    if given is None:
        scores = parameter.detach()
        scores.grad = parameter.grad
        return scores
    require_shape(given, parameter, "importance_scores", describe(module, name))
    scores = given.detach().to(parameter.device)
    return scores.to(torch.uint8) if scores.dtype is torch.bool else scores


def padding_of(method: AnyMethod, module: nn.Module, name: str) -> Tensor | None:
    """Where a tensor holds a row for padding, which no ranking takes: it is never trained and often 0.

    Args:
        method: What is about to prune; one of type ``"global"`` decides about the whole tensor itself.
        module: Owner of the tensor.
        name: Name of the tensor.

    Returns:
        Boolean, shape of the tensor, True in that row; ``None`` if there is none.
    """
    row = module.padding_idx if isinstance(module, (nn.Embedding, nn.EmbeddingBag)) and name == "weight" else None
    if row is None or getattr(method, "PRUNING_TYPE", None) == "global":
        return None
    parameter = require_parameter(module, name)
    if is_sharded(parameter):  # no rank has the row for all
        return None
    mask = torch.zeros_like(parameter, dtype=torch.bool, requires_grad=False)
    mask[row] = True
    return mask


def without(alive: Tensor | None, padding: Tensor | None) -> Tensor | None:
    """The mask of what may be pruned: what is left, without the padding."""
    if padding is None:
        return alive
    return ~padding if alive is None else alive & ~padding


def with_padding(keep: Tensor, padding: Tensor | None, alive: Tensor | None) -> Tensor:
    """The mask of what is kept: what a method kept, and of the padding what was left of it."""
    if padding is None:
        return keep
    return keep | (padding if alive is None else padding & alive)
