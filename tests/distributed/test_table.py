"""Every layout of a model over ranks with every way to prune: weights and masks of one process."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

from tests.distributed.launch import Results, result
from tests.distributed.models import Fitted, dead, largest_difference
from tests.distributed.test_sharded import same_zeros
from tests.distributed.workers_table import LAYOUTS, PRUNINGS, RESUMED, alone, file_of, pruning_of, resumptions

LAUNCHES = {2: "two", 3: "three", 4: "four"}
CELLS = [(ranks, layout) for ranks, layouts in LAYOUTS.items() for layout in layouts]


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> functools._lru_cache_wrapper[Fitted]:
    """What one process gives."""
    folder = tmp_path_factory.mktemp("alone")
    return functools.cache(lambda name, optimizer: alone(folder, optimizer, pruning_of(name)))


@pytest.mark.parametrize("name", PRUNINGS)
@pytest.mark.parametrize(("ranks", "layout"), CELLS)
def test_as_one_process(
    request: pytest.FixtureRequest, single: functools._lru_cache_wrapper[Fitted], ranks: int, layout: str, name: str
) -> None:
    results: list[Results] = request.getfixturevalue(LAUNCHES[ranks])
    expected = single(name, "sgd")
    assert 0 < dead(expected) < 354
    for fitted in result(results, f"{layout}, {name}, sgd"):
        assert same_zeros(expected, fitted)
        assert largest_difference(expected, fitted) < 1e-6
        assert fitted["plain"]


@pytest.mark.parametrize(("ranks", "layout"), CELLS)
def test_with_adamw(
    request: pytest.FixtureRequest, single: functools._lru_cache_wrapper[Fitted], ranks: int, layout: str
) -> None:
    results: list[Results] = request.getfixturevalue(LAUNCHES[ranks])
    expected = single("global", "adamw")
    for fitted in result(results, f"{layout}, global, adamw"):
        assert same_zeros(expected, fitted)
        assert largest_difference(expected, fitted) < 1e-5


@pytest.mark.parametrize(
    ("ranks", "layout", "name"), [(ranks, *cell) for ranks in LAUNCHES for cell in resumptions(ranks)]
)
def test_resumed_is_bit_equal(
    request: pytest.FixtureRequest, single: functools._lru_cache_wrapper[Fitted], ranks: int, layout: str, name: str
) -> None:
    results: list[Results] = request.getfixturevalue(LAUNCHES[ranks])
    expected = single(name, "adamw")
    assert 0 < dead(expected) < 354
    for straight, rest in result(results, f"{layout}, {name}, resumed"):
        assert largest_difference(straight, rest) == 0
        assert same_zeros(expected, rest)
        assert largest_difference(expected, rest) < 1e-5


@pytest.mark.parametrize("name", RESUMED)
@pytest.mark.parametrize(("ranks", "layout"), [(ranks, layout) for ranks, layout in CELLS if ranks != 4])
def test_resumed_on_more_ranks(
    request: pytest.FixtureRequest, single: functools._lru_cache_wrapper[Fitted], ranks: int, layout: str, name: str
) -> None:
    """On two what one process saved, on three what two did."""
    results: list[Results] = request.getfixturevalue(LAUNCHES[ranks])
    expected = single(name, "adamw")
    for fitted in result(results, f"{layout}, {name}, elsewhere"):
        assert same_zeros(expected, fitted)
        assert largest_difference(expected, fitted) < 1e-5
        assert fitted["plain"]


@pytest.mark.parametrize("name", RESUMED)
@pytest.mark.parametrize("layout", LAYOUTS[2])
def test_resumed_in_one_process(
    two: list[Results], single: functools._lru_cache_wrapper[Fitted], folder: Path, layout: str, name: str
) -> None:
    result(two, f"{layout}, {name}, resumed")
    fitted = alone(folder, "adamw", pruning_of(name), ckpt_path=folder / f"{file_of(layout, name, 2)}.ckpt")
    expected = single(name, "adamw")
    assert same_zeros(expected, fitted)
    assert largest_difference(expected, fitted) < 1e-5
