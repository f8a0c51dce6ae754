"""The benchmarks run and call what their tables say; how fast anything is, they print and no test asks."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.utils.prune as torch_prune
from torch import nn

import lightning_prune.prune
from lightning_prune.fit.run import PruningRun
from tests.benchmarks import criteria, events, fits, functions, updates

ROOT = Path(__file__).parents[1]
SPEED = (ROOT / "docs" / "speed.md").read_text()


def calls_of_the_tables() -> list[str]:
    """What the first columns of the tables say was called."""
    found = re.findall(r"^\| `((?:prune\.|PruningCallback\()[^`]*)` \|", SPEED, re.M)
    return list(dict.fromkeys(found))


def test_the_command_of_the_readme_prints_a_table() -> None:
    (command,) = re.findall(r"^python -m tests\.benchmarks$", (ROOT / "docs/results.md").read_text(), re.M)
    words = [sys.executable, *shlex.split(command)[1:], "--quick", "events"]
    printed = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert [row.split("`")[1] for row in printed.splitlines() if row.startswith("| `Pruning") and "first" in row] == [
        *events.CALLS
    ]


def test_the_command_for_several_devices_prints_a_row_for_each_event() -> None:
    (command,) = re.findall(r"python -m tests\.benchmarks\.distributed", (ROOT / "docs/devices.md").read_text())
    words = [sys.executable, *shlex.split(command)[1:], "--width", "64"]
    printed = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    rows = [line.split(" | ") for line in printed.splitlines() if line.startswith("| l1") or "checkpoint" in line]
    assert [row[0].removeprefix("| ") for row in rows] == [
        *("l1_unstructured, global", "l1_unstructured, local", "masks for a checkpoint")
    ]
    assert [row[-1] for row in rows[:2]] == ["0.0 |", "0.0 |"]


def test_the_tables_say_what_the_benchmarks_call() -> None:
    assert sorted(calls_of_the_tables()) == sorted(
        [*{*events.CALLS, *criteria.CALLS}, *functions.CALLS, *functions.MANY, *updates.CALLS]
    )


@pytest.mark.parametrize("call", functions.CALLS)
@pytest.mark.parametrize("package", [lightning_prune.prune, torch_prune], ids=["ours", "torch"])
def test_a_function_is_called_as_the_table_says(call: str, package: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    name = call.removeprefix("prune.").split("(")[0]
    called: list[dict[str, Any]] = []
    function = getattr(package, name)

    def noting(*given: Any, **named: Any) -> Any:
        called.append(named)
        return function(*given, **named)

    monkeypatch.setattr(package, name, noting)
    weights = [torch.randn(10, 10) for _ in range(3)]
    modules = functions.made(package, weights, None)
    functions.run(call, package, modules)
    assert len(called) == (1 if call in functions.TOGETHER else 3)
    assert all(named["amount"] == 0.2 for named in called)
    assert sum(int((module.weight_mask == 0).sum()) for module in modules) == 60


@pytest.mark.parametrize("call", events.CALLS)
def test_events_are_those_of_the_callback(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pruned: list[float] = []
    prune = PruningRun.prune

    def noting(run: PruningRun, *given: Any) -> Any:
        event = prune(run, *given)
        pruned.append(event.sparsity)
        return event

    monkeypatch.setattr(PruningRun, "prune", noting)
    found = events.fit(call, 100_000 * events.LAYERS)
    assert len(found.event) == len(found.hook) == len(found.one_pass) == len(events.EPOCHS) == len(pruned)
    assert pruned[0] == pytest.approx(0.2, abs=0.01)
    assert pruned[-1] == pytest.approx(1 - 0.8**11, abs=0.06)


@pytest.mark.parametrize("way", [way for way in fits.WAYS if way != "without"])
def test_whole_fits_prune_ten_times(way: str) -> None:
    workload = fits.MLP_60._replace(make=lambda: nn.Sequential(nn.Linear(784, 4)))
    module = fits.Task(workload, 1)
    callbacks = fits.WAYS[way](module)
    events.trainer(callbacks=callbacks, max_epochs=fits.EPOCHS).fit(module)
    zeros = float((module.model[0].weight == 0).float().mean())
    assert zeros == pytest.approx(1 - 0.8**10, abs=0.01)
