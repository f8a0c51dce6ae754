"""An experiment in two processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import torch

from lightning_prune import LotteryRow, Rewind
from lightning_prune.lottery import read_mask
from tests.lottery.test_experiment import QUIET, STEPS, lottery
from tests.models import net, zeros

SCRIPT = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
import torch
torch.set_num_threads(1)
from tests.lottery.test_ddp import experiment
root = Path(sys.argv[1])
rows = experiment(root).run().rows
rank = torch.distributed.get_rank() if torch.distributed.is_initialized() else "alone"
(root / f"rows-{rank}").write_text(repr(rows))
"""


def experiment(root: Path):  # type: ignore[no-untyped-def]
    trainer = {**QUIET, "max_steps": STEPS, "strategy": "ddp", "devices": 2}
    controls = ["reinit", "random_mask", "finetune"]
    return lottery(root, trainer, rounds=2, rewind=Rewind(step=1), controls=controls)


def run(root: Path) -> None:
    script = root / "script.py"
    script.write_text(SCRIPT)
    command = [sys.executable, str(script), str(root), str(Path(__file__).parents[2])]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr


def test_two_processes_train_the_same_tickets(tmp_path: Path) -> None:
    run(tmp_path)
    one, other = ((tmp_path / f"rows-{rank}").read_text() for rank in (0, 1))
    assert one == other
    rows = eval(one, {"LotteryRow": LotteryRow})
    assert [row.weights for row in rows] == [176, *[140] * 4, *[112] * 4]
    for row in rows:
        model = net()
        checkpoint = torch.load(tmp_path / "lottery" / row.checkpoint, weights_only=True)
        model.load_state_dict(checkpoint["state_dict"])
        mask = read_mask(tmp_path / "lottery" / row.mask)
        assert all(torch.equal(model.get_parameter(name) != 0, kept) for name, kept in mask.items())
        assert zeros(model) == 176 - row.weights
        assert checkpoint["global_step"] == STEPS
    written = (tmp_path / "lottery/results.csv").read_bytes()
    run(tmp_path)
    assert (tmp_path / "rows-alone").read_text() == one  # everything is there, so nothing is started
    assert (tmp_path / "lottery/results.csv").read_bytes() == written
