import csv
import socket

import pytest
import torch
import torch.multiprocessing as mp
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn

from lightning_prune import Constant, Linear, Log, PruningCallback, RigL, Steps
from lightning_prune.metrics import sparsity, sparsity_per_tensor

BATCHES = 4


class Net(LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 10))

    def training_step(self, batch, batch_idx):
        return self.layers(batch).square().mean()

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.layers(batch).square().mean())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)

    def train_dataloader(self):
        return torch.utils.data.DataLoader(torch.randn(BATCHES, 5))

    def val_dataloader(self):
        return torch.utils.data.DataLoader(torch.randn(1, 5))


class Counts(Callback):
    """Counts the zeros in the weights of each step, without asking the callback."""

    def __init__(self):
        self.sparsity, self.tensors = [], []

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.sparsity.append(sparsity(pl_module, "*"))
        self.tensors.append(sparsity_per_tensor(pl_module, "*"))


def fit(tmp_path, *callbacks, logger=True, epochs=3, **kwargs):
    torch.manual_seed(0)
    counts = Counts()
    trainer = Trainer(
        accelerator="cpu",
        logger=CSVLogger(tmp_path, name="", version="") if logger is True else logger,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=tmp_path,
        max_epochs=epochs,
        log_every_n_steps=1,
        callbacks=[*callbacks, counts],
        **kwargs,
    )
    trainer.fit(Net())
    return trainer, counts


def rows_of(path, key="sparsity"):
    with open(path / "metrics.csv", newline="") as file:
        return [(int(row["step"]), float(row[key])) for row in csv.DictReader(file) if row.get(key)]


def steps_of(rows):
    return [step for step, _ in rows]


def test_epochs_in_a_csv_are_the_counted_zeros(tmp_path):
    schedule = Linear(final=0.8, begin=1, end=2)
    _, counts = fit(tmp_path, PruningCallback(schedule=schedule, verbose=False))
    rows = rows_of(tmp_path)
    assert rows == [(step, pytest.approx(counts.sparsity[step])) for step in (3, 7, 11)]
    assert [share for _, share in rows] == pytest.approx([0.0, 0.0, 0.8])
    assert rows_of(tmp_path, "sparsity/target") == [(3, 0.0), (7, 0.0), (11, pytest.approx(0.8))]
    assert "sparsity/layers.0.weight" not in (tmp_path / "metrics.csv").read_text()


def test_events_by_step_in_a_csv_are_the_counted_zeros(tmp_path):
    schedule = Steps({2: 0.25, 5: 0.5, 7: 0.75}, unit="step")
    _, counts = fit(tmp_path, PruningCallback(schedule=schedule, verbose=False))
    rows = rows_of(tmp_path)
    assert steps_of(rows) == [0, 2, 3, 5, 7, 11]
    assert [share for _, share in rows] == pytest.approx([0.0, 0.25, 0.25, 0.5, 0.75, 0.75])
    assert rows == [(step, pytest.approx(counts.sparsity[step])) for step in steps_of(rows)]
    assert [share for _, share in rows_of(tmp_path, "sparsity/target")] == pytest.approx(
        [0, 0.25, 0.25, 0.5, 0.75, 0.75]
    )


def test_updates_of_regrowth_in_a_csv_are_at_their_steps(tmp_path):
    regrow = RigL(fraction=0.5, every=3, until=8, unit="step", decay="constant")
    callback = PruningCallback(schedule=Constant(final=0.5), scope="global", regrow=regrow, verbose=False)
    fit(tmp_path, callback)
    churn = rows_of(tmp_path, "regrow/churn")
    assert steps_of(churn) == [3, 6, 7, 11]
    assert [share for _, share in churn] == pytest.approx([0.5, 0.5, 0.5, 0.5], abs=0.02)
    assert [share for _, share in rows_of(tmp_path)] == [0.5] * 4
    assert callback.regrowth.updates == 2


def test_keys_of_tensors_and_a_prefix(tmp_path):
    callback = PruningCallback(amount=0.5, log=Log(tensors=True, prefix="prune/"), scope="global", verbose=False)
    _, counts = fit(tmp_path, callback, epochs=2)
    assert rows_of(tmp_path, "prune/sparsity") == [(3, 0.5), (7, 0.75)]
    assert rows_of(tmp_path) == rows_of(tmp_path, "prune/sparsity/target") == []
    for name in ("layers.0.weight", "layers.2.weight"):
        rows = rows_of(tmp_path, f"prune/sparsity/{name}")
        assert rows == [(step, pytest.approx(counts.tensors[step][name])) for step in (3, 7)]


