"""Channels that a structured method of single tensors prunes give nothing: their bias goes with them."""

from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_prune import Budget, Linear, PruningCallback, report
from lightning_prune.prune import is_pruned
from tests.expected import ENDED_EARLY, FEW_SELECTED
from tests.models import trainer

pytestmark = [ENDED_EARLY, FEW_SELECTED]

WEIGHTS = ("conv.weight", "up.weight", "fc.weight")


class Layers(L.LightningModule):
    """A convolution, a transposed one in two groups, and two matrices; all with biases."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 6, 3)
        self.up = nn.ConvTranspose2d(6, 8, 2, groups=2)
        self.fc = nn.Linear(8, 4)
        self.out = nn.Linear(4, 3)
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.relu(self.fc(torch.relu(self.up(torch.relu(self.conv(x)))).mean(dim=(2, 3)))))

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return nn.functional.cross_entropy(self(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=0.01, weight_decay=0.1)

    def train_dataloader(self) -> DataLoader[Any]:
        x = torch.randn(16, 2, 5, 5, generator=torch.Generator().manual_seed(0))
        return DataLoader(TensorDataset(x, torch.arange(16) % 3), batch_size=4)


def layers() -> Layers:
    torch.manual_seed(0)
    return Layers()


def pruning(**more: Any) -> PruningCallback:
    settings: dict[str, Any] = {"method": "ln_structured", "schedule": Linear(final=0.5, end=2), "verbose": False}
    return PruningCallback(**{**settings, **more})


def dead_of(model: Layers) -> dict[str, list[bool]]:
    """Which outputs of each pruned layer have no weights but zeros."""
    return {
        "conv.bias": (model.conv.weight == 0).flatten(1).all(dim=1).tolist(),
        "up.bias": (model.up.weight == 0).all(dim=3).all(dim=2).all(dim=0).repeat(2).tolist(),
        "fc.bias": (model.fc.weight == 0).all(dim=1).tolist(),
    }


def zero_biases(model: Layers) -> dict[str, list[bool]]:
    return {name: (model.get_parameter(name) == 0).tolist() for name in ("conv.bias", "up.bias", "fc.bias")}


@pytest.mark.parametrize("enforce", ["in_place", "read"])
@pytest.mark.parametrize("method", ["ln_structured", "random_structured"])
def test_biases_of_dead_channels_are_zero_and_not_counted(tmp_path: Path, method: str, enforce: Any) -> None:
    model = layers()
    run = trainer(tmp_path, pruning(method=method, enforce=enforce, seed=0), epochs=4)
    run.fit(model)
    assert zero_biases(model) == dead_of(model)
    assert [sum(dead) for dead in dead_of(model).values()] == [3, 4, 2]
    assert float(run.callback_metrics["sparsity"]) == 0.5  # (3 * 18 + 2 * 24 + 2 * 8) / (108 + 96 + 32)
    assert int((model.out.bias == 0).sum()) == 0
    assert not is_pruned(model)
    assert type(model.conv.bias) is nn.Parameter
    rows = {row.name: row.dead_channels for row in report.summary(model).rows}
    assert [rows[name] for name in WEIGHTS] == [3, 2, 2]
    with torch.no_grad():
        assert (
            model.conv(torch.randn(4, 2, 5, 5)).abs().amax(dim=(0, 2, 3)).eq(0).tolist() == dead_of(model)["conv.bias"]
        )


def test_both_kinds_of_enforcement_are_the_same_to_the_bit(tmp_path: Path) -> None:
    models = [layers(), layers()]
    for model, enforce in zip(models, ("in_place", "read"), strict=True):
        trainer(tmp_path, pruning(enforce=enforce), epochs=4).fit(model)
    assert all(torch.equal(p, q) for p, q in zip(*(m.parameters() for m in models), strict=True))


@pytest.mark.parametrize("enforce", ["in_place", "read"])
def test_a_resumed_run_is_the_same_to_the_bit(tmp_path: Path, enforce: Any) -> None:
    whole, half, rest = layers(), layers(), layers()
    trainer(tmp_path, pruning(enforce=enforce), epochs=4).fit(whole)
    first = trainer(tmp_path, pruning(enforce=enforce, allow_unfinished=True), epochs=2)
    first.fit(half)
    first.save_checkpoint(tmp_path / "half.ckpt")
    trainer(tmp_path, pruning(enforce=enforce), epochs=4).fit(rest, ckpt_path=tmp_path / "half.ckpt")
    assert all(torch.equal(p, q) for p, q in zip(whole.parameters(), rest.parameters(), strict=True))
    assert sum(zero_biases(half)["conv.bias"]) == 2  # a quarter of 6, rounded
    assert sum(zero_biases(rest)["conv.bias"]) == 3


def test_a_checkpoint_that_does_not_know_biases_resumes(tmp_path: Path) -> None:
    rest = layers()
    first = trainer(tmp_path, pruning(exclude="*.bias", allow_unfinished=True), epochs=2)
    first.fit(layers())
    first.save_checkpoint(tmp_path / "half.ckpt")
    trainer(tmp_path, pruning(), epochs=4).fit(rest, ckpt_path=tmp_path / "half.ckpt")
    assert zero_biases(rest) == dead_of(rest)


def test_excluded_and_other_dimensions_leave_biases_alone(tmp_path: Path) -> None:
    for more in ({"exclude": "*.bias"}, {"dim": "in"}, {"method": "l1_unstructured"}):
        model = layers()
        trainer(tmp_path, pruning(**more), epochs=4).fit(model)
        assert not any(any(biases) for biases in zero_biases(model).values())
    model = layers()
    trainer(tmp_path, pruning(exclude="fc.bias"), epochs=4).fit(model)
    assert [sum(biases) for biases in zero_biases(model).values()] == [3, 4, 0]
    rows = {row.name: row.dead_channels for row in report.summary(model).rows}
    assert [rows[name] for name in WEIGHTS] == [3, 2, 0]


def test_kept_zeros_keep_biases_that_are_zero_and_constants_until_an_event(tmp_path: Path) -> None:
    model = layers()
    with torch.no_grad():
        model.conv.weight[:2] = 0
        model.conv.bias[0] = 0
        model.fc.bias[1] = 0
    constant = float(model.conv.bias[1].detach())
    seen: list[list[float]] = []

    class Look(L.Callback):
        def on_train_batch_end(self, trainer: Any, module: Any, *_: Any) -> None:
            seen.append(module.conv.bias.detach()[:2].tolist())

    callback = pruning(schedule=None, amount=0.25, epochs=[1], keep_zeros=True, parameters="conv")
    trainer(tmp_path, callback, Look(), epochs=2).fit(model)
    assert [first for first, _ in seen] == [0.0] * 8
    assert all(abs(second - constant) < 0.1 and second != 0 for _, second in seen[:4])
    assert [second for _, second in seen[4:]] == [0.0] * 4
    assert zero_biases(model)["conv.bias"] == dead_of(model)["conv.bias"]
    assert sum(dead_of(model)["conv.bias"]) == 3
    assert zero_biases(model)["fc.bias"] == [False] * 4


def test_several_callbacks(tmp_path: Path) -> None:
    model = layers()
    callbacks = [
        pruning(parameters="conv"),
        pruning(parameters=["up", "fc"]),
        pruning(method="l1_unstructured", parameters=["fc.bias"], schedule=None, amount=1, epochs=[0]),
    ]
    trainer(tmp_path, *callbacks, epochs=4).fit(model)
    zero, dead = zero_biases(model), dead_of(model)
    assert (zero["conv.bias"], zero["up.bias"]) == (dead["conv.bias"], dead["up.bias"])
    assert (sum(dead["fc.bias"]), sum(zero["fc.bias"])) == (2, 1)  # the third callback has selected it


def test_a_frozen_bias_stays_and_one_of_a_layer_that_joins_goes(tmp_path: Path) -> None:
    model = layers()
    model.conv.bias.requires_grad_(False)
    before = model.conv.bias.clone()
    trainer(tmp_path, pruning(), epochs=4).fit(model)
    assert torch.equal(model.conv.bias, before)
    assert zero_biases(model)["fc.bias"] == dead_of(model)["fc.bias"]

    class Unfreeze(L.Callback):
        def on_train_epoch_start(self, trainer: Any, module: Any) -> None:
            module.conv.requires_grad_(trainer.current_epoch > 0)

    model = layers()
    model.conv.requires_grad_(False)
    trainer(tmp_path, Unfreeze(), pruning(frozen="join"), epochs=4).fit(model)
    assert zero_biases(model) == dead_of(model)
    assert sum(dead_of(model)["conv.bias"]) == 3


@pytest.mark.parametrize("criterion", ["taylor", "activation", "snip"])
def test_criteria_score_weights_alone(tmp_path: Path, criterion: str) -> None:
    model = layers()
    callback = pruning(criterion=criterion, scope=Budget("global"), exclude="up", parameters=["conv", "fc"])
    trainer(tmp_path, callback, epochs=4).fit(model)
    zero, dead = zero_biases(model), dead_of(model)
    assert (zero["conv.bias"], zero["fc.bias"]) == (dead["conv.bias"], dead["fc.bias"])
    assert sum(dead["conv.bias"]) + sum(dead["fc.bias"]) > 0
