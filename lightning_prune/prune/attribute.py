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

import contextlib
import enum
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn

from lightning_prune.prune.kernels.arrays import as_bool, as_numbers
from lightning_prune.prune.kernels.masking import masked, write_zeros, zero_under
from lightning_prune.prune.sharded.tensors import local


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

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Hides the subclass from registries that a user's class keeps of its subclasses."""

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> _Masked:
        for name, mask in self._kept_masks.items():  # first: recurrent modules read their weights at the end of it
            self._kept_masks[name] = fn(mask)
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return self

    def register_parameter(self, name: str, param: nn.Parameter | None) -> None:
        """Register a parameter; one assigned to a masked name goes where that name's parameter is stored."""
        tensor_name = name if name in self._masked_layouts else name.removesuffix("_orig")
        layout = self._masked_layouts.get(tensor_name)
        if layout is not None:
            _require_fit(self, tensor_name, param)
            name = _slot(tensor_name, layout)
        super().register_parameter(name, param)

    def __delattr__(self, name: str) -> None:
        tensor_name = name if name in self._masked_layouts else name.removesuffix("_orig").removesuffix("_mask")
        if tensor_name in self._masked_layouts:
            raise AttributeError(
                f"'{name}' of {type(self).__name__} cannot be deleted (nor parametrized) while '{tensor_name}' is "
                f"pruned: call remove(module, '{tensor_name}') first"
            )
        super().__delattr__(name)

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
        if isinstance(reduced, str):
            return reduced
        maker, args, *state = (self._plain(part) for part in reduced)
        if not state or state[0] is None:  # the user's class makes a fresh module of its arguments
            return (maker, tuple(map(self._plain, args)), *state)
        layouts = tuple(self._masked_layouts.items())
        return (_remade, (maker, tuple(map(self._plain, args)), layouts), *state)

    def _plain(self, part: Any) -> Any:
        return self._masked_base if part is type(self) else part


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


def _slot(name: str, layout: Layout | None) -> str:
    return name + "_orig" if layout is Layout.DOCUMENTED else name


def _require_fit(module: _Masked, name: str, param: nn.Parameter | None) -> None:
    mask = alive_mask(module, name)
    assert mask is not None
    if param is None or param.shape != mask.shape:
        given = "None" if param is None else f"one of shape {tuple(param.shape)}"
        raise ValueError(
            f"'{name}' of {type(module).__name__} is pruned: a parameter of the mask's shape {tuple(mask.shape)} is "
            f"wanted, got {given}; call remove(module, '{name}') first to assign another"
        )


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
    def documented(self: _Masked) -> Tensor:  # getattr: FX and DataParallel put their own in the places of both
        return masked(getattr(self, name + "_orig"), getattr(self, name + "_mask"))

    def kept(self: _Masked) -> Tensor:
        return masked(cast(nn.Parameter, self._parameters[name]), self._kept_masks[name])

    def refuse(self: _Masked, value: Any) -> None:
        if isinstance(value, Tensor) and torch.equal(value, getattr(self, name)):
            return  # the methods of torch.nn.utils.prune assign what they find again
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


def _plain_init(base: type[nn.Module]) -> Callable[..., None]:
    @functools.wraps(base.__init__)
    def init(self: nn.Module, *args: Any, **kwargs: Any) -> None:
        """A new module, as ``type(pruned)(...)`` makes one, is a plain one."""
        _set_class(self, base)
        base.__init__(self, *args, **kwargs)

    return init


def _masked_class(base: type[nn.Module], layouts: Layouts) -> type[nn.Module]:
    """The one subclass of ``base`` with these masked attributes; found again among its subclasses."""
    wanted = dict(layouts)
    for known in base.__subclasses__():
        if known.__dict__.get("_masked_base") is base and known.__dict__["_masked_layouts"] == wanted:
            return known
    namespace: dict[str, Any] = {"__module__": base.__module__, "__qualname__": base.__qualname__}
    namespace.update(__doc__=base.__doc__, __init__=_plain_init(base), _masked_base=base, _masked_layouts=wanted)
    for name, layout in layouts:
        namespace.update(_properties(name, layout))
    mixin = _MaskedRNN if issubclass(base, nn.RNNBase) else _Masked
    return type(base.__name__, (mixin, base), namespace)


def _remade(maker: Callable[..., nn.Module], args: tuple[Any, ...], layouts: Layouts) -> nn.Module:
    """A copy or a loaded module before its state is put into it."""
    module = maker(*args)
    _set_class(module, _masked_class(type(module), layouts))
    return module


