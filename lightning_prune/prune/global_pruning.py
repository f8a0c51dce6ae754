"""Pruning entries of many tensors together, as if they were one vector."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.utils.prune as torch_prune
from torch import Tensor, nn

from lightning_prune.prune import attribute
from lightning_prune.prune.attribute import Layout
from lightning_prune.prune.base import impose
from lightning_prune.prune.checks import describe, require_binary, require_data, require_prunable, require_shape
from lightning_prune.prune.kernels.arrays import empty_like
from lightning_prune.prune.masks import AnyMethod, compute_mask, padding_of, scores_of, with_padding, without
from lightning_prune.prune.methods import CustomFromMask, RankedUnstructured
from lightning_prune.prune.sharded.agreement import require_same_masks, together
from lightning_prune.prune.sharded.tensors import cut, is_sharded, whole
from lightning_prune.prune.ties import warn_of_twins

Pair = tuple[nn.Module, str]


def global_unstructured(
    parameters: Iterable[Pair | list[Any]],
    pruning_method: type[AnyMethod],
    importance_scores: Mapping[Pair, Tensor] | None = None,
    *,
    keep_name: bool = False,
    **kwargs: Any,
) -> None:
    """Prunes entries of many tensors together, as if they were one vector.

    Args:
        parameters: Pairs of a module and the name of one of its parameters. A pair listed twice counts once, and
            so does a parameter that several of the modules share, which gets one mask.
        pruning_method: A method class with ``PRUNING_TYPE = "unstructured"``, of this package, torch or your own.
        importance_scores: Scores to rank by for some of the pairs; the parameter itself for the others.
        keep_name: Leave the parameters registered as they are (the callback layout).
        **kwargs: Arguments of the method, such as ``amount``: a fraction of all entries of all tensors that are
            still unpruned, or a count.

    Raises:
        TypeError: If ``parameters`` are not pairs, ``importance_scores`` not a dict, or the method not unstructured.
        ValueError: If there are no pairs, the amount is out of range or more than is left, a tensor has no data, or
            scores do not fit or are for a pair that is not among them.

    Example:
        >>> from lightning_prune.prune import L1Unstructured
        >>> net = nn.Sequential(nn.Linear(10, 4), nn.Linear(4, 1))
        >>> pairs = [(net[0], "weight"), (net[1], "weight")]
        >>> global_unstructured(pairs, pruning_method=L1Unstructured, amount=10)
        >>> sum(int((module.weight_mask == 0).sum()) for module, _ in pairs)
        10
    """
    _require_unstructured(pruning_method)
    layout = Layout.KEPT if keep_name else Layout.DOCUMENTED
    pairs = _distinct_pairs(parameters)
    groups = _by_parameter(pairs, layout)
    tensors, names = list(groups.values()), _names(groups, pairs)
    _require_known(importance_scores, pairs)
    scores = [_scores(owners, name, importance_scores) for owners, name in zip(tensors, names, strict=True)]
    method = pruning_method(**kwargs)
    alive, padding = [_alive(owners) for owners in tensors], [_padding(method, owners) for owners in tensors]
    left = [without(a, p) for a, p in zip(alive, padding, strict=True)]
    masks = global_masks(method, scores, left, names)
    warn_of_twins(groups)
    record = CustomFromMask(None, f"{method!r} over {len(tensors)} tensors")
    for owners, mask, spared, before in zip(tensors, masks, padding, alive, strict=True):
        for module, name in owners:
            impose(record, module, name, with_padding(mask, spared, before), layout)


def global_masks(
    method: AnyMethod, scores: Sequence[Tensor], alive: Sequence[Tensor | None], names: Sequence[str]
) -> list[Tensor]:
    """Boolean masks of many tensors after an unstructured method saw them as one.

    Args:
        method: A method of type ``"unstructured"``.
        scores: Importance scores, one tensor per weight tensor.
        alive: Boolean masks so far, ``None`` = nothing pruned.
        names: Names of the tensors for messages.

    Returns:
        One boolean mask per tensor, True = kept.
    """
    native = RankedUnstructured.compute_mask
    if isinstance(method, RankedUnstructured) and type(method).compute_mask is native:
        return method.keep(scores, alive, names)
    if any(map(is_sharded, scores)):
        living = [None if mask is None else whole(mask) for mask in alive]
        everything = [whole(score) for score in scores]
        with together():
            masks = global_masks(method, everything, living, names)
        require_same_masks(dict(zip(names, masks, strict=True)))
        return [cut(mask, score) for mask, score in zip(masks, scores, strict=True)]
    shown = _as_one(scores, alive)
    default = torch.ones_like(shown.real if shown.is_complex() else shown)
    found = compute_mask(method, shown, default)
    require_shape(found, default, f"the mask of {type(method).__name__}", "its input")
    parts = torch.split(found, [_left(s, a) for s, a in zip(scores, alive, strict=True)])
    for part, name in zip(parts, names, strict=True):
        require_binary(part, f"the mask of {type(method).__name__} for {name}")
    return [_filled(s, a, part) for s, a, part in zip(scores, alive, parts, strict=True)]


def _left(scores: Tensor, alive: Tensor | None) -> int:
    return scores.numel() if alive is None else int(alive.count_nonzero())


def _as_one(scores: Sequence[Tensor], alive: Sequence[Tensor | None]) -> Tensor:
    """What is left of all tensors as one vector, with its gradient if all of them have one."""
    shown = torch.cat([_rest(s, a) for s, a in zip(scores, alive, strict=True)])
    gradients = [s.grad.to_dense() if s.grad.is_sparse else s.grad for s in scores if s.grad is not None]
    if len(gradients) == len(scores):
        shown.grad = torch.cat([_rest(g, a) for g, a in zip(gradients, alive, strict=True)]).to(shown.dtype)
    return shown


def _rest(values: Tensor, alive: Tensor | None) -> Tensor:
    return values.reshape(-1) if alive is None else values[alive]


def _filled(scores: Tensor, alive: Tensor | None, found: Tensor) -> Tensor:
    """The mask of one tensor from what was found of the entries that were left, in their order."""
    if alive is None:
        return empty_like(scores, torch.bool).copy_(found.view(scores.shape))
    keep = alive.clone()
    keep[alive] = found.to(device=alive.device, dtype=torch.bool)
    return keep


def _require_unstructured(method: Any) -> None:
    if not (isinstance(method, type) and issubclass(method, torch_prune.BasePruningMethod)):
        raise TypeError(f"pruning_method should be a class of pruning methods, got {method!r}")
    kind = getattr(method, "PRUNING_TYPE", None)
    if kind != "unstructured":
        raise TypeError(f"only methods of type 'unstructured' prune globally, {method.__name__} is {kind!r}")


def _distinct_pairs(parameters: Any) -> list[Pair]:
    if not isinstance(parameters, Iterable):
        raise TypeError(f"parameters should be (module, name) pairs, got {type(parameters).__name__}")
    pairs: dict[Pair, None] = {}
    for item in parameters:
        fits = isinstance(item, (tuple, list)) and len(item) == 2
        if not (fits and isinstance(item[0], nn.Module) and isinstance(item[1], str)):
            raise TypeError(
                "parameters should be (module, name) pairs such as (model.conv1, 'weight'), "
                f"got an item of type {type(item).__name__}"
            )
        pairs[item[0], item[1]] = None
    if not pairs:
        raise ValueError("parameters holds no (module, name) pair: there is nothing to prune")
    return list(pairs)


def _by_parameter(pairs: list[Pair], layout: Layout) -> dict[int, list[Pair]]:
    """The pairs in groups that hold the same parameter object, by its identity."""
    groups: dict[int, list[Pair]] = {}
    for pair in pairs:
        groups.setdefault(id(require_prunable(*pair, layout)), []).append(pair)
    return groups


def _names(groups: Mapping[int, list[Pair]], pairs: list[Pair]) -> list[str]:
    """How messages call the tensors: of many layers of one kind only the number tells which."""
    first = [owners[0] for owners in groups.values()]
    if len(first) == 1:
        return [describe(*first[0])]
    return [f"{describe(*pair)} (pair {pairs.index(pair) + 1} of {len(pairs)})" for pair in first]


def _require_known(given: Any, pairs: list[Pair]) -> None:
    """Raises unless the scores are for pairs that are pruned: those of others would be left unused."""
    if given is None:
        return
    if not isinstance(given, Mapping):
        raise TypeError(f"importance_scores should be a dict from (module, name) to scores, got {type(given).__name__}")
    for key in given:
        if not (isinstance(key, tuple) and len(key) == 2 and isinstance(key[0], nn.Module)):
            raise TypeError(f"the keys of importance_scores should be (module, name) pairs, got {key!r}")
        if key not in pairs:
            raise ValueError(
                f"importance_scores has scores for {type(key[0]).__name__}.{key[1]}, which is not among the "
                f"{len(pairs)} pairs that are pruned"
            )


def _scores(owners: list[Pair], name: str, given: Mapping[Pair, Tensor] | None) -> Tensor:
    known = [pair for pair in owners if pair in (given or {})]
    scores = scores_of(*(known or owners)[0], given[known[0]] if given and known else None)
    require_data(scores, name)
    return scores


def _padding(method: AnyMethod, owners: list[Pair]) -> Tensor | None:
    masks = [mask for pair in owners if (mask := padding_of(method, *pair)) is not None]
    return masks[0] if masks else None


def _alive(owners: list[Pair]) -> Tensor | None:
    masks = [mask for pair in owners if (mask := attribute.alive_mask(*pair)) is not None]
    return functools.reduce(torch.logical_and, masks) if masks else None
