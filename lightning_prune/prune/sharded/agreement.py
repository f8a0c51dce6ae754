"""Ranks that agree: on masks and words by checksums, on what rank 0 decides, and on going on or not."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from lightning_prune.prune.kernels.hashing import GOLDEN, mix, stream
from lightning_prune.prune.sharded.ranks import collective_device, several_ranks
from lightning_prune.prune.sharded.tensors import box_of, holders_of, local

T = TypeVar("T")

_PIECE = 1 << 20  # entries, eight of which make a word


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
    for start in range(0, even, _PIECE):
        part = flat[start : min(start + _PIECE, even)]
        # words begin where addresses are multiples of 8, which the entries of a view need not do
        part = part.clone() if part.storage_offset() % 8 else part
        total += _checksum_of(part.view(torch.int64), start // 8)
    return (total + 2**63) % 2**64 - 2**63


def _checksum_of(words: Tensor, start: int) -> int:
    place = torch.arange(start, start + len(words), device=words.device)
    return int(mix(mix(place.add_(1).mul_(GOLDEN)) ^ words).sum())


def require_same_masks(masks: Mapping[str, Tensor | None]) -> None:
    """Compares masks over all ranks that hold the same slices: each sends 16 bytes for each mask.

    Every rank has to call it. Where each rank holds a slice of its own there is nothing to compare.

    Args:
        masks: Boolean masks by the names of their tensors, ``None`` = nothing pruned; the same names on every rank.
            Plain or split.

    Raises:
        RuntimeError: On every rank, if a mask differs between ranks; names the tensors.
    """
    if not several_ranks() or not masks:
        return
    held = {name: torch.empty(0) if mask is None else mask for name, mask in masks.items()}
    shared = {n: m for n, m in held.items() if holders_of(m).size < dist.get_world_size()}
    if not shared:
        return
    sums = torch.tensor([checksum(local(mask)) for mask in shared.values()])
    differ = _differing(sums, [stream(str(box_of(mask))) for mask in shared.values()])
    wrong = [name for name, other in zip(shared, differ, strict=True) if other]
    if wrong:
        raise RuntimeError(
            f"the masks of {len(wrong)} of {len(masks)} tensors differ between the ranks: {', '.join(wrong[:8])}. "
            "Weights, scores and random choices have to be the same on every rank. Where ranks train weights apart for "
            "a while (post-local SGD, periodic averaging), prune where they have just been averaged; average scores "
            "of a rank's own data with lightning_prune.distributed.mean_over_ranks."
        )


def require_same(words: Iterable[str], what: str) -> None:
    """Compares texts over all ranks; each sends 16 bytes. Every rank has to call it.

    Args:
        words: The texts, in order.
        what: What they are, for the message.

    Raises:
        RuntimeError: On every rank, if they differ.
    """
    words = list(words)
    if several_ranks() and any(_differing(torch.tensor([stream("\n".join(words))]), [0])):
        raise RuntimeError(f"{what} differs between the ranks; rank {dist.get_rank()} has {', '.join(words[:8])}")


@contextmanager
def together() -> Iterator[None]:
    """What is raised on one rank within it is raised on all, so that none waits for the others; sends 16 bytes.

    Every rank has to enter it. The block may exchange something only where no rank can have failed before on its own.

    Raises:
        RuntimeError: On the ranks that did not fail themselves; names the rank that did and says how.

    Example:
        >>> with together():
        ...     "a block that can fail on some ranks only"
        'a block that can fail on some ranks only'
    """
    try:
        yield
    except Exception as error:
        if several_ranks() and not isinstance(error, dist.DistError):  # then nothing can be sent any more
            _compared(error)
        raise
    if several_ranks():
        _compared(None)


def of_rank_0(decide: Callable[[], Sequence[T]], nothing_everywhere: bool = False) -> Sequence[T]:
    """What rank 0 decides, on every rank; sends 16 bytes if that is nothing. Every rank has to call it.

    Args:
        decide: Called on every rank; what it returns on others than rank 0 is not used.
        nothing_everywhere: Where it returns nothing, it does on every rank, so that nothing has to be sent.

    Returns:
        What it returned on rank 0; has to be picklable.

    Raises:
        RuntimeError: If it raised on another rank; names that rank.

    Example:
        >>> of_rank_0(lambda: [3, 4])
        [3, 4]
    """
    if not several_ranks():
        return decide()
    decided: Sequence[T] = []
    try:
        decided = decide()
    except Exception as error:
        _compared(error)
        raise
    if (nothing_everywhere and not decided) or not _compared(None, len(decided)):
        return []
    shared = [decided]
    dist.broadcast_object_list(shared, src=0, device=collective_device())
    return shared[0]


def _compared(error: Exception | None, number: int = 0) -> int:
    """The number that rank 0 gives, unless a rank has failed."""
    rank = dist.get_rank()
    told = torch.tensor([-1 if error is None else rank, number if rank == 0 else -1], device=collective_device())
    dist.all_reduce(told, dist.ReduceOp.MAX)
    failed, of_first = told.tolist()
    if failed >= 0:
        said = [f"{type(error).__name__}: {error}"]
        dist.broadcast_object_list(said, src=failed, device=collective_device())
        if error is None:
            raise RuntimeError(f"rank {failed} could not go on: {said[0]}")
    return int(of_first)


def _differing(values: Tensor, slices: Sequence[int]) -> list[bool]:
    """For each integer whether ranks have different ones of the same slice."""
    own = torch.stack([values, torch.tensor(slices)], dim=1).to(collective_device())
    everywhere = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(everywhere, own)
    found = torch.stack(everywhere).cpu().unbind(1)  # of each integer: ranks, (value, slice)
    return [len({tuple(pair) for pair in pairs.tolist()}) > len(set(pairs[:, 1].tolist())) for pairs in found]
