import copy
import functools
import math
import pickle
import sys
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonargparse import ArgumentParser
from torch.ao.pruning import CubicSL

from lightning_prune.schedules import (
    Constant,
    Cosine,
    Cubic,
    Exponential,
    FromFunction,
    Linear,
    OneCycle,
    OneShot,
    Polynomial,
    RigL,
    Schedule,
    Steps,
)
from lightning_prune.schedules.curves import Curve


def ramp(t):
    return min(0.05 * t, 0.6)


def half(fraction):
    return fraction / 2


def falling(t):
    return [0.1, 0.4, 0.3, 0.5][t]


WINDOW = {"final": 0.85, "initial": 0.15, "begin": 3, "end": 24, "every": 4}

# Each formula as published, in terms of s_i, s_f, t_0, t_1 and t.
CURVES = [
    (Linear(**WINDOW), lambda si, sf, t0, t1, t: si + (sf - si) * (t - t0) / (t1 - t0)),
    (
        Polynomial(power=2.5, **WINDOW),
        lambda si, sf, t0, t1, t: sf + (si - sf) * (1 - (t - t0) / (t1 - t0)) ** 2.5,
    ),
    (Cubic(**WINDOW), lambda si, sf, t0, t1, t: sf + (si - sf) * (1 - (t - t0) / (t1 - t0)) ** 3),
    (
        Exponential(**WINDOW),
        lambda si, sf, t0, t1, t: 1 - (1 - si) * ((1 - sf) / (1 - si)) ** ((t - t0) / (t1 - t0)),
    ),
    (
        Cosine(**WINDOW),
        lambda si, sf, t0, t1, t: sf + (si - sf) / 2 * (1 + math.cos(math.pi * (t - t0) / (t1 - t0))),
    ),
    (
        OneCycle(**WINDOW),
        lambda si, sf, t0, t1, t: (
            si + (1 + math.exp(-14 + 5)) / (1 + math.exp(-14 * (t - t0) / (t1 - t0) + 5)) * (sf - si)
        ),
    ),
]
ALL = [
    *(schedule for schedule, _ in CURVES),
    OneShot(0.9, begin=3),
    Constant(final=0.5, begin=2, end=9, every=3),
    Steps({5: 0.3, 10: 0.6}),
    FromFunction(ramp, final=0.6, begin=1, end=15, every=2),
]
FRACTIONS = [
    *(kind(final=0.9, begin=0.1, end=0.6, unit="fraction") for kind in (Linear, Cubic, Exponential, Cosine)),
    OneCycle(final=0.9, begin=0.1, end=0.6, alpha=10.0, unit="fraction"),
    Polynomial(power=2, final=0.9, begin=0.1, end=0.6, every=7, unit="fraction"),
    OneShot(0.9, begin=0.25, unit="fraction"),
    Constant(final=0.5, begin=0.1, unit="fraction"),
    Steps({0.1: 0.3, 0.5: 0.6}, unit="fraction"),
    FromFunction(half, final=0.5, begin=0.1, end=0.9, every=3, unit="fraction"),
]
named = {"ids": lambda value: type(value).__name__}


@pytest.mark.parametrize(("schedule", "formula"), CURVES, **named)
def test_every_curve_equals_its_published_formula(schedule, formula):
    got = [schedule.sparsity(t) for t in range(3, 25)]
    expected = [formula(0.15, 0.85, 3, 24, t) for t in range(3, 25)]
    assert got == pytest.approx(expected, rel=0, abs=1e-12)


@pytest.mark.parametrize(("schedule", "formula"), CURVES, **named)
def test_events_are_begin_every_and_always_the_end(schedule, formula):
    times = [3, 7, 11, 15, 19, 23, 24]
    assert [t for t, _ in schedule.events()] == times
    expected = [formula(0.15, 0.85, 3, 24, t) for t in times]
    assert [s for _, s in schedule.events()] == pytest.approx(expected, rel=0, abs=1e-12)
    assert [t for t in range(50) if schedule.is_event(t)] == times
    assert schedule.last == 24