def test_tensorboard(tmp_path):
    logger = TensorBoardLogger(tmp_path, name="", version="")
    callback = PruningCallback(schedule=Steps({2: 0.25, 7: 0.75}, unit="step"), log=Log(tensors=True), verbose=False)
    _, counts = fit(tmp_path, callback, logger=logger)
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    points = [(point.step, point.value) for point in events.Scalars("sparsity")]
    assert points == [(step, pytest.approx(counts.sparsity[step])) for step in (0, 2, 3, 7, 11)]
    assert [point.value for point in events.Scalars("sparsity/target")] == [0.0, 0.25, 0.25, 0.75, 0.75]
    assert [point.value for point in events.Scalars("sparsity/layers.0.weight")] == [0.0, 0.25, 0.25, 0.75, 0.75]


def test_several_loggers_and_none(tmp_path):
    loggers = [CSVLogger(tmp_path / name, name="", version="") for name in "ab"]
    callback = PruningCallback(amount=0.5, steps=[2], verbose=False)
    fit(tmp_path, callback, logger=loggers, epochs=1)
    assert rows_of(tmp_path / "a") == rows_of(tmp_path / "b") == [(0, 0.0), (2, 0.5), (3, 0.5)]
    trainer, _ = fit(tmp_path, callback, logger=False, epochs=1)
    assert float(trainer.callback_metrics["sparsity"]) == 0.5


def test_several_callbacks_are_logged_together(tmp_path):
    first = PruningCallback(schedule=Linear(final=0.5, begin=0, end=1), parameters="layers.0", verbose=False)
    second = PruningCallback(schedule=Linear(final=0.9, begin=1, end=2), parameters="layers.2", verbose=False)
    _, counts = fit(tmp_path, first, second)
    assert rows_of(tmp_path) == [(step, pytest.approx(counts.sparsity[step])) for step in (3, 7, 11)]
    targets = [share for _, share in rows_of(tmp_path, "sparsity/target")]
    assert targets == pytest.approx([0, 0.5 * 40 / 120, (0.5 * 40 + 72) / 120])


class Names(ModelCheckpoint):
    """Notes how sparse the weights of each file are, beside the file's name."""

    def __init__(self, tmp_path, **kwargs):
        super().__init__(tmp_path, "{epoch}-{step}-{sparsity:.3f}", save_top_k=-1, **kwargs)
        self.files = {}

    def _save_checkpoint(self, trainer, filepath):
        self.files[filepath] = sparsity(trainer.lightning_module, "*")
        super()._save_checkpoint(trainer, filepath)


@pytest.mark.parametrize(
    "when",
    [{"every_n_epochs": 1}, {"every_n_train_steps": 1}, {"every_n_epochs": 1, "save_on_train_epoch_end": True}],
    ids=["validation", "step", "epoch end"],
)
@pytest.mark.parametrize("unit", ["epoch", "step"])
def test_names_of_checkpoints_say_how_sparse_they_are(tmp_path, when, unit):
    times = {"epoch": {0: 0.25, 2: 0.5}, "step": {1: 0.25, 6: 0.5}}[unit]
    names = Names(tmp_path, **when)
    callback = PruningCallback(schedule=Steps(times, unit=unit), verbose=False)
    fit(tmp_path, names, callback, val_check_interval=0.5)
    assert len(names.files) >= 3
    assert set(names.files.values()) >= {0.25, 0.5}
    assert all(path.endswith(f"-sparsity={share:.3f}.ckpt") for path, share in names.files.items())


class Bar(Callback):
    """Notes what a progress bar would show after each batch."""

    def __init__(self):
        self.shown = []

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.shown.append({k: float(v) for k, v in trainer.progress_bar_metrics.items()})


@pytest.mark.parametrize("asked", [True, False])
def test_progress_bar(tmp_path, asked):
    bar = Bar()
    callback = PruningCallback(amount=0.5, log=Log(tensors=True, prog_bar=asked), verbose=False)
    fit(tmp_path, callback, bar, logger=False, epochs=2)
    assert bar.shown == ([{"sparsity": 0.5}] * 4 + [{"sparsity": 0.75}] * 4 if asked else [{}] * 8)


def test_a_second_fit_is_logged_from_its_first_batch(tmp_path):
    callback = PruningCallback(amount=0.5, steps=[1], verbose=False)
    for name in ("first", "second"):
        fit(tmp_path, callback, logger=CSVLogger(tmp_path / name, name="", version=""), epochs=1)
    assert rows_of(tmp_path / "first") == rows_of(tmp_path / "second") == [(0, 0.0), (1, 0.5), (3, 0.5)]


