"""Previews: what a plan would do, without a Trainer."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from lightning_prune import Constant, Cubic, Linear, PruningCallback
from tests.models import DigitsNet, Recorder, is_plain, net, trainer


def test_preview_equals_the_fit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    callback = Recorder(schedule=Cubic(final=0.8, end=3), scope="erk")
    model = net()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    table = callback.preview(model)
    assert is_plain(model)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert str(table) in capsys.readouterr().out
    trainer(tmp_path, callback, epochs=4).fit(model)
    assert [sum(row.zeros[i] for row in table.rows) for i in range(4)] == [event[-1] for event in callback.seen]
    assert {row.name: row.zeros[-1] for row in table.rows} == {
        name: int((model.get_parameter(name) == 0).sum()) for name in ("first.weight", "last.weight")
    }
    assert table.times == (0, 1, 2, 3)
    assert table.sparsities[-1] == 141 / 176


def test_preview_of_amounts_and_channels() -> None:
    table = PruningCallback("ln_structured", 0.5, epochs=[2, 4], parameters="first").preview(net())
    assert [(row.name, row.shape, row.weights, row.zeros) for row in table.rows] == [
        ("first.weight", (16, 8), 128, (64, 96))
    ]
    assert table.unit == "epoch"


def test_preview_of_plans_without_an_end_needs_a_total() -> None:
    with pytest.raises(ValueError, match="give total="):
        PruningCallback(amount=0.5).preview(net())
    assert PruningCallback(schedule=Constant(final=0.5, begin=1)).preview(net()).times == (1,)
    assert PruningCallback(amount=0.5).preview(net(), total=2).sparsities == (0.5, 0.75)
    fractions = PruningCallback(schedule=Linear(final=0.5, begin=0.1, end=0.9, every=4, unit="fraction"))
    assert fractions.preview(DigitsNet(), total=10).times == (1, 5, 9)
    with pytest.raises(ValueError, match="give total="):
        fractions.preview(net())


def test_preview_shows_twelve_of_many_events() -> None:
    text = str(PruningCallback(schedule=Linear(final=0.9, end=99)).preview(net()))
    assert len(text.splitlines()) == 5
    assert text.splitlines()[0].count("epoch") == 12
    assert "epoch 0 " in text
    assert text.splitlines()[0].endswith("epoch 99")
    assert text.splitlines()[-1].endswith("0.898")


def test_a_tensor_without_data_is_named() -> None:
    with pytest.raises(ValueError, match="'weight' is on the meta device and has no data"):
        PruningCallback(amount=0.5, epochs=[0]).preview(nn.Linear(2, 2, device="meta"))
