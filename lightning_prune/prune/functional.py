"""The functions of ``torch.nn.utils.prune``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

import torch
import torch.nn.utils.prune as torch_prune
from torch import Tensor, nn

from lightning_prune.prune import attribute
from lightning_prune.prune.attribute import Layout
from lightning_prune.prune.base import describe, require_parameter, require_pruned, require_shape
from lightning_prune.prune.container import AnyMethod, find_hook, impose, next_mask
from lightning_prune.prune.methods import (
    CustomFromMask,
    Identity,
    L1Unstructured,
    LnStructured,
    RandomStructured,
    RandomUnstructured,
    RankedUnstructured,
)

M = TypeVar("M", bound=nn.Module)


def identity(module: M, name: str, *, keep_name: bool = False) -> M:
    """Installs the pruning reparameterization with a mask of ones.

    Args:
        module: Module that holds the parameter.
        name: Name of the parameter.
        keep_name: Leave the parameter registered as ``name`` (the callback layout).

    Returns:
        The module, modified in place.

    Raises:
        AttributeError: If the module has no such attribute.
        TypeError: If it is not a parameter.

    Example:
        >>> identity(nn.Linear(2, 3), "bias").bias_mask
        tensor([1., 1., 1.])
    """
    Identity.apply(module, name, keep_name=keep_name)
    return module


def random_unstructured(
    module: M,
    name: str,
    amount: int | float,
    generator: torch.Generator | None = None,
    *,
    keep_name: bool = False,
) -> M:
    """Prunes single entries at random.

    Args:
        module: Module that holds the parameter.
        name: Name of the parameter.
        amount: Fraction in [0, 1] of the entries still unpruned (rounded half to even), or a count.
        generator: Source of randomness; torch's global one, so ``torch.manual_seed``, by default.
        keep_name: Leave the parameter registered as ``name`` (the callback layout).

    Returns:
        The module, modified in place.

    Raises:
        AttributeError: If the module has no such attribute.
        TypeError: If it is not a parameter, or the amount is not a number.
        ValueError: If the amount is out of range or more than is left.

    Example:
        >>> layer = random_unstructured(nn.Linear(2, 3), "weight", amount=1)
        >>> int((layer.weight_mask == 0).sum())
        1
    """
    RandomUnstructured.apply(module, name, amount=amount, generator=generator, keep_name=keep_name)
    return module


def l1_unstructured(
    module: M,
    name: str,
    amount: int | float,
    importance_scores: Tensor | None = None,
    *,
    keep_name: bool = False,
) -> M:
    """Prunes the entries of smallest absolute value.

    A fraction is one of the entries still unpruned: three rounds of 0.5 prune 0.5, 0.75 and 0.875 of the
    tensor. A fraction of a small tensor can round to nothing: 10 % of 4 entries is 0, in every round.

    Args:
        module: Module that holds the parameter.
        name: Name of the parameter.
        amount: Fraction in [0, 1] of the entries still unpruned (rounded half to even), or a count.
        importance_scores: Scores of the parameter's shape to rank by, by absolute value; the parameter by default.
        keep_name: Leave the parameter registered as ``name`` (the callback layout).

    Returns:
        The module, modified in place.

    Raises:
        AttributeError: If the module has no such attribute.
        TypeError: If it is not a parameter, or the amount is not a number.
        ValueError: If the amount is out of range or more than is left, or the scores have another shape or are NaN.

    Example:
        >>> layer = nn.Linear(4, 2)
        >>> [round(sparsity, 3) for sparsity in
        ...  (float((l1_unstructured(layer, "weight", 0.5).weight_mask == 0).float().mean()) for _ in range(3))]
        [0.5, 0.75, 0.875]
    """
    L1Unstructured.apply(module, name, amount=amount, importance_scores=importance_scores, keep_name=keep_name)
    return module


def random_structured(
    module: M,
    name: str,
    amount: int | float,
    dim: int,
    generator: torch.Generator | None = None,
    *,
    keep_name: bool = False,
) -> M:
    """Prunes whole channels at random.

    Args:
        module: Module that holds the parameter.
        name: Name of the parameter, of two or more dimensions.
        amount: Fraction in [0, 1] of the channels that still have an unpruned entry, or a count of channels.
        dim: Dimension that counts the channels: output channels are dim 0 of Linear and Conv layers and dim 1
            of ConvTranspose layers. Negative ones count from the end.
        generator: Source of randomness; torch's global one, so ``torch.manual_seed``, by default.
        keep_name: Leave the parameter registered as ``name`` (the callback layout).

    Returns:
        The module, modified in place.

    Raises:
        AttributeError: If the module has no such attribute.
        TypeError: If it is not a parameter, or the amount is not a number.
        IndexError: If the tensor has no such dimension.
        ValueError: If the amount is out of range or more than is left, or the tensor has one dimension.

    Example:
        >>> layer = random_structured(nn.Linear(5, 3), "weight", amount=2, dim=1)
        >>> int((layer.weight_mask.sum(dim=0) == 0).sum())
        2
    """
    RandomStructured.apply(module, name, amount=amount, dim=dim, generator=generator, keep_name=keep_name)
    return module


def ln_structured(
    module: M,
    name: str,
    amount: int | float,
    n: int | float | str,
    dim: int,
    importance_scores: Tensor | None = None,
    *,
    keep_name: bool = False,
) -> M:
    """Prunes the channels of smallest Ln norm.

    Args:
        module: Module that holds the parameter.
        name: Name of the parameter, of two or more dimensions.
        amount: Fraction in [0, 1] of the channels that still have an unpruned entry, or a count of channels.
        n: Norm: a positive number, ``inf``, ``-inf``, ``"fro"`` or ``"nuc"``.
        dim: Dimension that counts the channels: output channels are dim 0 of Linear and Conv layers and dim 1
            of ConvTranspose layers. Negative ones count from the end.
        importance_scores: Scores of the parameter's shape to take the norms of; the parameter by default.
        keep_name: Leave the parameter registered as ``name`` (the callback layout).

    Returns:
        The module, modified in place.

    Raises:
        AttributeError: If the module has no such attribute.
        TypeError: If it is not a parameter, or the amount is not a number.
        IndexError: If the tensor has no such dimension.
        ValueError: If the amount is out of range or more than is left, the tensor has one dimension, the norm is
            not one of those above, or the scores have another shape or are NaN.

    Example:
        >>> layer = nn.Linear(2, 3)
        >>> _ = layer.weight.data.copy_(torch.tensor([[3.0, 4.0], [1.0, 1.0], [2.0, 0.0]]))
        >>> ln_structured(layer, "weight", amount=1, n=2, dim=0).weight_mask
        tensor([[1., 1.],
                [0., 0.],
                [1., 1.]])
    """
    LnStructured.apply(
        module, name, amount=amount, n=n, dim=dim, importance_scores=importance_scores, keep_name=keep_name
    )
    return module


def custom_from_mask(module: M, name: str, mask: Tensor | Sequence[Any], *, keep_name: bool = False) -> M:
    """Prunes what a mask says, besides what is pruned already.

    Args:
        module: Module that holds the parameter.
        name: Name of the parameter.
        mask: 0 and 1 (or bool), shape of the parameter, 1 = kept; moved to the parameter's device.
        keep_name: Leave the parameter registered as ``name`` (the callback layout).

    Returns:
        The module, modified in place.

    Raises:
        AttributeError: If the module has no such attribute.
        TypeError: If it is not a parameter.
        ValueError: If the mask has another shape, or holds values other than 0 and 1.

    Example:
        >>> layer = custom_from_mask(nn.Linear(5, 3), "bias", mask=[0, 1, 0])
        >>> layer.bias_mask
        tensor([0., 1., 0.])
    """
    CustomFromMask.apply(module, name, mask=mask, keep_name=keep_name)
    return module


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
        >>> net = nn.Sequential(nn.Linear(10, 4), nn.Linear(4, 1))
        >>> pairs = [(net[0], "weight"), (net[1], "weight")]
        >>> global_unstructured(pairs, pruning_method=L1Unstructured, amount=10)
        >>> sum(int((module.weight_mask == 0).sum()) for module, _ in pairs)
        10
    """
    _require_unstructured(pruning_method)
    pairs = _distinct_pairs(parameters)
    layout = Layout.KEPT if keep_name else Layout.DOCUMENTED
    scores = _scores(pairs, importance_scores)
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


