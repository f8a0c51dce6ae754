"""The class that a module has while tensors of it are pruned: a subclass of its own, with masked attributes.

It behaves as the module's own class does wherever it can. ``module.__class__`` is the own class, and another package
that sets it (parametrizations, ``fully_shard``) changes the class beneath the masked attributes, which stay. What is
written to the class of a pruned module is handed to its own class. What is made of the class alone is plain.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn
from torch._guards import TracingContext

from lightning_prune.prune import assigning
from lightning_prune.prune.kernels.arrays import is_binary
from lightning_prune.prune.kernels.embeddings import renorm_rows
from lightning_prune.prune.kernels.masking import zero_under
from lightning_prune.prune.loading import accept_zeros, layout_errors
from lightning_prune.prune.reading import (
    Assigned,
    Layout,
    Layouts,
    Product,
    Replicated,
    being_called,
    holds_masks,
    layouts_of,
    mask_of,
    parameter_of,
    read,
    reader,
    slot_of,
    tensor_of_slot,
)
from lightning_prune.prune.sharded.tensors import local

_CONTAINERS = (nn.ParameterList, nn.ParameterDict)
_set_type = object.__dict__["__class__"].__set__  # past any ``__setattr__`` of the user's class, and past ours


class Masked(nn.Module):
    """What a module of any class can do once it has masked attributes."""

    _masked_base: ClassVar[type[nn.Module]]
    _masked_layouts: Layouts
    _masked_made: ClassVar[frozenset[str]]
    _own_reads: dict[str, Callable[[nn.Module], Tensor]]  # of tensors that are not read as where(mask, parameter, 0)
    _kept_masks: dict[str, Tensor]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Hides the subclass from registries that a user's class keeps of its subclasses."""

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Masked:
        for name, mask in self.__dict__.get("_kept_masks", {}).items():
            self._kept_masks[name] = _followed(mask, fn)  # first: recurrent modules read their weights at the end of it
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return self

    def __setattr__(self, name: str, value: Any) -> None:
        tensor_name = tensor_of_slot(self._masked_layouts, name)
        if tensor_name is None:
            super().__setattr__(name, value)
        elif not holds_masks(self):  # made of the class alone, as ``cls.__new__(cls)`` does
            _set_type(self, self._masked_base)
            setattr(self, name, value)
        elif "_is_replica" in self.__dict__:
            self._take_part(name, tensor_name, value)
        elif name == f"{tensor_name}_mask":
            assigning.require_mask(self, tensor_name, value)
            put_mask(self, tensor_name, value)
        elif value is None or isinstance(value, nn.Parameter):
            self.register_parameter(name, value)
        else:
            self._take_tensor(name, tensor_name, value)

    def _take_part(self, name: str, tensor_name: str, value: Any) -> None:
        if self._masked_layouts[tensor_name] is Layout.DOCUMENTED:
            super().__setattr__(name, value)
        else:
            own = {**self._own_reads, tensor_name: Replicated(value, mask_of(self, tensor_name))}
            self.__dict__["_own_reads"] = own
            set_layouts(self, self._masked_layouts)

    def _take_tensor(self, name: str, tensor_name: str, value: Any) -> None:
        """One that a forward pre-hook assigns counts for that call, as with ``torch.nn.utils.prune``."""
        if name != tensor_name or not isinstance(value, Tensor):
            assigning.refuse(self, name, tensor_name, value)
        now = read(self, tensor_name)
        if assigning.same(value, now):
            return
        if value.shape != now.shape or not being_called(self):
            assigning.refuse(self, name, tensor_name, value)
        set_own_read(self, tensor_name, Assigned(tensor_name, value))

    def register_parameter(self, name: str, param: nn.Parameter | None) -> None:
        """Register a parameter; one assigned to a masked name goes where that name's parameter is stored."""
        tensor_name = name if name in self._masked_layouts else name.removesuffix("_orig")
        layout = self._masked_layouts.get(tensor_name)
        if layout is not None:
            assigning.require_fit(self, tensor_name, param)
            name = slot_of(tensor_name, layout)
        super().register_parameter(name, param)

    def register_buffer(self, name: str, tensor: Tensor | None, persistent: bool = True) -> None:
        """Register a buffer; one in the place of a mask has to be a mask."""
        tensor_name = tensor_of_slot(self._masked_layouts, name)
        if tensor_name is not None and self._masked_layouts[tensor_name] is Layout.DOCUMENTED and name in self._buffers:
            assigning.require_mask(self, tensor_name, tensor)
        super().register_buffer(name, tensor, persistent)
        if tensor_name is not None:
            note_softness(self, tensor_name)

    def __delattr__(self, name: str) -> None:
        tensor_name = tensor_of_slot(self._masked_layouts, name)
        if tensor_name is not None and holds_masks(self):
            raise AttributeError(
                f"'{name}' of {type(self).__name__} cannot be deleted (nor parametrized) while '{tensor_name}' is "
                f"pruned: call remove(module, '{tensor_name}') first"
            )
        super().__delattr__(name)

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        for name, mask in self._kept_masks.items():
            other = name in self._own_reads or hidden_values(self._parameters[name], mask)
            if other and prefix + name in destination:  # a class may save what it likes
                value = read(self, name)
                destination[prefix + name] = value if keep_vars else value.detach()

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any) -> None:
        accept_zeros(self, state_dict, prefix)
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)
        error_msgs = kwargs["error_msgs"] if "error_msgs" in kwargs else args[-1]
        error_msgs.extend(layout_errors(self._masked_layouts, state_dict, prefix))
        for name in list(self._masked_layouts):
            note_softness(self, name)

    def __prepare_scriptable__(self) -> None:
        names = ", ".join(f"'{name}'" for name in self._masked_layouts)
        raise TypeError(
            f"{names} of {type(self).__name__} is pruned, which TorchScript cannot express: call "
            "lightning_prune.prune.remove_all(model) first, on a copy.deepcopy of the model if it is to train on"
        )

    def __reduce_ex__(self, protocol: Any) -> Any:
        reduced = super().__reduce_ex__(protocol)
        if isinstance(reduced, str):
            return reduced
        maker, args, *state = (self._plain(part) for part in reduced)
        if not state or state[0] is None:  # the user's class makes a fresh module of its arguments
            return (maker, tuple(map(self._plain, args)), *state)
        layouts = tuple(self._masked_layouts.items())
        return (_remade, (maker, tuple(map(self._plain, args)), layouts, tuple(self._own_reads)), *state)

    def _plain(self, part: Any) -> Any:
        return self._masked_base if part is type(self) else part


