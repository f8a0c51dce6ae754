"""PruningCallback: every way a fit can end, every use beside it, every tuner."""

from __future__ import annotations

import contextlib
import copy
import functools
import gc
import pickle
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import (
    BatchSizeFinder,
    Callback,
    EarlyStopping,
    LearningRateFinder,
    ModelCheckpoint,
    OnExceptionCheckpoint,
)
from lightning.pytorch.tuner import Tuner

from lightning_prune import Cubic, Linear, PruningCallback, PruningWarning, report
from tests.expected import ENDED_EARLY, FEW_SELECTED
from tests.models import Net, Recorder, is_plain, net, trainer, zeros

pytestmark = [ENDED_EARLY, FEW_SELECTED]


@pytest.fixture(autouse=True)
def _interrupts() -> Iterator[None]:
    """Lightning switches Ctrl-C off when it handles one."""
    handler = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, handler)


class Once(Callback):
    """Raises at the given batch of an epoch, once."""

    def __init__(self, error: BaseException, epoch: int = 2, batch: int = 1) -> None:
        self.error, self.epoch, self.batch = error, epoch, batch

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if (trainer.current_epoch, batch_idx) == (self.epoch, self.batch):
            raise self.error


def plan() -> Recorder:
    """24, 47, 70, 94, 117, 141 zeros at epochs 0 to 5, of 176: sixths of 0.8."""
    return Recorder(schedule=Linear(final=0.8, initial=0.8 / 6, end=5), scope="global", allow_unfinished=True)


def test_second_fit_keeps_what_is_pruned(tmp_path: Path) -> None:
    callback, model = Recorder(amount=0.5, epochs=[0, 1]), net()
    trainer(tmp_path, callback).fit(model)
    first = model.first.weight == 0
    assert int(first.sum()) == 96
    trainer(tmp_path, callback).fit(model)
    assert bool((model.first.weight == 0)[first].all())
    assert zeros(model, "first.weight") == 120
    assert is_plain(model)


def test_second_fit_of_a_finished_schedule_holds_its_zeros(tmp_path: Path) -> None:
    callback, model = Recorder(schedule=Cubic(final=0.8, end=2), scope="global"), net()
    trainer(tmp_path, callback).fit(model)
    dead = model.first.weight == 0
    before = model.first.weight.clone()
    trainer(tmp_path, callback).fit(model)
    assert torch.equal(model.first.weight == 0, dead)
    assert not torch.equal(model.first.weight, before)
    assert zeros(model) == 141


def test_the_same_trainer_goes_on(tmp_path: Path) -> None:
    callback, model = Recorder(amount=0.5, scope="global"), net()
    fits = trainer(tmp_path, callback, epochs=2)
    fits.fit(model)
    fits.fit_loop.max_epochs = 4
    fits.fit(model)
    assert [event[1] for event in callback.seen] == [0, 1, 2, 3]
    assert zeros(model) == 165


def test_second_fit_selects_anew(tmp_path: Path) -> None:
    """The head alone, and then the whole model, as one fine-tunes."""
    callback, model = Recorder(amount=0.5, epochs=[0]), net()
    model.first.requires_grad_(False)
    trainer(tmp_path, callback, epochs=1).fit(model)
    assert (zeros(model, "first.weight"), zeros(model, "last.weight")) == (0, 24)
    dead = model.last.weight == 0
    model.first.requires_grad_(True)
    trainer(tmp_path, callback, epochs=1).fit(model)
    assert (zeros(model, "first.weight"), zeros(model, "last.weight")) == (64, 36)
    assert bool((model.last.weight == 0)[dead].all())


def test_other_model_is_pruned_afresh(tmp_path: Path) -> None:
    callback, other = plan(), net(seed=1)
    trainer(tmp_path, callback, epochs=6).fit(net())
    trainer(tmp_path, callback, epochs=1).fit(other)
    assert zeros(other) == 23
    assert is_plain(other)


