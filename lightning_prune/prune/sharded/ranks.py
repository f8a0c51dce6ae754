"""All ranks of the default process group, which decide together what is pruned of tensors that they share."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from lightning_prune.prune.kernels.sharing import Sharing


def several_ranks() -> bool:
    """Whether this process is one of several that train together."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def collective_device() -> torch.device:
    """Where tensors have to be that the default process group exchanges."""
    cuda = "nccl" in str(dist.get_backend())
    return torch.device("cuda", torch.cuda.current_device()) if cuda else torch.device("cpu")


def from_rank_0(values: Tensor) -> Tensor:
    """The values that rank 0 has, on the device of those here."""
    if not several_ranks():
        return values
    shared = values.to(collective_device())
    dist.broadcast(shared, src=0)
    return shared.to(values.device)


@dataclass(frozen=True)
class OverRanks(Sharing):
    """The ranks of the default process group; every one of them has to take part.

    Attributes:
        counted: For each tensor whether this is the lowest rank that holds its slice of it.
    """

    counted: tuple[bool, ...]

    @property
    def size(self) -> int:
        """Their number."""
        return dist.get_world_size()

    def counts(self, index: int) -> bool:
        """Whether this rank counts the entries of the tensor at ``index``."""
        return self.counted[index]

    def total(self, values: Tensor) -> Tensor:
        """The sum of an int64 tensor over the ranks."""
        shared = values.to(collective_device())
        dist.all_reduce(shared)
        return shared

    def first(self, number: int) -> int:
        """The number that rank 0 has."""
        return self.added(number if dist.get_rank() == 0 else 0)[0]


def lowest(slices: list[int]) -> tuple[bool, ...]:
    """For each tensor whether no lower rank holds the same slice of it.

    Args:
        slices: A number for the slice of each tensor that this rank holds.
    """
    own = torch.tensor(slices, dtype=torch.int64, device=collective_device())
    everywhere = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(everywhere, own)
    before = everywhere[: dist.get_rank()]
    return tuple(not any(bool(other[i] == own[i]) for other in before) for i in range(len(slices)))
