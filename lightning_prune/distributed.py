"""The same masks on every rank: the seed comes from rank 0, scores are averaged, and a checksum guards the result.

All of it happens at pruning events; between them nothing is exchanged.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
import torch.distributed as dist
from lightning.pytorch.strategies import DeepSpeedStrategy, FSDPStrategy, Strategy
from torch import Tensor

from lightning_prune.prune.kernels.hashing import GOLDEN, mix, stream
from lightning_prune.prune.sharded.tensors import holders_of, local

_PIECE = 1 << 17


def several_ranks() -> bool:
    """Whether this process is one of several that train together."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def checksum(mask: Tensor) -> int:
    """A 64-bit number that differs for masks that differ in any entry, or in their order.

    Args:
        mask: Boolean, any shape and memory format.

    Example:
        >>> checksum(torch.tensor([True, False])) == checksum(torch.tensor([False, True]))
        False
    """
    flat = mask.detach().reshape(-1)
    even = flat.numel() // 8 * 8
    total = flat.numel() + _checksum_of(flat[even:].long(), even)
    return (total + _checksum_of(flat[:even].view(torch.int64), 0) + 2**63) % 2**64 - 2**63


def _checksum_of(words: Tensor, start: int) -> int:
    total = 0
    for piece in torch.split(words, _PIECE):
        place = torch.arange(start, start + len(piece), device=piece.device)
        total += int(mix(mix(place.add_(1).mul_(GOLDEN)) ^ piece).sum())
        start += len(piece)
    return total


def require_same_masks(masks: Mapping[str, Tensor | None]) -> None:
    """Compares masks over all ranks that hold the same rows: one reduction of 16 bytes for each mask and shard.

    Every rank has to call it. Where each rank holds rows of its own there is nothing to compare.

    Args:
        masks: Boolean masks by the names of their tensors, ``None`` = nothing pruned; the same names on every rank. All
            of them plain, or all split in the same way.

    Raises:
        RuntimeError: On every rank, if a mask differs between ranks; names the tensors.
    """
    if not several_ranks() or not masks:
        return
    holders = holders_of(next((mask for mask in masks.values() if mask is not None), torch.empty(0)))
    if holders.size == dist.get_world_size():
        return
    sums = torch.tensor([0 if mask is None else checksum(local(mask)) for mask in masks.values()])
    differ = _differing(sums, holders.index, holders.size)
    wrong = [name for name, other in zip(masks, differ.tolist(), strict=True) if other]
    if wrong:
        raise RuntimeError(
            f"the masks of {len(wrong)} of {len(masks)} tensors differ between the ranks: {', '.join(wrong[:8])}. "
            "Weights, scores and random choices have to be the same on every rank: average scores with "
            "lightning_prune.distributed.mean_over_ranks, and draw random numbers from torch's generators only, "
            "which each event seeds alike."
        )


def require_same(words: Iterable[str], what: str) -> None:
    """Compares texts over all ranks; one reduction of 16 bytes. Every rank has to call it.

    Args:
        words: The texts, in order.
        what: What they are, for the message.

    Raises:
        RuntimeError: On every rank, if they differ.
    """
    words = list(words)
    if several_ranks() and bool(_differing(torch.tensor([stream("\n".join(words))])).any()):
        raise RuntimeError(f"{what} differs between the ranks; rank {dist.get_rank()} has {', '.join(words[:8])}")


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


def require_strategy(strategy: Strategy) -> None:
    """Refuses strategies under which masks would not hold.

    Args:
        strategy: That of the Trainer.

    Raises:
        ValueError: For FSDP1 and DeepSpeed; names the strategies to use instead.
    """
    if isinstance(strategy, FSDPStrategy):
        raise ValueError(
            "pruning does not work under FSDPStrategy, which flattens the parameters of a layer into one: use "
            "ModelParallelStrategy with torch.distributed.fsdp.fully_shard in configure_model, or 'ddp' if the model "
            "fits on a device"
        )
    if isinstance(strategy, DeepSpeedStrategy):
        raise ValueError(
            "pruning does not work under DeepSpeedStrategy, which trains copies of the weights that masks do not "
            "reach: use 'ddp', or ModelParallelStrategy with torch.distributed.fsdp.fully_shard in configure_model"
        )


def collective_device() -> torch.device:
    """Where tensors have to be that the default process group exchanges."""
    cuda = "nccl" in str(dist.get_backend())
    return torch.device("cuda", torch.cuda.current_device()) if cuda else torch.device("cpu")


def _differing(values: Tensor, place: int = 0, places: int = 1) -> Tensor:
    """For each integer whether it differs between ranks in the same place: its maximum from its minimum."""
    both = torch.full((places, 2, len(values)), -(2**63))
    both[place] = torch.stack([values, ~values])  # ~ turns the order round and cannot overflow
    both = both.to(collective_device())
    dist.all_reduce(both, dist.ReduceOp.MAX)
    most, least = both.cpu().unbind(1)
    return torch.ne(most, ~least).any(0)
