"""Ranks that see different things do the same all the same, or all of them stop."""

from __future__ import annotations

import pytest
import torch

from tests.distributed.launch import Results, result
from tests.distributed.models import dead
from tests.distributed.workers_failures import DECIDED, STRATEGIES

EVENTS = {  # of rank 0 alone; of 256 weights
    "metric": [(2, 64)],
    "predicate": [(2, 64)],
    "function": [(0, 0), (1, 26), (2, 51), (3, 102)],
}


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("decision", list(DECIDED))
def test_all_do_what_rank_0_decides(two: list[Results], strategy: str, decision: str) -> None:
    (first, events), (second, others) = result(two, f"{strategy} {decision}")
    assert events == others
    assert events == EVENTS.get(decision, events)
    assert 0 < events[-1][1] < 256
    assert all(torch.equal(p, second["parameters"][name]) for name, p in first["parameters"].items())


OWN = {
    "in the second event": "ArithmeticError: no more of this",
    "of a schedule": "ValueError: FromFunction",
    "of the selection": "KeyError: 'no such layer'",
    "of a pattern": "ValueError: 'nothing' matches no parameter",
}


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("refusal", list(OWN))
def test_a_refusal_on_one_rank_ends_all(two: list[Results], strategy: str, refusal: str) -> None:
    first, second = result(two, f"{strategy} {refusal}")
    assert second.startswith(OWN[refusal])
    assert first.startswith("RuntimeError: ")
    assert first.endswith(f"rank 1 could not go on: {second}")


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_other_plans_are_refused_on_all(two: list[Results], strategy: str) -> None:
    for message in result(two, f"{strategy} of the plan's end"):
        assert "what is pruned differs between the ranks" in message


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_file_of_an_exception_has_the_masks(two: list[Results], strategy: str) -> None:
    for zeros, fitted in result(two, f"{strategy} exception"):
        assert sum(zeros.values()) == 77  # 0.3 of 256
        assert dead(fitted) == 77 + 54
        assert fitted["plain"]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_save_that_a_signal_asks_for_within_an_event(two: list[Results], strategy: str) -> None:
    for events, fits, resumed in result(two, f"{strategy} signal"):
        assert events == 1
        assert fits
        assert dead(resumed) == 77 + 54
