import copy
import itertools
import math
import pickle
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonargparse import ArgumentParser

from lightning_prune.pruner.budgets import Budget, TensorSize, apportion, as_budget, erk, local
from lightning_prune.schedules import Cubic

RESNET = [
    TensorSize("stem.weight", (16, 3, 3, 3)),
    TensorSize("layer1.conv.weight", (32, 16, 3, 3)),
    TensorSize("head.weight", (10, 32)),
]
MLP = [TensorSize("fc1", (300, 784)), TensorSize("fc2", (100, 300)), TensorSize("fc3", (10, 100))]
TWINS = [TensorSize("a", (10,)), TensorSize("b", (10,)), TensorSize("c", (10,))]


def plan(budget, sizes, target, final=None, zeros_now=None):
    return budget.plan(sizes, target, target if final is None else final, zeros_now or [0] * len(sizes))


def test_sizes_count_weights():
    assert [size.numel for size in RESNET] == [432, 4608, 320]
    assert TensorSize("scalar", ()).numel == 1


def test_apportion_gives_the_largest_remainders_one_more():
    assert apportion(10, [3.1, 3.6, 3.3], [0] * 3, [10] * 3) == [3, 4, 3]
    assert apportion(7, [1.75, 1.75, 3.5], [0] * 3, [10] * 3) == [2, 2, 3]
    assert apportion(0, [], [], []) == []


def test_apportion_breaks_ties_by_position():
    assert apportion(5, [1.25] * 4, [0] * 4, [9] * 4) == [2, 1, 1, 1]
    assert apportion(15, [10.5, 1.5, 3.0], [0] * 3, [99] * 3) == [11, 1, 3]
    # Equal remainders of 0.5, but for rounding errors.
    assert apportion(31, [0.7 * 25, 0.7 * 15, 0.7 * 5], [0] * 3, [25, 15, 5]) == [18, 10, 3]
    assert apportion(4, [0.1 * 15, 0.1 * 25, 0.1 * 5], [0] * 3, [15, 25, 5]) == [2, 2, 0]


def test_apportion_stays_within_its_bounds():
    assert apportion(10, [5.0, 5.0], [0, 0], [3, 9]) == [3, 7]
    assert apportion(10, [5.0, 5.0], [0, 8], [9, 9]) == [2, 8]
    assert apportion(12, [4.0, 4.0, 4.0], [0, 0, 4], [2, 9, 4]) == [2, 6, 4]


@given(
    st.lists(st.tuples(st.floats(-2, 6), st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=4),
    st.data(),
)
def test_apportion_is_the_nearest_of_all_integers(parts, data):
    ideal = [part[0] for part in parts]
    low = [part[1] for part in parts]
    high = [part[1] + part[2] for part in parts]
    total = data.draw(st.integers(sum(low), sum(high)))
    got = apportion(total, ideal, low, high)
    ranges = [range(least, most + 1) for least, most in zip(low, high, strict=True)]
    choices = [choice for choice in itertools.product(*ranges) if sum(choice) == total]
    distances = {choice: sum((c - i) ** 2 for c, i in zip(choice, ideal, strict=True)) for choice in choices}
    assert distances[tuple(got)] == pytest.approx(min(distances.values()), abs=1e-4)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((11, [5.0, 5.0], [0, 0], [5, 5]), "total 11 is out of reach: the bounds allow 0 to 10"),
        ((1, [5.0, 5.0], [2, 2], [5, 5]), "total 1 is out of reach: the bounds allow 4 to 10"),
        ((5, [5.0, 5.0], [0, 3], [5, 2]), "position 1: lower bound 3 is above upper bound 2"),
        ((5, [5.0], [0, 0], [5, 5]), "lengths differ"),
    ],
)
def test_apportion_refuses_what_cannot_be(args, message):
    with pytest.raises(ValueError, match=message):
        apportion(*args)


def test_local_takes_the_same_share_of_every_tensor():
    assert local(RESNET, 0.75) == [324.0, 3456.0, 240.0]
    assert plan(Budget("local"), RESNET, 0.75) == [324, 3456, 240]
    # 0.9 of 5360 is 4824; the ideals are 388.8, 4147.2 and 288.
    assert plan(Budget("local"), RESNET, 0.9) == [389, 4147, 288]