@pytest.mark.parametrize("schedule", ALL, **named)
def test_nothing_before_begin_and_exactly_final_from_the_end(schedule):
    assert schedule.sparsity(schedule.begin - 1) == 0.0
    assert schedule.sparsity(schedule.end) == schedule.final
    assert schedule.sparsity(schedule.end + 1_000) == schedule.final
    assert schedule.events()[-1] == (schedule.last, schedule.final)
    assert not schedule.is_event(schedule.last + 1)


def test_the_cubic_equals_known_values():
    cubic = Cubic(final=0.8, initial=0.2, begin=100, end=110, unit="step")
    got = [cubic.sparsity(t) for t in (100, 102, 105, 110)]
    assert got == pytest.approx([0.2, 0.4928, 0.725, 0.8], abs=1e-12)


def test_the_cubic_equals_torchs_scheduler():
    cubic = Cubic(final=0.8, initial=0.2, begin=100, end=110, unit="step")
    times = range(90, 130)
    torchs = [CubicSL.sparsity_compute_fn(0.2, 0.8, t, 100, 2, 5, initially_zero=True) for t in times]
    assert [cubic.sparsity(t) for t in times] == pytest.approx(torchs, rel=0, abs=1e-12)


def test_the_exponential_prunes_the_same_fraction_of_what_is_left():
    left = [1 - s for _, s in Exponential(final=0.9, initial=0.2, begin=5, end=65, every=10).events()]
    ratios = [after / before for before, after in pairwise(left)]
    assert ratios == pytest.approx([(0.1 / 0.8) ** (1 / 6)] * 6, abs=1e-12)


def test_the_exponential_with_equal_ends_is_constant():
    assert Exponential(final=0.5, initial=0.5, end=3).events() == [(0, 0.5), (1, 0.5), (2, 0.5), (3, 0.5)]


def test_the_one_cycle_arguments_shape_the_curve():
    schedule = OneCycle(final=1.0, end=4, alpha=8.0, beta=2.0)
    assert schedule.sparsity(1) == pytest.approx((1 + math.exp(-6)) / 2, abs=1e-12)
    assert OneCycle(final=1.0, end=4).sparsity(0) == pytest.approx(0.0066936769, abs=1e-10)


def test_one_shot_steps_constant_and_functions_list_their_targets():
    assert OneShot(0.9, 3).events() == [(3, 0.9)]
    assert OneShot(0.9).sparsity(0) == 0.9
    assert Constant(final=0.5, begin=2, end=9, every=3).events() == [(2, 0.5), (5, 0.5), (8, 0.5), (9, 0.5)]
    steps = Steps({10: 0.6, 5: 0.3})
    assert steps.events() == [(5, 0.3), (10, 0.6)]
    assert [steps.sparsity(t) for t in (4, 5, 9, 10, 11)] == [0.0, 0.3, 0.3, 0.6, 0.6]
    assert [t for t in range(20) if steps.is_event(t)] == [5, 10]
    assert FromFunction(ramp, final=0.6, begin=4, end=9, every=4).events() == [(4, 0.2), (8, 0.4), (9, 0.6)]


def test_an_empty_window_is_one_event():
    linear = Linear(final=0.5, begin=4, end=4)
    assert linear.events() == [(4, 0.5)]
    assert (linear.sparsity(3), linear.sparsity(4)) == (0.0, 0.5)


def test_total_cuts_the_run_and_bounds_open_ended_schedules():
    linear = Linear(final=0.8, end=4)
    assert linear.events(total=3) == [(0, 0.0), (1, 0.2), (2, 0.4)]
    assert linear.events(total=100) == linear.events()
    assert OneShot(0.9, begin=3).events(total=3) == []
    assert Steps({5: 0.3, 10: 0.6}).events(total=10) == [(5, 0.3)]
    assert Constant(final=0.5, begin=1, every=2).events(total=5) == [(1, 0.5), (3, 0.5)]
    assert FromFunction(ramp, final=0.6).events(total=3) == [(0, 0.0), (1, 0.05), (2, 0.1)]
    assert Constant(final=0.5, begin=7).last == 7