class _MaskedRNN(Masked):
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


class _MaskedEmbedding(Masked):
    """Embeddings with ``max_norm`` shorten the rows that they look up, which has to reach the parameter."""

    max_norm: float | None
    norm_type: float

    def forward(self, input: Tensor, *args: Any, **kwargs: Any) -> Any:
        """Shortens the rows of the parameter, then looks them up."""
        if self.max_norm is not None and "weight" in self._masked_layouts:
            renorm_rows(
                parameter_of(self, "weight"), mask_of(self, "weight") != 0, input, self.max_norm, self.norm_type
            )
        return super().forward(input, *args, **kwargs)


class _MaskedContainer(Masked):
    """Lists and dicts of parameters may have hundreds of them: one class serves any, and finds the masks by name."""

    _masked_layouts: Layouts = {}  # noqa: RUF012  (replaced in the instance, never written into)

    def __getattr__(self, name: str) -> Any:
        layouts = self.__dict__.get("_masked_layouts", {})
        tensor_name = tensor_of_slot(layouts, name)
        if tensor_name is None:
            return super().__getattr__(name)
        if name == tensor_name:
            return read(self, name)
        if layouts[tensor_name] is Layout.DOCUMENTED:
            return super().__getattr__(name)
        return mask_of(self, tensor_name) if name.endswith("_mask") else parameter_of(self, tensor_name)


