"""Rows as text, as a file, as a rich table and as a picture."""

from __future__ import annotations

import csv
import io
import itertools
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.pyplot as plt
import pytest
from rich.console import Console

from lightning_prune import LotteryResults, LotteryRow


def row(level: int, arm: str, seed: int, accuracy: float, step: int | None) -> LotteryRow:
    left = [200, 100, 20][level]
    metrics = {"accuracy": accuracy, "loss": 1 - accuracy}
    return LotteryRow(level, arm, seed, left / 200, left, step, metrics, f"{level}/{arm}/model.ckpt", "mask.pt")


RESULTS = LotteryResults(
    [
        row(0, "dense", 0, 0.90, 600),
        row(1, "ticket", 0, 0.92, 400),
        row(1, "reinit", 0, 0.85, 700),
        row(2, "ticket", 0, 0.91, None),
        row(2, "reinit", 0, 0.5, 700),
        row(0, "dense", 1, 0.92, 601),
        row(1, "ticket", 1, 0.96, 420),
        row(1, "reinit", 1, 0.85, 700),
    ]
)


@pytest.fixture(autouse=True)
def _no_windows() -> Iterator[None]:
    matplotlib.use("Agg")
    yield
    plt.close("all")


def test_text() -> None:
    assert str(RESULTS).splitlines() == [
        "accuracy (mean and standard deviation over seeds)",
        "level  weights remaining            dense           ticket           reinit",
        "    0            100.00%  0.9100 ± 0.0141",
        "    1             50.00%                   0.9400 ± 0.0283  0.8500 ± 0.0000",
        "    2             10.00%                            0.9100           0.5000",
    ]


def test_text_of_steps() -> None:
    assert RESULTS.text("early_stopping_step").splitlines()[2:] == [
        "    0            100.00%  600 ± 1",
        "    1             50.00%           410 ± 14  700 ± 0",
        "    2             10.00%                         700",
    ]


def test_networks_whose_test_logs_nothing_are_shown_by_their_steps() -> None:
    rows = [LotteryRow(0, "dense", 0, 1.0, 100, 60), LotteryRow(1, "ticket", 0, 0.5, 50, 40)]
    results = LotteryResults(rows)
    assert str(results) == results.text("early_stopping_step")
    assert results._repr_html_().count("<tr") == 3


def test_rich_table_says_the_same() -> None:
    console = Console(file=io.StringIO(), width=120, force_terminal=False)
    console.print(RESULTS)
    printed = console.file.getvalue()  # type: ignore[attr-defined]
    words = [word for line in str(RESULTS).splitlines()[1:] for word in line.split()]
    assert all(word in printed for word in words)


def test_csv(tmp_path: Path) -> None:
    file = tmp_path / "results.csv"
    file.write_text("old")
    RESULTS.to_csv(file)
    assert [path.name for path in tmp_path.iterdir()] == ["results.csv"]
    with file.open(newline="") as opened:
        rows = list(csv.DictReader(opened))
    assert len(rows) == 8
    assert rows[1] == {
        "level": "1",
        "arm": "ticket",
        "seed": "0",
        "remaining": "0.5",
        "weights": "100",
        "early_stopping_step": "400",
        "accuracy": "0.92",
        "loss": repr(1 - 0.92),
        "checkpoint": "1/ticket/model.ckpt",
        "mask": "mask.pt",
    }
    assert rows[3]["early_stopping_step"] == ""


def lines(ax: Any) -> dict[str, Any]:
    handles, labels = ax.get_legend_handles_labels()
    return {label: handle[0].get_xydata().tolist() for label, handle in zip(labels, handles, strict=True)}


def test_plot() -> None:
    figure, ax = RESULTS.plot()
    assert ax.figure is figure
    assert (ax.get_xscale(), ax.get_xlabel(), ax.get_ylabel()) == ("log", "weights remaining [%]", "accuracy")
    left, right = ax.get_xlim()
    assert left > right
    assert [tick.get_text() for tick in ax.get_xticklabels()] == ["100", "50", "10"]
    assert lines(ax) == {
        "ticket": [[100.0, 0.91], [50.0, 0.94], [10.0, 0.91]],
        "reinit": [[100.0, 0.91], [50.0, 0.85], [10.0, 0.5]],
    }
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["ticket", "reinit"]
    colors = [handle[0].get_color() for handle in ax.get_legend_handles_labels()[0]]
    markers = [handle[0].get_marker() for handle in ax.get_legend_handles_labels()[0]]
    assert len(set(colors)) == len(set(markers)) == 2


def test_plot_of_steps_on_a_given_axis() -> None:
    given = plt.figure().subplots()
    _, ax = RESULTS.plot("early_stopping_step", ax=given)
    assert ax is given
    assert ax.get_ylabel() == "early stopping step"
    assert lines(ax)["ticket"] == [[100.0, 600.5], [50.0, 410.0]]


def test_plot_of_the_dense_network_alone() -> None:
    _, ax = LotteryResults(RESULTS.rows[:1]).plot()
    assert lines(ax) == {"dense": [[100.0, 0.9]]}


def test_many_levels_have_readable_ticks() -> None:
    rows = [LotteryRow(i, "ticket" if i else "dense", 0, 0.8**i, 1, None, {"accuracy": 0.9}) for i in range(16)]
    figure, ax = LotteryResults(rows).plot()
    figure.canvas.draw()
    boxes = [tick.get_window_extent() for tick in ax.get_xticklabels()]
    assert len(boxes) == 8
    assert all(a.x1 < b.x0 for a, b in itertools.pairwise(boxes))
    assert [tick.get_text() for tick in ax.get_xticklabels()][:3] == ["100", "64", "41"]
    assert ax.get_xticks(minor=True).tolist() == []


def test_plot_without_matplotlib_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'lightning-prune\[plot\]'"):
        RESULTS.plot()


@pytest.mark.parametrize("show", ["text", "table", "plot"])
def test_unknown_metric(show: str) -> None:
    with pytest.raises(ValueError, match="'acc' is unknown; known are accuracy, loss, early_stopping_step"):
        getattr(RESULTS, show)("acc")


def test_results_are_read_from_their_file(tmp_path: Path) -> None:
    dense = LotteryRow(0, "dense", 3, 1.0, 100, 60, {"accuracy": 0.9, "loss": 0.1}, "a/model.ckpt", "a/mask.pt")
    results = LotteryResults([dense, LotteryRow(1, "ticket", 3, 0.8, 80, None, {"accuracy": 1 / 3})])
    results.to_csv(tmp_path / "results.csv")
    assert LotteryResults.read_csv(tmp_path / "results.csv") == LotteryResults.read_csv(tmp_path) == results
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    with pytest.raises(ValueError, match="has no results of an experiment; its columns are a, b"):
        LotteryResults.read_csv(tmp_path / "other.csv")
    assert "<td>0.9000</td>" in results._repr_html_()
