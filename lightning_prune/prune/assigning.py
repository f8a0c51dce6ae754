"""What may be assigned to the names of a pruned tensor: its own, that of the parameter and that of the mask."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


def require_fit(module: nn.Module, name: str, param: nn.Parameter | None) -> None:
    """Raises ValueError unless a parameter can take the place of the one that is pruned."""
    mask = getattr(module, f"{name}_mask")
    if param is None or param.shape != mask.shape:
        given = "None" if param is None else f"one of shape {tuple(param.shape)}"
        raise ValueError(
            f"'{name}' of {type(module).__name__} is pruned: a parameter of the mask's shape {tuple(mask.shape)} is "
            f"wanted, got {given}; call remove(module, '{name}') first to assign another"
        )


def require_mask(module: nn.Module, name: str, value: Any) -> None:
    """Raises unless a value can take the place of the mask that is there."""
    where, shape = f"'{name}_mask' of {type(module).__name__}", getattr(module, f"{name}_mask").shape
    if not isinstance(value, Tensor) or isinstance(value, nn.Parameter):
        raise TypeError(
            f"{where} is the mask of a pruned tensor: a tensor of 0 and 1 is wanted in its place, got "
            f"{type(value).__name__}; call remove(module, '{name}') to end the pruning"
        )
    if value.shape != shape:
        raise ValueError(f"{where} should have the shape {tuple(shape)} of the parameter, got {tuple(value.shape)}")


def refuse(module: nn.Module, slot: str, name: str, value: Any) -> None:
    """Raises TypeError: the value is no parameter, and nothing else can be assigned."""
    raise TypeError(
        f"'{slot}' of {type(module).__name__} is pruned: it is computed from a parameter and a mask. "
        f"Assign an nn.Parameter to replace the parameter, or call remove(module, '{name}') first; "
        f"got {type(value).__name__}."
    )


def same(value: Any, now: Tensor) -> bool:
    """Whether a value is what is there; the methods of ``torch.nn.utils.prune`` assign what they find again."""
    return isinstance(value, Tensor) and value.shape == now.shape and torch.equal(value, now)