def test_erk_densities_of_an_mlp():
    # 5 % of 266200 is 13310, over sums of shapes 1084, 400 and 110: eps = 13310 / 1594, nothing capped.
    density = [1 - z / size.numel for z, size in zip(erk(MLP, 0.95), MLP, strict=True)]
    eps = 13310 / 1594
    assert density == pytest.approx([eps * 1084 / 235200, eps * 400 / 30000, eps * 110 / 1000], abs=1e-12)
    assert density == pytest.approx([0.0384846, 0.1113342, 0.9185069], abs=1e-6)


def test_erk_caps_the_last_layer_of_an_mlp_and_redistributes():
    # 10 % is 26620; the last layer would keep 1837 of 1000, so eps = (26620 - 1000) / 1484 for the others.
    zeros = erk(MLP, 0.9)
    eps = 25620 / 1484
    assert zeros == pytest.approx([235200 - eps * 1084, 30000 - eps * 400, 0.0], rel=1e-12)
    assert sum(zeros) == pytest.approx(0.9 * 266200, rel=1e-12)


def test_erk_densities_of_a_resnet():
    # Sums of shapes: 25, 54 and 42. 536 of 5360 are kept at 0.9, none capped.
    density = [1 - z / size.numel for z, size in zip(erk(RESNET, 0.9), RESNET, strict=True)]
    eps = 536 / 121
    assert density == pytest.approx([eps * 25 / 432, eps * 54 / 4608, eps * 42 / 320], abs=1e-12)
    assert density == pytest.approx([0.2563514, 0.0519112, 0.5814050], abs=1e-7)


def test_erk_caps_one_layer_then_another():
    # At 0.7 the head is dense; at 0.5 the redistribution makes the stem dense as well.
    assert erk(RESNET, 0.7) == pytest.approx([432 - 1288 / 79 * 25, 4608 - 1288 / 79 * 54, 0.0], rel=1e-12)
    assert erk(RESNET, 0.5) == [0.0, 2680.0, 0.0]
    assert plan(Budget("erk"), RESNET, 0.5) == [0, 2680, 0]
    # 407.59 and 880.41 are kept.
    assert plan(Budget("erk"), RESNET, 0.7) == [24, 3728, 0]


def test_erk_at_the_ends_and_for_any_rank():
    assert erk(RESNET, 0.0) == [0.0, 0.0, 0.0]
    assert erk(RESNET, 1.0) == [432.0, 4608.0, 320.0]
    # Kept in proportion to 8, 2 + 3 + 4 and 1: 13.5 of 33 is 6, 6.75 and 0.75.
    sizes = [TensorSize("v", (8,)), TensorSize("t", (2, 3, 4)), TensorSize("s", ())]
    assert erk(sizes, 19.5 / 33) == pytest.approx([2.0, 17.25, 0.25], abs=1e-12)


def test_one_weight_of_each_tensor_survives_unless_asked_otherwise():
    sizes = [TensorSize("small", (2,)), TensorSize("large", (98,))]
    assert plan(Budget(), sizes, 0.98) == [1, 97]
    assert plan(Budget(max_sparsity=1.0), sizes, 1.0) == [2, 98]
    with pytest.raises(ValueError, match=r"99 zeros of 100 weights .*: 98 at most.*small \(1 of 2\)"):
        plan(Budget(), sizes, 0.99)


def test_max_sparsity_caps_each_tensor_and_the_others_make_up():
    assert Budget("global", max_sparsity=0.29).bounds([TensorSize("a", (100,))], 0.1, 0.1, [0]) == ([0], [29])
    # Local: 15 of 30, with 2 of the 10 first ones at most.
    assert plan(Budget(overrides={"a": 0.2}, max_sparsity=0.7), TWINS, 0.5) == [2, 7, 6]
    # ERK at 0.9 keeps 239 of layer1; the cap of 4239 zeros keeps 369, so stem and head share 167 as 25 to 42.
    assert plan(Budget("erk", max_sparsity=0.92), RESNET, 0.9) == [370, 4239, 215]


