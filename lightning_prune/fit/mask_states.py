"""Masks in the state of a run: packed bits and plain values, made and read."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from lightning_prune.checkpoint import pack_whole, unpack
from lightning_prune.prune import attribute
from lightning_prune.prune.sharded.tensors import cut, is_sharded
from lightning_prune.targets.select import Target


def tensor_state(target: Target) -> dict[str, Any]:
    """A mask as bits, and the values under it where an optimizer or a user made them non-zero."""
    mask, parameter = target.alive, target.parameter.detach()
    state = mask_state(list(parameter.shape), mask)
    if mask is not None and not is_sharded(mask) and attribute.hidden_values(parameter, mask):
        state["hidden"] = parameter[~mask].cpu()
    return state


def require_bits(name: str, saved: Mapping[str, Any]) -> None:
    """Raises ValueError if the bits of a mask are not as many as its shape has entries."""
    wanted = -(-math.prod(saved["shape"]) // 8)
    if "bits" in saved and saved["bits"].numel() != wanted:
        raise ValueError(
            f"the mask of '{name}' of shape {tuple(saved['shape'])} should have {wanted} bytes in the pruning state, "
            f"it has {saved['bits'].numel()}: the file is damaged"
        )


def mask_state(shape: list[int], mask: Tensor | None) -> dict[str, Any]:
    """A mask as bits; of one that is split every rank has to call it."""
    return {"shape": shape} if mask is None else {"shape": shape, "bits": pack_whole(mask)}


def saved_mask(target: Target, saved: Mapping[str, Any]) -> Tensor | None:
    """The mask in a state, on the device and in the memory format of the parameter."""
    if "bits" not in saved or list(target.parameter.shape) != list(saved["shape"]):
        return None
    mask = cut(unpack(saved["bits"], saved["shape"]), target.parameter.detach())
    if is_sharded(mask):
        return mask
    return torch.empty_like(target.parameter, dtype=torch.bool, requires_grad=False).copy_(mask)


def require_same_selection(then: Iterable[str], now: Sequence[str]) -> None:
    """Raises ValueError if tensors are selected now that were not when a state was saved."""
    more = [name for name in now if name not in set(then)]
    if more:
        raise ValueError(
            f"the pruning state is that of another selection: {', '.join(more)} were not selected when it was saved; "
            "select the same tensors, or begin anew from the checkpoint's weights with keep_zeros=True"
        )
