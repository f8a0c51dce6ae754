"""PruningContainer: composes a new mask with the ones before, and remembers the methods in order."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from itertools import chain, repeat
from typing import Any, overload

import torch
import torch.nn.utils.prune as torch_prune
from torch import Tensor, nn

from lightning_prune.prune import attribute
from lightning_prune.prune.attribute import Layout
from lightning_prune.prune.base import (
    BasePruningMethod,
    compute_mask,
    describe,
    naming,
    require_channels,
    require_parameter,
    require_shape,
)

AnyMethod = torch_prune.BasePruningMethod


class PruningContainer(torch_prune.PruningContainer, BasePruningMethod):
    """The pruning methods that were applied to one tensor, in order.

    Equal methods in a row are stored once with their number, so a history of any length stays small.

    Args:
        *methods: Pruning methods that act on the same tensor name.

    Example:
        >>> from lightning_prune.prune import l1_unstructured
        >>> layer = l1_unstructured(l1_unstructured(nn.Linear(4, 4), "weight", 0.5), "weight", amount=2)
        >>> container = next(iter(layer._forward_pre_hooks.values()))
        >>> list(container), len(container)
        ([L1Unstructured(amount=0.5), L1Unstructured(amount=2)], 2)
        >>> int(layer.weight_mask.sum())
        6
    """

    PRUNING_TYPE = "container"

    def __init__(self, *methods: AnyMethod) -> None:
        self._runs: list[tuple[AnyMethod, int]] = []
        if methods and hasattr(methods[0], "_tensor_name"):
            self._tensor_name = methods[0]._tensor_name
        for method in methods:
            self.add_pruning_method(method)

    @property
    def _pruning_methods(self) -> tuple[AnyMethod, ...]:  # type: ignore[override]
        return tuple(self)

    def add_pruning_method(self, method: AnyMethod) -> None:
        """Adds a method at the end.

        Args:
            method: A pruning method, of this package or of torch, for the same tensor name.

        Raises:
            TypeError: If it is not a pruning method.
            ValueError: If it acts on another tensor name.
        """
        if not isinstance(method, AnyMethod):
            raise TypeError(f"a pruning method is wanted, got {type(method).__name__}")
        mine, theirs = getattr(self, "_tensor_name", None), getattr(method, "_tensor_name", None)
        if mine != theirs:
            raise ValueError(f"this container prunes '{mine}', the method prunes '{theirs}'")
        last, count = self._runs[-1] if self._runs else (None, 0)
        if last is not None and (last is method or last == method):
            self._runs[-1] = (last, count + 1)
        else:
            self._runs.append((method, 1))

    def __len__(self) -> int:
        """Number of methods applied so far."""
        return sum(count for _, count in self._runs)

    def __iter__(self) -> Iterator[AnyMethod]:
        """The methods in order."""
        return chain.from_iterable(repeat(method, count) for method, count in self._runs)

    @overload
    def __getitem__(self, idx: int) -> AnyMethod: ...
    @overload
    def __getitem__(self, idx: slice) -> tuple[AnyMethod, ...]: ...
    def __getitem__(self, idx: int | slice) -> AnyMethod | tuple[AnyMethod, ...]:
        """One method, or a tuple of them for a slice."""
        return tuple(self)[idx]

    def __repr__(self) -> str:
        """The methods, equal ones in a row as a product."""
        runs = (repr(method) if count == 1 else f"{count} x {method!r}" for method, count in self._runs)
        return f"PruningContainer({', '.join(runs)})"

    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        """The mask of the latest method on what ``default_mask`` leaves, combined with it.

        Args:
            t: Importance scores, shape of the tensor.
            default_mask: Mask so far, same shape.

        Returns:
            The combined mask, in the dtype of ``default_mask``.

        Raises:
            ValueError: If the container is empty or the method's mask is not a mask of the right shape.
        """
        if not self._runs:
            raise ValueError("the container holds no pruning method")
        keep = next_mask(self._runs[-1][0], t, default_mask != 0)
        return keep.to(default_mask.dtype)


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
    before = torch.ones_like(scores, dtype=torch.bool) if alive is None else alive
    if getattr(type(method).compute_mask, "ranks_alive", False):
        return compute_mask(method, scores, before)
    region = _region(method, before, first=alive is None)
    part = scores.clone() if region is ... else scores[region]
    default = before[region].to(part.real.dtype if part.is_complex() else part.dtype)
    keep = before.clone()
    keep[region] &= _as_binary(method, compute_mask(method, part, default), default)
    return keep


def _region(method: AnyMethod, alive: Tensor, first: bool) -> Any:
    """Index of the part of the tensor that a method of this type is shown: at first all of it, in its shape."""
    kind = getattr(method, "PRUNING_TYPE", None)
    if first and kind in ("unstructured", "structured"):
        return ...
    if kind == "unstructured":
        return alive
    if kind == "structured":
        dim = require_channels(alive, method.dim)  # type: ignore[attr-defined]
        others = [d for d in range(alive.dim()) if d != dim]
        return (*[slice(None)] * dim, alive.sum(dim=others) > 0)
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


def require_binary(mask: Tensor, what: str) -> None:
    """Raises ValueError if a mask holds anything but 0 and 1."""
    if mask.dtype is torch.bool:
        return
    wrong = mask[(mask != 0) & (mask != 1)]
    if wrong.numel():
        raise ValueError(f"{what} should hold only 0 and 1, got {wrong.numel()} other values such as {wrong[0].item()}")


def apply_method(
    method: AnyMethod, module: nn.Module, name: str, importance_scores: Tensor | None, layout: Layout
) -> BasePruningMethod:
    """Computes the next mask of ``module.name`` and imposes it; raises before anything changed."""
    require_prunable(module, name, layout)
    scores = scores_of(module, name, importance_scores)
    method._tensor_name = name  # as in torch, known to the method when it computes its mask
    with naming(describe(module, name)):
        keep = next_mask(method, scores, attribute.alive_mask(module, name))
    return impose(method, module, name, keep, layout)


def impose(method: AnyMethod, module: nn.Module, name: str, keep: Tensor, layout: Layout) -> BasePruningMethod:
    """Puts a boolean mask on ``module.name`` (in its layout if it is pruned already) and records the method."""
    if attribute.layout_of(module, name) is None:
        require_prunable(module, name, layout)
        attribute.attach(module, name, keep, layout)
    else:
        attribute.set_mask(module, name, keep)
    return _record(module, name, _light(method))


def require_prunable(module: nn.Module, name: str, layout: Layout) -> nn.Parameter:
    """The parameter behind ``module.name``, or an error if a mask cannot be put on it in this layout."""
    parameter = require_parameter(module, name)
    if attribute.layout_of(module, name) is None:
        attribute.require_unwrapped(module)
        for taken in (f"{name}_orig", f"{name}_mask"):
            if _has_of_its_own(module, taken):
                raise ValueError(f"{describe(module, taken)} exists already: '{name}' cannot be pruned under that name")
    return parameter


def scores_of(module: nn.Module, name: str, given: Tensor | None) -> Tensor:
    """What to rank the entries of ``module.name`` by: the scores that are given, or the parameter as it is now."""
    parameter = require_parameter(module, name)
    if given is None:
        return parameter.detach()
    require_shape(given, parameter, "importance_scores", describe(module, name))
    scores = given.detach().to(parameter.device)
    return scores.to(torch.uint8) if scores.dtype is torch.bool else scores


def _has_of_its_own(module: nn.Module, name: str) -> bool:
    """Unlike ``hasattr``, not what a ``__getattr__`` of the user's class finds elsewhere."""
    places = (module.__dict__, module._parameters, module._buffers, module._modules)
    return any(name in place for place in places) or hasattr(type(module), name)


