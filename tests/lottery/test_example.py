"""The example finds a ticket among scikit-learn's digits."""

from __future__ import annotations

import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import matplotlib
import pytest

from tests.idx import write_idx_folder
from tests.reader import Screen

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"


def test_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    matplotlib.use("Agg")
    monkeypatch.syspath_prepend(str(EXAMPLES))
    options = ["--rounds", "1", "--steps", "100", "--rewind", "5", "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["lottery_ticket.py", *options])
    screen = Screen()
    monkeypatch.setattr(sys, "stderr", screen)
    runpy.run_path(str(EXAMPLES / "lottery_ticket.py"), run_name="__main__")
    told = [line.partition(", about ") for line in screen.getvalue().splitlines() if "lottery ticket" in line]
    assert [line for line, *_ in told] == [
        "lottery ticket: 1 of 3, seed 0, level 0 of 1, dense",
        "lottery ticket: 2 of 3, seed 0, level 1 of 1, ticket",
        "lottery ticket: 3 of 3, seed 0, level 1 of 1, reinit",
    ]
    assert [left.endswith(" left") for *_, left in told] == [False, True, True]
    left = (64 * 300 + 300 * 100) * 0.8 + 1000 * 0.9  # the output layer at half the rate
    rows = [line.split(",") for line in (tmp_path / "results.csv").read_text().splitlines()[1:]]
    assert [float(row[4]) for row in rows] == [50_200, left, left]
    assert all(float(row[6]) > 0.9 for row in rows)
    assert (tmp_path / "accuracy.png").stat().st_size > 10_000


def test_the_command_of_the_guide_takes_a_folder(tmp_path: Path) -> None:
    (command,) = re.findall(
        r"^python .*lottery_ticket\.py --data .*$", (ROOT / "docs" / "lottery-tickets.md").read_text(), re.M
    )
    small = {
        "python": sys.executable,
        "mnist": str(write_idx_folder(tmp_path / "idx")),
        "15": "1",
        "2000": "3",
        "3": "2",
    }
    words = [small.get(word, word) for word in shlex.split(command)]
    out = tmp_path / "out"
    done = subprocess.run([*words, "--out", str(out)], cwd=ROOT, capture_output=True, text=True, check=True)
    rows = [line.split(",")[:3] for line in (out / "results.csv").read_text().splitlines()[1:]]
    assert rows == [[str(int(arm != "dense")), arm, seed] for seed in "01" for arm in ("dense", "ticket", "reinit")]
    assert "80.04%" in done.stdout
