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
from lightning_prune.prune.checks import describe, require_prunable
from lightning_prune.prune.kernels.arrays import empty_like
from lightning_prune.prune.masks import AnyMethod, next_mask, scores_of
from lightning_prune.prune.methods import CustomFromMask, RankedUnstructured
from lightning_prune.prune.sharded.agreement import require_same_masks, together
from lightning_prune.prune.sharded.tensors import cut, is_sharded, whole

Pair = tuple[nn.Module, str]


def global_unstructured(
    parameters: Iterable[Pair],
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
        ValueError: If there are no pairs, the amount is out of range or more than is left, or scores do not fit.

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
    tensors = _by_parameter(_distinct_pairs(parameters), layout)
    scores = [_scores(owners, importance_scores) for owners in tensors]
    alive = [_alive(owners) for owners in tensors]
    method = pruning_method(**kwargs)
    masks = global_masks(method, scores, alive, [describe(*owners[0]) for owners in tensors])
    record = CustomFromMask(None, f"{method!r} over {len(tensors)} tensors")
    for owners, mask in zip(tensors, masks, strict=True):
        for module, name in owners:
            impose(record, module, name, mask, layout)


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
    flat = next_mask(method, torch.cat([s.reshape(-1) for s in scores]), _joined(scores, alive))
    parts = torch.split(flat, [s.numel() for s in scores])
    return [empty_like(s, torch.bool).copy_(part.view(s.shape)) for s, part in zip(scores, parts, strict=True)]


def _joined(scores: Sequence[Tensor], alive: Sequence[Tensor | None]) -> Tensor | None:
    """The masks so far as one vector, ``None`` if there are none."""
    if all(mask is None for mask in alive):
        return None
    full = [torch.ones_like(s, dtype=torch.bool) if a is None else a for s, a in zip(scores, alive, strict=True)]
    return torch.cat([mask.reshape(-1) for mask in full])


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
        fits = isinstance(item, tuple) and len(item) == 2
        if not (fits and isinstance(item[0], nn.Module) and isinstance(item[1], str)):
            raise TypeError(
                "parameters should be (module, name) pairs such as (model.conv1, 'weight'), "
                f"got an item of type {type(item).__name__}"
            )
        pairs[item] = None
    if not pairs:
        raise ValueError("parameters holds no (module, name) pair: there is nothing to prune")
    return list(pairs)


def _by_parameter(pairs: list[Pair], layout: Layout) -> list[list[Pair]]:
    """The pairs in groups that hold the same parameter object."""
    groups: dict[int, list[Pair]] = {}
    for pair in pairs:
        groups.setdefault(id(require_prunable(*pair, layout)), []).append(pair)
    return list(groups.values())


def _scores(owners: list[Pair], given: Mapping[Pair, Tensor] | None) -> Tensor:
    if given is not None and not isinstance(given, Mapping):
        raise TypeError(f"importance_scores should be a dict from (module, name) to scores, got {type(given).__name__}")
    known = [pair for pair in owners if pair in (given or {})]
    return scores_of(*(known or owners)[0], given[known[0]] if given and known else None)


def _alive(owners: list[Pair]) -> Tensor | None:
    masks = [mask for pair in owners if (mask := attribute.alive_mask(*pair)) is not None]
    return functools.reduce(torch.logical_and, masks) if masks else None
