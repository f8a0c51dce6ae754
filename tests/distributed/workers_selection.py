"""Random cases of selection over ranks, each compared with a stable sort of the whole tensors."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lightning_prune.prune.kernels.random import random_keep_masks
from lightning_prune.prune.kernels.sharing import Box, Sharing
from lightning_prune.prune.sharded.ranks import OverRanks
from lightning_prune.prune.sharded.smallest import sharded_keep_masks
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


@dataclass(frozen=True)
class Split:
    """How ranks hold a tensor: by rows, by columns, in tiles, or each all of it."""

    how: str
    ranks: int
    rank: int

    def box(self, shape: tuple[int, int]) -> Box:
        halves = 2 if self.ranks % 2 == 0 else 1
        grid = {"rows": (self.ranks, 1), "columns": (1, self.ranks), "whole": (1, 1)}
        rows, columns = grid.get(self.how, (self.ranks // halves, halves))
        places = (self.rank // columns % rows, self.rank % columns)
        cuts = [_chunk(size, of, at) for size, of, at in zip(shape, (rows, columns), places, strict=True)]
        return Box(tuple(first for first, _ in cuts), tuple(size for _, size in cuts), shape)

    @property
    def counts(self) -> bool:
        """Of a whole tensor the first rank counts the entries."""
        return self.how != "whole" or self.rank == 0


def _chunk(size: int, parts: int, place: int) -> tuple[int, int]:
    """Where a part begins and how long it is, as ``torch.chunk`` deals out."""
    step = -(-size // parts) or 1
    first = min(step * place, size)
    return first, min(step, size - first)


def differing_case(number: int, sharing: Callable[[tuple[bool, ...]], Sharing], ranks: int, rank: int) -> str | None:
    """A description of the case if the masks are not those of the sort."""
    chance, generator = random.Random(number), torch.Generator().manual_seed(abs(number))
    tensors = [tensor(chance, generator) for _ in range(chance.randint(1, 4))]
    alive = [torch.rand(t.shape, generator=generator) < 0.7 if chance.random() < 0.5 else None for t in tensors]
    living = sum(t.numel() if a is None else int(a.sum()) for t, a in zip(tensors, alive, strict=True))
    count = chance.choice([0, living, chance.randint(0, living)])
    splits = [Split(chance.choice(["rows", "rows", "columns", "tiles", "whole"]), ranks, rank) for _ in tensors]
    wanted = by_sort(tensors, alive, count)
    boxes = [split.box((t.shape[0], t.shape[1])) for split, t in zip(splits, tensors, strict=True)]
    masks = sharded_keep_masks(
        [t[box.slices] for t, box in zip(tensors, boxes, strict=True)],
        count,
        alive=[None if a is None else a[box.slices] for a, box in zip(alive, boxes, strict=True)],
        boxes=boxes,
        sharing=sharing(tuple(split.counts for split in splits)),
    )
    right = [w.view(t.shape)[box.slices] for w, t, box in zip(wanted, tensors, boxes, strict=True)]
    if all(torch.equal(mask, want) for mask, want in zip(masks, right, strict=True)):
        return None
    kinds = [(tuple(t.shape), t.dtype, split.how) for t, split in zip(tensors, splits, strict=True)]
    return f"case {number}: {kinds}, {count} of {living}"


def selected(folder: Path) -> list[str]:
    """Other cases for each number of ranks."""
    numbers = range(-RANKS * CASES, -(RANKS - 1) * CASES)
    found = [differing_case(number, OverRanks, RANKS, rank()) for number in numbers]
    return [case for case in found if case is not None]


def random_masks(sharing: Sharing, boxes: list[Box], alive: list[Tensor | None]) -> list[Tensor]:
    """Of three tensors 4,321 of 8,400 entries less what is dead already."""
    like = [torch.empty(box.shape) for box in boxes]
    seed = torch.Generator().manual_seed(5)
    return random_keep_masks(like, 4321, alive=alive, generator=seed, boxes=boxes, sharing=sharing)


def hashes(folder: Path) -> list[Tensor]:
    """This rank's slices of random masks, of tensors that are held by rows, by columns and by each rank whole."""
    splits = [Split(how, RANKS, rank()) for how in ("rows", "columns", "whole")]
    boxes = [split.box(shape) for split, shape in zip(splits, SHAPES, strict=True)]
    alive = [living[box.slices] for living, box in zip(living_entries(), boxes, strict=True)]
    return random_masks(OverRanks(tuple(split.counts for split in splits)), boxes, alive)


def living_entries() -> list[Tensor]:
    generator = torch.Generator().manual_seed(3)
    return [torch.rand(shape, generator=generator) < 0.9 for shape in SHAPES]


def refused(folder: Path) -> list[str]:
    """NaN on the last rank only, and more than there is."""
    values = torch.tensor([1.0, float("nan") if rank() == RANKS - 1 else 2.0])
    box = Box((2 * rank(),), (2,), (2 * RANKS,))
    messages = []
    for scores, count in ((values, 1), (values, 0), (torch.ones(2), 2 * RANKS + 1)):
        try:
            sharded_keep_masks(
                [scores], count, alive=[None], boxes=[box], sharing=OverRanks((True,)), names=["layer.weight"]
            )
        except ValueError as error:
            messages.append(str(error))
    return messages


SHAPES = [(1000, 7), (30, 40), (10, 20)]
CHECKS: dict[str, Any] = {"selected": selected, "hashes": hashes, "refused": refused}
