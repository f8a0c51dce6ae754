"""How a masked attribute is read: where parameter and mask lie, and what is computed from them at that moment."""

from __future__ import annotations

import enum
import inspect
import sys
from collections.abc import Callable, Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.fx import Proxy
from torch.nn.utils.weight_norm import WeightNorm

from lightning_prune.prune.kernels.embeddings import masked_rows
from lightning_prune.prune.kernels.masking import masked

_TAKES_PARAMETERS = inspect.unwrap(WeightNorm.apply).__code__  # deletes the slot with nothing that could refuse it
_EMBEDDINGS = (nn.Embedding, nn.EmbeddingBag)


class Layout(enum.Enum):
    """Where the parameter and the mask of a pruned tensor are stored."""

    DOCUMENTED = "documented"
    KEPT = "kept"
    PLAIN = "plain"


Layouts = Mapping[str, Layout]


def slot_of(name: str, layout: Layout | None) -> str:
    """Under which name the parameter of a tensor is registered."""
    return name + "_orig" if layout is Layout.DOCUMENTED else name


def tensor_of_slot(layouts: Layouts, slot: str) -> str | None:
    """Which masked tensor an attribute is, or holds the parameter or the mask of."""
    if slot in layouts:
        return slot
    name = slot[:-5] if slot.endswith(("_orig", "_mask")) else ""
    return name if name in layouts else None


def layouts_of(module: nn.Module) -> Layouts:
    """The layouts of the masked attributes of a module, by name."""
    found: Layouts = getattr(module, "_masked_layouts", {})
    return found


def holds_masks(module: nn.Module) -> bool:
    """Whether a module has the masks that its class asks for; one that was made of the class alone has none."""
    kept, buffers = module.__dict__.get("_kept_masks", {}), module.__dict__.get("_buffers", {})
    return all(
        f"{name}_mask" in buffers if layout is Layout.DOCUMENTED else name in kept
        for name, layout in layouts_of(module).items()
    )


def parameter_of(module: nn.Module, name: str) -> Tensor:
    """The parameter behind a masked attribute, or what a tracer or a replica has in its place."""
    if layouts_of(module)[name] is Layout.DOCUMENTED:
        return cast(Tensor, getattr(module, f"{name}_orig"))
    return _registered(module, name)


def _registered(module: nn.Module, name: str) -> Tensor:
    if torch.compiler.is_compiling():
        return cast(Tensor, module._parameters[name])
    found = nn.Module.__getattr__(module, name)  # where FX puts its own
    if isinstance(found, Proxy):  # under the module's name for it the graph would take the masked value for a constant
        found.node.target = f"{str(found.node.target).removesuffix('_orig')}_orig"
    return cast(Tensor, found)


def mask_of(module: nn.Module, name: str) -> Tensor:
    """The mask as it is stored."""
    if layouts_of(module)[name] is Layout.DOCUMENTED:
        return cast(Tensor, getattr(module, f"{name}_mask"))
    return cast(Tensor, module.__dict__["_kept_masks"][name])


def read(module: nn.Module, name: str) -> Tensor:
    """What ``module.name`` reads, with gradients to the parameter."""
    own = module.__dict__["_own_reads"].get(name)
    return masked_value(module, name) if own is None else cast(Tensor, own(module))


def masked_value(module: nn.Module, name: str) -> Tensor:
    """``where(mask, parameter, 0)``, even if the tensor is read in another way."""
    return _combined(module, parameter_of(module, name), mask_of(module, name))


def _combined(module: nn.Module, parameter: Tensor, mask: Tensor) -> Tensor:
    if isinstance(module, _EMBEDDINGS) and module.sparse:
        return masked_rows(parameter, mask)
    if type(mask) is Tensor and mask.requires_grad:
        return parameter * mask  # somebody learns the mask
    if parameter.is_meta:
        mask = mask.to("meta")
    return masked(parameter, mask)


def reader(base: type[nn.Module], name: str, layout: Layout) -> Callable[[nn.Module], Tensor]:
    """The same as :func:`read` for one name, without what it does not need there: it runs in every forward."""
    orig_name, mask_name = f"{name}_orig", f"{name}_mask"

    def documented(self: nn.Module) -> Tensor:  # getattr: FX and DataParallel put their own in the places of both
        mask = getattr(self, mask_name)
        if type(mask) is Tensor and mask.requires_grad:
            return masked_value(self, name)
        return masked(getattr(self, orig_name), mask)

    def kept(self: nn.Module) -> Tensor:
        if not torch.compiler.is_compiling() and sys._getframe(1).f_code is _TAKES_PARAMETERS:
            raise ValueError(
                f"'{name}' of {type(self).__name__} is pruned: weight_norm would take its parameter away; call "
                f"remove(module, '{name}') first, or normalize first and prune '{name}_v'"
            )
        parameter, mask = _registered(self, name), cast(Tensor, self.__dict__["_kept_masks"][name])
        return masked(parameter, mask.to("meta") if type(parameter) is nn.Parameter and parameter.is_meta else mask)

    if issubclass(base, _EMBEDDINGS):
        return lambda self: masked_value(self, name)
    return documented if layout is Layout.DOCUMENTED else kept


class Product:
    """Reads the product with a mask of other values than 0 and 1, as ``torch.nn.utils.prune`` reads any mask."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, module: nn.Module) -> Tensor:
        """The product, with gradients to the parameter."""
        return parameter_of(module, self.name) * mask_of(module, self.name)


class Replicated:
    """Reads the part of a replica of ``nn.DataParallel``, which has tensors in the places of the parameters."""

    def __init__(self, value: Tensor, mask: Tensor) -> None:
        self.value, self.mask = value, mask.to(value.device)

    def __call__(self, module: nn.Module) -> Tensor:
        """The masked tensor, with gradients to the parameter that it is a copy of."""
        return masked(self.value, self.mask)


class Assigned:
    """Reads what a forward pre-hook has assigned, as long as the module is being called, and then as usual again."""

    def __init__(self, name: str, value: Tensor | None) -> None:
        self.name, self.value = name, value

    def __call__(self, module: nn.Module) -> Tensor:
        """The assigned tensor within the call, else the masked one."""
        return self.value if self.value is not None and being_called(module) else masked_value(module, self.name)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.name, None)


def being_called(module: nn.Module) -> bool:
    """Whether this is done within a call of the module."""
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code is nn.Module._call_impl.__code__ and frame.f_locals.get("self") is module:
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False
