"""Every snippet and command of the README does what the README says."""

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import lightning as L
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn

from tests.reader import ROOT, TOTAL, Check, MyModel, Names, blocks, names_of, quiet, text, zeros

README = text("README.md")


@pytest.fixture
def names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Names:
    monkeypatch.chdir(tmp_path)
    return names_of("README.md")


def gradual_fit(names: Names, run: Callable[[], None]) -> None:
    run()
    assert sum(zeros(names["model"]).values()) == round(0.9 * TOTAL)
    assert type(names["model"]) is MyModel
    assert type(names["model"].head) is nn.Linear
    without = "import sys, torch; sys.modules['lightning_prune'] = None; torch.load('pruned.ckpt', weights_only=True)"
    subprocess.run([sys.executable, "-c", without], check=True)


def plain_checkpoint(names: Names, run: Callable[[], None]) -> None:
    exec(blocks("README.md", "python")[0], names)
    run()
    assert zeros(names["plain"]) == zeros(names["model"])
    expected = names["model"].state_dict()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in names["plain"].state_dict().items())


def resuming(names: Names, run: Callable[[], None]) -> None:
    exec(blocks("README.md", "python")[0].split("trainer =")[0], names)
    saving = ModelCheckpoint(".", "{epoch}", save_top_k=-1)
    whole = MyModel()
    options = {**quiet(), "enable_checkpointing": True}
    trainer = L.Trainer(max_epochs=30, callbacks=[names["pruning"], saving], **options)
    trainer.fit(whole, names["datamodule"])
    Path("epoch=9.ckpt").rename("last.ckpt")
    exec(blocks("README.md", "python")[0].split("trainer =")[0], names)
    run()
    resumed = names["model"].state_dict()
    assert all(torch.equal(tensor, resumed[name]) for name, tensor in whole.state_dict().items())


CHECKS = [gradual_fit, plain_checkpoint, resuming]  # one for each python block of the README, in their order


@pytest.mark.parametrize(
    ("block", "check"),
    [*zip(blocks("README.md", "python"), CHECKS, strict=True)],
    ids=[check.__name__ for check in CHECKS],
)
def test_snippet(block: str, check: Check, names: Names):
    check(names, lambda: exec(compile(block, "README.md", "exec"), names))


def test_the_readme_is_short():
    assert len(README.splitlines()) <= 200


def test_the_two_commands_are_what_ci_runs():
    listed = subprocess.run(["bash", str(ROOT / ".ci/run"), "--list"], capture_output=True, text=True, check=True)
    main_job, tests = listed.stdout.splitlines()
    assert [f"{main_job}\n", f"{tests}\n"] == blocks("README.md", "bash")
    assert main_job.endswith('pip install -e ".[examples]" && python examples/digits.py')
    assert tests.endswith('pip install -e ".[test]" && python -m pytest -n 2')


def test_every_link_leads_somewhere():
    links = [link.split("#")[0] for link in re.findall(r"\]\((\S+)\)", README)]
    pictures = [link for link in links if link.endswith(".png")]
    assert len(links) > 12
    assert len(pictures) == 1
    assert (ROOT / pictures[0]).read_bytes()[:4] == b"\x89PNG"
    assert [link for link in links if not (ROOT / link).is_file()] == []
