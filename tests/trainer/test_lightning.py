"""Both packages of Lightning: the same callbacks, loggers and limits in each, and mixed."""

from __future__ import annotations

import csv
import importlib
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import lightning.pytorch
import pytest
import pytorch_lightning
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from lightning_prune import LotteryTicket, OneShot, PruningCallback, plots
from lightning_prune.trainer.averages import averaged_models
from lightning_prune.trainer.lightning import classes_of, is_logger, spawns
from lightning_prune.trainer.refusals import require_strategy
from tests.models import random_data, zeros
from tests.versions import needs_averaging, takes_both_packages

PACKAGES = [lightning.pytorch, pytorch_lightning]
WEIGHTS = 8 * 16 + 16 * 3
both = pytest.mark.parametrize("L", PACKAGES, ids=lambda package: package.__name__)


def part(L: ModuleType, path: str) -> Any:
    room, _, name = path.rpartition(".")
    return getattr(importlib.import_module(f"{L.__name__}.{room}"), name)


def model_of(L: ModuleType, seed: int = 0, grows: float = 0.1) -> Any:
    """A module of a package; its score starts at 1 and, once weights are zero, at 2, and ``grows`` each epoch."""

    class Net(L.LightningModule):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))

        def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
            return nn.functional.cross_entropy(self.layers(batch[0]), batch[1])

        def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
            sparse = bool((self.layers[0].weight == 0).any())
            self.log("val_loss", (2.0 if sparse else 1.0) + grows * self.current_epoch)

        def test_step(self, batch: list[Tensor], batch_idx: int) -> None:
            self.log("test_loss", self.training_step(batch, batch_idx))

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

        def train_dataloader(self) -> Any:
            return DataLoader(random_data(), batch_size=8)

        def val_dataloader(self) -> Any:
            return DataLoader(random_data(16, seed=1), batch_size=8)

        test_dataloader = val_dataloader

    torch.manual_seed(seed)
    return Net()


def trainer_of(L: ModuleType, root: Path, *callbacks: Any, **kwargs: Any) -> Any:
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    saves = any(isinstance(callback, classes_of("callbacks.Checkpoint")) for callback in callbacks)
    settings = {"accelerator": "cpu", "max_epochs": 4, "default_root_dir": root, "enable_checkpointing": saves}
    return L.Trainer(callbacks=list(callbacks), **{**settings, **quiet, **kwargs})


def zeros_in(path: str) -> int:
    state = torch.load(path, weights_only=True)["state_dict"]
    return sum(int((state[f"layers.{i}.weight"] == 0).sum()) for i in (0, 2))


def pruning(**kwargs: Any) -> PruningCallback:
    return PruningCallback(schedule=OneShot(0.5, begin=2), scope="global", verbose=False, **kwargs)


def subclass_of(cls: type) -> type:
    """A user's own subclass, with an override that must be called."""

    class Own(cls):  # type: ignore[misc, valid-type]
        called = 0

        def _save_topk_checkpoint(self, *args: Any) -> None:
            self.called += 1
            super()._save_topk_checkpoint(*args)

    return Own


@both
@pytest.mark.parametrize("own", [False, True], ids=["class", "subclass"])
@pytest.mark.parametrize(
    "other", [pytest.param(False, id="alike"), pytest.param(True, id="mixed", marks=takes_both_packages)]
)
def test_best_file_is_sparse_and_patience_starts_anew(L: ModuleType, own: bool, other: bool, tmp_path: Path) -> None:
    """Mixed: the callbacks come from the package that the Trainer does not come from."""
    source = PACKAGES[1 - PACKAGES.index(L)] if other else L
    saving = part(source, "callbacks.ModelCheckpoint")
    checkpoint = (subclass_of(saving) if own else saving)(tmp_path, monitor="val_loss")
    stopping = part(source, "callbacks.EarlyStopping")("val_loss", patience=2)
    trainer = trainer_of(L, tmp_path, stopping, checkpoint, pruning(), max_epochs=9)
    trainer.fit(model_of(L))
    assert zeros_in(checkpoint.best_model_path) == WEIGHTS // 2
    assert float(checkpoint.best_model_score) == pytest.approx(2.2)
    assert trainer.current_epoch == 5
    assert getattr(checkpoint, "called", 5) >= 5


@both
def test_the_same_weights_with_each_package(L: ModuleType, tmp_path: Path) -> None:
    fitted = []
    for package in (lightning.pytorch, L):
        model = model_of(package)
        trainer_of(package, tmp_path, pruning()).fit(model)
        fitted.append(model.state_dict())
    assert all(torch.equal(fitted[0][name], fitted[1][name]) for name in fitted[0])
    assert zeros(model) == WEIGHTS // 2


@both
@pytest.mark.parametrize(
    "averaging",
    [
        "callbacks.StochasticWeightAveraging",
        pytest.param("callbacks.EMAWeightAveraging", marks=needs_averaging),
    ],
)
def test_averages_keep_the_zeros(L: ModuleType, averaging: str, tmp_path: Path) -> None:
    how: dict[str, Any] = {"swa_lrs": 0.05, "swa_epoch_start": 1} if "Stochastic" in averaging else {"decay": 0.9}
    model = model_of(L)
    averages = part(L, averaging)(**how)
    trainer_of(L, tmp_path, averages, pruning(), max_epochs=5).fit(model)
    assert zeros(model) == WEIGHTS // 2


@both
def test_averages_are_found_by_their_class(L: ModuleType) -> None:
    averages = part(L, "callbacks.StochasticWeightAveraging")(swa_lrs=0.1)
    held = nn.Linear(2, 2)
    averages._average_model = held
    assert averaged_models([averages]) == [held]