def _light(method: AnyMethod) -> AnyMethod:
    """The method for the history: without its tensors, which would pile up, and generators, which do not pickle."""
    record = copy.copy(method)
    for key, value in vars(method).items():
        if isinstance(value, torch.Generator) or (isinstance(value, Tensor) and value.dim() > 0):
            setattr(record, key, None)
    return record


def find_hook(module: nn.Module, name: str) -> tuple[int, AnyMethod] | None:
    """Key and method of the forward pre-hook that records the pruning of ``module.name``."""
    for key, hook in module._forward_pre_hooks.items():
        if isinstance(hook, AnyMethod) and hook._tensor_name == name:
            return key, hook
    return None


def _record(module: nn.Module, name: str, method: AnyMethod) -> BasePruningMethod:
    """Adds a method to the history; the hook keeps its place among the user's hooks."""
    method._tensor_name = name
    found = find_hook(module, name)
    if found is None:
        hook = method if isinstance(method, BasePruningMethod) else PruningContainer(method)
        module.register_forward_pre_hook(hook)
        return hook
    key, earlier = found
    if isinstance(earlier, PruningContainer):
        container = earlier
    else:
        methods = earlier if isinstance(earlier, torch_prune.PruningContainer) else [earlier]
        container = module._forward_pre_hooks[key] = PruningContainer(*methods)
    container.add_pruning_method(method)
    return container