@pytest.mark.parametrize("schedule", [Constant(final=0.5), FromFunction(ramp, final=1), *FRACTIONS], **named)
def test_open_ended_and_fraction_schedules_need_the_length_of_the_run(schedule):
    with pytest.raises(ValueError, match="give total="):
        schedule.events()


@pytest.mark.parametrize("schedule", FRACTIONS, **named)
def test_fractions_become_the_equal_schedule_in_steps(schedule):
    in_steps = schedule.in_steps(1_000)
    assert in_steps.unit == "step"
    assert (in_steps.begin, in_steps.last) == (round(schedule.begin * 1_000), round(schedule.last * 1_000))
    assert schedule.events(total=1_000) == in_steps.events(total=1_000)
    times = range(0, 1_000, 50)
    assert [in_steps.sparsity(t) for t in times] == pytest.approx(
        [schedule.sparsity(t / 1_000) for t in times], abs=1e-12
    )
    assert in_steps == schedule.in_steps(1_000)
    assert in_steps.in_steps(7) is in_steps
    with pytest.raises(ValueError, match="in_steps"):
        schedule.is_event(0.1)


def test_fractions_round_to_even_and_end_at_the_last_step_of_the_run():
    linear = Linear(final=0.5, begin=0.25, end=1.0, unit="fraction").in_steps(10)
    assert (linear.begin, linear.end) == (2, 9)
    assert linear.events(total=10)[-1] == (9, 0.5)
    assert Steps({0.0: 0.1, 0.01: 0.2, 1: 0.3}, unit="fraction").events(total=10) == [(0, 0.2), (9, 0.3)]
    assert Linear(final=0.5, end=1.0, unit="fraction").events(total=1) == [(0, 0.5)]


@pytest.mark.parametrize("schedule", [*ALL, *FRACTIONS], **named)
def test_schedules_are_values(schedule):
    twin = eval(repr(schedule))
    assert (twin, hash(twin), repr(twin)) == (schedule, hash(schedule), repr(schedule))
    for other in (pickle.loads(pickle.dumps(schedule)), copy.deepcopy(schedule)):
        assert (other, hash(other)) == (schedule, hash(schedule))
    assert schedule != OneShot(0.123)
    with pytest.raises(AttributeError):
        schedule.final = 0.1


def test_schedules_differ_by_class_and_by_value():
    assert Linear(final=0.5, end=3) != Cubic(final=0.5, end=3)
    assert Steps({1: 0.2, 3: 0.5}) != Steps({2: 0.2, 3: 0.5})
    targets = {1: 0.2, 3: 0.5}
    steps = Steps(targets)
    targets[2] = 0.4
    assert steps == Steps({1: 0.2, 3: 0.5})


def test_numpy_numbers_become_plain_ones():
    linear = Linear(final=np.float64(0.5), begin=np.int64(1), end=np.int32(3), every=np.int64(2))
    assert linear == Linear(final=0.5, begin=1, end=3, every=2)
    assert [type(v) for v in (linear.final, linear.begin, linear.end, linear.every)] == [float, int, int, int]
    assert {type(t) for t in Steps({np.int64(1): np.float64(0.5)}).targets} == {int}


