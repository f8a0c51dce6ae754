"""Which layers of a model have a sparse one, and how they take its place."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import TypeVar

from torch import Tensor, nn

from lightning_prune.export.sparse_attention import SparseAttention, is_plain
from lightning_prune.export.sparse_layers import SparseConv1x1, SparseLinear, is_1x1

M = TypeVar("M", bound=nn.Module)


def sparse_layer(layer: nn.Module) -> nn.Module | None:
    """A layer with its weights as CSR, or ``None`` if there is no such layer for it.

    Args:
        layer: Any module. A subclass that computes otherwise is none for which there is a sparse layer.
    """
    if isinstance(layer, nn.Linear) and type(layer).forward is nn.Linear.forward:
        return SparseLinear(layer)
    if isinstance(layer, nn.Conv2d) and type(layer).forward is nn.Conv2d.forward and is_1x1(layer):
        return SparseConv1x1(layer)
    if isinstance(layer, nn.MultiheadAttention) and is_plain(layer):
        return SparseAttention(layer)
    return None


def weights_of(layer: nn.Module) -> list[Tensor]:
    """The weights that a sparse layer would hold as CSR, none for layers of other kinds."""
    if isinstance(layer, nn.MultiheadAttention):
        return [layer.in_proj_weight, layer.out_proj.weight] if is_plain(layer) else []
    return [layer.weight] if isinstance(layer, (nn.Linear, nn.Conv2d)) else []


def replaced(dense: M, names: Iterable[str]) -> M:
    """A copy of a model with some layers sparse.

    Args:
        dense: The model; it stays as it is.
        names: Full names of layers for which there are sparse ones.
    """
    changed = copy.deepcopy(dense)
    places = list(changed.named_modules(remove_duplicate=False))
    for name in names:
        layer = changed.get_submodule(name)
        made = sparse_layer(layer)
        assert made is not None
        made.eval()
        if not name:
            return made  # type: ignore[return-value]
        for place, found in places:
            if found is layer:  # shared layers have several places
                parent, _, key = place.rpartition(".")
                setattr(changed.get_submodule(parent), key, made)
    call_layers(changed, _has_sparse)
    return changed


def call_layers(model: nn.Module, which: Callable[[nn.Module], bool]) -> None:
    """Has torch's encoders call their layers: fused, they read dense weights, of sparse layers made at each call.

    Args:
        model: What is computed stays the same.
        which: Which encoders and layers of encoders.
    """
    for module in filter(which, model.modules()):
        if isinstance(module, nn.TransformerEncoderLayer):
            module.activation_relu_or_gelu = 0  # torch takes its fused way for others only
        if isinstance(module, nn.TransformerEncoder):
            module.use_nested_tensor = False


def _has_sparse(module: nn.Module) -> bool:
    return any(isinstance(part, (SparseLinear, SparseAttention)) for part in module.modules())
