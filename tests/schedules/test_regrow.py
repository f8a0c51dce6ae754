"""Regrowth as values: times, shares and refusals."""

from __future__ import annotations

import math
import pickle
from typing import Any

import pytest
import torch

from lightning_prune import SET, RigL


def test_updates_are_every_so_often_before_the_end() -> None:
    rigl = RigL(every=100, until=0.75).in_steps(2_000)
    times = [time for time, _ in rigl.updates()]
    assert times == list(range(100, 1_500, 100))
    assert [t for t in range(2_000) if rigl.is_update(t)] == times
    assert [t for t in range(1, 2_000) if rigl.latest(t - 1, t) is not None] == times
    shares = [0.15 * (1 + math.cos(math.pi * t / 1_500)) for t in times]
    assert [share for _, share in rigl.updates()] == pytest.approx(shares)


@pytest.mark.parametrize(
    ("decay", "shares"), [("cosine", [0.4, 0.2, 0.0]), ("linear", [0.4, 0.2, 0.0]), ("constant", [0.4, 0.4, 0.4])]
)
def test_the_share_falls_from_begin_to_until(decay: Any, shares: list[float]) -> None:
    value = SET(fraction=0.4, every=1, begin=10, until=20, unit="epoch", decay=decay)
    assert [value.share(t) for t in (10, 15, 20)] == pytest.approx(shares)


def test_intervals_count_from_begin() -> None:
    value = RigL(every=4, begin=3, until=15, unit="step")
    assert [t for t, _ in value.updates()] == [7, 11]
    assert [value.latest(0, t) for t in (3, 6, 7, 10, 50)] == [None, None, 7, 7, 11]
    assert value.latest(11, 50) is None


def test_a_run_that_is_shorter_than_an_interval_has_no_update() -> None:
    assert RigL(every=100, until=0.75).in_steps(100).updates() == []
    assert RigL(every=10, until=0, unit="step").latest(0, 100) is None


def test_values_compare_hash_pickle_and_print() -> None:
    value = RigL(fraction=0.2, every=7, until=70, unit="step", decay="linear", initial="method", strict=False)
    assert eval(repr(value)) == value == pickle.loads(pickle.dumps(value))
    assert len({value, RigL(), RigL(), SET()}) == 3


def test_scores() -> None:
    weight, gradient = torch.zeros(2, 2), torch.tensor([[1.0, -3.0], [0.0, 2.0]])
    found = RigL().scores(weight, gradient)
    assert found is not None
    assert torch.equal(found.abs(), torch.tensor([[1.0, 3.0], [0.0, 2.0]]))
    assert not RigL().signed
    assert SET().scores(weight, gradient) is None  # at random


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"fraction": 1.5}, ValueError, "fraction=1.5 is outside"),
        ({"fraction": "a"}, TypeError, "fraction='a' is no number"),
        ({"every": 0}, ValueError, "every=0 is below 1"),
        ({"every": 1.5}, TypeError, "every=1.5 is no whole number"),
        ({"until": 1_500}, ValueError, 'outside .* give unit="step"'),
        ({"until": 0.5, "unit": "step"}, TypeError, "until=0.5 is no whole number"),
        ({"begin": 0.8}, ValueError, "until=0.75 lies before begin=0.8"),
        ({"unit": "batch"}, ValueError, "unit='batch'; known: epoch, step, fraction"),
        ({"decay": "cubic"}, ValueError, "known: cosine, linear, constant"),
        ({"initial": "zeros"}, ValueError, "known: random, method"),
        ({"strict": 1}, TypeError, "strict=1"),
    ],
)
def test_wrong_values_are_refused(arguments: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        RigL(**arguments)


def test_fractions_have_to_be_bound() -> None:
    for ask in (lambda: RigL().is_update(3), lambda: RigL().latest(0, 3), lambda: RigL().updates()):
        with pytest.raises(ValueError, match="in_steps"):
            ask()