@pytest.mark.parametrize("share", [-0.1, 1.1, math.nan, math.inf])
def test_shares_outside_0_to_1_are_refused(share):
    for make in (
        lambda: OneShot(share),
        lambda: Linear(final=0.9, initial=share, end=3),
        lambda: Steps({1: share}),
        lambda: FromFunction(lambda t: share, final=1.0, end=3).sparsity(1),
    ):
        with pytest.raises(ValueError, match=rf"{share!r} is outside \[0, 1\]"):
            make()


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: OneShot(True), TypeError, "OneShot: final=True is no number"),
        (lambda: OneShot("0.5"), TypeError, "final='0.5' is no number"),
        (lambda: Linear(final=0.5, initial=False, end=3), TypeError, "Linear: initial=False is no number"),
        (lambda: Linear(final=0.2, initial=0.5, end=3), ValueError, "from 0.5 at epoch 0 to 0.2 at epoch 3"),
        (lambda: Linear(final=0.5, begin=4, end=3), ValueError, "end=3 lies before begin=4"),
        (lambda: Linear(final=0.5, end=None), TypeError, r"Linear\(final=0.5\) needs end="),
        (lambda: Linear(final=0.5, begin=-1, end=3), ValueError, "begin=-1 is below 0"),
        (lambda: Linear(final=0.5, begin=True, end=3), TypeError, "begin=True is no whole number"),
        (lambda: Linear(final=0.5, end=1.0), TypeError, "end=1.0 is no whole number; shares of the run need"),
        (lambda: Linear(final=0.5, end=3, every=0), ValueError, "every=0 is below 1"),
        (
            lambda: Linear(final=0.5, end=3, unit="week"),
            ValueError,
            "unit='week'; known: epoch, step, fraction",
        ),
        (lambda: Linear(final=0.5, end=2, unit="fraction"), ValueError, r"end=2 is outside \[0, 1\]"),
        (lambda: Linear(final=0.5, end=3).events(total=-1), ValueError, "total=-1 is below 0"),
        (lambda: FRACTIONS[0].in_steps(0), ValueError, "total_steps=0 is below 1"),
        (lambda: Polynomial(power=0, final=0.5, end=3), ValueError, "power=0 must be a number above 0"),
        (lambda: OneCycle(final=0.5, end=3, alpha=-1.0), ValueError, "alpha=-1.0"),
        (lambda: OneCycle(final=0.5, end=3, beta=1e3), ValueError, "beta=1000.0"),
        (lambda: Exponential(final=1.0, end=3), ValueError, "Exponential: final=1.0"),
        (lambda: Steps({}), ValueError, "at least one time"),
        (lambda: Steps({1.5: 0.2}), TypeError, "Steps: time=1.5 is no whole number"),
        (lambda: Steps({1: 0.2, "2": 0.3}), TypeError, "Steps: time='2' is no whole number"),
        (lambda: Steps({10: 0.3, 5: 0.6}), ValueError, "from 0.6 at epoch 5 to 0.3 at epoch 10"),
        (lambda: FromFunction(0.5, final=0.6), TypeError, "fn=0.5; a function of the time"),
        (
            lambda: FromFunction(ramp, final=0.2, end=9).events(),
            ValueError,
            r"fn\(5\)=0.25 is above final=0.2",
        ),
        (
            lambda: FromFunction(falling, final=0.5, end=3).events(),
            ValueError,
            "from 0.4 at epoch 1 to 0.3 at epoch 2",
        ),
    ],
)
def test_what_cannot_be_is_refused(make, error, message):
    with pytest.raises(error, match=message):
        make()


@given(
    curve=st.sampled_from([type(schedule) for schedule, _ in CURVES]),
    shares=st.tuples(st.floats(0, 0.99), st.floats(0, 0.99)).map(sorted),
    begin=st.integers(0, 30),
    length=st.integers(0, 60),
    every=st.integers(1, 9),
)
def test_targets_never_fall_and_stay_within_their_ends(curve, shares, begin, length, every):
    extra = {"power": 1.7} if curve is Polynomial else {}
    window = {"initial": shares[0], "final": shares[1], "begin": begin, "end": begin + length, "every": every}
    schedule = curve(**window, **extra)
    events = schedule.events()
    targets = [s for _, s in events]
    assert targets == sorted(targets)
    assert shares[0] <= targets[0]
    assert targets[-1] == shares[1]
    assert [t for t in range(begin + length + 10) if schedule.is_event(t)] == [t for t, _ in events]


def test_a_curve_of_ones_own_is_one_method():
    class Late(Curve):
        def share(self, x):
            return x**2

    assert Late(final=0.8, begin=1, end=3).events() == [(1, 0.0), (2, 0.2), (3, 0.8)]

    class Eager(Curve):
        def share(self, x):
            return 2 * x - 0.5

    assert Eager(final=0.75, initial=0.25, end=5, every=2).events() == [
        (0, 0.25),
        (2, 0.4),
        (4, 0.75),
        (5, 0.75),
    ]

    class Wave(Curve):
        def share(self, x):
            return math.sin(math.pi * x)

    with pytest.raises(ValueError, match="the target falls"):
        Wave(final=0.8, end=8).events()


