"""The masked attribute: ``module.weight`` reads ``where(mask, parameter, 0)`` at the moment it is read.

The module's class is swapped for a subclass that has a property of the tensor's name, and swapped back by
:func:`detach`, as ``torch.nn.utils.parametrize`` does. There are three layouts:

* ``DOCUMENTED``: the parameter is registered as ``weight_orig`` and the mask is the buffer ``weight_mask``,
  in the parameter's dtype, as ``torch.nn.utils.prune`` documents it.
* ``KEPT``: the parameter stays registered as ``weight``; the mask is boolean and lies outside
  ``parameters()`` and ``buffers()``.
* ``IN_PLACE``: as ``KEPT``, but reading gives the parameter itself; somebody else keeps its zeros.
"""

from __future__ import annotations

import copyreg
import enum
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn

from lightning_prune.prune.masking import masked


class Layout(enum.Enum):
    """Where the parameter and the mask of a pruned tensor are stored."""

    DOCUMENTED = "documented"
    KEPT = "kept"
    IN_PLACE = "in_place"


Layouts = tuple[tuple[str, Layout], ...]


class _Masked(nn.Module):
    """What a module of any class can do once it has masked attributes."""

    _masked_base: ClassVar[type[nn.Module]]
    _masked_layouts: ClassVar[Mapping[str, Layout]]
    _kept_masks: dict[str, Tensor]

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> _Masked:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, mask in self._kept_masks.items():
            self._kept_masks[name] = fn(mask)
        return self

    def register_parameter(self, name: str, param: nn.Parameter | None) -> None:
        """Register a parameter; one assigned to a masked name goes where that name's parameter is stored."""
        if self._masked_layouts.get(name) is Layout.DOCUMENTED:
            name += "_orig"
        super().register_parameter(name, param)

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        for name, mask in self._kept_masks.items():
            if hidden_values(self._parameters[name], mask):
                value = masked(cast(nn.Parameter, self._parameters[name]), mask)
                destination[prefix + name] = value if keep_vars else value.detach()

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)
        error_msgs = kwargs["error_msgs"] if "error_msgs" in kwargs else args[-1]
        error_msgs.extend(_layout_errors(self._masked_layouts, state_dict, prefix))

    def __reduce_ex__(self, protocol: Any) -> Any:
        reduced = super().__reduce_ex__(protocol)
        if isinstance(reduced, str) or reduced[0] is not copyreg.__newobj__:  # type: ignore[attr-defined]
            return reduced
        layouts = tuple(self._masked_layouts.items())
        return (_new_masked, (self._masked_base, layouts), *reduced[2:])


class _MaskedRNN(_Masked):
    """Recurrent modules hand a list of their weights to the kernel: it is computed like any masked read."""

    _flat_weights_names: list[str]

    @property
    def _flat_weights(self) -> list[Tensor | None]:
        return [getattr(self, name, None) for name in self._flat_weights_names]

    @_flat_weights.setter
    def _flat_weights(self, value: list[Tensor | None]) -> None:
        """Nothing is stored: a stored list would hold the values of the last forward."""

    def _update_flat_weights(self) -> None:
        """Nothing can be out of date."""


def _layout_errors(layouts: Mapping[str, Layout], state_dict: dict[str, Any], prefix: str) -> list[str]:
    errors = []
    for name, layout in layouts.items():
        dense, pruned = prefix + name, prefix + name + "_orig"
        if layout is Layout.DOCUMENTED and dense in state_dict and pruned not in state_dict:
            errors.append(
                f"'{dense}' is pruned in this module ('{pruned}' and '{dense}_mask' are wanted), the state is "
                "dense: convert it with lightning_prune.checkpoint.to_pruned(state_dict, module), or call "
                "lightning_prune.prune.remove before loading."
            )
        if layout is not Layout.DOCUMENTED and pruned in state_dict:
            errors.append(
                f"the state holds '{pruned}' and '{dense}_mask' as torch.nn.utils.prune writes them, '{dense}' "
                "is wanted: convert it with lightning_prune.checkpoint.to_dense(state_dict)."
            )
    return errors


def _read(name: str, layout: Layout) -> property:
    def documented(self: _Masked) -> Tensor:
        return masked(cast(nn.Parameter, self._parameters[name + "_orig"]), self._buffers[name + "_mask"])

    def kept(self: _Masked) -> Tensor:
        return masked(cast(nn.Parameter, self._parameters[name]), self._kept_masks[name])

    def refuse(self: _Masked, value: Any) -> None:
        raise TypeError(
            f"'{name}' of {type(self).__name__} is pruned: it is computed from a parameter and a mask. "
            f"Assign an nn.Parameter to replace the parameter, or call remove(module, '{name}') first; "
            f"got {type(value).__name__}."
        )

    return property(documented if layout is Layout.DOCUMENTED else kept, refuse)


def _properties(name: str, layout: Layout) -> dict[str, property]:
    if layout is Layout.DOCUMENTED:
        return {name: _read(name, layout)}
    views = {
        f"{name}_orig": property(lambda self: self._parameters[name]),
        f"{name}_mask": property(lambda self: self._kept_masks[name]),
    }
    return views if layout is Layout.IN_PLACE else {name: _read(name, layout), **views}