class OwnSparsity(Net):
    """A model that logs a sparsity of its own, of activations say."""

    def __init__(self, where):
        super().__init__()
        self.where = where

    def training_step(self, batch, batch_idx):
        if self.where == "training":
            self.log("sparsity", 7.0, on_step=True)
        return super().training_step(batch, batch_idx)

    def validation_step(self, batch, batch_idx):
        if self.where == "validation":
            self.log("sparsity", 7.0)


@pytest.mark.parametrize("where", ["training", "validation"])
def test_a_key_that_the_model_logs_stays_its_own(tmp_path, where):
    callback = PruningCallback(schedule=Linear(final=0.8, begin=1, end=2), verbose=False)
    trainer = Trainer(
        accelerator="cpu",
        logger=CSVLogger(tmp_path, name="", version=""),
        enable_progress_bar=False,
        enable_model_summary=False,
        max_epochs=3,
        log_every_n_steps=1,
        callbacks=[callback],
    )
    with pytest.warns(UserWarning, match="sparsity is logged by something else") as said:
        trainer.fit(OwnSparsity(where))
    assert sum("logged by something else" in str(warning.message) for warning in said) == 1
    assert {share for _, share in rows_of(tmp_path)} == {7.0}
    assert float(trainer.callback_metrics["sparsity"]) == 7.0
    assert rows_of(tmp_path, "sparsity/target")[-1] == (11, pytest.approx(0.8))


def test_nothing_is_logged_if_asked(tmp_path):
    trainer, _ = fit(tmp_path, PruningCallback(amount=0.5, steps=[2], log=False, verbose=False))
    assert not (tmp_path / "metrics.csv").exists() or rows_of(tmp_path) == []
    assert "sparsity" not in {**trainer.callback_metrics, **trainer.logged_metrics}


def test_logged_metrics_of_the_trainer_have_it(tmp_path):
    trainer, _ = fit(tmp_path, PruningCallback(amount=0.5, epochs=[1], scope="global", verbose=False))
    assert float(trainer.logged_metrics["sparsity"]) == 0.5


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: PruningCallback(log="sparsity"), TypeError),
        (lambda: Log(tensors="yes"), ValueError),
        (lambda: Log(prefix=3), TypeError),
        (lambda: Log(prog_bar=1.5), ValueError),
    ],
)
def test_wrong_values_of_log_are_refused(make, error):
    with pytest.raises(error, match=r"[lL]og"):
        make()


class ByHand(Net):
    """Two steps of optimizers for each batch."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch, batch_idx):
        for optimizer in self.optimizers():
            optimizer.zero_grad()
            self.manual_backward(super().training_step(batch, batch_idx))
            optimizer.step()

    def configure_optimizers(self):
        return [torch.optim.SGD(layer.parameters(), lr=0.01) for layer in (self.layers[0], self.layers[2])]


def test_events_under_manual_optimization_are_at_the_step_of_their_batch(tmp_path):
    callback = PruningCallback(schedule=Steps({4: 0.5}, unit="step"), verbose=False)
    trainer = Trainer(
        accelerator="cpu",
        logger=CSVLogger(tmp_path, name="", version=""),
        enable_progress_bar=False,
        enable_model_summary=False,
        max_epochs=2,
        callbacks=[callback],
    )
    trainer.fit(ByHand())
    assert rows_of(tmp_path) == [(0, 0.0), (2, 0.5), (3, 0.5), (7, 0.5)]


def test_events_under_accumulation_are_at_the_step_of_their_batch(tmp_path):
    callback = PruningCallback(schedule=Steps({1: 0.5}, unit="step"), verbose=False)
    fit(tmp_path, callback, epochs=2, accumulate_grad_batches=2)
    assert rows_of(tmp_path) == [(0, 0.0), (1, 0.5), (3, 0.5)]


def _fit_one_of_two(rank, port, path):
    import os

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), NODE_RANK="0", LOCAL_RANK=str(rank))
    os.environ["WORLD_SIZE"] = "2"
    torch.set_num_threads(1)
    callback = PruningCallback(schedule=Steps({1: 0.5}, unit="step"), verbose=False)
    fit(path, callback, epochs=2, strategy="ddp", devices=2, enable_checkpointing=False)


def test_two_processes_log_once(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mp.start_processes(_fit_one_of_two, args=(port, tmp_path), nprocs=2, start_method="spawn")
    assert rows_of(tmp_path) == [(0, 0.0), (1, 0.5), (3, 0.5)]
