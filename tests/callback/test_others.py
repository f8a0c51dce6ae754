"""PruningCallback beside averaging and fine-tuning callbacks; zeros that are there at the start."""

from __future__ import annotations

import copy
import functools
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import callbacks
from lightning.pytorch.callbacks import (
    BackboneFinetuning,
    BaseFinetuning,
    Callback,
    ModelCheckpoint,
    StochasticWeightAveraging,
)
from torch import nn
from torch.optim.swa_utils import AveragedModel

from lightning_prune import Budget, Cubic, Linear, PruningCallback
from tests.models import Net, Recorder, is_plain, net, trainer, zeros
from tests.versions import needs_averaging


def plan(end: int = 3) -> Recorder:
    return Recorder(schedule=Linear(final=0.8, initial=0.2, end=end), scope="global")


def each_step() -> Any:
    class EachStep(callbacks.WeightAveraging):
        def should_update(self, step_idx: int | None = None, epoch_idx: int | None = None) -> bool:
            return step_idx is not None

    return EachStep()


def ema(**kwargs: Any) -> Any:
    return callbacks.EMAWeightAveraging(decay=0.9, **kwargs)


AVERAGES = {
    "swa": lambda: StochasticWeightAveraging(swa_lrs=0.05, swa_epoch_start=1, annealing_epochs=1),
    "average": each_step,
    "ema": ema,
    "ema from epoch 4": lambda: ema(update_starting_at_epoch=4, update_every_n_steps=0),
}


class NoNorm(Net):
    """Without batch normalization SWA adds no epoch of its own."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.norm = nn.Identity()  # type: ignore[assignment]


@pytest.mark.parametrize("ours_first", [True, False])
@pytest.mark.parametrize(
    "average", [pytest.param(name, marks=[] if name == "swa" else needs_averaging) for name in sorted(AVERAGES)]
)
@pytest.mark.parametrize("make", [Net, NoNorm])
def test_final_and_saved_averages_are_as_sparse_as_planned(
    tmp_path: Path, average: str, ours_first: bool, make: Any
) -> None:
    """Averaging begins before the last event, but for the last of the averages."""
    torch.manual_seed(0)
    model, callback = make(functools.partial(torch.optim.Adam, lr=0.01)), plan()
    pair = [callback, AVERAGES[average]()]
    keep = ModelCheckpoint(tmp_path, save_top_k=-1, filename="{epoch}")
    fits = trainer(tmp_path, *(pair if ours_first else pair[::-1]), keep, epochs=6)
    fits.fit(model)
    fits.save_checkpoint(tmp_path / "end.ckpt")
    assert [event[1] for event in callback.seen] == [0, 1, 2, 3]
    assert zeros(model) == 141
    assert is_plain(model)
    for name, reached in (("epoch=3", 141), ("epoch=5", 141), ("end", 141)):
        plain = make()
        saved = torch.load(tmp_path / f"{name}.ckpt", weights_only=False)  # the state of SWA in lightning 2.5 needs it
        plain.load_state_dict(saved["state_dict"], strict=True)
        assert zeros(plain) == reached


@needs_averaging
@pytest.mark.parametrize("ours_first", [True, False])
def test_averages_are_those_of_the_sparse_model(tmp_path: Path, ours_first: bool) -> None:
    """A running mean that began before the event still averages what survives it."""
    seen: list[torch.Tensor] = []

    class Look(Callback):
        def on_train_batch_end(self, trainer: Any, pl_module: Any, *args: Any) -> None:
            seen.append(pl_module.first.weight.detach().clone())

    model, callback = net(), Recorder(amount=0.5, epochs=[1], parameters="first")
    pair = [callback, each_step()]
    trainer(tmp_path, *(pair if ours_first else pair[::-1]), Look(), epochs=3).fit(model)
    mean = torch.stack(seen).mean(0) * (seen[-1] != 0)
    assert torch.allclose(model.first.weight, mean, atol=1e-5)
    assert zeros(model, "first.weight") == 64


def test_amounts_at_every_epoch_leave_out_the_epoch_that_swa_adds(tmp_path: Path) -> None:
    for ours_first in (True, False):
        callback = Recorder(amount=0.5, scope="global")
        pair = [callback, AVERAGES["swa"]()]
        fits = trainer(tmp_path, *(pair if ours_first else pair[::-1]), epochs=4)
        fits.fit(net())
        assert [event[1] for event in callback.seen] == [0, 1, 2, 3]


@needs_averaging
def test_resumed_average(tmp_path: Path) -> None:
    class Save(Callback):
        def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
            if trainer.current_epoch == 1 and not trainer.sanity_checking:
                trainer.save_checkpoint(tmp_path / "half.ckpt")

    straight, resumed = net(), net(seed=1)
    trainer(tmp_path, plan(), ema(), Save(), epochs=5).fit(straight)
    trainer(tmp_path, ema(), plan(), epochs=5).fit(resumed, ckpt_path=tmp_path / "half.ckpt")
    assert zeros(straight) == 141
    assert all(torch.equal(p, q) for p, q in zip(straight.parameters(), resumed.parameters(), strict=True))


def test_other_models_in_callbacks_are_left_alone(tmp_path: Path) -> None:
    """A teacher has the same names and shapes, and is no average; an average of one's own is."""

    class Teacher(Callback):
        def __init__(self, model: Net) -> None:
            self.teacher = copy.deepcopy(model)
            self.mine = AveragedModel(model)

    model = net()
    teacher = Teacher(model)
    trainer(tmp_path, teacher, plan(end=2)).fit(model)
    assert zeros(teacher.teacher) == 0
    assert zeros(teacher.mine) == 141


