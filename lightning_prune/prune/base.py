"""BasePruningMethod: how a pruning method computes a mask and how that mask reaches a module."""

from __future__ import annotations

from typing import Any, TypeVar, cast

import torch
import torch.nn.utils.prune as torch_prune
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from lightning_prune.prune import attribute
from lightning_prune.prune.attribute import Layout
from lightning_prune.prune.masking import masked

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
    _tensor_name: str

    def __call__(self, module: nn.Module, inputs: Any) -> None:
        """Does nothing: this forward pre-hook is the record of what was done, reading computes the mask."""

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

        Args:
            module: A module that this method was applied to.

        Returns:
            ``where(mask, parameter, 0)``, shape of the parameter.

        Raises:
            ValueError: If the module is not pruned.
        """
        require_pruned(module, self._tensor_name)
        return cast(Tensor, getattr(module, self._tensor_name))

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
        from lightning_prune.prune.container import apply_method

        layout = Layout.KEPT if keep_name else Layout.DOCUMENTED
        return apply_method(cls(*args, **kwargs), module, name, importance_scores, layout)

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
        before = torch.ones_like(t.real if t.is_complex() else t) if default_mask is None else default_mask
        return masked(t, compute_mask(self, scores, before))

    def remove(self, module: nn.Module) -> None:
        """Makes the pruning of ``module`` permanent: the parameter gets zeros and its old name and slot back.

        The forward pre-hook stays; :func:`lightning_prune.prune.remove` takes that off too.

        Args:
            module: A module that this method was applied to.

        Raises:
            ValueError: If the module is not pruned.
        """
        require_pruned(module, self._tensor_name)
        attribute.detach(module, self._tensor_name)

    def recorded(self) -> torch_prune.BasePruningMethod:
        """What the history of a module keeps of this method: itself, unless it holds large tensors."""
        return self


def compute_mask(method: torch_prune.BasePruningMethod, t: Tensor, default_mask: Tensor) -> Tensor:
    """``method.compute_mask``, which torch leaves untyped."""
    mask: Tensor = method.compute_mask(t, default_mask)  # type: ignore[no-untyped-call]
    return mask


def _plain_state(method: BasePruningMethod) -> dict[str, Any] | None:
    """The arguments of a method if all of them can be compared, else ``None``."""
    state = vars(method)
    plain = all(isinstance(v, (str, int, float, bool, type(None), tuple)) for v in state.values())
    return state if plain else None


def describe(module: nn.Module, name: str) -> str:
    """How messages call a tensor of which only the module is known."""
    return f"{type(module).__name__}.{name}"


def require_parameter(module: nn.Module, name: str) -> nn.Parameter:
    """The parameter behind ``module.name``, or an error that says what is there instead."""
    if not isinstance(module, nn.Module):
        raise TypeError(f"a module is wanted to prune '{name}' of, got {type(module).__name__}")
    where = describe(module, name)
    if attribute.layout_of(module, name) is not None:
        return attribute.stored_parameter(module, name)
    if name not in module._parameters:
        _raise_not_a_parameter(module, name)
    parameter = module._parameters[name]
    if parameter is None:
        raise TypeError(f"{where} is None (the module was made without it): there is nothing to prune")
    if isinstance(parameter, UninitializedParameter):
        raise ValueError(f"{where} has no shape yet (a lazy module before its first call): call it once, then prune")
    return parameter


def _raise_not_a_parameter(module: nn.Module, name: str) -> None:
    where = describe(module, name)
    hooks = module._forward_pre_hooks.values()
    if any(isinstance(h, torch_prune.BasePruningMethod) and h._tensor_name == name for h in hooks):
        raise ValueError(
            f"{where} was pruned by torch.nn.utils.prune: call torch.nn.utils.prune.remove(module, '{name}') "
            "first, then prune it here (its zeros can be kept with custom_from_mask)"
        )
    names = ", ".join(n for n, p in module.named_parameters(recurse=False) if p is not None) or "none"
    if not hasattr(module, name):
        raise AttributeError(f"{where} does not exist; parameters of this module: {names}")
    raise TypeError(
        f"{where} is not a parameter but a {type(getattr(module, name)).__name__}; parameters of this module: {names}"
    )


def require_pruned(module: nn.Module, name: str) -> None:
    """Raises ValueError unless ``module.name`` is pruned."""
    if attribute.layout_of(module, name) is None:
        pruned = ", ".join(attribute.masked_names(module)) or "none"
        raise ValueError(f"{describe(module, name)} is not pruned; pruned tensors of this module: {pruned}")


def require_shape(tensor: Tensor, like: Tensor, what: str, of: str) -> None:
    """Raises ValueError unless both tensors have the same shape."""
    if tensor.shape != like.shape:
        raise ValueError(f"{what} should have the shape {tuple(like.shape)} of {of}, got {tuple(tensor.shape)}")
