"""Work that takes long says on a terminal how far it is."""

from __future__ import annotations

import io

import pytest
import torch
from torch import nn

from lightning_prune import OneShot, Pruning, SynFlow
from lightning_prune.prune.progress import Progress
from tests.reader import Screen


def run(file: io.StringIO, seconds: list[float]) -> list[str]:
    clock = iter(seconds).__next__
    with Progress("timing layers", len(seconds), file=file, clock=clock) as progress:
        for i in range(len(seconds)):
            progress.at(i, f"layer {i}")
    return file.getvalue().replace("\x1b[K", "").split("\r")


def test_one_line_is_written_over_and_cleared() -> None:
    assert run(Screen(), [0.0, 0.5, 2.0, 2.05, 4.0]) == [
        "",
        "timing layers: 3 of 5, layer 2, about 0:00:03 left",
        "timing layers: 5 of 5, layer 4, about 0:00:01 left",
        "",
    ]


def test_short_work_says_nothing() -> None:
    assert run(Screen(), [0.0, 0.3, 0.9]) == [""]


def test_nothing_is_said_where_there_is_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(io.StringIO(), [0.0, 5.0]) == [""]
    monkeypatch.setenv("RANK", "1")
    assert run(Screen(), [0.0, 5.0]) == [""]


def test_time_left_counts_from_the_first_part_that_was_not_done_before() -> None:
    screen = Screen()
    progress = Progress("networks", 10, lines=True, file=screen, clock=iter([100.0, 110.0]).__next__)
    progress.at(6)
    progress.at(7)
    assert screen.getvalue().splitlines() == ["networks: 7 of 10", "networks: 8 of 10, about 0:00:30 left"]


def test_rounds_of_an_event_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lightning_prune.prune.progress._AFTER", 0.0)
    monkeypatch.setattr("lightning_prune.prune.progress._EVERY", 0.0)
    monkeypatch.setattr("sys.stderr", screen := Screen())
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    criterion = SynFlow(rounds=4, example_inputs=torch.zeros(1, 8))
    with Pruning(model, schedule=OneShot(0.5), criterion=criterion, verbose=False) as pruning:
        pruning.start_epoch(0)
    assert pruning.sparsity == 0.5
    assert screen.getvalue().count("rounds of SynFlow: ") == 3
    assert "rounds of SynFlow: 3 of 4, about 0:00:00 left" in screen.getvalue()
