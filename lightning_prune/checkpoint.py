"""Masks in checkpoints: packed bits, and dense state dicts from pruned ones and back."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from lightning_prune.prune.sharded.tensors import holders_of, is_sharded, local, split_dims, whole
from lightning_prune.prune.whole_model import pruned_tensors

METADATA = "_metadata"
"""The attribute in which ``torch.nn.Module.state_dict`` gives the versions of modules."""


def pack(mask: Tensor) -> Tensor:
    """Eight mask entries in a byte.

    Args:
        mask: Boolean, any shape.

    Returns:
        uint8 on the CPU, 1-d of length ``ceil(entries / 8)``; entry ``i`` (row-major) is bit ``i % 8`` of byte
        ``i // 8``.

    Example:
        >>> pack(torch.tensor([True, False, True])).tolist()
        [5]
    """
    flat = mask.detach().cpu().reshape(-1).to(torch.uint8)
    packed = torch.zeros(-(-flat.numel() // 8), dtype=torch.uint8)
    for bit in range(8):
        part = flat[bit::8]
        packed[: part.numel()] |= part << bit
    return packed


def pack_whole(mask: Tensor) -> Tensor:
    """The bytes that :func:`pack` makes of a whole mask, of which each rank may hold some rows.

    Ranks send each other their bits; or their masks, if the rows of a rank do not end where a byte ends or they hold
    other slices than rows. Every rank has to call it.

    Args:
        mask: Boolean, plain or split.

    Returns:
        As :func:`pack`, the same on every rank.
    """
    if not is_sharded(mask):
        return pack(mask)
    holders = holders_of(mask)
    most = -(-mask.shape[0] // holders.size) * (mask.numel() // max(1, mask.shape[0]))
    if most % 8 or len(holders.groups) != 1 or split_dims(mask) != {0}:
        return pack(whole(mask))
    own = torch.zeros(most // 8, dtype=torch.uint8)
    bits = pack(local(mask))
    own[: len(bits)] = bits
    return holders.gathered(own.to(mask.device)).cpu().flatten()[: -(-mask.numel() // 8)]


def unpack(packed: Tensor, shape: torch.Size | tuple[int, ...] | list[int]) -> Tensor:
    """The boolean mask that :func:`pack` made bytes of.

    Args:
        packed: uint8, 1-d.
        shape: Shape of the mask.

    Returns:
        Boolean, of that shape, on the CPU.

    Example:
        >>> unpack(torch.tensor([5], dtype=torch.uint8), (3,)).tolist()
        [True, False, True]
    """
    size = torch.Size(shape).numel()
    flat = torch.empty(packed.numel() * 8, dtype=torch.bool)
    for bit in range(8):
        flat[bit::8] = (packed >> bit) & 1 != 0
    return flat[:size].view(torch.Size(shape))


def to_dense(state_dict: Mapping[str, Any]) -> dict[str, Any]:
    """A plain state dict from one that ``torch.nn.utils.prune`` or Lightning's ``ModelPruning`` wrote.

    Every pair ``name_orig``, ``name_mask`` becomes ``name``, with zeros under the mask, in the place of the first.
    Dtypes, shared tensors and the versions of modules are kept.

    Args:
        state_dict: A state dict; pairs of keys that end in ``_orig`` and ``_mask`` are converted, others kept.

    Returns:
        A new state dict that loads strictly into the unpruned model.

    Raises:
        ValueError: If an ``_orig`` and its ``_mask`` have different shapes.

    Example:
        >>> to_dense({"weight_orig": torch.ones(2), "weight_mask": torch.tensor([1.0, 0.0])})
        {'weight': tensor([1., 0.])}
    """
    dense: dict[str, Any] = {}
    shared: dict[tuple[Any, ...], Tensor] = {}
    for key, value in state_dict.items():
        name, mask = _masked(state_dict, key)
        if mask is not None:
            if mask.shape != value.shape:
                raise ValueError(f"'{key}' has shape {tuple(value.shape)}, '{name}_mask' {tuple(mask.shape)}")
            place = (*_memory(value), *_memory(mask))
            if place not in shared:
                shared[place] = _zeroed(value, mask)
            dense[name] = shared[place]
        elif not _is_mask(state_dict, key):
            dense[key] = value
    return like(state_dict, dense)


def to_pruned(state_dict: Mapping[str, Any], model: nn.Module | None = None) -> dict[str, Any]:
    """A state dict as ``torch.nn.utils.prune`` writes it, from a plain one with zeros.

    Args:
        state_dict: A plain state dict.
        model: The pruned module that it is for: its pruned tensors are converted, with its masks where the state
            has values and the module's mask keeps them. By default every floating-point tensor of two or more
            dimensions that has zeros is converted, the zeros being what is masked.

    Returns:
        A new state dict with ``name_orig`` and ``name_mask`` instead of ``name``.

    Raises:
        ValueError: If a tensor that is pruned in ``model`` is missing.

    Example:
        >>> to_pruned({"weight": torch.tensor([[0.0, 2.0]])})
        {'weight_orig': tensor([[0., 2.]]), 'weight_mask': tensor([[0., 1.]])}
    """
    masks = {} if model is None else pruned_tensors(model)
    missing = [name for name in masks if name not in state_dict]
    if missing:
        raise ValueError(f"the state has no '{missing[0]}', which is pruned in the model")
    pruned: dict[str, Any] = {}
    for key, value in state_dict.items():
        if key in masks or (model is None and _has_zeros(value)):
            keep = value != 0 if model is None else masks[key].to(value.device)
            pruned[f"{key}_orig"] = value
            pruned[f"{key}_mask"] = keep.to(value.real.dtype if value.is_complex() else value.dtype)
        else:
            pruned[key] = value
    return like(state_dict, pruned)


def like(state_dict: Mapping[str, Any], changed: dict[str, Any]) -> dict[str, Any]:
    """A changed state dict with the versions of modules that the first one has.

    ``torch.nn.Module.state_dict`` notes them beside the values, and modules upgrade states that older ones wrote.

    Args:
        state_dict: Where the versions are taken from, if it has some.
        changed: Values by name.

    Returns:
        The values, in an ``OrderedDict`` with the versions if there are any.
    """
    versions = getattr(state_dict, METADATA, None)
    return changed if versions is None else with_versions(changed, versions)


def with_versions(state_dict: Mapping[str, Any], versions: Mapping[str, Any]) -> OrderedDict[str, Any]:
    """A state dict with the versions of its modules.

    Args:
        state_dict: Values by name.
        versions: For each module's name what ``torch.nn.Module.state_dict`` notes of it.
    """
    found = OrderedDict(state_dict)
    setattr(found, METADATA, OrderedDict(versions))
    return found


def _masked(state_dict: Mapping[str, Any], key: Any) -> tuple[str, Tensor | None]:
    """The plain name of an ``_orig`` and its mask, if the key is that of one."""
    if not (isinstance(key, str) and key.endswith("_orig") and isinstance(state_dict[key], Tensor)):
        return str(key), None
    name = key.removesuffix("_orig")
    mask = state_dict.get(f"{name}_mask")
    return name, mask if isinstance(mask, Tensor) else None


def _is_mask(state_dict: Mapping[str, Any], key: Any) -> bool:
    if not (isinstance(key, str) and key.endswith("_mask") and isinstance(state_dict[key], Tensor)):
        return False
    return isinstance(state_dict.get(f"{key.removesuffix('_mask')}_orig"), Tensor)


def _zeroed(value: Tensor, mask: Tensor) -> Tensor:
    """In the dtype of the values; those of a byte as integers, since torch computes with few of them."""
    kept = mask.view(torch.uint8) if mask.dtype.itemsize == 1 else mask
    if value.dtype.itemsize == 1:
        return value.view(torch.uint8).masked_fill(kept == 0, 0).view(value.dtype)
    return value.masked_fill(kept == 0, 0)


def _memory(tensor: Tensor) -> tuple[Any, ...]:
    if tensor.layout != torch.strided or not tensor.numel():
        return (id(tensor),)
    return (tensor.data_ptr(), tensor.device, tensor.dtype, tensor.shape, tensor.stride())


def _has_zeros(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point() and value.dim() > 1 and bool((value == 0).any())
