"""Selection over ranks: equal to a stable sort, random choices that do not depend on the split, and refusals."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor

from lightning_prune.prune.sharded.smallest import Hashes, sharded_keep_masks
from lightning_prune.prune.sharded.tensors import Holders
from tests.distributed.launch import Results, result
from tests.distributed.workers_selection import differing_case


class Threads(Holders):
    """Ranks that are threads: they exchange tensors through a list."""

    def __init__(self, index: int, shared: list[Tensor], barrier: threading.Barrier) -> None:
        object.__setattr__(self, "group", (index, shared, barrier))

    @property
    def size(self) -> int:
        return len(self.group[1])

    @property
    def index(self) -> int:
        return int(self.group[0])

    def gathered(self, values: Tensor) -> Tensor:
        index, shared, barrier = self.group
        shared[index] = values.clone()
        barrier.wait(60)
        everything = torch.stack(shared)
        barrier.wait(60)
        return everything

    def total(self, values: Tensor) -> Tensor:
        return values.copy_(self.gathered(values).sum(0))


def on_threads(ranks: int, check: Callable[[Holders], list[str]]) -> list[list[str]]:
    shared, barrier = [torch.empty(0)] * ranks, threading.Barrier(ranks)
    with ThreadPoolExecutor(ranks) as pool:
        return list(pool.map(check, [Threads(index, shared, barrier) for index in range(ranks)]))


@pytest.mark.parametrize(("ranks", "first"), [(1, 0), (2, 500), (3, 1000), (5, 1500)])
def test_2000_random_cases_equal_a_stable_sort(ranks: int, first: int) -> None:
    def check(holders: Holders) -> list[str]:
        found = [differing_case(number, holders) for number in range(first, first + 500)]
        return [case for case in found if case is not None]

    assert on_threads(ranks, check) == [[]] * ranks


def test_the_same_over_processes(each: list[Results]) -> None:
    assert result(each, "selected") == [[]] * len(each)


def test_random_choices_do_not_depend_on_the_split(each: list[Results]) -> None:
    parts = result(each, "hashes")
    whole = sharded_keep_masks([Hashes(None, 7000, 0, 5, torch.device("cpu"))], 4321, Holders())[0]
    assert torch.equal(torch.cat([mask for mask, _ in parts]), whole)
    assert [int(kept) for _, kept in parts] == [7000 - 4321] * len(each)
    assert not torch.equal(
        whole, sharded_keep_masks([Hashes(None, 7000, 0, 6, torch.device("cpu"))], 4321, Holders())[0]
    )


def test_random_choices_are_even() -> None:
    """Of 64 blocks of 1,000 entries each loses about half: the standard deviation is 16."""
    mask = sharded_keep_masks([Hashes(None, 64_000, 0, 1, torch.device("cpu"))], 32_000, Holders())[0]
    kept = mask.view(64, 1000).sum(1)
    assert 420 < int(kept.min()) < int(kept.max()) < 580
    assert 420 < int(mask.view(1000, 64).sum(0).min() * 1000 / 1000) < 580


def test_every_rank_refuses(each: list[Results]) -> None:
    ranks = len(each)
    for messages in result(each, "refused"):
        assert messages == [
            "layer.weight: 1 entries are NaN and cannot be ranked",
            f"cannot drop {2 * ranks + 1} entries: the number must be from 0 to the {2 * ranks} left",
        ]