def test_validate_test_and_predict_never_prune(tmp_path: Path) -> None:
    callback, model = plan(), net()
    uses = trainer(tmp_path, callback, epochs=2)
    uses.validate(model, verbose=False)
    uses.test(model, verbose=False)
    uses.predict(model)
    assert zeros(model) == 0
    assert callback.seen == []
    uses.fit(model)
    uses.validate(model, verbose=False)
    uses.test(model, verbose=False)
    uses.predict(model)
    assert [event[1] for event in callback.seen] == [0, 1]
    assert zeros(model) == 47


def test_sanity_check_does_not_prune(tmp_path: Path) -> None:
    callback = plan()
    counts = []

    class Look(Callback):
        def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
            counts.append((trainer.sanity_checking, zeros(pl_module)))

    trainer(tmp_path, Look(), callback, epochs=2, num_sanity_val_steps=1).fit(net())
    assert counts == [(True, 0), (False, 23), (False, 47)]


def test_lr_find_leaves_the_plan_where_it_was(tmp_path: Path) -> None:
    callback, model = plan(), net()
    fits = trainer(tmp_path, callback, epochs=6)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    Tuner(fits).lr_find(model, num_training=8)
    assert zeros(model) == 0
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    fits.fit(model)
    assert [event[1] for event in callback.seen] == [0, 1, 2, 3, 4, 5]
    assert zeros(model) == 141


def test_scale_batch_size(tmp_path: Path) -> None:
    callback, model = plan(), net()
    fits = trainer(tmp_path, callback, epochs=6)
    Tuner(fits).scale_batch_size(model, steps_per_trial=1, max_trials=2, init_val=4)
    assert zeros(model) == 0
    fits.fit(model)
    assert zeros(model) == 141


@pytest.mark.parametrize("first", [True, False])
def test_finders_as_callbacks(tmp_path: Path, first: bool) -> None:
    callback, model = plan(), net()
    finders: list[Callback] = [
        BatchSizeFinder(steps_per_trial=1, max_trials=2),
        LearningRateFinder(num_training_steps=8),
    ]
    callbacks = [*finders, callback] if first else [callback, *finders]
    trainer(tmp_path, *callbacks, epochs=6).fit(model)
    assert [event[-1] for event in callback.seen] == [23, 47, 70, 94, 117, 141]
    assert zeros(model) == 141


def test_lr_finder_in_a_second_fit_keeps_the_masks(tmp_path: Path) -> None:
    callback, model = Recorder(amount=0.5, epochs=[0]), net()
    trainer(tmp_path, callback).fit(model)
    dead = model.first.weight == 0
    trainer(tmp_path, LearningRateFinder(num_training_steps=8), callback, epochs=1).fit(model)
    assert [event[0] for event in callback.seen] == [0, 0]
    assert bool((model.first.weight == 0)[dead].all())
    assert zeros(model, "first.weight") == 96


def test_lr_finder_in_a_resumed_fit_keeps_the_masks(tmp_path: Path) -> None:
    fits = trainer(tmp_path, plan(), epochs=3)
    fits.fit(net())
    fits.save_checkpoint(tmp_path / "half.ckpt")
    seen = []

    class Look(Callback):
        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            seen.append(sum(int((m.weight == 0).sum()) for m in (pl_module.first, pl_module.last)))

    model, callback = net(), plan()
    resumed = trainer(tmp_path, LearningRateFinder(num_training_steps=8), callback, Look(), epochs=6)
    resumed.fit(model, ckpt_path=tmp_path / "half.ckpt")
    assert seen == [70]
    assert [event[1] for event in callback.seen] == [3, 4, 5]
    assert zeros(model) == 141


