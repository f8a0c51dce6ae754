"""A Trainer, Fabric and a plain loop train alike on two ranks too, resumed or not."""

from __future__ import annotations

import pytest
import torch

from tests.distributed.launch import Results, result
from tests.distributed.workers_loops import WAYS

MASKED = {"epochs": 205, "steps": 230, "taylor": 230, "rigl": 205, "groups": 135}  # of 256 weights


@pytest.mark.parametrize("way", WAYS, ids="-".join)
def test_all_loops_train_alike_to_the_last_bit_on_two_ranks(two: list[Results], way: tuple[str, ...]) -> None:
    on_ranks = result(two, f"loops {'-'.join(way)}")
    expected = on_ranks[0]["trainer"]
    assert len(on_ranks[0]) == (4 if way[0] == "ddp" else 3)
    masked = sum(int((~mask).sum()) for name, mask in expected.items() if name.startswith("mask."))
    assert masked == MASKED[way[1]]
    assert len([name for name in expected if name.startswith("optimizer.")]) == (18 if way[2] == "AdamW" else 6)
    for found in (state for on_rank in on_ranks for state in on_rank.values()):
        assert found.keys() == expected.keys()
        assert [name for name in expected if not torch.equal(found[name], expected[name])] == []
