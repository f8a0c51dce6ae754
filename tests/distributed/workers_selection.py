"""Random cases of selection over ranks, each compared with a stable sort of the whole tensors."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from lightning_prune.prune.sharded.smallest import Hashes, Magnitudes, sharded_keep_masks
from lightning_prune.prune.sharded.tensors import Holders
from tests.distributed.launch import RANKS, rank

CASES = 40
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
SPECIAL = [0.0, -0.0, float("inf"), -float("inf"), 1e-45, 1.0, -1.0]


def tensor(random: random.Random, generator: torch.Generator) -> Tensor:
    """Any number of rows, none too; few different values, many, or extreme ones."""
    shape = (random.choice([0, 1, 2, 5, 17, 40]), random.choice([1, 3, 8]))
    kind = random.choice(["normal", "ties", "special", "equal"])
    if kind == "normal":
        values = torch.randn(shape, generator=generator) * 10.0 ** random.randint(-8, 8)
    elif kind == "ties":
        values = torch.randint(-3, 4, shape, generator=generator).float()
    elif kind == "special":
        values = torch.tensor(SPECIAL)[torch.randint(0, len(SPECIAL), shape, generator=generator)]
    else:
        values = torch.full(shape, 0.5)
    return values.to(random.choice(DTYPES))


def by_sort(tensors: list[Tensor], alive: list[Tensor | None], count: int) -> list[Tensor]:
    """The definition: a stable sort of all living magnitudes, one tensor after another."""
    living = torch.cat(
        [
            torch.ones(t.numel(), dtype=torch.bool) if a is None else a.flatten()
            for t, a in zip(tensors, alive, strict=True)
        ]
    )
    values = torch.cat([t.flatten().double().abs() for t in tensors])
    order = values[living].sort(stable=True).indices[:count]
    keep = living.clone()
    keep[living.nonzero().view(-1)[order]] = False
    return list(torch.split(keep, [t.numel() for t in tensors]))


def rows(of: Tensor, ranks: int, index: int) -> Tensor:
    """A rank's rows, as ``fully_shard`` deals them out."""
    size = -(-len(of) // ranks) or 1
    return of[index * size : (index + 1) * size].flatten()


def differing_case(number: int, holders: Holders) -> str | None:
    """A description of the case if the masks are not those of the sort."""
    chance, generator = random.Random(number), torch.Generator().manual_seed(abs(number))
    tensors = [tensor(chance, generator) for _ in range(chance.randint(1, 4))]
    alive = [torch.rand(t.shape, generator=generator) < 0.7 if chance.random() < 0.5 else None for t in tensors]
    living = sum(t.numel() if a is None else int(a.sum()) for t, a in zip(tensors, alive, strict=True))
    count = chance.choice([0, living, chance.randint(0, living)])
    wanted = by_sort(tensors, alive, count)
    dtype = torch.float64 if any(t.dtype == torch.float64 for t in tensors) else torch.float32
    place = (holders.size, holders.index)
    mine = [rows(t, *place) for t in tensors]
    living_here = [None if a is None else rows(a, *place) for a in alive]
    entries = [Magnitudes(a, len(v), v, dtype) for v, a in zip(mine, living_here, strict=True)]
    masks = sharded_keep_masks(entries, count, holders)
    right = [rows(w.view(t.shape), *place) for w, t in zip(wanted, tensors, strict=True)]
    if all(torch.equal(mask, want) for mask, want in zip(masks, right, strict=True)):
        return None
    return f"case {number}: {[(tuple(t.shape), t.dtype) for t in tensors]}, {count} of {living}"


def selected(folder: Path) -> list[str]:
    """Other cases for each number of ranks."""
    found = [
        differing_case(number, Holders(dist.group.WORLD)) for number in range(-RANKS * CASES, -(RANKS - 1) * CASES)
    ]
    return [case for case in found if case is not None]


def hashes(folder: Path) -> tuple[Tensor, Tensor]:
    """This rank's part of a random mask of 1,000 rows of 7, and how many entries all ranks keep."""
    size = -(-1000 // RANKS)
    first, last = 7 * size * rank(), 7 * min(1000, size * (rank() + 1))
    holders = Holders(dist.group.WORLD)
    mask = sharded_keep_masks([Hashes(None, last - first, first, 5, torch.device("cpu"))], 4321, holders)[0]
    return mask, holders.total(mask.count_nonzero())


def refused(folder: Path) -> list[str]:
    """NaN on the last rank only, and more than there is."""
    values = torch.tensor([1.0, float("nan") if rank() == RANKS - 1 else 2.0])
    messages = []
    for entries, count in (
        (Magnitudes(None, 2, values, torch.float32), 1),
        (Magnitudes(None, 2, torch.ones(2), torch.float32), 2 * RANKS + 1),
    ):
        try:
            sharded_keep_masks([entries], count, Holders(dist.group.WORLD), names=["layer.weight"])
        except ValueError as error:
            messages.append(str(error))
    return messages


CHECKS: dict[str, Any] = {"selected": selected, "hashes": hashes, "refused": refused}
