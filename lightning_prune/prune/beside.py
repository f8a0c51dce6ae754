"""Masks beside a module that stays as it is: no class of ours, no hook, no attribute and no buffer.

The parameter itself holds the zeros; whoever prunes keeps them there. Masks lie in a table with weak keys, so they end
with the module, and a copy or a pickle of the module is that of a dense one with zeros.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

if TYPE_CHECKING:
    from lightning_prune.prune.base import PruningContainer


@dataclass
class Beside:
    """What is known of one pruned tensor of a module.

    Attributes:
        mask: Boolean, shape of the parameter, True = kept.
        parameter: The parameter that was pruned; a parametrization may have moved it elsewhere since.
        history: The methods that made the mask.
    """

    mask: Tensor
    parameter: nn.Parameter
    history: PruningContainer | None = None


_table: WeakIdKeyDictionary = WeakIdKeyDictionary()


def entries(module: nn.Module) -> dict[str, Beside]:
    """What is kept beside a module, by the names of its tensors; writes into it are kept if it is not empty."""
    found: dict[str, Beside] | None = _table.get(module)  # type: ignore[no-untyped-call]
    return {} if found is None else found


def put(module: nn.Module, name: str, mask: Tensor) -> None:
    """Keeps the mask of a parameter that has none yet."""
    parameter = module._parameters[name]
    assert parameter is not None
    _table.setdefault(module, {})[name] = Beside(mask, parameter)  # type: ignore[no-untyped-call]


def drop(module: nn.Module, name: str) -> None:
    """Forgets the mask of a tensor."""
    kept = entries(module)
    del kept[name]
    if not kept:
        del _table[module]


def parameter_of(module: nn.Module, name: str) -> nn.Parameter:
    """The parameter that is pruned: the one in its slot, or the one that left it for a parametrization."""
    entry = entries(module)[name]
    now = module._parameters.get(name)
    if now is not None:
        entry.parameter = now
    return entry.parameter


def mask_of(module: nn.Module, name: str) -> Tensor:
    """The mask, on the device of the parameter."""
    entry = entries(module)[name]
    device = parameter_of(module, name).device
    if entry.mask.device != device and device.type != "meta":
        entry.mask = entry.mask.to(device)
    return entry.mask
