"""BasePruningMethod and PruningContainer: how a method reaches a module, and how one after another is recorded.

A second method makes a container of the first, and a container is a method: so they share a file.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from itertools import chain, repeat
from typing import Any, ClassVar, TypeVar, overload

import torch
import torch.nn.utils.prune as torch_prune
from torch import Tensor, nn

from lightning_prune.prune import attribute, beside
from lightning_prune.prune.attribute import Layout
from lightning_prune.prune.checks import describe, naming, require_data, require_prunable, require_pruned, require_shape
from lightning_prune.prune.kernels.arrays import as_bool, as_numbers
from lightning_prune.prune.kernels.masking import masked
from lightning_prune.prune.masks import (
    AnyMethod,
    direct_mask,
    next_mask,
    next_mask_as_given,
    padding_of,
    scores_of,
    with_padding,
    without,
)
from lightning_prune.prune.ties import warn_of_twins

Self = TypeVar("Self", bound="BasePruningMethod")


class BasePruningMethod(torch_prune.BasePruningMethod):
    """Base class of pruning methods, a subclass of torch's class of the same name.

    A method overrides :meth:`compute_mask` and sets ``PRUNING_TYPE``: with ``"unstructured"`` it is later given
    only the entries that are still unpruned (as a vector), with ``"structured"`` only the channels along
    ``self.dim`` that still have an unpruned entry, with ``"global"`` the whole tensor.

    Example:
        >>> class EveryOther(BasePruningMethod):
        ...     PRUNING_TYPE = "unstructured"
        ...     def compute_mask(self, t, default_mask):
        ...         mask = default_mask.clone()
        ...         mask.view(-1)[::2] = 0
        ...         return mask
        >>> layer = nn.Linear(4, 1)
        >>> _ = EveryOther.apply(layer, "weight")
        >>> layer.weight_mask
        tensor([[0., 1., 0., 1.]])
    """

    PRUNING_TYPE: str
    needs_values: ClassVar[bool] = True  # if not, tensors without data (on the meta device) can be pruned too
    _tensor_name: str

    def __call__(self, module: nn.Module, inputs: Any) -> None:
        """Ends what a forward pre-hook has assigned in the last call; reading computes the masked tensor."""
        attribute.forget_assigned(module, self._tensor_name)

    def __repr__(self) -> str:
        """The class and its arguments."""
        arguments = (f"{key}={value!r}" for key, value in vars(self).items() if not key.startswith("_"))
        return f"{type(self).__name__}({', '.join(arguments)})"

    def __eq__(self, other: object) -> bool:
        """Equal when they are the same method with the same plain arguments."""
        return type(self) is type(other) and _plain_state(self) == _plain_state(other) is not None

    __hash__ = object.__hash__

    def apply_mask(self, module: nn.Module) -> Tensor:
        """The masked tensor of ``module``, computed now, with gradients to the parameter.

        A method that overrides it (soft or learned masks) says what ``module`` reads, until another method is applied
        to the same tensor: a container reads the masked tensor, as torch's does.

        Args:
            module: A module that this method was applied to.

        Returns:
            ``where(mask, parameter, 0)``, shape of the parameter.

        Raises:
            ValueError: If the module is not pruned.
        """
        return attribute.masked_value(module, self._pruned_name(module))

    @classmethod
    def apply(
        cls: type[Self],
        module: nn.Module,
        name: str,
        *args: Any,
        importance_scores: Tensor | None = None,
        keep_name: bool = False,
        **kwargs: Any,
    ) -> BasePruningMethod:
        """Prunes ``module.name`` with a method of this class; a refused call changes nothing.

        Args:
            module: Module that holds the parameter.
            name: Name of the parameter within the module.
            *args: Passed to the constructor of the method.
            importance_scores: Scores of the parameter's shape to rank by instead of the parameter.
            keep_name: Leave the parameter registered as ``name`` (the callback layout).
            **kwargs: Passed to the constructor of the method.

        Returns:
            The method, or the container that now holds it after the ones before.

        Raises:
            AttributeError: If the module has no such attribute.
            TypeError: If it is not a parameter.
            ValueError: If the amount, the scores or the mask do not fit the tensor.
        """
        layout = Layout.KEPT if keep_name else Layout.DOCUMENTED
        with naming(describe(module, name)):
            method = cls(*args, **kwargs)
        return apply_method(method, module, name, importance_scores, layout)

    def prune(self, t: Tensor, default_mask: Tensor | None = None, importance_scores: Tensor | None = None) -> Tensor:
        """A pruned version of ``t``, without any module.

        Args:
            t: Tensor to prune.
            default_mask: Mask of earlier pruning, shape of ``t``; all ones by default.
            importance_scores: Scores to rank by, shape of ``t``; ``t`` by default.

        Returns:
            ``where(mask, t, 0)``.

        Raises:
            ValueError: If the scores have another shape.

        Example:
            >>> from lightning_prune.prune import L1Unstructured
            >>> L1Unstructured(amount=2).prune(torch.tensor([3.0, -1.0, 2.0]))
            tensor([3., 0., 0.])
        """
        scores = t if importance_scores is None else importance_scores
        require_shape(scores, t, "importance_scores", "the tensor")
        return masked(t, direct_mask(self, scores, default_mask))

    def remove(self, module: nn.Module) -> None:
        """Makes the pruning of ``module`` permanent: the parameter gets zeros and its old name and slot back.

        The forward pre-hook stays; :func:`lightning_prune.prune.remove` takes that off too.

        Args:
            module: A module that this method was applied to.

        Raises:
            ValueError: If the module is not pruned.
        """
        attribute.detach(module, self._pruned_name(module))

    def _pruned_name(self, module: nn.Module) -> str:
        name = getattr(self, "_tensor_name", None)
        if name is None:
            raise ValueError(f"this {type(self).__name__} was not applied to any tensor of a module yet")
        require_pruned(module, name)
        return str(name)


def _plain_state(method: BasePruningMethod) -> dict[str, Any] | None:
    """The arguments of a method with their types, if all of them can be compared, else ``None``."""
    state = {key: (type(value), value) for key, value in vars(method).items()}
    return state if all(kind in (str, int, float, bool, type(None)) for kind, _ in state.values()) else None


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
            The combined mask, in the dtype of ``t`` (of its real part, if it is complex).

        Raises:
            ValueError: If the container is empty or the method's mask is not a mask of the right shape.
        """
        if not self._runs:
            raise ValueError("the container holds no pruning method")
        keep = next_mask_as_given(self._runs[-1][0], t, as_bool(default_mask))
        return as_numbers(keep, t.real.dtype if t.is_complex() else t.dtype)


