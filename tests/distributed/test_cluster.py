"""Runs that a batch system puts back into its queue, or of which a rank is killed, within an event."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
import torch

from tests.distributed.cluster import JOB, plan
from tests.distributed.launch import run
from tests.distributed.models import Mlp, dead, fit, largest_difference
from tests.distributed.test_sharded import same_zeros


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[tuple[int, str]]]:
    """What two ranks left behind, of which the second was killed at last."""
    folder = tmp_path_factory.mktemp("cluster")
    return folder, run(2, "tests.distributed.cluster", folder)


def test_a_job_that_is_put_back_goes_on(ended: tuple[Path, list[tuple[int, str]]]) -> None:
    """After a batch to the last bit; within an event as from a save there, after which Lightning skips batches."""
    folder, _ = ended
    for rank in range(2):
        found = torch.load(folder / f"put-back-{rank}.pt")
        for way in ("within", "after", "after, rest"):
            assert largest_difference(found["straight"], found[way]) == 0
        assert largest_difference(found["by hand"], found["within, rest"]) == 0
        assert dead(found["straight"]) == dead(found["by hand"]) == 77 + 54
        assert found["events"] == 1  # the other one was done before
    assert (folder / "asked").read_text() == f"requeue {JOB}\n" * 2


def test_the_others_end_when_a_rank_is_killed(ended: tuple[Path, list[tuple[int, str]]], tmp_path: Path) -> None:
    folder, ((first, text), (second, _)) = ended
    assert second == -signal.SIGKILL
    assert first == 1, text[-4000:]
    name, classes = torch.load(folder / "left.pt")
    assert name == "RuntimeError"
    assert classes == ["FSDPSharded", *["FSDPLinear"] * 3]
    fitted = fit(tmp_path, Mlp(adam=True), plan(), ckpt_path=folder / "epoch=1.ckpt")
    straight = fit(tmp_path, Mlp(adam=True), plan())
    assert dead(fitted) == 77 + 54
    assert same_zeros(straight, fitted)
    assert largest_difference(straight, fitted) < 1e-5
