"""Exact selection of the smallest entries of many tensors, ranked together and read in place.

Magnitude pruning asks one question: which `count` entries, over all these tensors, are smallest in magnitude? A
``topk`` over their concatenation, as in torch.nn.utils.prune, answers it with some 40 bytes and 100 nanoseconds a
weight. Here the answer takes two passes over pieces that fit in the cache, and no copy of the weights:

1. a strided sample brackets the threshold between two values;
2. one pass counts what lies below the bracket and collects the few values inside it, which hold the exact threshold;
3. one pass writes ``magnitude > threshold`` into the masks, and keeps as many of the ties as the count leaves.

A sample can mislead and ties can pile up on the bracket's ends. Both only cost time: bisection over the bit patterns
of the magnitudes then finds the threshold in at most 31 counting passes (63 for double precision).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["keep_masks", "random_keep_masks"]

_PIECE_CPU = 1 << 18  # entries: the magnitudes and two masks of a piece stay in a core's L2 cache
_PIECE_DEVICE = 1 << 24  # entries: accelerators want few, large kernels; float32 counts no further
_DIRECT = 1 << 13  # up to so many living entries are collected and searched without a sample
_SAMPLE = 1 << 17  # entries, spread over the tensors; at most every 16th
_EXACT_IN_FLOAT32 = (torch.float32, torch.float16, torch.bfloat16, torch.complex64, torch.complex32)
_BELOW_ALL = -1.0  # less than every magnitude


class _Piece(NamedTuple):
    """The same few rows of a score tensor, of its living entries and of the mask to fill."""

    score: Tensor
    alive: Tensor | None
    mask: Tensor
    dtype: torch.dtype

    def magnitude(self) -> Tensor:
        return self.score.abs().to(self.dtype)

    def living(self, condition: Tensor) -> Tensor:
        return condition if self.alive is None else condition.logical_and_(self.alive)

    def ones_where(self, compare: Callable[..., Tensor], magnitude: Tensor, value: float) -> Tensor:
        """1 for living entries that compare so, else 0; numbers are compared and added up faster than bools."""
        ones = compare(magnitude, value, out=torch.empty_like(magnitude))
        return ones if self.alive is None else ones.mul_(self.alive)


def keep_masks(
    scores: Sequence[Tensor],
    count: int,
    *,
    alive: Sequence[Tensor | None] | None = None,
    names: Sequence[str] | None = None,
) -> list[Tensor]:
    """Mask out the `count` entries of smallest magnitude, over all tensors together.

    The result equals that of a stable sort of ``|score|``: exactly `count` entries are dropped, and of equal ones the
    earlier are dropped first, ordered by tensor and then by row-major index (whatever the memory format). Tensors of
    different floating dtypes are compared without rounding; complex entries are ranked by their modulus.

    Args:
        scores: Tensors of any shapes, strides and floating or complex dtypes. They are read, never changed.
        count: How many living entries to drop, over all tensors.
        alive: For each tensor a mask of its shape, true where an entry takes part, or None if all do.
            Entries that do not take part are False in the result. Default: all take part.
        names: Names of the tensors for error messages. Default: their index.

    Returns:
        One bool tensor for each score, of its shape, device and memory format: True where the entry is kept.

    Raises:
        ValueError: If `count` is negative or more than the number of living entries, if a living entry is NaN, or if
            the masks do not fit the scores.

    Example:
        >>> import torch
        >>> masks = keep_masks([torch.tensor([3.0, -1.0, 2.0]), torch.tensor([-1.0, 0.5])], 2)
        >>> [mask.tolist() for mask in masks]
        [[True, False, True], [True, False]]
    """
    scores = [score.detach() for score in scores]
    alive = _checked_alive(scores, alive)
    living = _checked_living(scores, alive, count)
    _refuse_nan(scores, alive, names)
    masks = [torch.empty_like(score, dtype=torch.bool) for score in scores]
    pieces = list(_pieces(scores, alive, masks))
    value, spared = _threshold(pieces, count, living) if count else (_BELOW_ALL, 0)
    _write_masks(pieces, value, spared)
    return masks


def random_keep_masks(
    like: Sequence[Tensor],
    count: int,
    *,
    alive: Sequence[Tensor | None] | None = None,
    generator: torch.Generator | None = None,
) -> list[Tensor]:
    """Mask out `count` entries, every choice of them being equally likely.

    Each entry draws a random byte, and entries are dropped from the lowest byte up. Only among those that share the
    byte where the count is reached (one in 255) a random permutation decides.

    Args:
        like: Tensors whose shapes, devices and memory formats the masks take; their values are not read.
        count: How many living entries to drop, over all tensors.
        alive: As for :func:`keep_masks`.
        generator: Source of the random numbers. Default: torch's global one of the first tensor's device, so
            ``torch.manual_seed`` reproduces the masks.

    Returns:
        One bool tensor for each tensor of `like`: True where the entry is kept.

    Raises:
        ValueError: If `count` is negative or more than the number of living entries, or if the masks do not fit.

    Example:
        >>> import torch
        >>> _ = torch.manual_seed(0)
        >>> masks = random_keep_masks([torch.empty(3, 4), torch.empty(8)], 5)
        >>> sum(int(mask.sum()) for mask in masks)
        15
    """
    alive = _checked_alive(like, alive)
    _checked_living(like, alive, count)
    if not like:
        return []
    keep = _random_keep(like, alive, count, generator)
    masks = [torch.empty_like(tensor, dtype=torch.bool) for tensor in like]
    for mask, part in zip(masks, torch.split(keep, [mask.numel() for mask in masks]), strict=True):
        mask.copy_(part.view(mask.shape))
    return masks


def _checked_alive(tensors: Sequence[Tensor], alive: Sequence[Tensor | None] | None) -> Sequence[Tensor | None]:
    if alive is None:
        return [None] * len(tensors)
    if len(alive) != len(tensors):
        raise ValueError(f"alive has {len(alive)} masks for {len(tensors)} tensors; give one, or None, for each")
    for index, (tensor, mask) in enumerate(zip(tensors, alive, strict=True)):
        if mask is not None and mask.shape != tensor.shape:
            raise ValueError(
                f"alive[{index}] has shape {tuple(mask.shape)}; its tensor has shape {tuple(tensor.shape)}"
            )
    return alive


def _checked_living(tensors: Sequence[Tensor], alive: Sequence[Tensor | None], count: int) -> int:
    living = sum(
        tensor.numel() if mask is None else int(mask.count_nonzero())
        for tensor, mask in zip(tensors, alive, strict=True)
    )
    if not 0 <= count <= living:
        raise ValueError(f"cannot drop {count} entries: the number must be from 0 to the {living} that are left")
    return living


def _refuse_nan(scores: Sequence[Tensor], alive: Sequence[Tensor | None], names: Sequence[str] | None) -> None:
    for index, (score, mask) in enumerate(zip(scores, alive, strict=True)):
        # A sum without NaN proves that there is none; a sum with NaN may also come from inf - inf or dead entries.
        if not score.sum().isnan():
            continue
        found = sum(
            int(piece.living(piece.score.isnan()).count_nonzero()) for piece in _pieces([score], [mask], [score])
        )
        if found:
            name = names[index] if names is not None else f"tensor {index}"
            raise ValueError(f"{name}: {found} of {score.numel()} entries are NaN and cannot be ranked")


def _pieces(scores: Sequence[Tensor], alive: Sequence[Tensor | None], masks: Sequence[Tensor]) -> Iterator[_Piece]:
    dtype = torch.float32 if all(score.dtype in _EXACT_IN_FLOAT32 for score in scores) else torch.float64
    for score, living, mask in zip(scores, alive, masks, strict=True):
        size = _piece_size(score)
        livings = itertools.repeat(None) if living is None else _split(living, size)
        for part, living_part, mask_part in zip(_split(score, size), livings, _split(mask, size), strict=False):
            yield _Piece(part, living_part, mask_part, dtype)


def _piece_size(tensor: Tensor) -> int:
    return _PIECE_CPU if tensor.device.type == "cpu" else _PIECE_DEVICE


def _split(tensor: Tensor, size: int) -> Iterator[Tensor]:
    """Views of at most `size` entries in row-major order; where they are cut depends on the shape only."""
    parts = math.ceil(tensor.numel() / size)
    if parts == 0:
        return
    if parts == 1:
        yield tensor.view(1) if tensor.dim() == 0 else tensor
    elif parts <= len(tensor):
        yield from torch.split(tensor, len(tensor) // parts)
    else:
        for row in tensor:
            yield from _split(row, size)


def _threshold(pieces: Sequence[_Piece], count: int, living: int) -> tuple[float, int]:
    """The `count`-th smallest magnitude, and how many living entries up to it are more than `count`."""
    limit = max(2 * _DIRECT, sum(piece.score.numel() for piece in pieces) // 32)
    bracket = (_BELOW_ALL, math.inf) if living <= _DIRECT else _bracket(pieces, count / living)
    return _select_inside(pieces, count, living, limit, *bracket) or _bisect(pieces, count, living, limit, bracket)


def _bracket(pieces: Sequence[_Piece], quantile: float) -> tuple[float, float]:
    """Two values that enclose the quantile, but for a chance of about 1 in 10,000, judged by a sample."""
    step = max(16, sum(piece.score.numel() for piece in pieces) // _SAMPLE)
    sample = torch.cat([_sample(piece, step).to(pieces[0].score.device) for piece in pieces])
    size = len(sample)
    margin = 4 * math.sqrt(size * quantile * (1 - quantile)) + 4
    low, high = math.floor(size * quantile - margin), math.ceil(size * quantile + margin)
    return (
        float(sample.kthvalue(low).values) if low >= 1 else _BELOW_ALL,
        float(sample.kthvalue(high).values) if high <= size else math.inf,
    )


def _sample(piece: _Piece, step: int) -> Tensor:
    size = piece.score.numel()
    # A step with a factor in common with the row length would visit few of the columns, again and again.
    while math.gcd(step, size) > 1:
        step += 1
    index = torch.arange(min(step, size) // 2, size, step, device=piece.score.device)
    sample = piece.score.take(index).abs().to(piece.dtype)
    return sample if piece.alive is None else sample[piece.alive.take(index)]


def _select_inside(
    pieces: Sequence[_Piece], count: int, living: int, limit: int, low: float, high: float
) -> tuple[float, int] | None:
    """The threshold, if it lies strictly between `low` and `high` and at most about `limit` entries do."""
    above, inside, collected = 0, [], 0
    for piece in pieces:
        magnitude = piece.magnitude()
        chosen = piece.ones_where(torch.gt, magnitude, low)
        above += int(chosen.sum())
        chosen.mul_(torch.lt(magnitude, high, out=torch.empty_like(magnitude)))
        inside.append(_chosen_values(magnitude.flatten(), chosen.flatten()))
        collected += len(inside[-1])
        if collected > limit:
            return None
    rank = count - (living - above)
    if not 1 <= rank <= collected:
        return None
    values = torch.cat([part.to(inside[0].device) for part in inside])
    value = values.kthvalue(rank).values
    return float(value), int((values <= value).count_nonzero()) - rank


def _chosen_values(values: Tensor, chosen: Tensor) -> Tensor:
    """The values where `chosen` is not 0, in any order; eight entries at a time are skipped if none of them is."""
    even = len(values) // 8 * 8
    eights = chosen[:even].view(8, even // 8)
    columns = eights.sum(0).nonzero().view(-1)
    near = values[:even].view(8, even // 8).index_select(1, columns).view(-1)
    hits = eights.index_select(1, columns).view(-1).nonzero().view(-1)
    return torch.cat([near.index_select(0, hits), values[even:][chosen[even:] > 0]])


def _bisect(
    pieces: Sequence[_Piece], count: int, living: int, limit: int, bracket: tuple[float, float]
) -> tuple[float, int]:
    """The threshold, by counting passes that halve the bit patterns left; starts with the ends of the bracket."""
    low, high, upto_low, below_high = _BELOW_ALL, math.inf, 0, living
    pivots = sorted(set(bracket) - {_BELOW_ALL})
    while True:
        if not pivots and below_high - upto_low <= limit:
            found = _select_inside(pieces, count, living, limit, low, high)
            if found is not None:
                return found
        pivot = pivots.pop() if pivots else _middle(low, high, pieces[0].dtype)
        below, upto = _ranks(pieces, living, pivot)
        if below < count <= upto:
            return pivot, upto - count
        if count <= below:
            high, below_high = pivot, below
        else:
            low, upto_low = pivot, upto


def _middle(low: float, high: float, dtype: torch.dtype) -> float:
    """Halfway between two magnitudes in the order of their bit patterns, which is their own order; rounded up."""
    word = torch.int32 if dtype == torch.float32 else torch.int64
    first, last = torch.tensor([low, high], dtype=dtype).view(word).tolist()
    middle = ((first if low >= 0 else -1) + last + 1) // 2
    return float(torch.tensor(middle, dtype=word).view(dtype))


def _ranks(pieces: Sequence[_Piece], living: int, pivot: float) -> tuple[int, int]:
    """How many living magnitudes are less than `pivot`, and how many are at most `pivot`."""
    below = upto = living
    for piece in pieces:
        magnitude = piece.magnitude()
        below -= int(piece.ones_where(torch.ge, magnitude, pivot).sum())
        upto -= int(piece.ones_where(torch.gt, magnitude, pivot).sum())
    return below, upto


def _write_masks(pieces: Sequence[_Piece], value: float, spared: int) -> None:
    """Keep what is above `value`, and the last `spared` of what equals it."""
    for piece in reversed(pieces):
        magnitude = piece.magnitude()
        piece.living(torch.gt(magnitude, value, out=piece.mask))
        if spared:
            ties = piece.living(magnitude == value)
            spared -= _keep_last(piece.mask, ties, spared)


def _keep_last(mask: Tensor, ties: Tensor, most: int) -> int:
    found = int(ties.count_nonzero())
    if found <= most:
        mask.logical_or_(ties)
        return found
    mask[ties.nonzero()[-most:].unbind(1)] = True
    return most


def _random_keep(
    like: Sequence[Tensor], alive: Sequence[Tensor | None], count: int, generator: torch.Generator | None
) -> Tensor:
    """One flat bool tensor over all entries, with `count` of the living ones False."""
    device = like[0].device if generator is None else generator.device
    sizes = [tensor.numel() for tensor in like]
    keys = torch.empty(sum(sizes), dtype=torch.uint8, device=device).random_(1, 256, generator=generator)
    for part, living in zip(torch.split(keys, sizes), alive, strict=True):
        if living is not None:
            part.mul_(living.flatten().to(device, torch.bool))  # byte 0 is that of the dead
    found = torch.bincount(keys, minlength=256)
    found[0] = 0
    upto = found.cumsum(0)
    byte = int(torch.searchsorted(upto, count))
    ties = _positions(keys, byte)
    keep = keys.gt_(byte).view(torch.bool)
    order = torch.randperm(len(ties), generator=generator, device=device)
    keep[ties[order[: int(upto[byte]) - count]]] = True
    return keep


def _positions(keys: Tensor, byte: int) -> Tensor:
    size = _piece_size(keys)
    parts = enumerate(torch.split(keys, size))
    return torch.cat([(part == byte).nonzero().view(-1).add_(place * size) for place, part in parts])
