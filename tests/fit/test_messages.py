"""What a fit says: how much of it, and where it is written."""

import io
import logging
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from rich.file_proxy import FileProxy

import lightning_prune.prune.printing as printing
from lightning_prune import PruningCallback
from tests.expected import ENDED_EARLY, FEW_SELECTED
from tests.models import net, trainer

pytestmark = [FEW_SELECTED, ENDED_EARLY]


def fit(root: Path, pruning: PruningCallback) -> None:
    trainer(root, pruning, epochs=2).fit(net())


def told(root: Path, caplog: Any, capsys: Any, verbose: Any) -> tuple[list[int], int]:
    """How many lines each message of a fit with two events has, and how many are printed."""
    with caplog.at_level(logging.INFO, "lightning.pytorch.utilities.rank_zero"):
        fit(root, PruningCallback(amount=0.3, epochs=[0, 1], verbose=verbose))
    messages = [record.getMessage() for record in caplog.records if "prun" in record.getMessage()]
    return [len(message.splitlines()) for message in messages], len(capsys.readouterr().out.splitlines())


def test_a_table_a_line_each_or_nothing(tmp_path: Path, caplog: Any, capsys: Any) -> None:
    lines, printed = told(tmp_path, caplog, capsys, "table")
    assert (lines, printed > 3) == ([2, 1, 1], True)
    caplog.clear()
    assert told(tmp_path, caplog, capsys, True) == (lines, printed)
    caplog.clear()
    assert told(tmp_path, caplog, capsys, "line") == ([1, 1, 1, 1], 0)
    caplog.clear()
    assert told(tmp_path, caplog, capsys, False) == ([], 0)


def test_other_words_are_refused() -> None:
    with pytest.raises(ValueError, match=r"verbose='lines': give \"table\" \(or True\), \"line\" or False"):
        PruningCallback(verbose="lines")  # type: ignore[arg-type]


def test_a_policy_of_ones_own_is_named(tmp_path: Path, caplog: Any, capsys: Any) -> None:
    class Patient(PruningCallback):
        def due(self, trainer: Any, time: int) -> Any:
            return super().due(trainer, time) if time == 1 else []

    with caplog.at_level(logging.INFO, "lightning.pytorch.utilities.rank_zero"):
        fit(tmp_path, Patient(amount=0.3, epochs=[0, 1], verbose="line"))
    assert sum("Patient.due" in record.getMessage() for record in caplog.records) == 1


def test_what_is_said_above_a_bar_of_rich_begins_on_a_line_of_its_own(
    tmp_path: Path, caplog: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    below = io.StringIO()
    monkeypatch.setattr(sys, "stderr", FileProxy(Console(file=io.StringIO()), below))
    assert printing.covered(sys.stderr) is below
    assert printing.covered(below) is None
    with caplog.at_level(logging.INFO, "lightning.pytorch.utilities.rank_zero"):
        fit(tmp_path, PruningCallback(amount=0.3, epochs=[0, 1], verbose="line"))
    assert below.getvalue().count("\r\x1b[2K") == 4