def _set_class(module: nn.Module, cls: type[nn.Module]) -> None:
    object.__setattr__(module, "__class__", cls)  # past any __setattr__ of the user's class


def _set_layouts(module: nn.Module, layouts: Mapping[str, Layout]) -> None:
    require_unwrapped(module)
    base = module._masked_base if isinstance(module, _Masked) else type(module)
    _set_class(module, _masked_class(base, tuple(layouts.items())) if layouts else base)


def require_unwrapped(module: nn.Module) -> None:
    """Raises TypeError if another package has changed the class of a module since it was pruned."""
    if isinstance(module, _Masked) and "_masked_base" not in type(module).__dict__:
        raise TypeError(
            f"the class of this {type(module).__name__} was changed after it was pruned (by a wrapper such as "
            "fully_shard or parametrize); prune after wrapping, and unwrap before removing the pruning."
        )


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
    return cast(nn.Parameter, module._parameters[_slot(name, layout_of(module, name))])


def alive_mask(module: nn.Module, name: str) -> Tensor | None:
    """Boolean mask of a pruned tensor (True = kept), or ``None`` when nothing is pruned."""
    layout = layout_of(module, name)
    if layout is None:
        return None
    if layout is Layout.DOCUMENTED:
        return as_bool(cast(Tensor, module._buffers[name + "_mask"]))
    return cast(_Masked, module)._kept_masks[name]


@torch.inference_mode(False)
@torch.no_grad()
def attach(module: nn.Module, name: str, mask: Tensor, layout: Layout) -> None:
    """Turns the parameter ``module.name`` into a masked attribute.

    Args:
        module: Owner of the parameter.
        name: Name of a parameter that is not pruned yet.
        mask: Boolean, shape of the parameter, True = kept.
        layout: Where parameter and mask are to be stored.
    """
    parameter = cast(nn.Parameter, module._parameters[name])
    real = parameter.real if parameter.is_complex() else parameter
    stored = _trainable(as_numbers(mask, real.dtype) if layout is Layout.DOCUMENTED else mask)
    _set_layouts(module, {**getattr(module, "_masked_layouts", {}), name: layout})
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
    if layout_of(module, name) is Layout.DOCUMENTED:
        old = cast(Tensor, module._buffers[name + "_mask"])
        module._buffers[name + "_mask"] = _trainable(as_numbers(mask.to(old.device), old.dtype))
    else:
        cast(_Masked, module)._kept_masks[name] = _trainable(mask)


def _trainable(mask: Tensor) -> Tensor:
    return mask.clone() if mask.is_inference() else mask


def hidden_values(parameter: Tensor | None, mask: Tensor) -> bool:
    """Whether a parameter holds anything but zeros under its mask."""
    if parameter is None or parameter.is_meta:
        return False
    return not zero_under(local(parameter), local(mask))  # of a sharded one, what this rank holds: no exchange


@torch.no_grad()
def erase(module: nn.Module, name: str) -> None:
    """Writes zeros into the masked entries of the stored parameter."""
    mask = alive_mask(module, name)
    if mask is not None:
        write_zeros(stored_parameter(module, name), mask)


def detach(module: nn.Module, name: str) -> None:
    """Ends the masking: the same parameter object, in its old slot and name, with zeros written into it."""
    require_unwrapped(module)
    layouts = dict(cast(_Masked, module)._masked_layouts)
    erase(module, name)
    layout = layouts.pop(name)
    _set_layouts(module, layouts)
    if layout is Layout.DOCUMENTED:
        _rename(module._parameters, name + "_orig", name)
        del module._buffers[name + "_mask"]
    else:
        del module.__dict__["_kept_masks"][name]
    if not layouts:
        del module.__dict__["_kept_masks"]
        if isinstance(module, nn.RNNBase):
            module._init_flat_weights()


@contextlib.contextmanager
def unmasked(module: nn.Module) -> Iterator[None]:
    """Within it the module (not its children) has its plain class and parameters, for code that writes into them."""
    layouts = dict(getattr(module, "_masked_layouts", {}))
    documented = [name for name, layout in layouts.items() if layout is Layout.DOCUMENTED]
    _set_layouts(module, {})
    for name in documented:
        _rename(module._parameters, name + "_orig", name)
    try:
        yield
    finally:
        for name in documented:
            _rename(module._parameters, name, name + "_orig")
        _set_layouts(module, layouts)
