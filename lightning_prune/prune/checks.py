"""What is refused before anything changes, with the name of the tensor and what would be right."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.nn.utils.prune as torch_prune
from torch import Tensor, nn
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.parameter import UninitializedParameter
from torch.nn.utils.parametrize import is_parametrized

from lightning_prune.prune import attribute
from lightning_prune.prune.attribute import Layout
from lightning_prune.prune.kernels.arrays import is_binary
from lightning_prune.prune.sharded.tensors import is_sharded


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
    if _is_lazy(module, module._parameters[name]):
        raise ValueError(f"{where} has no shape yet (a lazy module before its first call): call it once, then prune")
    parameter = module._parameters[name]
    if parameter is None:
        raise TypeError(f"{where} is None (the module was made without it): there is nothing to prune")
    if parameter.layout is not torch.strided or parameter.is_quantized:
        kind = "quantized" if parameter.is_quantized else str(parameter.layout)
        raise TypeError(f"{where} is {kind}, which cannot be masked: prune the dense tensor that it was made of")
    return parameter


def _is_lazy(module: nn.Module, parameter: nn.Parameter | None) -> bool:
    """Whether the first call will give a parameter its shape, or the module another class."""
    lazy = isinstance(module, LazyModuleMixin) and module.has_uninitialized_params()
    return lazy or isinstance(parameter, UninitializedParameter)


def require_data(tensor: Tensor, where: str) -> None:
    """Raises ValueError if a tensor has no values, as on the meta device."""
    if tensor.is_meta:
        raise ValueError(
            f"{where} is on the meta device and has no data: give it values (to_empty and a load or a reset) first"
        )


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
        where, pruned = describe(module, name), ", ".join(attribute.masked_names(module))
        inside = [f"{at}.{n}" for at, child in module.named_modules() if at for n in attribute.masked_names(child)]
        if inside and not pruned:
            more = f" and {len(inside) - 3} more" if len(inside) > 3 else ""
            raise ValueError(
                f"{where} is not pruned, but tensors of modules inside it are ({', '.join(inside[:3])}{more}): remove "
                "each from the module that holds it, or all with remove_all(module)"
            )
        raise ValueError(f"{where} is not pruned; pruned tensors of this module: {pruned or 'none'}")


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


def require_prunable(module: nn.Module, name: str, layout: Layout) -> nn.Parameter:
    """The parameter behind ``module.name``, or an error if a mask cannot be put on it in this layout."""
    parameter = require_parameter(module, name)
    if attribute.layout_of(module, name) is None:
        _require_whole(parameter, describe(module, name), layout)
        with naming(describe(module, name)):
            attribute.require_attachable(module, name, layout)
        for taken in (f"{name}_orig", f"{name}_mask"):
            if _has_of_its_own(module, taken):
                raise ValueError(f"{describe(module, taken)} exists already: '{name}' cannot be pruned under that name")
    return parameter


def require_maskable(module: nn.Module, name: str) -> None:
    """Raises an error if a fit cannot mask ``module.name``, whichever way it keeps zeros."""
    split = is_sharded(require_parameter(module, name))
    require_prunable(module, name, Layout.PLAIN if split else Layout.KEPT)


def _require_whole(parameter: nn.Parameter, where: str, layout: Layout) -> None:
    if layout is not Layout.PLAIN and is_sharded(parameter):
        raise ValueError(
            f"{where} is split over ranks, which swaps the parameter in each forward, so it cannot be masked when it "
            "is read: prune by PruningCallback, or in a loop of your own by lightning_prune.Pruning, which hold the "
            "zeros in the parameter itself"
        )


def _has_of_its_own(module: nn.Module, name: str) -> bool:
    """Unlike ``hasattr``, not what a ``__getattr__`` of the user's class finds elsewhere."""
    places = (module.__dict__, module._parameters, module._buffers, module._modules)
    return any(name in place for place in places) or hasattr(type(module), name)


def require_binary(mask: Tensor, what: str) -> None:
    """Raises ValueError if a mask holds anything but 0 and 1."""
    if is_binary(mask):
        return
    wrong = mask[(mask != 0) & (mask != 1)]
    if wrong.numel():
        raise ValueError(f"{what} should hold only 0 and 1, got {wrong.numel()} other values such as {wrong[0].item()}")
