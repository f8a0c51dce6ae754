"""Tensors that ``torch.nn.utils.prune`` has pruned: what they read, and the end of it."""

from __future__ import annotations

from typing import cast

import torch.nn.utils.prune as torch_prune
from torch import Tensor, nn

from lightning_prune.prune import attribute


def foreign_names(module: nn.Module) -> list[str]:
    """Names of the tensors of this module (not of its children) that torch has pruned and this package has not."""
    hooks = module._forward_pre_hooks.values()
    names = [hook._tensor_name for hook in hooks if isinstance(hook, torch_prune.BasePruningMethod)]
    return [name for name in names if _is_left_to_torch(module, name)]


def is_foreign(module: nn.Module, name: str) -> bool:
    """Whether torch has pruned ``module.name`` and this package has not."""
    return _is_left_to_torch(module, name) and name in foreign_names(module)


def _is_left_to_torch(module: nn.Module, name: str) -> bool:
    return f"{name}_orig" in module._parameters and attribute.layout_of(module, name) is None


def foreign_mask(module: nn.Module, name: str) -> Tensor:
    """Boolean mask (True = kept)."""
    return cast(Tensor, module._buffers[f"{name}_mask"]) != 0


def foreign_value(module: nn.Module, name: str) -> Tensor:
    """What the next forward reads; the attribute holds what the last one did."""
    return cast(Tensor, module._parameters[f"{name}_orig"]) * cast(Tensor, module._buffers[f"{name}_mask"])


def remove_foreign(module: nn.Module, name: str) -> None:
    """Makes the pruning permanent, as torch does."""
    torch_prune.remove(module, name)  # type: ignore[no-untyped-call]