def test_lr_finder_at_a_later_epoch_goes_back_to_the_masks(tmp_path: Path) -> None:
    class Later(LearningRateFinder):
        def on_fit_start(self, *args: Any) -> None:
            pass

        def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
            if trainer.current_epoch == 2:
                self.lr_find(trainer, pl_module)

    callback, model = plan(), net()
    keep = ModelCheckpoint(tmp_path, save_top_k=-1, filename="{epoch}")
    trainer(tmp_path, callback, Later(num_training_steps=8), keep, epochs=6).fit(model)
    assert [event[-1] for event in callback.seen] == [23, 47, 70, 94, 117, 141]
    state = torch.load(tmp_path / "epoch=4.ckpt", weights_only=True)
    assert sum(int((state["state_dict"][n] == 0).sum()) for n in ("first.weight", "last.weight")) == 117
    assert state["callbacks"][callback.state_key]["done"] == 4


@pytest.mark.parametrize(
    ("settings", "reached"),
    [
        ({"max_steps": 10}, 70),
        ({"max_time": {"seconds": 0}}, 0),
        ({"limit_train_batches": 0.25}, 141),
        ({"fast_dev_run": True}, 23),
    ],
)
def test_early_ends_leave_a_plain_model(tmp_path: Path, settings: dict[str, Any], reached: int) -> None:
    model, callback = net(), plan()
    parameters = list(model.parameters())
    trainer(tmp_path, callback, epochs=6, **settings).fit(model)
    assert is_plain(model)
    assert zeros(model) == reached
    assert all(p is q for p, q in zip(model.parameters(), parameters, strict=True))


class StopAt(Callback):
    def __init__(self, epoch: int) -> None:
        self.epoch = epoch

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        trainer.should_stop = trainer.current_epoch == self.epoch


def test_an_early_end_says_reached_and_planned(tmp_path: Path) -> None:
    model, rising = net(), Linear(final=0.8, initial=0.8 / 6, end=5)
    with pytest.warns(PruningWarning, match=r"ended at epoch 2, .* at epoch 5: .* 0\.3977 of 0\.8000 planned"):
        trainer(tmp_path, Recorder(schedule=rising, scope="global"), StopAt(2), epochs=6).fit(model)
    assert zeros(model) == 70


@pytest.mark.filterwarnings("error:the fit ended")
def test_an_early_end_that_is_allowed_is_silent(tmp_path: Path) -> None:
    model = net()
    trainer(tmp_path, plan(), StopAt(2), epochs=6).fit(model)
    assert zeros(model) == 70


def test_patience_does_not_count_epochs_in_which_the_sparsity_rose(tmp_path: Path) -> None:
    callback = plan()
    fits = trainer(tmp_path, callback, EarlyStopping("val_loss", patience=2, min_delta=10.0), epochs=20)
    fits.fit(net())
    assert len(callback.seen) == 6
    assert fits.current_epoch == 8


@pytest.mark.parametrize(("error", "raised"), [(RuntimeError("loss"), RuntimeError), (KeyboardInterrupt(), SystemExit)])
@pytest.mark.parametrize("ours_first", [True, False])
def test_exceptions_and_their_checkpoint(
    tmp_path: Path, error: BaseException, raised: type[BaseException], ours_first: bool
) -> None:
    straight = net()
    trainer(tmp_path, plan(), epochs=6).fit(straight)

    save, model, callback = OnExceptionCheckpoint(tmp_path), net(), plan()
    pair = [callback, save] if ours_first else [save, callback]
    with pytest.raises(raised):
        trainer(tmp_path, *pair, Once(error), epochs=6).fit(model)
    assert is_plain(model)
    assert zeros(model) == 70
    assert callback.run is None

    plain = net(seed=3)
    state = torch.load(tmp_path / "on_exception.ckpt", weights_only=True)
    plain.load_state_dict(state["state_dict"], strict=True)
    assert zeros(plain) == 70
    resumed, after = net(seed=5), plan()
    trainer(tmp_path, after, epochs=6).fit(resumed, ckpt_path=tmp_path / "on_exception.ckpt")
    assert [event[1] for event in after.seen] == [3, 4, 5]
    assert zeros(resumed) == 141
    assert is_plain(resumed)


