"""Scores that monitors compare: only those of one sparsity."""

from __future__ import annotations

import contextlib
import random
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_prune import Constant, Cubic, Linear, OneShot, PruningCallback
from tests.expected import CUT_OFF, DEAD, ENDED_EARLY, FEW_SELECTED

pytestmark = [ENDED_EARLY, FEW_SELECTED]


def loaders() -> tuple[DataLoader[Any], DataLoader[Any]]:
    images, labels = load_digits(return_X_y=True)
    data = TensorDataset(torch.tensor(images[:600], dtype=torch.float32) / 16, torch.tensor(labels[:600]))
    first, second = torch.utils.data.random_split(data, [480, 120], torch.Generator().manual_seed(0))
    shuffle = torch.Generator().manual_seed(1)
    return DataLoader(first, batch_size=48, shuffle=True, generator=shuffle), DataLoader(second, batch_size=60)


class Net(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 10))

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        self.log("val_loss", nn.functional.cross_entropy(self.net(batch[0]), batch[1]))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=5e-3)


def trainer(path: Path, callbacks: list[Any], **kwargs: Any) -> Trainer:
    quiet: dict[str, Any] = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    return Trainer(accelerator="cpu", callbacks=callbacks, default_root_dir=path, **quiet, **kwargs)


def scores_of(paths: list[str], validation: DataLoader[Any]) -> list[float]:
    """The validation losses of files, computed in a fresh plain model without the callback."""
    model, scorer = Net(), trainer(Path(paths[0]).parent, [])
    scores = []
    for path in paths:
        model.load_state_dict(torch.load(path, weights_only=True)["state_dict"], strict=True)
        scores.append(scorer.validate(model, validation, verbose=False)[0]["val_loss"])
    return scores


def zeros(path: str) -> int:
    state = torch.load(path, weights_only=True)["state_dict"]
    return sum(int((state[f"net.{i}.weight"] == 0).sum()) for i in (0, 3))


def random_plan(rng: random.Random) -> dict[str, Any]:
    steps = rng.random() < 0.5
    begin, length = (rng.randrange(8), rng.randrange(8, 20)) if steps else (rng.randrange(2), rng.randrange(1, 3))
    window = {"begin": begin, "end": begin + length, "every": rng.randrange(1, 5) if steps else 1}
    schedule = rng.choice([Cubic, Linear])(final=rng.choice([0.5, 0.9]), unit="step" if steps else "epoch", **window)
    plans: list[dict[str, Any]] = [
        {"schedule": schedule, "scope": rng.choice(["local", "global", "erk"])},
        {"method": "random_unstructured", "schedule": schedule},
        {"method": "ln_structured", "schedule": schedule},
        {"amount": 0.3, "epochs": [1, 2]},
    ]
    return rng.choice(plans)


def random_saving(rng: random.Random) -> tuple[dict[str, Any], dict[str, Any]]:
    """Arguments of ModelCheckpoint and of the Trainer."""
    return rng.choice(
        [
            ({}, {}),
            ({"save_on_train_epoch_end": True}, {"val_check_interval": 0.4}),
            ({"save_on_train_epoch_end": True}, {"check_val_every_n_epoch": 2}),
            ({"save_on_train_epoch_end": False}, {}),
            ({"every_n_train_steps": 3}, {"val_check_interval": 0.5}),
            ({"every_n_train_steps": 5, "save_last": True}, {"val_check_interval": 5}),
            ({}, {"val_check_interval": 0.25}),
            ({}, {"check_val_every_n_epoch": 2}),
            ({"every_n_train_steps": 4, "save_last": True}, {}),
            ({"every_n_train_steps": 3}, {"accumulate_grad_batches": 2}),
            ({"every_n_train_steps": 2, "save_last": True}, {"accumulate_grad_batches": 2, "val_check_interval": 0.5}),
            ({"train_time_interval": timedelta(0)}, {}),
            ({"train_time_interval": timedelta(0)}, {"val_check_interval": 0.5}),
        ]
    )


class Scores(Callback):
    """Notes each validation's score by the number of zeros that the model had."""

    def __init__(self) -> None:
        self.by_zeros: dict[int, list[float]] = {}

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not trainer.sanity_checking:
            count = sum(int((layer.weight == 0).sum()) for layer in (pl_module.net[0], pl_module.net[3]))
            self.by_zeros.setdefault(count, []).append(float(trainer.callback_metrics["val_loss"]))


