"""BasePruningMethod: how a pruning method computes a mask and how that mask reaches a module."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, cast

import torch
import torch.nn.utils.prune as torch_prune
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter
from torch.nn.utils.parametrize import is_parametrized

from lightning_prune.prune import attribute
from lightning_prune.prune.attribute import Layout
from lightning_prune.prune.kernels.masking import masked

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
        return cast(Tensor, getattr(module, self._pruned_name(module)))

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
        attribute.detach(module, self._pruned_name(module))

    def _pruned_name(self, module: nn.Module) -> str:
        name = getattr(self, "_tensor_name", None)
        if name is None:
            raise ValueError(f"this {type(self).__name__} was not applied to any tensor of a module yet")
        require_pruned(module, name)
        return str(name)


def compute_mask(method: torch_prune.BasePruningMethod, t: Tensor, default_mask: Tensor) -> Tensor:
    """``method.compute_mask``, which torch leaves untyped."""
    mask: Tensor = method.compute_mask(t, default_mask)  # type: ignore[no-untyped-call]
    return mask


def _plain_state(method: BasePruningMethod) -> dict[str, Any] | None:
    """The arguments of a method with their types, if all of them can be compared, else ``None``."""
    state = {key: (type(value), value) for key, value in vars(method).items()}
    return state if all(kind in (str, int, float, bool, type(None)) for kind, _ in state.values()) else None


def describe(module: nn.Module, name: str) -> str:
    """How messages call a tensor of which only the module is known."""
    return f"{type(module).__name__}.{name}"


@contextmanager
def naming(where: str) -> Iterator[None]:
    """Puts the name of a tensor before the message of an error; errors of users' own classes stay as they are."""
    try:
        yield
    except Exception as error:
        if type(error) not in (TypeError, ValueError, IndexError, RuntimeError):
            raise
        raise type(error)(f"{where}: {error}") from error


def require_parameter(module: nn.Module, name: str) -> nn.Parameter:
    """The parameter behind ``module.name``, or an error that says what is there instead."""
    if not isinstance(module, nn.Module):
        raise TypeError(f"a module is wanted to prune '{name}' of, got {type(module).__name__}")
    if not isinstance(name, str):
        raise TypeError(f"the name of a parameter of {type(module).__name__} is wanted, got {name!r}")
    where = describe(module, name)
    if attribute.layout_of(module, name) is not None:
        return attribute.stored_parameter(module, name)
    if isinstance(module, torch.jit.ScriptModule):
        raise TypeError(f"{where} belongs to a TorchScript module, which cannot change: prune before scripting")
    if name.endswith("_orig") and attribute.layout_of(module, name.removesuffix("_orig")) is not None:
        raise ValueError(f"{where} is what is stored of a pruned tensor: prune '{name.removesuffix('_orig')}' instead")
    if name not in module._parameters:
        _raise_not_a_parameter(module, name)
    if any(isinstance(p, UninitializedParameter) for p in module._parameters.values()):
        raise ValueError(f"{where} has no shape yet (a lazy module before its first call): call it once, then prune")
    parameter = module._parameters[name]
    if parameter is None:
        raise TypeError(f"{where} is None (the module was made without it): there is nothing to prune")
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
    raise TypeError(f"{where} {_what_it_is(module, name)}; parameters of this module: {names}")


def _what_it_is(module: nn.Module, name: str) -> str:
    if is_parametrized(module, name):
        return f"is parametrized: prune the tensors of module.parametrizations['{name}'] (such as 'original') instead"
    value = getattr(module, name)
    if isinstance(value, nn.Parameter):
        return "is a parameter of a module inside this one (a wrapper, such as torch.compile's): prune it there"
    return f"is not a parameter but a {type(value).__name__}"


def require_pruned(module: nn.Module, name: str) -> None:
    """Raises ValueError unless ``module.name`` is pruned."""
    if attribute.layout_of(module, name) is None:
        pruned = ", ".join(attribute.masked_names(module)) or "none"
        raise ValueError(f"{describe(module, name)} is not pruned; pruned tensors of this module: {pruned}")


def require_shape(tensor: Tensor, like: Tensor, what: str, of: str) -> None:
    """Raises unless both are tensors of the same shape."""
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{what} should be a tensor of the shape {tuple(like.shape)} of {of}, got {tensor!r}")
    if tensor.shape != like.shape:
        raise ValueError(f"{what} should have the shape {tuple(like.shape)} of {of}, got {tuple(tensor.shape)}")


def require_channels(t: Tensor, dim: int) -> int:
    """The dimension counted from the front, or an error if the tensor has no channels along it."""
    if t.dim() < 2:
        raise ValueError(
            f"structured pruning needs a tensor of at least two dimensions, got shape {tuple(t.shape)}; "
            "prune biases and other vectors with an unstructured method"
        )
    dim = operator.index(dim)
    if not -t.dim() <= dim < t.dim():
        raise IndexError(f"dim={dim} does not exist in a tensor of shape {tuple(t.shape)}")
    return dim % t.dim()
