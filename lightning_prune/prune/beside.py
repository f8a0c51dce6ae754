"""Masks beside a module that stays as it is: no class of ours, no hook, no attribute and no buffer.

The parameter itself holds the zeros; whoever prunes keeps them there. Masks lie in a table with weak keys, so they end
with the module, and a copy or a pickle of the module is that of a dense one with zeros.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor, nn

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

    def parameter_in(self, module: nn.Module, name: str) -> nn.Parameter:
        """The parameter that is pruned: the one in its slot, or the one that left it for a parametrization."""
        now = module._parameters.get(name)
        if now is not None:
            self.parameter = now
        return self.parameter

    def mask_in(self, module: nn.Module, name: str) -> Tensor:
        """The mask, on the device of the parameter."""
        device = self.parameter_in(module, name).device
        if self.mask.device != device and device.type != "meta":
            self.mask = self.mask.to(device)
        return self.mask


_table: dict[int, tuple[weakref.ref[nn.Module], dict[str, Beside]]] = {}
"""By the identity of the module: torch's table of that kind takes ten times as long, and each step asks it often."""


_NOTHING: tuple[Callable[[], nn.Module | None], dict[str, Beside]] = (lambda: None, {})


def entries(module: nn.Module) -> dict[str, Beside]:
    """What is kept beside a module, by the names of its tensors; writes into it are kept if it is not empty."""
    known, found = _table.get(id(module), _NOTHING)
    return found if known() is module else {}


def put(module: nn.Module, name: str, mask: Tensor) -> None:
    """Keeps the mask of a parameter that has none yet."""
    parameter = module._parameters[name]
    assert parameter is not None
    kept = entries(module)
    if not kept:
        _table[id(module)] = weakref.ref(module, functools.partial(_forget, id(module))), kept
    kept[name] = Beside(mask, parameter)


def drop(module: nn.Module, name: str) -> None:
    """Forgets the mask of a tensor."""
    kept = entries(module)
    del kept[name]
    if not kept:
        del _table[id(module)]


def _forget(key: int, dead: weakref.ref[nn.Module]) -> None:
    """Ends what was kept beside a module with it, unless another one has its identity by now."""
    if _table.get(key, _NOTHING)[0] is dead:
        del _table[key]