def _scores(pairs: list[tuple[nn.Module, str]], given: Mapping[tuple[nn.Module, str], Tensor] | None) -> list[Tensor]:
    if given is not None and not isinstance(given, Mapping):
        raise TypeError(f"importance_scores should be a dict from (module, name) to scores, got {type(given).__name__}")
    parameters = {pair: require_parameter(*pair).detach() for pair in pairs}
    for pair, scores in (given or {}).items():
        if pair in parameters:
            require_shape(scores, parameters[pair], "importance_scores", describe(*pair))
            parameters[pair] = scores.detach().to(parameters[pair].device)
    return list(parameters.values())


def is_pruned(module: nn.Module) -> bool:
    """Whether the module or any module in it is pruned, by this package or by torch.

    Args:
        module: Any module.

    Returns:
        True if a pruning method is among its forward pre-hooks.

    Example:
        >>> layer = nn.Linear(5, 7)
        >>> is_pruned(layer), is_pruned(random_unstructured(layer, "weight", amount=0.2))
        (False, True)
    """
    return bool(torch_prune.is_pruned(module))


def remove(module: M, name: str) -> M:
    """Makes the pruning of a tensor permanent: a plain parameter again, with zeros where it was pruned.

    It is the same parameter object, back under its name and in its old place among the parameters.

    Args:
        module: Module that holds the pruned tensor.
        name: Name of the tensor.

    Returns:
        The module, modified in place.

    Raises:
        ValueError: If the tensor is not pruned.

    Example:
        >>> layer = remove(l1_unstructured(nn.Linear(4, 2), "weight", amount=6), "weight")
        >>> int((layer.weight == 0).sum()), list(layer.state_dict())
        (6, ['weight', 'bias'])
    """
    require_pruned(module, name)
    found = find_hook(module, name)
    attribute.detach(module, name)
    if found is not None:
        del module._forward_pre_hooks[found[0]]
    return module
