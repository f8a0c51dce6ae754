"""The masked attribute: ``module.weight`` reads ``where(mask, parameter, 0)`` at the moment it is read.

The module's class is swapped for a subclass that has a property of the tensor's name, and swapped back by
:func:`detach`, as ``torch.nn.utils.parametrize`` does (see :mod:`lightning_prune.prune.masked_class`). There are three
layouts:

* ``DOCUMENTED``: the parameter is registered as ``weight_orig`` and the mask is the buffer ``weight_mask``,
  in the parameter's dtype, as ``torch.nn.utils.prune`` documents it.
* ``KEPT``: the parameter stays registered as ``weight``; the mask is boolean and lies outside
  ``parameters()`` and ``buffers()``.
* ``PLAIN``: the module is not touched and its class stays; see :mod:`lightning_prune.prune.beside`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from lightning_prune.prune import beside
from lightning_prune.prune.kernels.arrays import as_bool, as_numbers
from lightning_prune.prune.kernels.masking import write_zeros
from lightning_prune.prune.masked_class import Masked, put_mask, set_layouts, set_own_read
from lightning_prune.prune.masked_class import hidden_values as hidden_values
from lightning_prune.prune.masked_class import require_unwrapped as require_unwrapped
from lightning_prune.prune.reading import Assigned, read, slot_of
from lightning_prune.prune.reading import Layout as Layout
from lightning_prune.prune.reading import masked_value as masked_value


def _rename(slots: dict[str, Any], old: str, new: str) -> None:
    """Renames a key of a dict and keeps its place, so that ``named_parameters()`` keeps its order."""
    keys, values = [new if key == old else key for key in slots], list(slots.values())
    slots.clear()
    slots.update(zip(keys, values, strict=True))


def layout_of(module: nn.Module, name: str) -> Layout | None:
    """The layout in which ``module.name`` is pruned, or ``None`` when it is not."""
    if name in beside.entries(module):
        return Layout.PLAIN
    return module._masked_layouts.get(name) if isinstance(module, Masked) else None


def _layouts(module: nn.Module) -> dict[str, Layout]:
    return dict(module._masked_layouts) if isinstance(module, Masked) else {}


def require_attachable(module: nn.Module, name: str, layout: Layout) -> None:
    """Raises TypeError if the class of a module cannot get masked attributes; nothing is changed."""
    require_unwrapped(module)
    before = _layouts(module)
    try:
        set_layouts(module, {**before, name: layout})
    except TypeError as error:
        raise TypeError(f"{type(module).__name__} cannot have masked attributes: {error}") from error
    finally:
        set_layouts(module, before)
        if not before:
            module.__dict__.pop("_own_reads", None)


def masked_names(module: nn.Module) -> list[str]:
    """Names of the tensors of this module (not of its children) that are pruned."""
    return [*_layouts(module), *beside.entries(module)]


def stored_parameter(module: nn.Module, name: str) -> nn.Parameter:
    """The parameter object behind ``module.name``, pruned or not, also where a parametrization took it over since."""
    entry = beside.entries(module).get(name)
    if entry is not None:
        return entry.parameter_in(module, name)
    slot = slot_of(name, layout_of(module, name))
    if slot not in module._parameters and is_parametrized(module, name):
        return cast(nn.Parameter, cast(nn.ModuleDict, module.parametrizations)[name].original)
    return cast(nn.Parameter, module._parameters[slot])


def alive_mask(module: nn.Module, name: str) -> Tensor | None:
    """Boolean mask of a pruned tensor (True = kept), or ``None`` when nothing is pruned."""
    entry = beside.entries(module).get(name)
    if entry is not None:
        return entry.mask_in(module, name)
    layout = layout_of(module, name)
    if layout is None:
        return None
    if layout is Layout.DOCUMENTED:
        return as_bool(cast(Tensor, module._buffers[name + "_mask"]))
    return cast(Masked, module)._kept_masks[name]


@torch.inference_mode(False)
@torch.no_grad()
def attach(module: nn.Module, name: str, mask: Tensor, layout: Layout) -> None:
    """Turns the parameter ``module.name`` into a masked attribute; in layout ``PLAIN`` its mask is only noted.

    Args:
        module: Owner of the parameter.
        name: Name of a parameter that is not pruned yet.
        mask: Boolean, shape of the parameter, True = kept.
        layout: Where parameter and mask are to be stored.
    """
    if layout is Layout.PLAIN:
        beside.put(module, name, _trainable(mask))
        return
    parameter = cast(nn.Parameter, module._parameters[name])
    real = parameter.real if parameter.is_complex() else parameter
    stored = _trainable(as_numbers(mask, real.dtype) if layout is Layout.DOCUMENTED else mask)
    set_layouts(module, {**_layouts(module), name: layout})
    kept_masks = module.__dict__.setdefault("_kept_masks", {})
    if layout is Layout.DOCUMENTED:
        _rename(module._parameters, name, name + "_orig")
        module._buffers[name + "_mask"] = stored
    else:
        kept_masks[name] = stored


@torch.inference_mode(False)
@torch.no_grad()
def set_mask(module: nn.Module, name: str, mask: Tensor) -> None:
    """Puts a new mask in the place of the one that is there."""
    # The old one is not written into: a forward that waits for its backward has saved it.
    layout = layout_of(module, name)
    if layout is Layout.PLAIN:
        beside.entries(module)[name].mask = _trainable(mask)
        return
    if layout is Layout.DOCUMENTED:
        old = cast(Tensor, module._buffers[name + "_mask"])
        mask = as_numbers(mask.to(old.device), old.dtype)
    put_mask(module, name, _trainable(mask), binary=True)


def _trainable(mask: Tensor) -> Tensor:
    return mask.clone() if mask.is_inference() else mask


@torch.no_grad()
def erase(module: nn.Module, name: str) -> None:
    """Writes zeros into the masked entries of the stored parameter."""
    mask = alive_mask(module, name)
    if mask is not None:
        write_zeros(stored_parameter(module, name), mask)


def detach(module: nn.Module, name: str) -> None:
    """Ends the masking: the same parameter object, in its old slot and name, with what was read written into it."""
    entry = beside.entries(module).get(name)
    if entry is not None:
        # a parameter of another shape is another tensor by now
        if entry.parameter_in(module, name).shape == entry.mask.shape:
            erase(module, name)
        beside.drop(module, name)
        return
    require_unwrapped(module)
    layouts = _layouts(module)
    _settle(module, name)
    layout = layouts.pop(name)
    module.__dict__["_own_reads"].pop(name, None)
    set_layouts(module, layouts)
    if layout is Layout.DOCUMENTED:
        _rename(module._parameters, name + "_orig", name)
        del module._buffers[name + "_mask"]
    else:
        del module.__dict__["_kept_masks"][name]
    if not layouts:
        del module.__dict__["_kept_masks"], module.__dict__["_own_reads"]
        if isinstance(module, nn.RNNBase):
            module._init_flat_weights()


@torch.no_grad()
def _settle(module: nn.Module, name: str) -> None:
    """Writes into the parameter what the module reads."""
    parameter = stored_parameter(module, name)
    if 0 in parameter.stride() and parameter.numel() > 1:  # an expanded one cannot hold zeros beside other values
        parameter.data = parameter.detach().clone(memory_format=torch.contiguous_format)
    mask = module._buffers.get(f"{name}_mask")
    with torch.inference_mode(parameter.is_inference()), torch.no_grad():  # the first may turn gradients on
        if name in module.__dict__["_own_reads"] or (mask is not None and mask.requires_grad):
            parameter.copy_(read(module, name))
        else:
            erase(module, name)


def read_by(module: nn.Module, name: str, how: Callable[[nn.Module], Tensor] | None) -> None:
    """Has ``module.name`` read as ``how(module)``; ``None``: as ``where(mask, parameter, 0)``."""
    if isinstance(module, Masked) and (how is not None or name in module.__dict__["_own_reads"]):
        set_own_read(module, name, how)


def forget_assigned(module: nn.Module, name: str) -> None:
    """Ends what a forward pre-hook has assigned to ``module.name`` in the last call."""
    own = module.__dict__.get("_own_reads")
    if own and isinstance(own.get(name), Assigned):
        del own[name]


@contextlib.contextmanager
def unmasked(module: nn.Module) -> Iterator[None]:
    """Within it the module (not its children) has its plain class and parameters, for code that writes into them."""
    layouts = _layouts(module)
    documented = [name for name, layout in layouts.items() if layout is Layout.DOCUMENTED]
    set_layouts(module, {})
    for name in documented:
        _rename(module._parameters, name + "_orig", name)
    try:
        yield
    finally:
        for name in documented:
            _rename(module._parameters, name, name + "_orig")
        set_layouts(module, layouts)