def test_overrides_follow_the_schedule_in_proportion_and_the_rest_makes_up():
    budget = Budget("local", overrides={"head.weight": 0.5, "stem.*": 0.0})
    assert plan(budget, RESNET, 0.4, final=0.8) == [0, 2144 - 80, 80]
    assert plan(budget, RESNET, 0.8) == [0, 4288 - 160, 160]
    # ERK among the others: nothing but the middle tensor is free, so it is the same.
    assert plan(Budget("erk", overrides=budget.overrides), RESNET, 0.8) == [0, 4128, 160]
    low, high = Budget("global", overrides=budget.overrides).bounds(RESNET, 0.4, 0.8, [0, 7, 3])
    assert (low, high) == ([0, 7, 80], [0, 4607, 80])


def test_the_exact_name_beats_globs_and_the_last_glob_wins():
    names = ["head.weight", "head.bias", "tail.weight"]
    sizes = [TensorSize(name, (100,)) for name in names]
    overrides = {"head.weight": 0.1, "*": 0.9, "head.*": 0.2}
    assert plan(Budget(overrides=overrides), sizes, 0.4) == [10, 20, 90]
    assert plan(Budget(overrides=dict(reversed(overrides.items()))), sizes, 1.9 / 3) == [10, 90, 90]
    indexed = [TensorSize("a[0]", (10,)), TensorSize("b", (10,))]
    assert plan(Budget(overrides={"a[0]": 0.3}), indexed, 0.5) == [3, 7]


def test_zeros_are_never_taken_back():
    assert plan(Budget(), TWINS, 0.5, zeros_now=[8, 0, 0]) == [8, 4, 3]
    assert plan(Budget(overrides={"a": 0.2}), TWINS, 0.5, zeros_now=[4, 0, 0]) == [4, 6, 5]
    assert plan(Budget(max_sparsity=0.5), TWINS, 0.5, zeros_now=[9, 0, 0]) == [9, 3, 3]


def test_an_override_keeps_a_weight_too_unless_asked_otherwise():
    assert plan(Budget(overrides={"a": 1.0}), TWINS, 0.5) == [9, 3, 3]
    assert plan(Budget(overrides={"a": 1.0}, max_sparsity=1.0), TWINS, 0.5) == [10, 3, 2]


@given(st.integers(1, 2_000), st.data())
def test_zeros_that_are_there_already_are_a_plan(numel, data):
    zeros = data.draw(st.integers(0, numel - 1))
    assert plan(Budget("erk"), [TensorSize("a", (numel,))], zeros / numel, zeros_now=[zeros]) == [zeros]
    assert plan(Budget(), [TensorSize("a", (numel,))], zeros / numel, zeros_now=[zeros]) == [zeros]


def test_caps_count_units():
    assert [Budget().cap(n) for n in (0, 1, 8)] == [0, 0, 7]
    assert [Budget(max_sparsity=0.7).cap(n) for n in (0, 1, 10)] == [0, 0, 7]
    assert Budget(max_sparsity=1.0).cap(8) == 8


def test_python_rounds_the_total():
    sizes = [TensorSize("a", (5,))]
    assert plan(Budget(), sizes, 0.5) == [2]
    assert plan(Budget(), sizes, 0.7) == [4]
    assert plan(Budget(), [], 0.5) == []


