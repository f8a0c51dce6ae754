"""Whole models: what is pruned in them, how sparse they are, removing all pruning at once."""

from __future__ import annotations

from typing import TypeVar

from torch import Tensor, nn

from lightning_prune.prune import attribute
from lightning_prune.prune.checks import require_data
from lightning_prune.prune.foreign import foreign_mask, foreign_names, foreign_value, is_foreign
from lightning_prune.prune.functional import remove
from lightning_prune.prune.sharded.tensors import nonzero_entries

M = TypeVar("M", bound=nn.Module)


def pruned_tensors(model: nn.Module) -> dict[str, Tensor]:
    """The masks of all pruned tensors of a model.

    Args:
        model: Any module.

    Returns:
        Boolean masks (True = kept) by the full name of the tensor, such as ``"encoder.0.weight"``; also of tensors
        that ``torch.nn.utils.prune`` has pruned.

    Example:
        >>> from lightning_prune.prune import l1_unstructured
        >>> net = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
        >>> _ = l1_unstructured(net[0], "bias", amount=1)
        >>> {name: int(mask.sum()) for name, mask in pruned_tensors(net).items()}
        {'0.bias': 1}
    """
    masks: dict[str, Tensor] = {}
    for prefix, module in model.named_modules():
        at = f"{prefix}." if prefix else ""
        for name in attribute.masked_names(module):
            mask = attribute.alive_mask(module, name)
            assert mask is not None
            masks[at + name] = mask
        masks.update((at + name, foreign_mask(module, name)) for name in foreign_names(module))
    return masks


def remove_all(model: M) -> M:
    """Makes all pruning of a model permanent, also that by ``torch.nn.utils.prune``; see :func:`remove`.

    Args:
        model: Any module, pruned or not.

    Returns:
        The model, modified in place.

    Raises:
        TypeError: If the class of a pruned module was changed by another package since; nothing is removed then.

    Example:
        >>> from lightning_prune.prune import is_pruned, l1_unstructured
        >>> net = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
        >>> _ = l1_unstructured(net[0], "weight", amount=1)
        >>> is_pruned(remove_all(net))
        False
    """
    for module in model.modules():
        attribute.require_unwrapped(module)
    for module in model.modules():
        for name in (*attribute.masked_names(module), *foreign_names(module)):
            remove(module, name)
    return model


def sparsity(model: nn.Module) -> float:
    """Share of zeros among all parameter entries of a model, as its forward sees them.

    Args:
        model: Any module: dense, pruned, or with its pruning removed.

    Returns:
        ``zeros / entries`` in [0, 1]; shared parameters count once; 0.0 without parameters.

    Raises:
        ValueError: If a parameter has no data (it is on the meta device).

    Example:
        >>> from lightning_prune.prune import l1_unstructured
        >>> net = nn.Sequential(nn.Linear(3, 2, bias=False), nn.ReLU())
        >>> _ = l1_unstructured(net[0], "weight", amount=3)
        >>> sparsity(net)
        0.5
    """
    zeros = total = 0
    for name, value in effective_parameters(model).items():
        require_data(value, f"'{name}'")
        zeros += value.numel() - nonzero_entries(value)
        total += value.numel()
    return zeros / total if total else 0.0


def effective_parameters(model: nn.Module) -> dict[str, Tensor]:
    """All parameters as the forward sees them: masked where pruned, under their plain names.

    Args:
        model: Any module.

    Returns:
        Detached tensors by full name; a shared parameter is listed once, under its first name.

    Example:
        >>> from lightning_prune.prune import l1_unstructured
        >>> list(effective_parameters(l1_unstructured(nn.Linear(3, 2), "weight", amount=3)))
        ['weight', 'bias']
    """
    values: dict[str, Tensor] = {}
    for full_name, _ in model.named_parameters():
        prefix, _, slot = full_name.rpartition(".")
        module = model.get_submodule(prefix)
        at, pruned = f"{prefix}." if prefix else "", slot.removesuffix("_orig")
        if attribute.layout_of(module, pruned) is not None:
            values[at + pruned] = getattr(module, pruned).detach()
        elif is_foreign(module, pruned):
            values[at + pruned] = foreign_value(module, pruned).detach()
        else:
            values[at + slot] = getattr(module, slot).detach()
    return values
