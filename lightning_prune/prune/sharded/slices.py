"""Copies of tensors that are kept aside while training goes on: of one that is split over ranks, each rank's slice."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lightning_prune.prune.sharded.tensors import cut, is_sharded, local, placed, split_like


@dataclass(frozen=True)
class Slice:
    """A copy of what this rank holds of a split tensor, on the CPU.

    Attributes:
        part: The copy.
        mesh: The ranks.
        placements: How the tensor is split over them.
        shape: Of the whole tensor.
        device: Where it was.
    """

    part: Tensor
    mesh: Any
    placements: Any
    shape: torch.Size
    device: torch.device

    def whole(self) -> Tensor:
        """All of the tensor, on the CPU; every rank has to call it."""
        split: Any = placed(self.part.to(self.device), self.mesh, self.placements, self.shape)
        everything: Tensor = split.full_tensor()
        return everything.cpu()


def aside(tensor: Tensor) -> Tensor | Slice:
    """A copy on the CPU, without gradient."""
    part = local(tensor.detach()).to("cpu", copy=True)
    if not is_sharded(tensor):
        return part
    return Slice(part, tensor.device_mesh, tensor.placements, tensor.shape, tensor.device)


@torch.no_grad()
def put_back(tensor: Tensor, copied: Tensor | Slice) -> None:
    """Writes a copy, or a whole tensor of a checkpoint, into a tensor of its shape."""
    detached = tensor.detach()
    part = copied.part if isinstance(copied, Slice) else local(cut(copied, detached))
    local(detached).copy_(part)


def for_parameter(value: Any, parameter: Tensor) -> Any:
    """A copy of an entry of an optimizer's state, split like its parameter where it has a value for each weight.

    Args:
        value: A copy that :func:`aside` made, a whole tensor, or anything else.
        parameter: The parameter.
    """
    if isinstance(value, Slice):
        return split_like(value.part.to(parameter.device, copy=True), parameter)
    if isinstance(value, Tensor) and is_sharded(parameter) and value.shape == parameter.shape:
        return cut(value, parameter.detach())
    return copy.deepcopy(value)