@pytest.mark.parametrize(
    ("budget", "target", "final", "zeros_now", "message"),
    [
        (Budget(), 0.5, 0.5, [9, 9, 9], r"15 zeros of 30 .*: 27 at least. Set by.*: a \(9 of 10\), b"),
        (Budget(overrides={"[ab]": 0.9}), 0.5, 0.5, [0, 0, 0], r"18 at least.*a \(9 of 10\), b \(9 of 10\)$"),
        (
            Budget(max_sparsity=0.4),
            0.5,
            0.5,
            [0] * 3,
            r"15 zeros of 30 .*: 12 at most. Capped by max_sparsity=0.4",
        ),
        (
            Budget(overrides={"a": 0.0}),
            0.9,
            0.9,
            [0] * 3,
            r"27 zeros .*: 18 at most.*a \(0 of 10\), b \(9 of 10\)",
        ),
        (Budget("global", max_sparsity=0.4), 0.5, 0.5, [0] * 3, "12 at most"),
        (Budget(overrides={"a": 0.5}), 0.0, 0.0, [0, 0, 0], "0 zeros of 30 .*: 5 at least"),
        (
            Budget(overrides={"d": 0.5}),
            0.5,
            0.5,
            [0, 0, 0],
            r"overrides\['d'\] matches no tensor; near names: a, b, c",
        ),
        (Budget(), 0.6, 0.5, [0, 0, 0], "target=0.6 is above final=0.5"),
        (Budget(), 1.5, 1.5, [0, 0, 0], r"target=1.5 is outside \[0, 1\]"),
        (Budget(), 0.5, 0.5, [0, 0], "zeros_now has 2 numbers for 3 tensors"),
        (Budget(), 0.5, 0.5, [0, 11, 0], "b: 11 zeros now, of 10 weights"),
    ],
)
def test_impossible_plans_are_refused(budget, target, final, zeros_now, message):
    with pytest.raises(ValueError, match=message):
        budget.bounds(TWINS, target, final, zeros_now)


def test_a_pattern_without_a_match_lists_near_names():
    with pytest.raises(ValueError, match=r"overrides\['heads.weight'\] .* near names: head.weight"):
        plan(Budget(overrides={"heads.weight": 0.5}), RESNET, 0.5)


def test_many_capped_tensors_are_summed_up():
    sizes = [TensorSize(f"t{i}", (10,)) for i in range(20)]
    with pytest.raises(ValueError, match=r"t7 \(9 of 10\) and 12 more$"):
        plan(Budget(), sizes, 0.95)