class Backbone(Net):
    """``backbone`` has 64 weights, ``first`` 128 and ``last`` 48; only ``backbone`` is frozen at first."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(8, 8, bias=False))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(self.backbone(x))

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD([p for p in self.parameters() if p.requires_grad], lr=0.1, momentum=0.9)


@pytest.mark.parametrize("ours_first", [True, False])
def test_frozen_tensors_are_not_pruned(tmp_path: Path, ours_first: bool) -> None:
    torch.manual_seed(0)
    model, callback = Backbone(), plan()
    pair = [callback, BackboneFinetuning(unfreeze_backbone_at_epoch=2, verbose=False)]
    trainer(tmp_path, *(pair if ours_first else pair[::-1]), epochs=5).fit(model)
    assert zeros(model, "backbone.0.weight") == 0
    assert zeros(model) == 141


@pytest.mark.parametrize("ours_first", [True, False])
def test_unfrozen_tensors_join_at_the_next_event(tmp_path: Path, ours_first: bool) -> None:
    torch.manual_seed(0)
    model = Backbone()
    callback = Recorder(schedule=Linear(final=0.8, initial=0.2, end=3), frozen="join")
    pair = [callback, BackboneFinetuning(unfreeze_backbone_at_epoch=2, verbose=False)]
    trainer(tmp_path, *(pair if ours_first else pair[::-1]), epochs=5).fit(model)
    # 0.2 and 0.4 of 176, 0.6 of 176 or, if the backbone was unfrozen before, of 240, 0.8 of 240
    assert [event[-1] for event in callback.seen] == [35, 70, 106 if ours_first else 144, 192]
    assert zeros(model, "backbone.0.weight") == 51
    assert zeros(model) == 192


def test_join_with_an_override_of_a_frozen_tensor(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Backbone()
    callback = Recorder(schedule=Linear(final=0.6, end=4), frozen="join", scope=Budget(overrides={"backbone.*": 0.25}))
    trainer(tmp_path, BackboneFinetuning(unfreeze_backbone_at_epoch=2, verbose=False), callback, epochs=5).fit(model)
    assert zeros(model, "backbone.0.weight") == 16
    assert zeros(model) == 144


class Thaw(BaseFinetuning):
    """Freezes the backbone, and thaws it at epoch 1; a resumed fit finds it thawed."""

    def freeze_before_training(self, pl_module: Any) -> None:
        if not pl_module.thawed:
            self.freeze(pl_module.backbone)

    def finetune_function(self, pl_module: Any, epoch: int, optimizer: Any) -> None:
        if epoch == 1:
            self.unfreeze_and_add_param_group(pl_module.backbone, optimizer, lr=0.1)


@pytest.mark.parametrize("frozen", ["skip", "join"])
@pytest.mark.parametrize("thawed", [True, False])
def test_across_a_resume(tmp_path: Path, frozen: Any, thawed: bool) -> None:
    """Whether the backbone is frozen when the resumed fit starts does not matter: the selection is the saved one."""

    class Save(Callback):
        def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
            if trainer.current_epoch == 2 and not trainer.sanity_checking:
                trainer.save_checkpoint(tmp_path / "half.ckpt")

    def run(*others: Callback, thawed: bool = False, **kwargs: Any) -> tuple[Backbone, list[int]]:
        torch.manual_seed(0)
        model = Backbone()
        model.thawed = thawed  # type: ignore[assignment]
        callback = Recorder(schedule=Linear(final=0.8, initial=0.2, end=4), frozen=frozen)
        trainer(tmp_path, Thaw(), callback, *others, epochs=6).fit(model, **kwargs)
        return model, [event[-1] for event in callback.seen]

    _, events = run(Save())
    resumed, after = run(thawed=thawed, ckpt_path=tmp_path / "half.ckpt")
    total = 176 if frozen == "skip" else 240
    assert events[1:] == [round(0.35 * total), round(0.5 * total), round(0.65 * total), round(0.8 * total)]
    assert after == events[3:]
    assert zeros(resumed) == round(0.8 * total)


def sparse() -> Net:
    """A net of which every other weight is zero."""
    model = net()
    with torch.no_grad():
        for weight in (model.first.weight, model.last.weight):
            weight.view(-1)[::2] = 0
    return model


def test_zeros_of_a_sparse_checkpoint_are_lost_without_and_kept_with_the_option(tmp_path: Path) -> None:
    lost, kept = sparse(), sparse()
    trainer(tmp_path).fit(lost)
    assert zeros(lost) < 20
    callback = PruningCallback(keep_zeros=True, verbose=False)
    trainer(tmp_path, callback).fit(kept)
    assert zeros(kept) == 88
    assert bool((kept.first.weight.view(-1)[::2] == 0).all())
    assert is_plain(kept)


def test_kept_zeros_start_a_schedule(tmp_path: Path) -> None:
    callback = Recorder(schedule=Cubic(final=0.8, end=2), scope="global", keep_zeros=True)
    model = sparse()
    trainer(tmp_path, callback).fit(model)
    assert [event[-1] for event in callback.seen] == [88, 123, 141]
    assert bool((model.first.weight.view(-1)[::2] == 0).all())


def test_kept_zeros_are_no_units_of_an_amount(tmp_path: Path) -> None:
    callback = Recorder(amount=0.5, epochs=[1], keep_zeros=True)
    model = sparse()
    trainer(tmp_path, callback).fit(model)
    assert callback.seen == [(1, 1, 4, 132)]


def test_resume_keeps_the_masks_and_takes_no_new_zeros(tmp_path: Path) -> None:
    fits = trainer(tmp_path, PruningCallback(keep_zeros=True, verbose=False), epochs=1)
    fits.fit(sparse())
    fits.save_checkpoint(tmp_path / "kept.ckpt")
    state = torch.load(tmp_path / "kept.ckpt", weights_only=True)
    state["state_dict"]["last.weight"][-1, -1] = 0
    torch.save(state, tmp_path / "kept.ckpt")
    model = net(seed=1)
    trainer(tmp_path, PruningCallback(keep_zeros=True, verbose=False)).fit(model, ckpt_path=tmp_path / "kept.ckpt")
    assert zeros(model) == 88


def test_only_selected_tensors_keep_their_zeros(tmp_path: Path) -> None:
    model = sparse()
    trainer(tmp_path, PruningCallback(keep_zeros=True, parameters="first", verbose=False)).fit(model)
    assert zeros(model, "first.weight") == 64
    assert zeros(model, "last.weight") == 0