@pytest.mark.parametrize("seed", range(16))
def test_every_file_ranks_by_a_score_of_its_own_sparsity_or_last(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    seed_everything(seed)
    train, validation = loaders()
    saving, validating = random_saving(rng)
    name = {"filename": "{step}-{val_loss:.17f}", "monitor": "val_loss", "save_top_k": -1, "dirpath": tmp_path}
    checkpoint, scores = ModelCheckpoint(**name, **saving), Scores()
    pruning = PruningCallback(**random_plan(rng), allow_unfinished=True, verbose=False)
    trainer(tmp_path, [pruning, checkpoint, scores], max_epochs=4, **validating).fit(Net(), train, validation)
    files = [str(path) for path in tmp_path.glob("step*.ckpt")]
    named = {path: float(path.split("val_loss=")[1].split(".ckpt")[0].split("-v")[0]) for path in files}
    real = {path: score for path, score in named.items() if score < 999_999}
    assert len(files) >= 2
    assert real
    assert all(score in scores.by_zeros[zeros(path)] for path, score in real.items())
    ranked = {path: float(score) for path, score in checkpoint.best_k_models.items()}
    assert ranked.keys() == named.keys()
    assert {path: score for path, score in ranked.items() if score < 999_999} == real


def test_best_is_as_sparse_as_the_end_of_the_plan(tmp_path: Path) -> None:
    seed_everything(0)
    train, validation = loaders()
    checkpoint = ModelCheckpoint(dirpath=tmp_path, monitor="val_loss", save_top_k=2)
    pruning = PruningCallback(schedule=Linear(final=0.97, begin=1, end=6), scope="global", verbose=False)
    trainer(tmp_path, [checkpoint, pruning], max_epochs=8).fit(Net(), train, validation)
    wanted = round(0.97 * (64 * 32 + 32 * 10))
    assert [zeros(path) for path in checkpoint.best_k_models] == [wanted, wanted]
    assert len(list(tmp_path.glob("*.ckpt"))) == 2
    assert [float(checkpoint.best_model_score)] == scores_of([checkpoint.best_model_path], validation)


def test_when_files_are_saved_is_as_without_pruning(tmp_path: Path) -> None:
    train, validation = loaders()
    saved = []
    for name, others in (("dense", []), ("pruned", [PruningCallback(amount=0.5, epochs=[1], verbose=False)])):
        checkpoint = ModelCheckpoint(tmp_path / name, monitor="val_loss", every_n_train_steps=3, save_top_k=-1)
        last = ModelCheckpoint(tmp_path / name, monitor="val_loss", train_time_interval=timedelta(0), save_last=True)
        fit = trainer(tmp_path, [*others, checkpoint, last], max_epochs=3, val_check_interval=0.5)
        fit.fit(Net(), train, validation)
        steps = [int(path.split("step=")[1].split(".")[0].split("-")[0]) for path in checkpoint.best_k_models]
        saved.append((steps, step_of(tmp_path / name / "last.ckpt")))
    assert saved[0] == saved[1]
    assert len(saved[0][0]) >= 8


def test_best_has_the_last_sparsity_under_accumulation(tmp_path: Path) -> None:
    """An event at the start of an epoch is before the first step of the optimizer after a validation."""
    seed_everything(0)
    train, validation = loaders()
    checkpoint = ModelCheckpoint(dirpath=tmp_path, monitor="val_loss", every_n_train_steps=5)
    pruning = PruningCallback(schedule=OneShot(0.95, begin=6), scope="global", verbose=False)
    fit = trainer(tmp_path, [checkpoint, pruning], max_epochs=9, accumulate_grad_batches=2)
    fit.fit(Net(), train, validation)
    assert zeros(checkpoint.best_model_path) == round(0.95 * (64 * 32 + 32 * 10))


@CUT_OFF
@DEAD
def test_can_be_turned_off(tmp_path: Path) -> None:
    seed_everything(0)
    train, validation = loaders()
    checkpoint = ModelCheckpoint(dirpath=tmp_path, monitor="val_loss")
    pruning = PruningCallback(schedule=OneShot(0.99, begin=6), restart_scores=False, verbose=False)
    trainer(tmp_path, [checkpoint, pruning], max_epochs=7).fit(Net(), train, validation)
    assert zeros(checkpoint.best_model_path) == 0


def test_survives_a_resume(tmp_path: Path) -> None:
    train, validation = loaders()

    def parts() -> tuple[ModelCheckpoint, PruningCallback]:
        checkpoint = ModelCheckpoint(dirpath=tmp_path, monitor="val_loss", save_last=True)
        return checkpoint, PruningCallback(schedule=OneShot(0.98, begin=3), verbose=False)

    seed_everything(0)
    trainer(tmp_path, list(parts()), max_epochs=4).fit(Net(), train, validation)
    checkpoint, pruning = parts()
    again = trainer(tmp_path, [checkpoint, pruning], max_epochs=6)
    again.fit(Net(), train, validation, ckpt_path=tmp_path / "last.ckpt")
    assert zeros(checkpoint.best_model_path) == round(0.98 * (64 * 32 + 32 * 10))


def step_of(path: Path) -> int:
    return int(torch.load(path, weights_only=True)["global_step"])


class Crashing(Net):
    def on_train_epoch_end(self) -> None:
        if self.current_epoch == 1:
            raise RuntimeError("crashed on purpose")


@pytest.mark.parametrize("model", [Net, Crashing])
def test_other_callbacks_are_left_as_they_were(model: type[Net], tmp_path: Path) -> None:
    train, validation = loaders()
    others: list[Callback] = [EarlyStopping("val_loss"), ModelCheckpoint(tmp_path, monitor="val_loss")]
    own = {"log", "log_dict"}  # Lightning's
    before = [set(vars(callback)) | own for callback in others]
    with contextlib.suppress(RuntimeError):
        trainer(tmp_path, [*others, PruningCallback(verbose=False)], max_epochs=2).fit(model(), train, validation)
    assert [set(vars(callback)) for callback in others] == before


class Batches(Callback):
    """Counts batches in its state."""

    def __init__(self) -> None:
        self.seen = 0

    def on_train_batch_end(self, *args: Any) -> None:
        self.seen += 1

    def state_dict(self) -> dict[str, int]:
        return {"seen": self.seen}


def test_files_have_the_states_of_callbacks_after_this_one(tmp_path: Path) -> None:
    train, validation = loaders()
    checkpoint = ModelCheckpoint(dirpath=tmp_path, monitor="val_loss", every_n_train_steps=7, save_last=True)
    pruning = PruningCallback(amount=0.5, epochs=[1], verbose=False)
    trainer(tmp_path, [pruning, checkpoint, Batches()], max_steps=19).fit(Net(), train, validation)
    saved = torch.load(tmp_path / "last.ckpt", weights_only=True)
    assert saved["global_step"] == saved["callbacks"]["Batches"]["seen"] == 14


class Trained(Net):
    """A model that is judged by an average over the batches of an epoch; it gets worse by pruning."""

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        sparse = bool((self.net[0].weight == 0).any())
        self.log("average", (100.0 if sparse else 1.0) - self.global_step / 100, on_step=False, on_epoch=True)
        return loss


@pytest.mark.parametrize("plan", [{"epochs": [3]}, {"steps": [33]}])
def test_averages_over_an_epoch_from_before_an_event_are_not_the_best(plan: dict[str, Any], tmp_path: Path) -> None:
    train, _ = loaders()
    checkpoint = ModelCheckpoint(tmp_path, monitor="average", every_n_train_steps=3, filename="{step}")
    stopping = EarlyStopping("average", patience=2, strict=False, check_on_train_epoch_end=True)
    fit = trainer(tmp_path, [stopping, checkpoint, PruningCallback(amount=0.9, verbose=False, **plan)], max_epochs=8)
    fit.fit(Trained(), train)
    assert fit.current_epoch == 8
    assert zeros(checkpoint.best_model_path) > 0
    assert float(checkpoint.best_model_score) > 90


def test_scores_of_an_earlier_fit_say_nothing_about_a_second_one(tmp_path: Path) -> None:
    train, validation = loaders()

    class Both(Net):
        def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
            loss = super().training_step(batch, batch_idx)
            self.log("val_loss", loss)
            return loss

    pruning = PruningCallback(amount=0.5, epochs=[1], verbose=False)
    model = Both()
    trainer(tmp_path, [pruning], max_epochs=2, enable_checkpointing=False).fit(model, train, validation)
    checkpoint = ModelCheckpoint(tmp_path, monitor="val_loss", save_top_k=-1)
    trainer(tmp_path, [pruning, checkpoint], max_epochs=2, limit_val_batches=0).fit(model, train)
    assert len(list(tmp_path.glob("*.ckpt"))) == 2


class Worse(Net):
    """A model whose score gets worse from epoch to epoch."""

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        self.log("val_loss", float(self.current_epoch))


@pytest.mark.parametrize(("end", "epochs"), [(4, 7), (6, 9)])
def test_patience_does_not_count_epochs_that_got_sparser(end: int, epochs: int, tmp_path: Path) -> None:
    train, validation = loaders()
    stopping = EarlyStopping("val_loss", patience=2)
    pruning = PruningCallback(schedule=Linear(final=0.9, begin=0, end=end), verbose=False)
    fit = trainer(tmp_path, [stopping, pruning], max_epochs=20)
    fit.fit(Worse(), train, validation)
    assert fit.current_epoch == epochs


def test_a_score_from_before_an_event_is_not_the_best(tmp_path: Path) -> None:
    """Asked at the end of each epoch with a validation every third, patience would count against the dense score."""
    train, validation = loaders()

    class Sparser(Net):
        def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
            self.log("val_loss", (100.0 if self.current_epoch >= 7 else 1.0) - self.current_epoch / 100)

    stopping = EarlyStopping("val_loss", patience=4, strict=False, check_on_train_epoch_end=True)
    pruning = PruningCallback(schedule=OneShot(0.9, begin=7), verbose=False)
    for callbacks in ([stopping, pruning], [pruning, stopping]):
        fit = trainer(tmp_path, callbacks, max_epochs=15, check_val_every_n_epoch=3)
        fit.fit(Sparser(), train, validation)
        assert fit.current_epoch == 15
        assert float(stopping.best_score) == pytest.approx(100 - 0.14)
        assert stopping._check_on_train_epoch_end


def test_stopping_early_leaves_what_was_reached(tmp_path: Path) -> None:
    train, validation = loaders()
    model = Worse()
    pruning = PruningCallback(schedule=Linear(final=0.9, begin=5, end=10), verbose=False)
    fit = trainer(tmp_path, [EarlyStopping("val_loss", patience=2), pruning], max_epochs=20)
    with pytest.warns(UserWarning, match=r"0\.0000.*0\.9000"):
        fit.fit(model, train, validation)
    assert fit.current_epoch == 3
    assert int((model.net[0].weight == 0).sum()) == 0


def test_a_constant_sparsity_lets_scores_compete(tmp_path: Path) -> None:
    train, validation = loaders()
    checkpoint = ModelCheckpoint(dirpath=tmp_path, monitor="val_loss")
    pruning = PruningCallback(schedule=Constant(final=0.5, begin=0), verbose=False)
    trainer(tmp_path, [checkpoint, pruning], max_epochs=3).fit(Worse(), train, validation)
    assert checkpoint.best_model_path.endswith("epoch=0-step=10.ckpt")


class Falling(Net):
    """A model whose score falls slowly, from a higher value once it is pruned."""

    def __init__(self, sign: int = 1) -> None:
        super().__init__()
        self.sign = sign

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        sparse = bool((self.net[0].weight == 0).any())
        self.log("val_loss", self.sign * ((2.0 if sparse else 1.0) - self.global_step / 1000))


class OnPlateau(Falling):
    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(
            optimizer, patience=2 if self.trainer.check_val_every_n_epoch == 3 else 1, factor=0.5
        )
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": plateau, "monitor": "val_loss", "strict": False}}


@pytest.mark.parametrize("every", [1, 3])
def test_the_learning_rate_is_not_cut_by_scores_of_less_sparse_weights(every: int, tmp_path: Path) -> None:
    train, validation = loaders()
    fit = trainer(
        tmp_path, [PruningCallback(amount=0.5, epochs=[3], verbose=False)], max_epochs=9, check_val_every_n_epoch=every
    )
    model = OnPlateau()
    fit.fit(model, train, validation)
    config = fit.lr_scheduler_configs[0]
    assert float(config.scheduler.best) == pytest.approx(2.0 - 0.09)
    assert fit.optimizers[0].param_groups[0]["lr"] == 0.1


@pytest.mark.parametrize(("sign", "mode"), [(1, "min"), (-1, "max")])
@pytest.mark.parametrize(
    "stopping", [{"patience": 2}, {"divergence_threshold": 3.0}, {"stopping_threshold": 0.5}], ids=str
)
def test_nobody_stops_by_a_score_that_is_not_there(
    sign: int, mode: str, stopping: dict[str, Any], tmp_path: Path
) -> None:
    """It is asked at the end of each epoch, and there is a validation at every fourth only."""
    train, validation = loaders()
    limits = {key: value * (sign if "threshold" in key else 1) for key, value in stopping.items()}
    early = EarlyStopping(
        "val_loss", mode=mode, strict=False, check_on_train_epoch_end=True, **{"patience": 5, **limits}
    )
    pruning = PruningCallback(amount=0.5, epochs=[4], verbose=False)
    fit = trainer(tmp_path, [early, pruning], max_epochs=7, check_val_every_n_epoch=4)
    fit.fit(Falling(sign), train, validation)
    assert fit.current_epoch == 7


class ValueAtEvents(PruningCallback):
    """Notes what is monitored before and after each event."""

    def on_pruned(self, trainer: Trainer, pl_module: LightningModule, event: Any) -> None:
        self.seen = {key: float(value) for key, value in trainer.callback_metrics.items()}


def test_only_what_is_monitored_is_replaced_and_until_the_next_validation(tmp_path: Path) -> None:
    train, validation = loaders()

    class Two(Falling):
        def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
            super().validation_step(batch, batch_idx)
            self.log("other", 5.0)

    pruning = ValueAtEvents(amount=0.5, epochs=[2], verbose=False)
    fit = trainer(tmp_path, [pruning, ModelCheckpoint(tmp_path, monitor="val_loss")], max_epochs=3)
    fit.fit(Two(), train, validation)
    assert pruning.seen["val_loss"] == 999_999
    assert pruning.seen["other"] == 5.0
    assert float(fit.callback_metrics["val_loss"]) == pytest.approx(2.0 - 0.03)


def test_files_saved_before_the_first_validation_of_a_sparsity_have_short_names(tmp_path: Path) -> None:
    train, validation = loaders()
    often = ModelCheckpoint(tmp_path, "{step}-{val_loss:.1f}", monitor="val_loss", every_n_train_steps=5, save_top_k=-1)
    pruning = PruningCallback(amount=0.5, epochs=[1], verbose=False)
    trainer(tmp_path, [pruning, often], max_epochs=2).fit(Falling(), train, validation)
    saved = {int(name.split("=")[1].split("-")[0]): name for name in (p.name for p in tmp_path.glob("*.ckpt"))}
    assert saved == {15: "step=15-val_loss=999999.0.ckpt", 20: "step=20-val_loss=999999.0.ckpt"}


def test_the_epoch_and_the_sparsity_stay_what_they_are(tmp_path: Path) -> None:
    train, validation = loaders()
    newest = ModelCheckpoint(tmp_path / "a", monitor="step", mode="max")
    sparsest = ModelCheckpoint(tmp_path / "b", "{epoch}-{sparsity:.4f}", monitor="sparsity", mode="max")
    pruning = PruningCallback(amount=0.5, epochs=[1, 2], scope="global", verbose=False)
    trainer(tmp_path, [pruning, newest, sparsest], max_epochs=4).fit(Net(), train, validation)
    assert newest.best_model_path.endswith("step=40.ckpt")
    assert Path(sparsest.best_model_path).name == "epoch=2-sparsity=0.7500.ckpt"


def test_a_second_fit_keeps_earlier_scores_out_of_competition(tmp_path: Path) -> None:
    train, validation = loaders()
    checkpoint = ModelCheckpoint(tmp_path, monitor="val_loss", save_top_k=-1)
    pruning = PruningCallback(amount=0.5, epochs=[1], verbose=False)
    fit = trainer(tmp_path, [pruning, checkpoint], max_epochs=2)
    model = Falling()
    fit.fit(model, train, validation)
    assert [round(float(score), 4) for score in checkpoint.best_k_models.values()] == [0.99, 1.98]
    fit.fit_loop.max_epochs = 4
    fit.fit(model, train, validation)
    assert [round(float(score), 4) for score in checkpoint.best_k_models.values()] == [0.99, 1.98, 1.97, 1.96]
    assert checkpoint.best_model_path.endswith("step=40.ckpt")


def test_files_get_their_scores_back_after_a_resume_in_a_new_process(tmp_path: Path) -> None:
    train, validation = loaders()
    kept = []
    for name, parts in (("straight", (6,)), ("resumed", (4, 6))):
        last = None
        for epochs in parts:
            checkpoint = ModelCheckpoint(tmp_path / name, "{epoch}", monitor="val_loss", save_top_k=-1)
            pruning = PruningCallback(amount=0.5, epochs=[2, 4], verbose=False, allow_unfinished=True)
            fit = trainer(tmp_path, [pruning, checkpoint], max_epochs=epochs)
            fit.fit(Falling(), train, validation, ckpt_path=last)
            last = tmp_path / name / f"epoch={epochs - 1}.ckpt"
        kept.append({Path(path).name: round(float(s), 4) for path, s in checkpoint.best_k_models.items()})
    assert kept[0] == kept[1]
    assert len(kept[0]) == 6
    assert max(kept[0].values()) < 10
