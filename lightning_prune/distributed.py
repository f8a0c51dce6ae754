"""The same masks on every rank: the seed comes from rank 0, scores are averaged, and a checksum guards the result.

All of it happens at pruning events; between them nothing is exchanged.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor

from lightning_prune.prune.kernels.randomness import seeded
from lightning_prune.prune.sharded.agreement import (
    checksum,
    of_rank_0,
    require_same,
    require_same_masks,
    together,
)
from lightning_prune.prune.sharded.ranks import collective_device, several_ranks

__all__ = [
    "checksum",
    "collective_device",
    "mean_over_ranks",
    "of_rank_0",
    "require_same",
    "require_same_masks",
    "seeded_alike",
    "several_ranks",
    "together",
]


@contextmanager
def seeded_alike(tensors: Iterable[Tensor] = ()) -> Iterator[None]:
    """Seeds the generators of torch, NumPy and Python from a number that rank 0 draws, and gives their states back.

    For calls of :mod:`lightning_prune.prune` in loops of one's own. Every rank has to enter it.

    Args:
        tensors: The generators of their CUDA devices are seeded too.

    Example:
        >>> with seeded_alike():
        ...     scores = torch.rand(3)  # the same on every rank
    """
    seed = of_rank_0(lambda: [int(torch.randint(2**62, (), device="cpu"))])[0]
    with seeded(seed, tensors):
        yield


def mean_over_ranks(scores: Sequence[Tensor]) -> list[Tensor]:
    """Averages scores that come from each rank's own data, such as ones from gradients, before they are ranked.

    Args:
        scores: Floating-point tensors, of the same shapes on every rank; not changed. As many bytes are exchanged as
            they have.

    Returns:
        New tensors of the same shapes; the scores themselves where there is one process only.
    """
    if not several_ranks():
        return list(scores)
    means = []
    for score in scores:
        total = score.detach().clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        means.append(total / dist.get_world_size())
    return means