def _followed(mask: Tensor, fn: Callable[[Tensor], Tensor]) -> Tensor:
    """A mask where ``fn`` takes tensors to: it keeps its values and dtype whatever ``fn`` does to numbers.

    On the meta device it would lose what it says; it stays where it was then.
    """
    moved = fn(mask)
    if moved is mask or moved.is_meta:
        return mask
    return torch.empty_like(moved, dtype=torch.bool).copy_(mask)


def put_mask(module: nn.Module, name: str, mask: Tensor, binary: bool = False) -> None:
    """Stores a mask in the place of the one that is there; ``binary``: it is known to hold 0 and 1 only."""
    if layouts_of(module)[name] is Layout.DOCUMENTED:
        module._buffers[f"{name}_mask"] = mask
        note_softness(module, name, binary)
    else:
        module.__dict__["_kept_masks"][name] = mask.bool()


def note_softness(module: nn.Module, name: str, binary: bool = False) -> None:
    """Has a tensor read as a product if its mask holds other values than 0 and 1, and as usual if not."""
    own, mask = module.__dict__["_own_reads"], module._buffers.get(f"{name}_mask")
    if layouts_of(module)[name] is not Layout.DOCUMENTED or type(mask) is not Tensor or mask.is_meta:
        return
    soft = not binary and not is_binary(mask)
    if soft and name not in own:
        set_own_read(module, name, Product(name))
    elif not soft and isinstance(own.get(name), Product):
        set_own_read(module, name, None)


def set_own_read(module: nn.Module, name: str, how: Callable[[nn.Module], Tensor] | None) -> None:
    """Has ``module.name`` read as ``how(module)``; ``None``: as ``where(mask, parameter, 0)``."""
    own = {key: value for key, value in module.__dict__["_own_reads"].items() if key != name}
    module.__dict__["_own_reads"] = own if how is None else {**own, name: how}
    set_layouts(module, layouts_of(module))


def hidden_values(parameter: Tensor | None, mask: Tensor) -> bool:
    """Whether a parameter holds anything but zeros under its mask."""
    if parameter is None or parameter.is_meta:
        return False
    return not zero_under(local(parameter), local(mask))  # of a sharded one, what this rank holds: no exchange


def _views(name: str) -> dict[str, property]:
    """Parameter and mask under the names that they have in the documented layout."""
    return {
        f"{name}_orig": property(lambda self: parameter_of(self, name)),
        f"{name}_mask": property(lambda self: mask_of(self, name)),
    }


def _properties(base: type[nn.Module], name: str, layout: Layout, own: bool) -> dict[str, property]:
    reading = property((lambda self: read(self, name)) if own else reader(base, name, layout))
    if layout is Layout.DOCUMENTED:
        return {name: reading}
    return {name: reading, **_views(name)}


def _plain_init(base: type[nn.Module]) -> Callable[..., None]:
    @functools.wraps(base.__init__)
    def init(self: nn.Module, *args: Any, **kwargs: Any) -> None:
        """A new module, as ``type(pruned)(...)`` makes one, is a plain one."""
        _set_type(self, base)
        base.__init__(self, *args, **kwargs)

    return init


def _own_class(self: Masked) -> type[nn.Module]:
    # The compiler looks for properties in __class__, and has to see ours.
    return type(self) if TracingContext.try_get() is not None else type(self)._masked_base


def _change_own_class(self: Masked, cls: type[nn.Module]) -> None:
    if issubclass(cls, Masked):
        _set_type(self, cls)
    else:
        _set_type(self, _masked_class(cls, self._masked_layouts, self._own_reads))


def _copied_by(base: type[nn.Module]) -> Callable[..., nn.Module]:
    def deepcopy(self: nn.Module, memo: dict[int, Any]) -> nn.Module:
        """A copy that has the masks is masked."""
        cls = type(self)
        copied: nn.Module = base.__deepcopy__(self, memo)  # type: ignore[attr-defined]
        if type(copied) is base:
            _set_type(copied, cls)
            if not holds_masks(copied):
                _set_type(copied, base)
        return copied

    return deepcopy