def test_a_global_scope_has_bounds_but_no_plan():
    assert Budget("global").bounds(TWINS, 0.5, 0.5, [1, 2, 3]) == ([1, 2, 3], [9, 9, 9])
    with pytest.raises(ValueError, match="scope='global' has no plan"):
        plan(Budget("global"), TWINS, 0.5)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: Budget("layer"), ValueError, "scope='layer'; known scopes: local, global, erk"),
        (lambda: Budget(max_sparsity=1.2), ValueError, r"max_sparsity=1.2 is outside"),
        (lambda: Budget(max_sparsity=True), TypeError, "max_sparsity=True is no number"),
        (lambda: Budget(overrides={"a": math.nan}), ValueError, r"overrides\['a'\]=nan is outside"),
        (lambda: Budget(overrides={"a": 0.9}, max_sparsity=0.8), ValueError, "is above max_sparsity=0.8"),
    ],
)
def test_budgets_are_checked_when_made(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_budgets_are_values():
    overrides = {"a": np.float64(0.5)}
    budget = Budget("erk", overrides=overrides, max_sparsity=0.9)
    overrides["b"] = 0.1
    assert budget == Budget("erk", {"a": 0.5}, 0.9) != Budget("erk", {"a": 0.4}, 0.9)
    for other in (eval(repr(budget)), pickle.loads(pickle.dumps(budget)), copy.deepcopy(budget)):
        assert (other, hash(other)) == (budget, hash(budget))


def test_budgets_from_yaml_and_back():
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--budget", type=Budget)
    written = "budget: {scope: erk, overrides: {head.weight: 0.5, stem.*: 0.0}, max_sparsity: 0.99}"
    config = parser.parse_string(written)
    budget = Budget("erk", {"head.weight": 0.5, "stem.*": 0.0}, 0.99)
    assert parser.instantiate(config).budget == budget
    assert parser.instantiate(parser.parse_string(parser.dump(config))).budget == budget


shapes = st.lists(st.lists(st.integers(0, 9), max_size=4).map(tuple), min_size=1, max_size=8)


@settings(max_examples=200)
@given(
    shapes,
    st.floats(0, 1),
    st.sampled_from(["local", "erk"]),
    st.sampled_from([None, 0.5, 0.97, 1.0]),
    st.data(),
)
def test_totals_are_exact_or_refused_with_reason(shapes, target, scope, cap, data):
    sizes = [TensorSize(f"t{i}", shape) for i, shape in enumerate(shapes)]
    zeros_now = [data.draw(st.integers(0, size.numel // 3)) for size in sizes]
    budget = Budget(scope, overrides={"t0": 0.25}, max_sparsity=cap)
    total = round(target * sum(size.numel for size in sizes))
    caps = [size.numel - 1 if cap is None else math.floor(cap * size.numel) for size in sizes]
    caps = [max(most, zeros) for most, zeros in zip(caps, zeros_now, strict=True)]
    caps[0] = least = min(max(round(0.25 * sizes[0].numel), zeros_now[0]), caps[0])
    if least + sum(zeros_now[1:]) <= total <= sum(caps):
        zeros = plan(budget, sizes, target, zeros_now=zeros_now)
    else:
        with pytest.raises(ValueError, match=f"^{total} zeros of"):
            plan(budget, sizes, target, zeros_now=zeros_now)
        zeros = [least, *zeros_now[1:]]
        total = sum(zeros)
    assert sum(zeros) == total
    assert zeros[0] == least
    assert all(now <= z <= most for now, z, most in zip(zeros_now, zeros, caps, strict=True))


@pytest.mark.parametrize("scope", ["local", "erk"])
@pytest.mark.parametrize(
    ("overrides", "at_end"),
    [
        ({"stem.*": 0.0, "head.*": 0.5}, {0: 0, 2: 160}),
        ({"layer1.*": 0.93}, {1: 4285}),
        ({}, {}),
    ],
)
def test_a_schedule_is_followed_exactly_and_never_backwards(scope, overrides, at_end):
    schedule = Cubic(final=0.85, begin=1, end=30)
    budget = Budget(scope, overrides=overrides)
    zeros = [0, 0, 0]
    for _, target in schedule.events():
        after = plan(budget, RESNET, target, final=schedule.final, zeros_now=zeros)
        assert sum(after) == round(target * 5360)
        assert all(z <= new < size.numel for z, new, size in zip(zeros, after, RESNET, strict=True))
        zeros = after
    assert sum(zeros) == 4556
    assert {i: zeros[i] for i in at_end} == at_end


def test_large_models_are_exact():
    sizes = [TensorSize(f"layer{i}", (12_288, 12_288 + i)) for i in range(200)]
    for scope in ("local", "erk"):
        zeros = plan(Budget(scope), sizes, 0.9)
        assert sum(zeros) == round(0.9 * sum(size.numel for size in sizes))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"scope": "global", "normalize": "l3"}, "normalize should be None or 'l2' or 'lamp', got 'l3'"),
        ({"scope": "local", "normalize": "lamp"}, "normalize='lamp' compares tensors: it needs scope='global'"),
    ],
)
def test_what_cannot_be_normalized_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        Budget(**arguments)


def test_a_budget_is_given_as_one_or_as_its_scope() -> None:
    assert as_budget("erk") == Budget("erk")
    assert as_budget(Budget(max_sparsity=0.5)) == Budget("local", {}, 0.5)
    assert hash(Budget("global", {"a": 0.5})) == hash(Budget("global", {"b": 0.5}))
    assert Budget("global", {"a": 0.5}) != Budget("global", {"b": 0.5})
    assert eval(repr(Budget("global", {"a": 0.5}, 0.9, "lamp"))) == Budget("global", {"a": 0.5}, 0.9, "lamp")


def test_overrides_are_named_as_parameters_are() -> None:
    names = ["net.0.weight", "net.0.extra.weight", "net.1.weight", "conv[3].weight"]
    budget = Budget(overrides={"net.0.weight": 0.1, "net.0": 0.2, "net.*": 0.3, "conv[3].weight": 0.4})
    assert budget.override_shares(names) == {0: 0.1, 1: 0.2, 2: 0.3, 3: 0.4}
    assert Budget(overrides={"*": 0.1, "net": 0.2, "net.1": 0.3}).override_shares(names) == {
        0: 0.2,
        1: 0.2,
        2: 0.3,
        3: 0.1,
    }


def test_overrides_of_tensors_that_are_not_there_are_left_out() -> None:
    assert Budget(overrides={"a": 0.1, "b.*": 0.2}).among(["a.weight"]) == Budget(overrides={"a": 0.1})
