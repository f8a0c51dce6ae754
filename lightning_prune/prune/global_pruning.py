"""Pruning entries of many tensors together, as if they were one vector."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.utils.prune as torch_prune
from torch import Tensor, nn

from lightning_prune.prune import attribute
from lightning_prune.prune.attribute import Layout
from lightning_prune.prune.base import describe
from lightning_prune.prune.container import AnyMethod, impose, next_mask, require_prunable, scores_of
from lightning_prune.prune.methods import CustomFromMask, RankedUnstructured


def global_unstructured(
    parameters: Iterable[tuple[nn.Module, str]],
    pruning_method: type[AnyMethod],
    importance_scores: Mapping[tuple[nn.Module, str], Tensor] | None = None,
    *,
    keep_name: bool = False,
    **kwargs: Any,
) -> None:
    """Prunes entries of many tensors together, as if they were one vector.

    Args:
        parameters: Pairs of a module and the name of one of its parameters; a pair listed twice counts once.
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
    pairs = _distinct_pairs(parameters)
    layout = Layout.KEPT if keep_name else Layout.DOCUMENTED
    scores = _scores(pairs, importance_scores, layout)
    alive = [attribute.alive_mask(module, name) for module, name in pairs]
    method = pruning_method(**kwargs)
    masks = global_masks(method, scores, alive, [describe(*pair) for pair in pairs])
    origin = f"{method!r} over {len(pairs)} tensors"
    for (module, name), mask in zip(pairs, masks, strict=True):
        impose(CustomFromMask(None, origin), module, name, mask, layout)


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
    full = [torch.ones_like(s, dtype=torch.bool) if a is None else a for s, a in zip(scores, alive, strict=True)]
    flat = next_mask(method, torch.cat([s.reshape(-1) for s in scores]), torch.cat([a.reshape(-1) for a in full]))
    parts = torch.split(flat, [s.numel() for s in scores])
    return [a & part.view(a.shape) for a, part in zip(full, parts, strict=True)]


def _require_unstructured(method: Any) -> None:
    if not (isinstance(method, type) and issubclass(method, torch_prune.BasePruningMethod)):
        raise TypeError(f"pruning_method should be a class of pruning methods, got {method!r}")
    kind = getattr(method, "PRUNING_TYPE", None)
    if kind != "unstructured":
        raise TypeError(f"only methods of type 'unstructured' prune globally, {method.__name__} is {kind!r}")


def _distinct_pairs(parameters: Any) -> list[tuple[nn.Module, str]]:
    if not isinstance(parameters, Iterable):
        raise TypeError(f"parameters should be (module, name) pairs, got {type(parameters).__name__}")
    pairs: dict[tuple[nn.Module, str], None] = {}
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


def _scores(
    pairs: list[tuple[nn.Module, str]], given: Mapping[tuple[nn.Module, str], Tensor] | None, layout: Layout
) -> list[Tensor]:
    if given is not None and not isinstance(given, Mapping):
        raise TypeError(f"importance_scores should be a dict from (module, name) to scores, got {type(given).__name__}")
    for pair in pairs:
        require_prunable(*pair, layout)
    return [scores_of(*pair, (given or {}).get(pair)) for pair in pairs]