def _mixin(base: type[nn.Module]) -> type[Masked]:
    if issubclass(base, nn.RNNBase):
        return _MaskedRNN
    if issubclass(base, (nn.Embedding, nn.EmbeddingBag)):
        return _MaskedEmbedding
    return _MaskedContainer if issubclass(base, _CONTAINERS) else Masked


def _masked_class(base: type[nn.Module], layouts: Layouts, own: Mapping[str, Any]) -> type[Masked]:
    """The one subclass of ``base`` with these masked attributes; found again among its subclasses."""
    if issubclass(base, _CONTAINERS):
        layouts, own = {}, {}
    key = (tuple(layouts.items()), frozenset(own))
    for known in base.__subclasses__():
        if known.__dict__.get("_masked_base") is base and known.__dict__["_masked_key"] == key:
            return cast("type[Masked]", known)
    make = cast(Callable[..., type[Masked]], type(base))  # the metaclass
    cls = make(base.__name__, (_mixin(base), base), _namespace(base, layouts, own, key))
    type.__setattr__(cls, "_masked_made", frozenset(vars(cls)))
    return cls


def _namespace(base: type[nn.Module], layouts: Layouts, own: Mapping[str, Any], key: Any) -> dict[str, Any]:
    namespace: dict[str, Any] = {"__module__": base.__module__, "__qualname__": base.__qualname__}
    namespace.update(__doc__=base.__doc__, __init__=_plain_init(base), _masked_base=base, _masked_key=key)
    namespace.update(__class__=property(_own_class, _change_own_class))
    if not issubclass(base, _CONTAINERS):
        namespace["_masked_layouts"] = dict(layouts)
    if hasattr(base, "__deepcopy__"):
        namespace["__deepcopy__"] = _copied_by(base)
    if "_wrapped_call" in base.__dict__:  # an FX graph looks in its class itself for whether it is wrapped already
        namespace["_wrapped_call"] = base.__dict__["_wrapped_call"]
    for name, layout in layouts.items():
        namespace.update(_properties(base, name, layout, name in own))
    return namespace


def _hand_over(cls: type[Masked]) -> None:
    """Gives the module's own class what was written to the masked one since it was made."""
    for name in vars(cls).keys() - cls._masked_made - {"_masked_made"}:
        if name == "__call__" or not name.startswith("__"):
            setattr(cls._masked_base, name, vars(cls)[name])


def _remade(
    maker: Callable[..., nn.Module],
    args: tuple[Any, ...],
    layouts: tuple[tuple[str, Layout], ...],
    own: tuple[str, ...] = (),
) -> nn.Module:
    """A copy or a loaded module before its state is put into it."""
    module = maker(*args)
    _set_type(module, _masked_class(type(module), dict(layouts), dict.fromkeys(own)))
    return module


def set_layouts(module: nn.Module, layouts: Layouts) -> None:
    """Gives a module the class with these masked attributes, or its own class back if there are none."""
    require_unwrapped(module)
    base = type(module)
    if isinstance(module, Masked):
        _hand_over(type(module))
        base = module._masked_base
    if not layouts:
        _set_type(module, base)
        module.__dict__.pop("_masked_layouts", None)
        return
    own = module.__dict__.setdefault("_own_reads", {})
    _set_type(module, _masked_class(base, layouts, own))
    if issubclass(base, _CONTAINERS):
        module.__dict__["_masked_layouts"] = dict(layouts)


def require_unwrapped(module: nn.Module) -> None:
    """Raises TypeError if another package has made a subclass of the class that a module has while it is pruned."""
    if isinstance(module, Masked) and "_masked_base" not in type(module).__dict__:
        raise TypeError(
            f"the class of this {type(module).__name__} was derived from the one it has while it is pruned; "
            "prune after wrapping, and unwrap before removing the pruning."
        )