def _masked_class(base: type[nn.Module], layouts: Layouts) -> type[nn.Module]:
    """The one subclass of ``base`` with these masked attributes; found again among its subclasses."""
    wanted = dict(layouts)
    for known in base.__subclasses__():
        if known.__dict__.get("_masked_base") is base and known.__dict__["_masked_layouts"] == wanted:
            return known
    namespace: dict[str, Any] = {"__module__": base.__module__, "__qualname__": base.__qualname__}
    namespace.update(__doc__=base.__doc__, _masked_base=base, _masked_layouts=wanted)
    for name, layout in layouts:
        namespace.update(_properties(name, layout))
    mixin = _MaskedRNN if issubclass(base, nn.RNNBase) else _Masked
    return type(base.__name__, (mixin, base), namespace)


def _new_masked(base: type[nn.Module], layouts: Layouts) -> nn.Module:
    cls = _masked_class(base, layouts)
    return cls.__new__(cls)


def _set_layouts(module: nn.Module, layouts: dict[str, Layout]) -> None:
    base = module._masked_base if isinstance(module, _Masked) else type(module)
    if isinstance(module, _Masked) and "_masked_base" not in type(module).__dict__:
        raise TypeError(
            f"the class of this {type(module).__name__} was changed after it was pruned (by a wrapper such as "
            "fully_shard or parametrize); prune after wrapping, and unwrap before removing the pruning."
        )
    module.__class__ = _masked_class(base, tuple(layouts.items())) if layouts else base
    if isinstance(module, nn.RNNBase) and not layouts:
        module._init_flat_weights()


def _rename(slots: dict[str, Any], old: str, new: str) -> None:
    """Renames a key of a dict and keeps its place, so that ``named_parameters()`` keeps its order."""
    items = [(new if key == old else key, value) for key, value in slots.items()]
    slots.clear()
    slots.update(items)


def layout_of(module: nn.Module, name: str) -> Layout | None:
    """The layout in which ``module.name`` is pruned, or ``None`` when it is not."""
    return module._masked_layouts.get(name) if isinstance(module, _Masked) else None


def masked_names(module: nn.Module) -> list[str]:
    """Names of the tensors of this module (not of its children) that are pruned."""
    return list(module._masked_layouts) if isinstance(module, _Masked) else []


def stored_parameter(module: nn.Module, name: str) -> nn.Parameter:
    """The parameter object behind ``module.name``, pruned or not."""
    slot = name + "_orig" if layout_of(module, name) is Layout.DOCUMENTED else name
    return cast(nn.Parameter, module._parameters[slot])


def alive_mask(module: nn.Module, name: str) -> Tensor | None:
    """Boolean mask of a pruned tensor (True = kept), or ``None`` when nothing is pruned."""
    layout = layout_of(module, name)
    if layout is None:
        return None
    if layout is Layout.DOCUMENTED:
        return cast(Tensor, module._buffers[name + "_mask"]) != 0
    return cast(_Masked, module)._kept_masks[name]


@torch.no_grad()
def attach(module: nn.Module, name: str, mask: Tensor, layout: Layout) -> None:
    """Turns the parameter ``module.name`` into a masked attribute.

    Args:
        module: Owner of the parameter.
        name: Name of a parameter that is not pruned yet.
        mask: Boolean, shape of the parameter, True = kept.
        layout: Where parameter and mask are to be stored.
    """
    layouts = dict(module._masked_layouts) if isinstance(module, _Masked) else {}
    first = not layouts
    _set_layouts(module, {**layouts, name: layout})
    if first:
        module.__dict__["_kept_masks"] = {}
    if layout is Layout.DOCUMENTED:
        parameter = cast(nn.Parameter, module._parameters[name])
        _rename(module._parameters, name, name + "_orig")
        real = parameter.real if parameter.is_complex() else parameter
        module.register_buffer(name + "_mask", mask.to(real.dtype))
    else:
        module.__dict__["_kept_masks"][name] = mask


@torch.no_grad()
def set_mask(module: nn.Module, name: str, mask: Tensor) -> None:
    """Writes a new mask into the one that is there, so that everything that refers to it sees it."""
    if layout_of(module, name) is Layout.DOCUMENTED:
        cast(Tensor, module._buffers[name + "_mask"]).copy_(mask)
    else:
        cast(_Masked, module)._kept_masks[name].copy_(mask)


def hidden_values(parameter: Tensor | None, mask: Tensor) -> bool:
    """Whether a parameter holds anything but zeros under its mask."""
    if parameter is None or parameter.is_meta:
        return False
    return bool(((parameter.detach() != 0) & ~mask).any())


@torch.no_grad()
def erase(module: nn.Module, name: str) -> None:
    """Writes zeros into the masked entries of the stored parameter."""
    mask = alive_mask(module, name)
    if mask is not None:
        stored_parameter(module, name).masked_fill_(~mask, 0)


def detach(module: nn.Module, name: str) -> None:
    """Ends the masking: the same parameter object, in its old slot and name, with zeros written into it."""
    layouts = dict(cast(_Masked, module)._masked_layouts)
    remaining = {key: layout for key, layout in layouts.items() if key != name}
    erase(module, name)
    _set_layouts(module, remaining)
    if layouts[name] is Layout.DOCUMENTED:
        _rename(module._parameters, name + "_orig", name)
        del module._buffers[name + "_mask"]
    else:
        del module.__dict__["_kept_masks"][name]
    if not remaining:
        del module.__dict__["_kept_masks"]
