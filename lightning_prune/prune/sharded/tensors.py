"""Tensors that are split by rows over ranks (``DTensor``), as ``fully_shard`` splits parameters.

A mask is split like its parameter, so every rank holds the mask of its own rows and no more. Functions here take plain
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

from lightning_prune.prune.kernels.arrays import as_array, count_true
from lightning_prune.prune.kernels.norms import channel_norms

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
    if not is_sharded(tensor):
        return part
    from torch.distributed.tensor import DTensor

    mesh, placements = tensor.device_mesh, tensor.placements
    return DTensor.from_local(
        part, mesh, placements, run_check=False, shape=tensor.shape, stride=_row_major(tensor.shape)
    )


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
    start = first_row(tensor)
    part = full[start : start + len(local(tensor))].to(tensor.device)
    return split_like(part.contiguous(), tensor)


def first_row(tensor: Tensor) -> int:
    """The row at which the part of this rank begins: all ranks but the last ones hold equally many."""
    if not is_sharded(tensor):
        return 0
    holders, rows = holders_of(tensor), tensor.shape[0]
    return min(-(-rows // holders.size) * holders.index, rows)


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
        return mask.numel() - count_true(as_array(mask))
    if mask not in _dead:
        kept = holders_of(mask).total(local(mask).count_nonzero())
        _dead[mask] = mask.numel() - int(kept)
    return cast(int, _dead[mask])


@dataclass(frozen=True)
class Holders:
    """The ranks that hold one copy of a tensor between them, in the order of its rows.

    Attributes:
        group: Their process group; ``None`` for one process alone.
    """

    group: Any = None

    @property
    def size(self) -> int:
        """Their number."""
        return 1 if self.group is None else dist.get_world_size(self.group)

    @property
    def index(self) -> int:
        """Which of them this one is."""
        return 0 if self.group is None else dist.get_rank(self.group)

    def total(self, values: Tensor) -> Tensor:
        """The sum of a tensor over the holders, in place."""
        return self._reduce(values, dist.ReduceOp.SUM)

    def largest(self, values: Tensor) -> Tensor:
        """The largest values over the holders, in place."""
        return self._reduce(values, dist.ReduceOp.MAX)

    def gathered(self, values: Tensor) -> Tensor:
        """The tensors of all holders, stacked in their order."""
        if self.group is None:
            return values.unsqueeze(0)
        parts = [torch.empty_like(values) for _ in range(self.size)]
        dist.all_gather(parts, values, group=self.group)
        return torch.stack(parts)

    def _reduce(self, values: Tensor, how: Any) -> Tensor:
        if self.group is not None:
            dist.all_reduce(values, how, group=self.group)
        return values


def holders_of(tensor: Tensor) -> Holders:
    """The ranks that hold one copy of a tensor.

    Args:
        tensor: Plain, or split by rows over one dimension of its mesh; over others it may be replicated.

    Raises:
        ValueError: If it is split otherwise.
    """
    if not is_sharded(tensor):
        return Holders()
    split = [place for place, how in enumerate(tensor.placements) if not how.is_replicate()]
    if not split:
        return Holders()
    if len(split) > 1 or not tensor.placements[split[0]].is_shard(0):
        raise ValueError(f"it is placed as {tuple(tensor.placements)}: only splits by rows, Shard(0), can be pruned")
    return Holders(tensor.device_mesh.get_group(split[0]))


def channel_sums(mask: Tensor, dim: int) -> Tensor:
    """How many entries of a boolean mask are True in each slice along ``dim``, over all ranks.

    Args:
        mask: Plain or split by rows; every rank has to call it for a split one.
        dim: The dimension, from the front.

    Returns:
        int64, 1-d of length ``mask.shape[dim]``, the same on every rank.

    Example:
        >>> channel_sums(torch.tensor([[True, False], [True, True]]), dim=1)
        tensor([2, 1])
    """
    part = local(mask)
    others = [d for d in range(mask.dim()) if d != dim]
    return _over_ranks(part.sum(dim=others) if others else part.long(), mask, dim)


def sharded_channel_norms(part: Tensor, tensor: Tensor, n: int | float | str, dim: int) -> Tensor | None:
    """The norms that :func:`~lightning_prune.prune.kernels.norms.channel_norms` gives of a whole tensor.

    Args:
        part: This rank's rows.
        tensor: How they are split.
        n: The norm.
        dim: The channels' dimension.

    Returns:
        One norm for each channel, the same on every rank; ``None`` for a nuclear norm of slices that are split.
    """
    norms = channel_norms(part, n, dim)
    if dim == 0:
        return _over_ranks(norms, tensor, dim)
    if n == "nuc" and tensor.dim() > 2:
        return None
    power = 2.0 if isinstance(n, str) else float(n)
    if math.isinf(power):
        sign = 1 if power > 0 else -1
        norms = norms if part.numel() else torch.full_like(norms, 0.0 if power > 0 else math.inf)
        return sign * holders_of(tensor).largest(sign * norms)
    return holders_of(tensor).total(norms.double() ** power).pow(1 / power).to(norms.dtype)


def _over_ranks(values: Tensor, tensor: Tensor, dim: int) -> Tensor:
    """Values of channels, added up over ranks; along dimension 0 each rank has those of its own rows."""
    if is_sharded(tensor) and dim == 0:
        everywhere = values.new_zeros(tensor.shape[0])
        everywhere[first_row(tensor) :][: len(values)] = values
        values = everywhere
    return holders_of(tensor).total(values)


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