@both
def test_loggers(L: ModuleType, tmp_path: Path) -> None:
    logger = part(L, "loggers.CSVLogger")(tmp_path, name="", version="")
    trainer_of(L, tmp_path, pruning(), logger=logger, log_every_n_steps=1).fit(model_of(L))
    with open(tmp_path / "metrics.csv", newline="") as file:
        rows = [(int(row["step"]), float(row["sparsity"])) for row in csv.DictReader(file) if row["sparsity"]]
    assert rows == [(3, 0.0), (7, 0.0), (11, 0.5), (15, 0.5)]
    assert is_logger(logger)


@both
def test_a_logger_without_figures_is_told_from_a_folder(L: ModuleType, tmp_path: Path) -> None:
    import matplotlib.pyplot as plt

    with pytest.raises(TypeError, match="takes no figures"):
        plots.publish(plt.figure(), part(L, "loggers.CSVLogger")(tmp_path), "mask")


@both
def test_accumulation_by_a_callback_counts_as_that_of_the_trainer(L: ModuleType, tmp_path: Path) -> None:
    """Four batches an epoch, two steps; a plan of twelve steps needs six epochs."""
    accumulating = part(L, "callbacks.GradientAccumulationScheduler")
    schedule = OneShot(0.5, begin=11, unit="step")
    trainers = [
        trainer_of(L, tmp_path, accumulating({0: 2}), PruningCallback(schedule=schedule, verbose=False), max_epochs=n)
        for n in (4, 6)
    ]
    model = model_of(L)
    with pytest.raises(ValueError, match="after 8 steps"):
        trainers[0].fit(model)
    trainers[1].fit(model)
    assert zeros(model) == WEIGHTS // 2


@both
def test_fractions_of_a_run_under_accumulation_by_a_callback(L: ModuleType, tmp_path: Path) -> None:
    fitted = []
    for accumulation in ({"accumulate_grad_batches": 2}, {}):
        callback = PruningCallback(schedule=OneShot(0.5, begin=0.5, unit="fraction"), verbose=False)
        others = [] if accumulation else [part(L, "callbacks.GradientAccumulationScheduler")({0: 2})]
        model = model_of(L)
        trainer_of(L, tmp_path, *others, callback, **accumulation).fit(model)
        fitted.append(model.state_dict())
    assert all(torch.equal(fitted[0][name], fitted[1][name]) for name in fitted[0])
    assert zeros(model) == WEIGHTS // 2


@both
def test_strategies_that_do_not_go_are_refused(L: ModuleType) -> None:
    with pytest.raises(ValueError, match="FSDPStrategy"):
        require_strategy(part(L, "strategies.FSDPStrategy")())
    require_strategy(part(L, "strategies.DDPStrategy")())


@both
def test_strategies_that_spawn_are_known(L: ModuleType, tmp_path: Path) -> None:
    spawned = trainer_of(L, tmp_path, strategy="ddp_spawn", devices=2)
    alone = trainer_of(L, tmp_path)
    assert [spawns(trainer.strategy) for trainer in (spawned, alone)] == [True, False]


@both
def test_the_learning_rate_finder_leaves_the_plan(L: ModuleType, tmp_path: Path) -> None:
    model = model_of(L)
    model.lr = 0.1
    trainer = trainer_of(L, tmp_path, pruning())
    part(L, "tuner.Tuner")(trainer).lr_find(model, num_training=10)
    assert zeros(model) == 0
    trainer.fit(model)
    assert zeros(model) == WEIGHTS // 2


CLI = """
import importlib, sys
package, root = sys.argv[1:]
cli = importlib.import_module(package + ".cli")
from tests.models import zeros
from tests.trainer.test_lightning import model_of
cls = type(model_of(importlib.import_module(package)))
given = {"schedule": {"class_path": "lightning_prune.OneShot", "init_args": {"final": 0.5, "begin": 2}}}
callback = {"class_path": "lightning_prune.PruningCallback", "init_args": {**given, "verbose": False}}
trainer = {"max_epochs": 4, "accelerator": "cpu", "default_root_dir": root, "logger": False, "callbacks": [callback]}
quiet = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
made = cli.LightningCLI(
    cls, args={"fit": {"trainer": {**trainer, **quiet}}, "subcommand": "fit"}, save_config_callback=None
)
print(zeros(made.model))
"""


@both
def test_cli(L: ModuleType, tmp_path: Path) -> None:
    command = [sys.executable, "-W", "ignore", "-c", CLI, L.__name__, str(tmp_path)]
    shown = subprocess.run(command, capture_output=True, text=True, check=True)
    assert shown.stdout.split()[-1] == str(WEIGHTS // 2)


def test_the_other_package_is_not_imported() -> None:
    code = "import sys, lightning_prune.callback, lightning_prune.lottery; print('pytorch_lightning' in sys.modules)"
    shown = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.split()[-1] == "False"


@both
def test_lottery_tickets(L: ModuleType, tmp_path: Path) -> None:
    how: dict[str, Any] = {"rounds": 1, "amount": 0.5, "directory": tmp_path / "ticket"}
    results = LotteryTicket(lambda: model_of(L), lambda level: trainer_of(L, tmp_path, max_epochs=1), **how).run()
    assert [row.remaining for row in results.rows] == [1.0, 0.5]


def test_classes_of_both_are_found_and_unknown_ones_are_none() -> None:
    assert classes_of("callbacks.EarlyStopping") == tuple(part(L, "callbacks.EarlyStopping") for L in PACKAGES)
    assert classes_of("Trainer") == tuple(L.Trainer for L in PACKAGES)
    assert classes_of("callbacks.NoSuchCallback") == classes_of("nowhere.Trainer") == ()
