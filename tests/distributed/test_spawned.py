"""Strategies that fit in child processes: the parent's model comes out pruned and plain."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.distributed.launch import ROOT
from tests.distributed.models import Fitted, Mlp, dead, fit, largest_difference, weights
from tests.distributed.spawned import STRATEGIES
from tests.distributed.workers_ddp import pruning


@pytest.fixture(scope="module")
def spawned(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Fitted]:
    folder = tmp_path_factory.mktemp("spawned")
    command = [sys.executable, "-W", "ignore", "-m", "tests.distributed.spawned", str(folder)]
    subprocess.run(command, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=True, timeout=300)
    results: dict[str, Fitted] = torch.load(folder / "spawned.pt")
    return results


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_parent_gets_the_pruned_model(spawned: dict[str, Fitted], tmp_path: Path, strategy: str) -> None:
    alone = fit(tmp_path, Mlp(), pruning())
    assert largest_difference(alone, spawned[strategy]) < 1e-6
    assert dead(spawned[strategy]) == 154
    assert spawned[strategy]["plain"]
    assert spawned[strategy]["classes"] == ["Mlp", "Linear", "Linear", "Linear"]


def test_a_second_fit_goes_on_with_the_zeros(spawned: dict[str, Fitted]) -> None:
    assert dead(spawned["again"]) == 154 + 51
    for name, weight in weights(spawned["ddp_spawn"]).items():
        assert bool((spawned["again"]["parameters"][name][weight == 0] == 0).all())