def apply_method(
    method: AnyMethod, module: nn.Module, name: str, importance_scores: Tensor | None, layout: Layout
) -> BasePruningMethod:
    """Computes the next mask of ``module.name`` and imposes it; raises before anything changed."""
    key = id(require_prunable(module, name, layout))
    scores = scores_of(module, name, importance_scores)
    alive, padding = attribute.alive_mask(module, name), padding_of(method, module, name)
    method._tensor_name = name  # as in torch, known to the method when it computes its mask
    if getattr(method, "needs_values", True):
        require_data(scores, describe(module, name))
    with naming(describe(module, name)):
        keep = next_mask(method, scores, without(alive, padding))
    warn_of_twins({key: [(module, name)]})
    return impose(method, module, name, with_padding(keep, padding, alive), layout)


def impose(method: AnyMethod, module: nn.Module, name: str, keep: Tensor, layout: Layout) -> BasePruningMethod:
    """Puts a boolean mask on ``module.name`` (in its layout if it is pruned already) and records the method."""
    if attribute.layout_of(module, name) is None:
        require_prunable(module, name, layout)
        attribute.attach(module, name, keep, layout)
    else:
        attribute.set_mask(module, name, keep)
    hook = _record(module, name, method if _reads_itself(method) else _light(method))
    attribute.read_by(module, name, method.apply_mask if _reads_itself(method) and len(_methods(hook)) == 1 else None)
    return hook


def _reads_itself(method: AnyMethod) -> bool:
    """Whether a method has an ``apply_mask`` of its own, not that of this package or of torch."""
    return type(method).apply_mask not in (BasePruningMethod.apply_mask, torch_prune.BasePruningMethod.apply_mask)


def _methods(hook: AnyMethod) -> Sequence[AnyMethod]:
    return tuple(hook) if isinstance(hook, PruningContainer) else (hook,)


def _light(method: AnyMethod) -> AnyMethod:
    """The method for the history: without its tensors, which would pile up, and generators, which do not pickle."""
    record = copy.copy(method)
    for key, value in vars(method).items():
        if isinstance(value, torch.Generator) or (isinstance(value, Tensor) and value.dim() > 0):
            setattr(record, key, None)
    return record


def history_of(module: nn.Module, name: str) -> AnyMethod | None:
    """The method or container that pruned ``module.name``, in any layout."""
    entry = beside.entries(module).get(name)
    if entry is not None:
        return entry.history
    found = find_hook(module, name)
    return None if found is None else found[1]


def find_hook(module: nn.Module, name: str) -> tuple[int, AnyMethod] | None:
    """Key and method of the forward pre-hook that records the pruning of ``module.name``."""
    for key, hook in module._forward_pre_hooks.items():
        if getattr(hook, "_tensor_name", None) == name and isinstance(hook, AnyMethod):
            return key, hook
    return None


def _record(module: nn.Module, name: str, method: AnyMethod) -> BasePruningMethod:
    """Adds a method to the history; the hook keeps its place among the user's hooks."""
    method._tensor_name = name
    entry = beside.entries(module).get(name)
    if entry is not None:
        entry.history = entry.history or PruningContainer()
        entry.history._tensor_name = name
        entry.history.add_pruning_method(method)
        return entry.history
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
