"""State dicts that a pruned module is given: dense ones with zeros load, others are refused with what to do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from lightning_prune.prune.reading import Layout, layouts_of, mask_of, parameter_of


def accept_zeros(module: nn.Module, state_dict: dict[str, Any], prefix: str) -> None:
    """Gives a dense state that is as sparse as the module the names of parameter and mask; its zeros are the mask.

    A model that is pruned where it is made writes such states after a fit that pruned it on. A state with fewer zeros
    is one of a network that was not pruned: taking it would undo the mask without a word.

    Args:
        module: A pruned module.
        state_dict: What it is about to load, changed in place.
        prefix: What its names begin with there.
    """
    for name in [name for name, layout in layouts_of(module).items() if layout is Layout.DOCUMENTED]:
        dense, mask = state_dict.get(prefix + name), mask_of(module, name)
        known = any(f"{prefix}{name}_{kind}" in state_dict for kind in ("orig", "mask"))
        if known or not isinstance(dense, Tensor) or dense.is_meta or mask.is_meta:
            continue
        alive = dense.detach() != 0
        if dense.shape == parameter_of(module, name).shape and int(alive.sum()) <= int((mask != 0).sum()):
            del state_dict[prefix + name]
            state_dict[f"{prefix}{name}_orig"], state_dict[f"{prefix}{name}_mask"] = dense, alive.to(mask.dtype)


def layout_errors(layouts: Mapping[str, Layout], state_dict: Mapping[str, Any], prefix: str) -> list[str]:
    """What to do about a state of the other kind.

    Args:
        layouts: How tensors of the module are masked, by name.
        state_dict: What it was given.
        prefix: What its names begin with there.
    """
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
