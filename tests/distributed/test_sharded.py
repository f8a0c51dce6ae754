"""FSDP2 on two and three ranks: pruned while training as one process would prune, saved, resumed and left plain."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch

from lightning_prune import Linear, PruningCallback
from tests.distributed.launch import Results, result
from tests.distributed.models import Fitted, Mlp, dead, fit, largest_difference, weights
from tests.distributed.workers_sharded import AS_ONE, METHODS, SCOPES, EveryThird, callback, pruning_of

PLAIN = ["Sharded", "Linear", "Linear", "Linear"]  # as fully_shard named them, without that prefix


def rows(total: int, ranks: int) -> list[int]:
    size = -(-total // ranks)
    return [max(0, min(size, total - rank * size)) for rank in range(ranks)]


def same_zeros(a: Fitted, b: Fitted) -> bool:
    return all(torch.equal(weight == 0, b["parameters"][name] == 0) for name, weight in weights(a).items())


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("method", METHODS)
def test_pruned_as_one_process_would(each: list[Results], tmp_path: Path, method: str, scope: str) -> None:
    alone = fit(tmp_path, Mlp(), callback(method, scope))
    for fitted, _ in result(each, f"sharded {method}, {scope}"):
        assert same_zeros(alone, fitted)
        assert largest_difference(alone, fitted) < 1e-6


@pytest.mark.parametrize("name", AS_ONE)
def test_scores_of_ones_own(each: list[Results], tmp_path: Path, name: str) -> None:
    alone = fit(tmp_path, Mlp(), pruning_of(name))
    assert 0 < dead(alone) < 256
    for fitted in result(each, f"sharded {name}"):
        assert same_zeros(alone, fitted)
        assert largest_difference(alone, fitted) < 1e-6


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("method", METHODS)
def test_zeros_stay_and_only_events_add_some(each: list[Results], method: str, scope: str) -> None:
    for fitted, saw in result(each, f"sharded {method}, {scope}"):
        by_step = [sum(n for name, n in zeros.items() if name.endswith("weight")) for zeros in saw["seen"]]
        assert len(by_step) == 16
        assert by_step == [by_step[4 * (step // 4)] for step in range(16)]
        assert by_step[0] == 0 < by_step[4] < by_step[8] == by_step[12] == dead(fitted)
        assert fitted["plain"]
        assert fitted["classes"] == PLAIN
        assert saw["names"] == set(fitted["parameters"])


def test_each_rank_holds_the_mask_of_its_rows(each: list[Results]) -> None:
    ranks = len(each)
    held = [saw["rows"] for _, saw in result(each, "sharded l1_unstructured, global")]
    for name, total in (("first", 17), ("second", 6), ("last", 3)):
        assert [of_rank[name] for of_rank in held] == rows(total, ranks)


def test_weight_decay_momentum_and_clipping(each: list[Results], tmp_path: Path) -> None:
    model = Mlp()
    model.make = partial(torch.optim.AdamW, lr=0.02, weight_decay=0.1)  # type: ignore[assignment]
    alone = fit(tmp_path, model, callback(), gradient_clip_val=0.05)
    for fitted in result(each, "adam"):
        assert same_zeros(alone, fitted)
        assert largest_difference(alone, fitted) < 1e-5  # Adam divides by square roots of tiny numbers


def test_a_method_of_the_user(each: list[Results], tmp_path: Path) -> None:
    alone = fit(tmp_path, Mlp(), PruningCallback(EveryThird, epochs=[1], verbose=False))
    for fitted in result(each, "by user"):
        assert dead(fitted) == 46 + 34 + 6
        assert largest_difference(alone, fitted) < 1e-6


def test_zeros_from_before_are_kept(each: list[Results], tmp_path: Path) -> None:
    model = Mlp()
    with torch.no_grad():
        model.first.weight[::2] = 0
    alone = fit(tmp_path, model, PruningCallback(keep_zeros=True, verbose=False))
    for fitted in result(each, "kept zeros"):
        assert dead(fitted) == 9 * 8
        assert largest_difference(alone, fitted) < 1e-6


def test_events_between_steps(each: list[Results], tmp_path: Path) -> None:
    plan = Linear(final=0.6, begin=3, end=11, every=2, unit="step")
    alone = fit(tmp_path, Mlp(), PruningCallback(schedule=plan, scope="global", verbose=False))
    for fitted in result(each, "steps"):
        assert same_zeros(alone, fitted)
        assert largest_difference(alone, fitted) < 1e-6


@pytest.mark.parametrize("method", ["l1_unstructured", "random_unstructured"])
@pytest.mark.parametrize("kind", ["full", "distributed"])
def test_resumed_is_bit_equal(each: list[Results], kind: str, method: str) -> None:
    straight = result(each, f"straight {method}")[0]
    for path, fitted in result(each, f"resumed {kind} {method}"):
        assert path.is_dir() == (kind == "distributed")
        assert largest_difference(straight, fitted) == 0
        assert dead(fitted) == 154


@pytest.mark.parametrize("kind", ["full", "distributed"])
def test_resumed_on_three_ranks(two: list[Results], three: list[Results], kind: str) -> None:
    straight = result(two, "straight l1_unstructured")[0]
    for fitted in result(three, f"elsewhere {kind}"):
        assert same_zeros(straight, fitted)
        assert largest_difference(straight, fitted) < 1e-5


def test_resumed_in_one_process(two: list[Results], tmp_path: Path) -> None:
    path = result(two, "resumed full l1_unstructured")[0][0]
    saved = torch.load(path, weights_only=True)["state_dict"]
    assert {name: tuple(value.shape) for name, value in saved.items()} == {
        name: tuple(value.shape) for name, value in Mlp().state_dict().items()
    }
    assert sum(int((value == 0).sum()) for name, value in saved.items() if name.endswith("weight")) == 77
    fitted = fit(tmp_path, Mlp(adam=True), callback(), ckpt_path=path)
    straight = result(two, "straight l1_unstructured")[0]
    assert same_zeros(straight, fitted)
    assert largest_difference(straight, fitted) < 1e-5


def test_steps_send_no_more_than_dense_ones(each: list[Results]) -> None:
    for dense, pruned in result(each, "sent by shards"):
        assert dense == pruned
        assert min(dense) > 4 * 256


def test_replicas_are_counted_once(each: list[Results], tmp_path: Path) -> None:
    alone = fit(tmp_path, Mlp(), callback())
    for fitted in result(each, "replicated"):
        assert same_zeros(alone, fitted)
        assert largest_difference(alone, fitted) < 1e-6


def test_a_replica_that_differs_is_caught_by_name(each: list[Results]) -> None:
    for message in result(each, "disturbed"):
        assert "the masks of 1 of 3 tensors differ between the ranks: second.weight." in message


def test_an_exception_leaves_a_plain_model(each: list[Results]) -> None:
    for fitted, saved in result(each, "exception"):
        assert fitted["plain"]
        assert fitted["classes"] == PLAIN
        assert dead(fitted) == 77
        assert saved["events"] == 2  # put together when they are asked for, since other ranks might not be there


def test_what_cannot_be_pruned_in_parts_is_refused(each: list[Results]) -> None:
    for coupled, *criteria in result(each, "refused in parts"):
        assert 'groups="dependency" is not there for sharded models' in coupled
        names = ("Activation needs whole tensors", "GraSP", "SynFlow", "SNIP(loss=...)")
        for message, name in zip(criteria, names, strict=True):
            assert message.startswith("'first.weight' is s")
            assert name in message
            assert "use 'ddp'" in message
