"""Plans: what is due when, and how plans meet the limits of a fit."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_prune import Constant, Cubic, Linear, OneShot, Steps
from lightning_prune.fit.limits import Limits, bound, require_room
from lightning_prune.schedules.plan import AmountPlan, Demand, KeepPlan, SchedulePlan, make_plan


def test_amounts_are_due_once_each() -> None:
    plan = make_plan(0.2, [5, 10, 10], None, None)
    assert plan == AmountPlan(0.2, "epoch", (5, 10))
    assert plan.due(-1, 12) == [Demand(5, amount=0.2), Demand(10, amount=0.2)]
    assert plan.due(5, 9) == []
    assert (plan.last, plan.final, plan.start(7)) == (10, None, 6)


def test_predicates_and_every_time() -> None:
    assert [d.time for d in make_plan(3, lambda t: t % 3 == 2, None, None).due(-1, 9)] == [2, 5, 8]
    always = make_plan(0.5, None, None, None)
    assert always.due(1, 3) == [Demand(2, amount=0.5), Demand(3, amount=0.5)]
    assert always.last is None


def test_schedules_give_the_latest_target() -> None:
    plan = make_plan(None, None, None, Linear(final=0.8, end=4, unit="step"))
    assert plan.unit == "step"
    assert plan.due(-1, 0) == [Demand(0, sparsity=0.0)]
    assert plan.due(0, 2) == [Demand(2, sparsity=0.4)]
    assert plan.due(2, 99) == [Demand(4, sparsity=0.8)]
    assert plan.due(4, 99) == []
    assert (plan.last, plan.final, plan.start(3)) == (4, 0.8, -1)


@given(st.lists(st.integers(0, 40), min_size=1, max_size=12))
def test_however_time_is_cut_the_last_demand_is_the_same(stops: list[int]) -> None:
    plan = SchedulePlan(Cubic(final=0.9, begin=3, end=30, every=4))
    done, reached = -1, None
    for now in sorted(set(stops)):
        for demand in plan.due(done, now):
            reached = demand.sparsity
        done = now
    whole = plan.due(-1, max(stops))
    assert reached == (whole[-1].sparsity if whole else None)


def test_words_are_the_same_in_every_process() -> None:
    assert str(make_plan(0.2, [3], None, None)) == "amount=0.2 at epochs [3]"
    assert str(make_plan(4, None, lambda step: step == 3, None)) == "amount=4 at steps chosen by a predicate"
    assert str(make_plan(0.5, None, None, None)) == "amount=0.5 at every epoch"
    half = Cubic(final=0.5, begin=0.1, end=0.6, unit="fraction")
    assert make_plan(None, None, None, None) == SchedulePlan(half)
    assert make_plan(None, [3], None, None) == AmountPlan(0.5, "epoch", (3,))
    assert str(make_plan(None, None, None, OneShot(0.5, begin=2))) == "OneShot(final=0.5, begin=2, unit='epoch')"
    assert str(KeepPlan()) == "keep zeros"


def test_kept_zeros_alone_are_a_plan_without_events() -> None:
    plan = make_plan(None, None, None, None, keep_zeros=True)
    assert isinstance(plan, KeepPlan)
    assert plan.due(-1, 100) == []
    assert (plan.last, plan.final, plan.start(3)) == (None, None, 3)
    assert make_plan(0.2, None, None, None, keep_zeros=True) == AmountPlan(0.2, "epoch", None)
    assert make_plan(None, [1], None, None, keep_zeros=True) == AmountPlan(0.5, "epoch", (1,))


def test_methods_that_decide_themselves() -> None:
    assert make_plan(None, [1], None, None, takes_amount=False) == AmountPlan(None, "epoch", (1,))
    for arguments in ((0.5, None, None, None), (None, None, None, OneShot(0.5))):
        with pytest.raises(ValueError, match="decides itself"):
            make_plan(*arguments, takes_amount=False)


@pytest.mark.parametrize(
    ("times", "error"),
    [([], ValueError), ([-1], ValueError), ([1.0], TypeError), ([True], TypeError), ("3", TypeError), (3, TypeError)],
)
def test_times_that_are_none(times: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="times of pruning"):
        make_plan(0.5, times, None, None)


@pytest.mark.parametrize(
    ("plan", "limits", "fits"),
    [
        (make_plan(0.5, [4], None, None), Limits(epochs=5), True),
        (make_plan(0.5, [5], None, None), Limits(epochs=5), False),
        (make_plan(0.5, [5], None, None), Limits(steps=5), True),
        (make_plan(0.5, None, [5], None), Limits(epochs=1, steps=5), False),
        (make_plan(0.5, None, None, None), Limits(epochs=0), True),
        (make_plan(None, None, None, Constant(final=0.5, begin=3)), Limits(epochs=3), False),
        (make_plan(None, None, None, Steps({2: 0.5})), Limits(epochs=3), True),
        (KeepPlan(), Limits(epochs=1), True),
    ],
)
def test_room_for_a_plan(plan: Any, limits: Limits, fits: bool) -> None:
    if fits:
        require_room(plan, limits)
    else:
        with pytest.raises(ValueError, match=r"last event is at .* 5|last event is at epoch 3"):
            require_room(plan, limits)


def test_fractions_are_bound() -> None:
    plan = make_plan(None, None, None, Linear(final=0.5, begin=0.2, end=1.0, unit="fraction"))
    assert plan.counts_fractions
    assert plan.last is None
    assert plan.unit == "step"
    assert str(bound(plan, Limits(steps=50))) == repr(Linear(final=0.5, begin=10, end=49, unit="step"))
    with pytest.raises(ValueError, match="is not known"):
        bound(plan, Limits(epochs=3))
    epochs = make_plan(None, None, None, Linear(final=0.5, end=3))
    assert bound(epochs, Limits(steps=50)) == epochs
    assert bound(epochs, Limits()) == epochs
