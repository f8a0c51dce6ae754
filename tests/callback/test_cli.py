"""LightningCLI: the callback in a YAML file, parsed, type-checked and saved back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from lightning.pytorch.cli import LightningCLI
from torch import Tensor

from lightning_prune import Cubic, Demand, PruningCallback, Steps
from lightning_prune.prune import BasePruningMethod
from tests.expected import FEW_SELECTED, LAST_STAYS
from tests.models import Net, zeros

pytestmark = FEW_SELECTED


class FirstOnes(BasePruningMethod):
    """Masks the first ``count`` entries."""

    PRUNING_TYPE = "global"

    def __init__(self, count: int) -> None:
        self.count = count

    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        mask = default_mask.clone()
        mask.view(-1)[: self.count] = 0
        return mask


def written(root: Path, arguments: dict[str, Any]) -> Path:
    callback = {"class_path": "lightning_prune.PruningCallback", "init_args": {**arguments, "verbose": False}}
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    settings = {"max_epochs": 4, "accelerator": "cpu", "default_root_dir": str(root), "callbacks": [callback]}
    path = root / "given.yaml"
    path.write_text(yaml.safe_dump({"trainer": {**settings, **quiet, "enable_checkpointing": False}}))
    return path


def cli(path: Path, *command: str) -> LightningCLI:
    arguments = [*command, "--config", str(path)]
    return LightningCLI(Net, args=arguments, run=bool(command), save_config_kwargs={"overwrite": True})


def callback_of(made: LightningCLI) -> PruningCallback:
    (callback,) = [c for c in made.trainer.callbacks if isinstance(c, PruningCallback)]  # type: ignore[attr-defined]
    return callback


SCHEDULE = {"class_path": "lightning_prune.Cubic", "init_args": {"final": 0.8, "begin": 0, "end": 3}}


@pytest.mark.parametrize(
    ("arguments", "reached"),
    [
        ({"amount": 0.5, "epochs": [1, 3]}, 132),
        ({"amount": 8, "steps": [0, 5], "scope": "global"}, 16),
        ({"method": "random_unstructured", "schedule": SCHEDULE, "seed": 3, "scope": {"max_sparsity": 0.9}}, 141),
        ({"method": "ln_structured", "n": 1, "dim": "out", "amount": 0.5, "epochs": [0], "parameters": "first"}, 64),
        pytest.param(
            {"parameters": ["first.*", "last"], "exclude": "last.*", "amount": 1.0, "epochs": [0]},
            127,
            marks=LAST_STAYS,
        ),
        ({"method": "tests.callback.test_cli.FirstOnes", "method_kwargs": {"count": 5}, "epochs": [2]}, 10),
        ({"method": "torch.nn.utils.prune.L1Unstructured", "amount": 0.25, "epochs": [0]}, 44),
        ({"schedule": SCHEDULE, "scope": {"scope": "global", "overrides": {"last.weight": 0.5}}}, 141),
        ({"schedule": {"class_path": "lightning_prune.Steps", "init_args": {"targets": {0: 0.25, 2: 0.5}}}}, 88),
    ],
)
def test_fit_from_yaml_and_from_the_file_it_saved(tmp_path: Path, arguments: dict[str, Any], reached: int) -> None:
    first = cli(written(tmp_path, arguments), "fit")
    assert zeros(first.model) == reached
    again = cli(tmp_path / "config.yaml", "fit")
    assert all(torch.equal(p, q) for p, q in zip(first.model.parameters(), again.model.parameters(), strict=True))
    assert callback_of(again).plan == callback_of(first).plan
    assert callback_of(again).settings.recipe == callback_of(first).settings.recipe
    assert callback_of(again).settings.budget == callback_of(first).settings.budget
    assert callback_of(again).state_key == callback_of(first).state_key


@pytest.mark.filterwarnings(r"error:[\s\S]*Unable to serialize instance")
@pytest.mark.parametrize(
    "chosen",
    [
        {"exclude": ["first.*"]},
        {"exclude": "first.*"},
        {"parameters": ["last"]},
        {"parameters": "last"},
        {"parameters": ["first.weight", "last.*"], "exclude": ["first", "norm.*"]},
    ],
)
def test_patterns_are_saved_as_they_were_given(tmp_path: Path, chosen: dict[str, Any]) -> None:
    first = cli(written(tmp_path, {**chosen, "amount": 0.5, "epochs": [0]}), "fit")
    saved = yaml.safe_load((tmp_path / "config.yaml").read_text())["trainer"]["callbacks"][0]["init_args"]
    assert {name: saved[name] for name in chosen} == chosen
    again = cli(tmp_path / "config.yaml", "fit")
    assert zeros(first.model) == zeros(again.model) == 24
    assert callback_of(again).state_key == callback_of(first).state_key


def test_values_are_those_of_python(tmp_path: Path) -> None:
    callback = callback_of(cli(written(tmp_path, {"schedule": SCHEDULE, "parameters": "first"})))
    python = PruningCallback(schedule=Cubic(final=0.8, begin=0, end=3), parameters="first")
    assert callback.plan == python.plan
    assert callback.state_key == python.state_key
    steps = {"class_path": "lightning_prune.Steps", "init_args": {"targets": {0: 0.25, 2: 0.5}}}
    plan = callback_of(cli(written(tmp_path, {"schedule": steps}))).plan
    assert plan == PruningCallback(schedule=Steps({0: 0.25, 2: 0.5})).plan


@pytest.mark.parametrize(
    "arguments",
    [
        {"amount": "half"},
        {"epochs": ["one"]},
        {"schedule": {"class_path": "lightning_prune.Cubic", "init_args": {"final": 1.5, "end": 3}}},
        {"schedule": {"class_path": "lightning_prune.Cubic", "init_args": {"last": 0.5, "end": 3}}},
        {"scope": "layer"},
        {"frozen": "maybe"},
        {"speed": 3},
        {"method": "tests.callback.test_cli.Missing"},
    ],
)
def test_wrong_types_are_refused(tmp_path: Path, arguments: dict[str, Any]) -> None:
    path = written(tmp_path, arguments)
    with pytest.raises((SystemExit, ValueError)):
        cli(path)


def test_subclass_with_a_policy_of_its_own(tmp_path: Path) -> None:
    path = written(tmp_path, {"amount": 0.5})
    path.write_text(path.read_text().replace("lightning_prune.PruningCallback", "tests.callback.test_cli.LateCallback"))
    assert zeros(cli(path, "fit").model) == 44


class LateCallback(PruningCallback):
    """Prunes a quarter, at epoch 3."""

    def due(self, trainer: Any, time: int) -> Any:
        return [Demand(time, amount=0.25)] if time == 3 else []
