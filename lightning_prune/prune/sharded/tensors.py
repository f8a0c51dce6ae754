"""Tensors that are split over ranks (``DTensor``), as ``fully_shard`` and tensor parallelism split parameters.

A mask is split like its parameter, so every rank holds the mask of its own slice and no more. Functions here take plain
tensors too and then exchange nothing.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeGuard, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

from lightning_prune.prune.kernels.arrays import living_entries
from lightning_prune.prune.kernels.sharing import Box

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

_dead: WeakIdKeyDictionary = WeakIdKeyDictionary()  # masks are counted once: counting over ranks is an exchange


def is_sharded(tensor: Tensor | None) -> TypeGuard[DTensor]:
    """Whether a tensor is a ``DTensor``."""
    module = sys.modules.get("torch.distributed.tensor")  # importing it takes long, and without it there are none
    return module is not None and isinstance(tensor, module.DTensor)


def local(tensor: Tensor) -> Tensor:
    """The part of a tensor that this rank holds; of a plain one all of it."""
    return tensor.to_local() if is_sharded(tensor) else tensor


def whole(tensor: Tensor) -> Tensor:
    """All of a tensor on every rank; of a plain one the tensor itself. Every rank has to call it."""
    return tensor.full_tensor() if is_sharded(tensor) else tensor


def split_like(part: Tensor, tensor: Tensor) -> Tensor:
    """A tensor of which each rank gives its part, of the shape of ``tensor`` and split like it.

    Args:
        part: This rank's part; for a plain ``tensor`` all of it.
        tensor: How it is split.
    """
    return placed(part, tensor.device_mesh, tensor.placements, tensor.shape) if is_sharded(tensor) else part


def placed(part: Tensor, mesh: Any, placements: Any, shape: torch.Size) -> Tensor:
    """A tensor of which each rank gives its part.

    Args:
        part: This rank's part.
        mesh: The ranks.
        placements: How it is split over them.
        shape: Of the whole tensor.
    """
    from torch.distributed.tensor import DTensor

    return DTensor.from_local(part, mesh, placements, run_check=False, shape=shape, stride=_row_major(shape))


def cut(full: Tensor, tensor: Tensor) -> Tensor:
    """The part that this rank holds of a whole tensor that all ranks have, split like ``tensor``.

    Args:
        full: Of the shape of ``tensor``; the same on every rank.
        tensor: How it is split.

    Returns:
        For a plain ``tensor`` all of it.
    """
    if not is_sharded(tensor):
        return full
    return split_like(full[box_of(tensor).slices].to(tensor.device).contiguous(), tensor)


def box_of(tensor: Tensor) -> Box:
    """Which slice of a tensor this rank holds; of a plain one all of it."""
    if not is_sharded(tensor):
        return Box.of_whole(tensor)
    (chunk,) = tensor.__create_chunk_list__()  # type: ignore[no-untyped-call]
    return Box(tuple(chunk.offsets), tuple(chunk.sizes), tuple(tensor.shape))


def nonzero_entries(tensor: Tensor) -> int:
    """How many entries of a tensor are not zero, over all ranks. Every rank has to call it for a split one.

    Args:
        tensor: Plain or split.

    Raises:
        ValueError: If it has no data.

    Example:
        >>> nonzero_entries(torch.tensor([[1.0, 0.0], [2.0, 3.0]]))
        3
    """
    if tensor.is_meta:
        raise ValueError(f"a tensor of shape {tuple(tensor.shape)} on the meta device has no data to look at yet")
    return int(holders_of(tensor).total(local(tensor).count_nonzero()))


def dead_entries(mask: Tensor | None) -> int:
    """How many entries of a boolean mask are False, over all ranks; they are counted when first asked for.

    Args:
        mask: Plain or split by rows; ``None`` = nothing pruned. Every rank has to call it for a new split one.

    Example:
        >>> dead_entries(torch.tensor([True, False, False])), dead_entries(None)
        (2, 0)
    """
    if mask is None:
        return 0
    if not is_sharded(mask):
        return mask.numel() - living_entries(mask)
    if mask not in _dead:
        kept = holders_of(mask).total(local(mask).count_nonzero())
        _dead[mask] = mask.numel() - int(kept)
    return cast(int, _dead[mask])


@dataclass(frozen=True)
class Holders:
    """The ranks that hold one copy of a tensor between them.

    Attributes:
        groups: The process groups of the dimensions of the mesh along which it is split; none for a whole one.
    """

    groups: tuple[Any, ...] = ()

    @property
    def size(self) -> int:
        """Their number."""
        return math.prod(dist.get_world_size(group) for group in self.groups)

    def total(self, values: Tensor) -> Tensor:
        """The sum of a tensor over the holders, in place."""
        return self._reduce(values, dist.ReduceOp.SUM)

    def largest(self, values: Tensor) -> Tensor:
        """The largest values over the holders, in place."""
        return self._reduce(values, dist.ReduceOp.MAX)

    def gathered(self, values: Tensor) -> Tensor:
        """The tensors of all holders along one dimension of the mesh, stacked in their order."""
        (group,) = self.groups
        parts = [torch.empty_like(values) for _ in range(self.size)]
        dist.all_gather(parts, values, group=group)
        return torch.stack(parts)

    def _reduce(self, values: Tensor, how: Any) -> Tensor:
        for group in self.groups:
            dist.all_reduce(values, how, group=group)
        return values


def holders_of(tensor: Tensor) -> Holders:
    """The ranks that hold one copy of a tensor.

    Args:
        tensor: Plain, or split along dimensions of its mesh; over others it may be replicated.

    Raises:
        ValueError: If it is split in a way that is not a slice for each rank.
    """
    if not is_sharded(tensor):
        return Holders()
    split = [place for place, how in enumerate(tensor.placements) if not how.is_replicate()]
    if any(tensor.placements[place].is_partial() for place in split):
        raise ValueError(f"it is placed as {tuple(tensor.placements)}: sums that are not added up cannot be pruned")
    return Holders(tuple(tensor.device_mesh.get_group(place) for place in split))


def split_dims(tensor: Tensor) -> set[int]:
    """The dimensions along which a tensor is split; none of a plain one."""
    if not is_sharded(tensor):
        return set()
    return {getattr(how, "dim", 0) for how in tensor.placements if not how.is_replicate()}


def reshard(model: nn.Module) -> None:
    """Gives the modules of ``fully_shard`` their split parameters back, where a forward has left whole ones."""
    if "torch.distributed.fsdp" not in sys.modules:
        return
    from torch.distributed.fsdp import FSDPModule

    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def _row_major(shape: torch.Size) -> tuple[int, ...]:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))