@pytest.mark.parametrize("schedule", [*ALL, *FRACTIONS[-5:]], **named)
def test_schedules_from_yaml_and_back(schedule, tmp_path):
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--schedule", type=Schedule)
    given_fields = {
        name: f"{__name__}.{value.__name__}" if callable(value) else value
        for name, value in vars(schedule).items()
        if type(schedule).__dataclass_fields__[name].init
    }
    node = {"class_path": f"lightning_prune.schedules.curves.{type(schedule).__name__}", "init_args": given_fields}
    config = parser.parse_object({"schedule": node})
    dumped = parser.dump(config)
    assert parser.instantiate(config).schedule == schedule
    assert parser.instantiate(parser.parse_string(dumped)).schedule == schedule
    assert parser.dump(parser.parse_string(dumped)) == dumped


def test_yaml_as_a_person_writes_it():
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--schedule", type=Schedule)
    cubic = "schedule: {class_path: lightning_prune.schedules.curves.Cubic, init_args: {final: 0.9, end: 20}}"
    steps = "schedule: {class_path: lightning_prune.schedules.curves.Steps, init_args: {targets: {5: 0.3, 10: 0.6}}}"
    assert parser.instantiate(parser.parse_string(cubic)).schedule == Cubic(final=0.9, end=20)
    assert parser.instantiate(parser.parse_string(steps)).schedule == Steps({5: 0.3, 10: 0.6})


def test_plot_draws_the_events():
    import matplotlib.pyplot as plt

    cubic = Cubic(final=0.9, begin=2, end=20, every=5)
    figure, axes = cubic.plot()
    assert list(zip(*axes.lines[0].get_data(), strict=True)) == cubic.events()
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("epoch", "sparsity")
    again, same = Constant(final=0.5).plot(ax=axes, total=4)
    assert (again, same) == (figure, axes)
    assert list(axes.lines[1].get_xdata()) == [0, 1, 2, 3]
    _, steps = FRACTIONS[0].plot(total=10)
    assert list(steps.lines[0].get_xdata()) == [1, 2, 3, 4, 5, 6]
    plt.close("all")


def test_plot_names_the_extra_when_matplotlib_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(ModuleNotFoundError, match=r"lightning-prune\[plot\]"):
        Cubic(final=0.9, end=20).plot()


@pytest.mark.parametrize("total", [40, 2_000, 100_000])
def test_fractions_make_about_twenty_events_by_default(total):
    events = Cubic(final=0.9, begin=0.1, end=0.6, unit="fraction").events(total)
    assert 20 <= len(events) <= 22
    assert events[0] == (round(0.1 * total), 0.0)
    assert events[-1] == (round(0.6 * total), 0.9)
    assert len(Cubic(final=0.9, begin=0.1, end=0.6, every=1, unit="fraction").events(total)) == round(0.5 * total) + 1


def test_what_is_missing_is_said_in_the_words_of_the_class():
    with pytest.raises(TypeError, match=r"^Cubic\(final=0.9\) needs end="):
        Cubic(final=0.9)
    with pytest.raises(TypeError, match=r"begin=0.1 is no whole number; shares of the run need unit='fraction'"):
        Cubic(final=0.9, begin=0.1, end=0.5)


@pytest.mark.parametrize("curve", [Linear, Cubic, Polynomial, Exponential, Cosine, OneCycle])
def test_each_curve_explains_its_arguments(curve):
    assert all(f"    {name}: " in curve.__doc__ for name in ("final", "begin", "end", "every", "unit", "initial"))


def test_a_partial_is_called_the_same_in_every_process():
    shown = repr(FromFunction(functools.partial(pow, 0.5), final=0.9, end=3))
    assert shown.startswith("FromFunction(pow(0.5), ")


def test_a_float_without_a_fraction_is_the_whole_number_that_it_is():
    """As a parser of files gives it that takes ``float`` before ``int``."""
    assert repr(Linear(final=0.5, begin=0.0, end=24.0)) == repr(Linear(final=0.5, begin=0, end=24))
    rigl = RigL(every=10.0, until=50.0, unit="step")  # type: ignore[arg-type]
    assert repr(rigl) == repr(RigL(every=10, until=50, unit="step"))
