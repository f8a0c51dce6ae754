"""Selection over ranks: equal to a stable sort, random choices that do not depend on the split, and refusals."""

from __future__ import annotations

import functools
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor

from lightning_prune.prune.kernels.random import random_keep_masks
from lightning_prune.prune.kernels.sharing import ALONE, Box, Sharing
from lightning_prune.prune.sharded import smallest
from tests.distributed.launch import Results, result
from tests.distributed.workers_selection import SHAPES, differing_case, living_entries, random_masks


class Threads(Sharing):
    """Ranks that are threads: they exchange tensors through a list."""

    def __init__(self, index: int, shared: list[Tensor], barrier: threading.Barrier, counted: tuple[bool, ...]) -> None:
        self._index, self._shared, self._barrier, self._counted = index, shared, barrier, counted

    @property
    def size(self) -> int:
        return len(self._shared)

    def counts(self, index: int) -> bool:
        return self._counted[index]

    def total(self, values: Tensor) -> Tensor:
        self._shared[self._index] = values.clone()
        self._barrier.wait(60)
        everything = torch.stack(self._shared)
        self._barrier.wait(60)
        return everything.sum(0)


@pytest.mark.parametrize(("ranks", "first"), [(1, 0), (2, 500), (3, 1000), (4, 1500)])
def test_2000_random_cases_equal_a_stable_sort(monkeypatch: pytest.MonkeyPatch, ranks: int, first: int) -> None:
    shared, barrier = [torch.empty(0)] * ranks, threading.Barrier(ranks)
    monkeypatch.setattr(smallest, "_DIRECT", 64)  # so that samples and counting passes are needed

    def check(index: int) -> list[str]:
        sharing = functools.partial(Threads, index, shared, barrier)
        found = [differing_case(number, sharing, ranks, index) for number in range(first, first + 500)]
        return [case for case in found if case is not None]

    with ThreadPoolExecutor(ranks) as pool:
        assert list(pool.map(check, range(ranks))) == [[]] * ranks


def test_the_same_over_processes(each: list[Results]) -> None:
    assert result(each, "selected") == [[]] * len(each)


def test_random_choices_are_those_of_one_process(each: list[Results]) -> None:
    rows, columns, whole = zip(*result(each, "hashes"), strict=True)
    alone = random_masks(ALONE, [Box((0, 0), shape, shape) for shape in SHAPES], [*living_entries()])
    assert torch.equal(torch.cat(rows), alone[0])
    assert torch.equal(torch.cat(columns, dim=1), alone[1])
    assert all(torch.equal(copy, alone[2]) for copy in whole)
    living = sum(int(mask.sum()) for mask in living_entries())
    assert sum(int(mask.sum()) for mask in alone) == living - 4321


def test_random_choices_are_even() -> None:
    """Of 64 blocks of 1,000 entries each loses about half: the standard deviation is 16."""
    mask = random_keep_masks([torch.empty(64_000)], 32_000, generator=torch.Generator().manual_seed(1))[0]
    kept = mask.view(64, 1000).sum(1)
    assert 420 < int(kept.min()) < int(kept.max()) < 580
    assert 420 < int(mask.view(1000, 64).sum(0).min()) < 580


def test_every_rank_refuses(each: list[Results]) -> None:
    ranks = len(each)
    nan = f"layer.weight: 1 of {2 * ranks} entries are NaN and cannot be ranked"
    for messages in result(each, "refused"):
        assert messages == [
            nan,
            nan,
            f"cannot drop {2 * ranks + 1} entries: the number must be from 0 to the {2 * ranks} that are left",
        ]
