"""DDP with two ranks: the same masks and weights on both, those of one process, and errors that name the tensor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from lightning_prune import PruningCallback
from tests.distributed.launch import Results, result
from tests.distributed.models import Fitted, Mlp, dead, fit, largest_difference, weights
from tests.distributed.workers_ddp import (
    COUPLED,
    CRITERIA,
    GRANULARITIES,
    METHODS,
    OPTIONS,
    REGROWTHS,
    REWINDS,
    SCOPES,
    coupled_pruning,
    granular,
    pruning,
    regrown,
    resumed,
)

PLAIN = [type(module).__name__ for module in Mlp().modules()]
CHANNELS = 10 * 8 + 4 * 17 + 2 * 6  # 0.6 of 17, 6 and 3 channels, rounded


def same(fitted: list[Fitted]) -> bool:
    return all(torch.equal(p, fitted[1]["parameters"][name]) for name, p in fitted[0]["parameters"].items())


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("method", METHODS)
def test_both_ranks_end_with_the_same_model(two: list[Results], method: str, scope: str) -> None:
    fitted = result(two, f"{method} {scope}")
    assert same(fitted)
    assert fitted[0]["plain"]
    assert fitted[0]["classes"] == PLAIN
    local = (CHANNELS, CHANNELS)
    channels = local if scope == "local" else (154 - 17, 154 + 17)
    least, most = (round(0.6 * 256), 154) if method.endswith("unstructured") else channels
    assert least <= dead(fitted[0]) <= most


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("method", ["l1_unstructured", "ln_structured"])
def test_equals_one_process_with_the_same_global_batch(
    two: list[Results], tmp_path: Path, method: str, scope: str
) -> None:
    alone = fit(tmp_path, Mlp(), pruning(method, scope))
    together = result(two, f"{method} {scope}")[0]
    assert largest_difference(alone, together) < 1e-6
    assert dead(alone) == dead(together)


@pytest.mark.parametrize("name", CRITERIA)
def test_criteria_see_what_one_process_would(two: list[Results], tmp_path: Path, name: str) -> None:
    alone = fit(tmp_path, Mlp(), pruning(criterion=CRITERIA[name], parameters=None))
    fitted = result(two, f"criterion {name}")
    assert same(fitted)
    assert dead(alone) == dead(fitted[0]) == round(0.6 * 256)
    assert largest_difference(alone, fitted[0]) < 1e-6


@pytest.mark.parametrize("name", GRANULARITIES)
def test_patterns_are_those_of_one_process(two: list[Results], tmp_path: Path, name: str) -> None:
    alone = granular(tmp_path, name, ranks=1)
    fitted = result(two, f"granularity {name}")
    assert same(fitted)
    assert dead(alone) == dead(fitted[0]) == {"n of m": 77, "blocks": 92, "rows": 92}[name]
    assert largest_difference(alone, fitted[0]) < 1e-6


@pytest.mark.parametrize("name", REGROWTHS)
def test_the_weights_come_back_that_would_in_one_process(two: list[Results], tmp_path: Path, name: str) -> None:
    alone, told = regrown(tmp_path, name, ranks=1)
    fitted = result(two, f"regrow {name}")
    assert same([found for found, _ in fitted])
    assert [found for _, found in fitted] == [told, told]
    assert told.updates == {"rigl": 5, "set": 2}[name]
    assert dead(alone) == dead(fitted[0][0]) == round(0.6 * 256)
    assert largest_difference(alone, fitted[0][0]) < 1e-6


@pytest.mark.parametrize(("method", "scope"), COUPLED)
def test_coupled_channels(two: list[Results], method: str, scope: str) -> None:
    together = result(two, f"coupled {method} {scope}")
    assert same(together)
    assert abs(dead(together[0]) - round(0.6 * 256)) <= (17 + 3) / 2  # half of the largest channel


@pytest.mark.parametrize("scope", SCOPES)
def test_coupled_channels_are_those_of_one_process(two: list[Results], tmp_path: Path, scope: str) -> None:
    alone = fit(tmp_path, Mlp(), coupled_pruning("ln_structured", scope))
    assert largest_difference(alone, result(two, f"coupled ln_structured {scope}")[0]) < 1e-6


@pytest.mark.parametrize("option", list(OPTIONS))
def test_ddp_options(two: list[Results], tmp_path: Path, option: str) -> None:
    unused = option == "find_unused_parameters"
    alone = fit(tmp_path, Mlp(adam=True, unused=unused), pruning(exclude="idle.*") if unused else pruning())
    together = result(two, option)
    assert same(together)
    assert largest_difference(alone, together[0]) < 1e-6
    assert sum(int((together[0]["parameters"][f"{n}.weight"] == 0).sum()) for n in ("first", "second", "last")) == 154


def test_zeros_kept_in_place(two: list[Results], tmp_path: Path) -> None:
    together = result(two, "in place")
    assert same(together)
    assert largest_difference(fit(tmp_path, Mlp(adam=True), pruning()), together[0]) < 1e-6


def test_steps_send_no_more_than_dense_ones(two: list[Results]) -> None:
    for dense, pruned in result(two, "sent"):
        assert dense[2:] == pruned[2:]  # DDP arranges its buckets in the first two
        assert min(dense) > 4 * 256  # half of all gradients, and headers


@pytest.mark.parametrize("rewind", list(REWINDS))
def test_rewinding(two: list[Results], tmp_path: Path, rewind: str) -> None:
    callback = PruningCallback(amount=0.3, epochs=[1, 2], scope="global", rewind=REWINDS[rewind], verbose=False)
    together = result(two, rewind)
    assert same(together)
    assert largest_difference(fit(tmp_path, Mlp(), callback), together[0]) < 1e-6
    assert dead(together[0]) == 77 + 54  # 0.3 * 256 = 76.8; 0.3 * 179 = 53.7


@pytest.mark.parametrize(
    ("check", "named", "others"),
    [("disturbed weight", "second.weight", ["first.weight", "last.weight"]), ("own choice", "first.weight", [])],
)
def test_a_rank_that_differs_is_caught_by_name(two: list[Results], check: str, named: str, others: list[str]) -> None:
    for message, left in result(two, check):
        assert "differ between the ranks" in message
        assert named in message
        assert not any(name in message for name in others)
        assert left["plain"]
        assert left["classes"] == PLAIN


def test_a_rank_with_another_selection_is_caught_at_the_start(two: list[Results]) -> None:
    (first, _), (second, _) = result(two, "other selection")
    assert "what is pruned differs between the ranks; rank 0 has" in first
    assert "last.weight (3, 6)" in first
    assert "rank 1 has" in second
    assert "last.weight" not in second


def test_texts_that_differ_are_refused_on_every_rank(two: list[Results]) -> None:
    for rank, message in enumerate(result(two, "other words")):
        assert message == f"a list differs between the ranks; rank {rank} has same, of rank {rank}"


def test_scores_are_averaged_over_ranks(two: list[Results]) -> None:
    for rank, (square, single, *own) in enumerate(result(two, "averaged")):
        assert square.tolist() == [[1.5, 1.5]] * 3
        assert single.tolist() == [1.0]
        assert own[0].tolist() == [[1.0 + rank] * 2] * 3
        assert own[1].tolist() == [2.0 * rank]


def test_random_masks_in_a_loop_of_ones_own(two: list[Results]) -> None:
    first, second = result(two, "own loop")
    assert torch.equal(first, second)
    assert int((first == 0).sum()) == 20


def check_resumed(results: list[tuple[dict[str, Any], list[tuple[int, int]], Fitted]], saved: Fitted) -> None:
    for found, events, fitted in results:
        assert {name: int(dead.sum()) for name, dead in found.items()} == {
            name: int((p == 0).sum()) for name, p in saved["parameters"].items() if p.dim() > 1
        }
        assert all(torch.equal(dead, saved["parameters"][name] == 0) for name, dead in found.items())
        assert events == [(2, 154)]
        assert fitted["plain"]
        assert dead(fitted) == 154


def test_saved_on_two_ranks_resumed_on_one_and_on_three(two: list[Results], three: list[Results], folder: Path) -> None:
    saved = result(two, "saved")[0]
    assert dead(saved) == round(0.3 * 256) == 77
    one = resumed(folder, ranks=1)
    others = result(three, "resumed")
    check_resumed([one, *others], saved)
    for _, _, fitted in others:
        assert largest_difference(fitted, others[0][2]) == 0
        for name, weight in weights(fitted).items():  # random masks come from the seed and the number of the event
            assert torch.equal(weight == 0, one[2]["parameters"][name] == 0)