@pytest.mark.parametrize("error", [None, RuntimeError("loss")])
def test_only_a_fit_that_ends_well_shows_what_was_reached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException | None
) -> None:
    shown: list[report.Summary] = []
    monkeypatch.setattr(report, "show", shown.append)
    callback = PruningCallback(amount=0.5, epochs=[1])
    others = [] if error is None else [Once(error)]
    with contextlib.nullcontext() if error is None else pytest.raises(RuntimeError, match="loss"):
        trainer(tmp_path, callback, *others, epochs=6).fit(net())
    assert [table.zeros for table in shown] == ([88] if error is None else [])


def test_exception_in_training_step_and_in_validation(tmp_path: Path) -> None:
    class Broken(Net):
        where = ""

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            if self.where == "training" and self.trainer.current_epoch == 1:
                raise RuntimeError("here")
            return super().training_step(batch, batch_idx)

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            if self.where == "validation" and self.trainer.current_epoch == 1:
                raise RuntimeError("here")

    for where in ("training", "validation"):
        model = Broken()
        model.where = where
        with pytest.raises(RuntimeError, match="here"):
            trainer(tmp_path, plan(), epochs=6).fit(model)
        assert is_plain(model)
        assert zeros(model) == 47


def test_a_refused_event_leaves_a_plain_model_as_it_was(tmp_path: Path) -> None:
    class Spoil(Callback):
        def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
            with torch.no_grad():
                pl_module.first.weight.fill_(torch.nan)

    model = net()
    with pytest.raises(ValueError, match=r"first\.weight.*NaN"):
        trainer(tmp_path, Recorder(amount=0.5), Spoil(), epochs=3).fit(model)
    assert is_plain(model)
    assert zeros(model) == 88


def test_memory_stays_flat_over_100_rounds(tmp_path: Path) -> None:
    live: list[int] = []

    class Count(Callback):
        def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
            if trainer.current_epoch in (4, 99):
                gc.collect()
                tensors = [o for o in gc.get_objects() if isinstance(o, torch.Tensor)]
                live.append(sum(t.untyped_storage().nbytes() for t in tensors if t.layout is torch.strided))

    model = net(optimizer=functools.partial(torch.optim.Adam, lr=1e-3))
    callback = Recorder("random_unstructured", schedule=Linear(final=0.9, end=99))
    trainer(tmp_path, callback, Count(), epochs=100, limit_train_batches=1, limit_val_batches=0).fit(model)
    assert len(callback.seen) == 100
    assert abs(live[1] - live[0]) < 176 * 4
    gc.collect()
    assert zeros(model) == round(0.9 * 176)


def test_the_callback_holds_no_model_after_a_fit(tmp_path: Path) -> None:
    model = net()
    model.large = torch.nn.Linear(500, 500)
    for callback in (plan(), PruningCallback(amount=0.5, exclude="large", verbose=False)):
        trainer(tmp_path, callback, epochs=6).fit(model)
        assert len(pickle.dumps(callback)) < 80_000  # the masks of an earlier fit, one bit for each selected weight
    broken = PruningCallback(amount=0.5, exclude="large", verbose=False)
    with pytest.raises(RuntimeError, match="here"):
        trainer(tmp_path, broken, Once(RuntimeError("here"))).fit(model)
    assert len(pickle.dumps(broken)) < 8_000


def test_callback_pickles_and_copies_before_during_and_after(tmp_path: Path) -> None:
    class Copy(Callback):
        def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
            copies.append(copy.deepcopy(pl_module))
            copies.append(pickle.loads(pickle.dumps(pl_module.first)))

    copies: list[Any] = []
    callback = PruningCallback(amount=0.5, epochs=[0], verbose=False)
    model = net()
    trainer(tmp_path, callback, Copy(), epochs=1).fit(model)
    assert torch.equal(copies[0].first.weight == 0, model.first.weight == 0)
    assert torch.equal(copies[1].weight, model.first.weight)
    again = pickle.loads(pickle.dumps(callback))
    assert again.plan == callback.plan
    trainer(tmp_path, copy.deepcopy(callback), epochs=1).fit(net(seed=1))
