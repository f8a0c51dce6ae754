"""Coupled channels in a fit: what is masked can be cut, whatever trains, and what cannot work is said at the start."""

import sys
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_prune import Budget, Linear, OneShot, PruningCallback, export
from lightning_prune.pruner.calling import difference, outputs
from tests.channel_models import Residual
from tests.models import trainer, zeros


class Small(L.LightningModule):
    """A stem and a residual block with batch norms: 3 * 9 * 6 + 2 * 36 * 9 + 6 * 4 = 834 weights in kernels."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU())
        self.block = Residual(6, 6, 1)
        self.head = nn.Linear(6, 4)
        self.example_input_array = torch.zeros(1, 3, 8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.block(self.stem(x)).mean(dim=(2, 3)))

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return nn.functional.cross_entropy(self(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=0.01, weight_decay=0.1)

    def train_dataloader(self) -> DataLoader[Any]:
        x = torch.randn(16, 3, 8, 8, generator=torch.Generator().manual_seed(0))
        return DataLoader(TensorDataset(x, torch.arange(16) % 4), batch_size=4)


def small() -> Small:
    torch.manual_seed(0)
    return Small()


def coupled(**more: Any) -> PruningCallback:
    settings: dict[str, Any] = {"method": "ln_structured", "groups": "dependency", "verbose": False}
    return PruningCallback(**{**settings, "schedule": Linear(final=0.5, end=2), **more})


@pytest.mark.parametrize("scope", ["local", "global"])
@pytest.mark.parametrize("enforce", ["in_place", "read"])
@pytest.mark.parametrize("method", ["ln_structured", "random_structured"])
def test_what_a_fit_masks_can_be_cut(tmp_path: Path, method: str, enforce: Any, scope: Any):
    model = small()
    trainer(tmp_path, coupled(method=method, enforce=enforce, scope=scope, seed=1), epochs=4).fit(model)
    assert abs(zeros(model) / 834 - 0.5) < 0.06
    dead = int((model.stem[0].weight == 0).flatten(1).all(dim=1).sum())
    inner = int((model.block.conv1.weight == 0).flatten(1).all(dim=1).sum())
    assert dead + inner > 0
    assert int((model.stem[1].bias == 0).sum()) == int((model.block.bn2.weight == 0).sum()) == dead
    assert int((model.block.bn1.bias == 0).sum()) == inner
    small_one, report = export.shrink(model)
    assert report.removed == dead + inner
    x = torch.randn(2, 3, 8, 8)
    assert difference(outputs(model.eval(), x), outputs(small_one.eval(), x)) <= 1e-5


def test_both_kinds_of_enforcement_are_the_same_to_the_bit(tmp_path: Path):
    models = [small(), small()]
    for model, enforce in zip(models, ("in_place", "read"), strict=True):
        trainer(tmp_path, coupled(enforce=enforce), epochs=4).fit(model)
    one, other = (m.state_dict() for m in models)
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_pruned_checkpoint_alone_is_enough_to_shrink(tmp_path: Path):
    model = small()
    fit = trainer(tmp_path, coupled(), epochs=4)
    fit.fit(model)
    fit.save_checkpoint(tmp_path / "pruned.ckpt")
    plain = small()
    plain.load_state_dict(torch.load(tmp_path / "pruned.ckpt", weights_only=True)["state_dict"])
    assert export.shrink(plain)[1].channels == export.shrink(model)[1].channels
    export.save(export.shrink(plain)[0], tmp_path / "small.safetensors")
    loaded = export.load(Small(), tmp_path / "small.safetensors")
    trainer(tmp_path, epochs=1).fit(loaded)  # trains on


def test_a_second_fit_goes_on_from_the_channels_of_the_first(tmp_path: Path):
    model = small()
    callback = coupled(schedule=OneShot(0.3))
    trainer(tmp_path, callback, epochs=1).fit(model)
    first = {name: mask.clone() for name, mask in callback.masks.items()}
    trainer(tmp_path, callback, epochs=1).fit(model)
    assert all(torch.equal(mask, first[name]) for name, mask in callback.masks.items())
    assert {"stem.0.bias", "stem.1.weight", "block.bn2.bias"} <= set(first)


def test_kept_zeros_leave_biases_that_begin_at_zero_alone(tmp_path: Path):
    model = small()
    with torch.no_grad():
        model.block.conv1.weight[0] = 0
    trainer(tmp_path, coupled(schedule=OneShot(0.3, begin=1), keep_zeros=True), epochs=2).fit(model)
    assert int((model.block.conv1.weight[0] == 0).sum()) == 54
    assert abs(zeros(model) / 834 - 0.3) < 0.08
    assert int((model.block.bn1.bias != 0).sum()) >= 3


def test_preview_counts_the_same_as_the_fit(tmp_path: Path):
    model, callback = small(), coupled()
    table = callback.preview(model)
    trainer(tmp_path, callback, epochs=4).fit(model)
    assert sum(row.zeros[-1] for row in table.rows) == zeros(model)
    assert [row.name for row in table.rows] == [
        *("stem.0.weight", "block.conv1.weight", "block.conv2.weight", "head.weight")
    ]


def test_an_override_keeps_the_channels_of_a_layer(tmp_path: Path):
    model = small()
    budget = Budget("local", overrides={"stem.0.weight": 0.0})
    trainer(tmp_path, coupled(scope=budget, schedule=OneShot(0.3)), epochs=1).fit(model)
    assert int((model.stem[0].weight == 0).sum()) == 0
    assert export.shrink(model)[1].channels["block.conv1"][1] < 6


def refused(tmp_path: Path, model: L.LightningModule, callback: PruningCallback, message: str) -> None:
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises((ValueError, ModuleNotFoundError), match=message):
        trainer(tmp_path, callback, epochs=4).fit(model)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_missing_inputs_are_said_at_the_start(tmp_path: Path):
    model = small()
    model.example_input_array = None
    refused(tmp_path, model, coupled(), "set example_input_array in the LightningModule")
    trainer(tmp_path, coupled(example_inputs=torch.zeros(1, 3, 8, 8)), epochs=4).fit(model)
    assert zeros(model) > 0


def test_wrong_inputs_and_data_dependence_are_said_at_the_start(tmp_path: Path):
    refused(tmp_path, small(), coupled(example_inputs=torch.zeros(1, 5)), "cannot be called with the example inputs")

    class Deciding(Small):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) if x.mean() < 3 else x

    refused(tmp_path, Deciding(), coupled(), r"forward of Deciding depends on data: at test_coupled_channels.py:\d+")


def test_a_missing_extra_is_said_at_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "torch_pruning", None)
    refused(tmp_path, small(), coupled(), r"pip install 'lightning-prune\[shrink\]'")


def test_targets_out_of_reach_are_said_at_the_start_in_channels(tmp_path: Path):
    budget = Budget("local", max_sparsity=0.5)
    refused(tmp_path, small(), coupled(scope=budget, schedule=Linear(final=0.9, end=2)), "with 6 of 12 channels pruned")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"groups": "all"}, "groups should be"),
        (
            {"groups": None, "method": "l1_unstructured", "example_inputs": torch.zeros(1)},
            'example_inputs= are for groups="dependency"',
        ),
        ({"frozen": "join"}, 'frozen="join" is not there for groups'),
    ],
)
def test_arguments_that_contradict_each_other_are_refused(arguments: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        coupled(**arguments)


def test_the_table_at_the_start_names_what_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    callback, told = coupled(verbose=True), []
    callback._say._tell = told.append  # type: ignore[method-assign]
    trainer(tmp_path, callback, epochs=4).fit(small())
    shown = told[0] + capsys.readouterr().out
    assert "12 coupled channels in 2 groups" in shown
    assert "left alone: head: they are outputs of the network" in shown
    assert "834" in shown
