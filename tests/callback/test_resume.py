"""PruningCallback: a resumed run equals the uninterrupted one to the last bit."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from torch import Tensor

from lightning_prune import Budget, Linear, PruningCallback, Rewind
from lightning_prune.checkpoint import unpack
from lightning_prune.targets.target import Target
from tests.expected import ENDED_EARLY, FEW_SELECTED, MOVED
from tests.models import Net, Recorder, is_plain, net, trainer, zeros
from tests.resume import OPTIMIZERS, PLANS, go, make

pytestmark = [ENDED_EARLY, FEW_SELECTED]

ROOT = Path(__file__).parent.parent


def load(path: Path) -> dict[str, Any]:
    return torch.load(path, weights_only=True)


def same(a: Any, b: Any) -> bool:
    """Whether two nested values are equal to the last bit."""
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return bool(a == b)


def assert_same_runs(straight: Path, resumed: Path) -> None:
    a, b = load(straight), load(resumed)
    for key in ("state_dict", "optimizer_states", "lr_schedulers", "callbacks", "global_step"):
        assert same(a[key], b[key]), key


def masks(state: dict[str, Any]) -> dict[str, torch.Tensor]:
    """The masks of the only pruning state of a checkpoint."""
    (pruning,) = [s for s in state["callbacks"].values() if "tensors" in s]
    return {name: unpack(t["bits"], t["shape"]) for name, t in pruning["tensors"].items() if "bits" in t}


@pytest.mark.parametrize(
    ("optimizer", "plan"), [("sgd", "magnitude"), ("adam", "random"), ("sgd", "amount"), ("adam", "steps")]
)
def test_two_and_two_epochs_in_a_new_process(tmp_path: Path, optimizer: str, plan: str) -> None:
    go(tmp_path, optimizer, plan, tmp_path / "straight.ckpt")
    model, callback = make(optimizer, plan)
    stop = trainer(tmp_path, callback, StopAfter(epoch=1, path=tmp_path / "half.ckpt"), epochs=4)
    stop.fit(model)
    half, end = tmp_path / "half.ckpt", tmp_path / "resumed.ckpt"
    subprocess.run([sys.executable, "-m", "tests.resume", optimizer, plan, half, end], cwd=ROOT, check=True)
    assert_same_runs(tmp_path / "straight.ckpt", end)
    before, after = masks(load(half)), masks(load(end))
    assert sum(int((~m).sum()) for m in after.values()) > sum(int((~m).sum()) for m in before.values()) > 0


class StopAfter(Callback):
    """Saves a checkpoint after an epoch, or after a batch of it, and ends the fit."""

    def __init__(self, epoch: int, path: Path, batch: int | None = None) -> None:
        self.epoch, self.path, self.batch = epoch, path, batch

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if (trainer.current_epoch, batch_idx) == (self.epoch, self.batch):
            trainer.save_checkpoint(self.path)
            raise Break

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        if self.batch is None and trainer.current_epoch == self.epoch and not trainer.sanity_checking:
            trainer.save_checkpoint(self.path)
            trainer.should_stop = True


class Break(Exception):
    """The end of a process."""


@pytest.mark.parametrize("plan", sorted(PLANS))
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
@pytest.mark.parametrize(("epoch", "batch"), [(0, 0), (1, 0), (1, 2), (1, 3), (2, 1), (3, 0)])
def test_break_within_an_epoch(tmp_path: Path, plan: str, optimizer: str, epoch: int, batch: int) -> None:
    """After steps 1, 5, 7, 8, 10 and 13; the plan by steps has events at 2, 5, 8, 11 and 14, the others at 0, 4, 8, 12.

    So some breaks are right before an event, some right after the first step that follows one.
    """
    go(tmp_path, optimizer, plan, tmp_path / "straight.ckpt", limit_val_batches=0)
    model, callback = make(optimizer, plan)
    fits = trainer(tmp_path, callback, StopAfter(epoch, tmp_path / "half.ckpt", batch), epochs=4, limit_val_batches=0)
    with pytest.raises(Break):
        fits.fit(model)
    go(tmp_path, optimizer, plan, tmp_path / "resumed.ckpt", tmp_path / "half.ckpt", limit_val_batches=0)
    assert_same_runs(tmp_path / "straight.ckpt", tmp_path / "resumed.ckpt")


def test_a_checkpoint_written_in_an_event_holds_it(tmp_path: Path) -> None:
    class Saving(Recorder):
        def on_pruned(self, trainer: Any, pl_module: Any, event: Any) -> None:
            trainer.save_checkpoint(tmp_path / f"{event.demand.time}.ckpt")

    callback = Saving(schedule=Linear(final=0.8, initial=0.2, end=3), scope="global")
    trainer(tmp_path, callback, epochs=4).fit(net())
    for time, pruned in enumerate([35, 70, 106, 141]):
        state = load(tmp_path / f"{time}.ckpt")
        assert sum(int((~m).sum()) for m in masks(state).values()) == pruned
        assert sum(int((state["state_dict"][name] == 0).sum()) for name in ("first.weight", "last.weight")) == pruned
        assert state["callbacks"][callback.state_key]["done"] == time


def test_pruned_stays_pruned_from_the_first_step(tmp_path: Path) -> None:
    seen = []

    class Look(Callback):
        def on_train_batch_end(self, trainer: Any, pl_module: Any, *args: Any) -> None:
            seen.append(int((pl_module.first.weight == 0).sum()))

    fits = trainer(tmp_path, Recorder(amount=0.5, epochs=[0]), epochs=1)
    fits.fit(net(optimizer=OPTIMIZERS["adamw"]))
    fits.save_checkpoint(tmp_path / "a.ckpt")
    model = net(seed=1, optimizer=OPTIMIZERS["adamw"])
    trainer(tmp_path, Recorder(amount=0.5, epochs=[0]), Look(), epochs=2).fit(model, ckpt_path=tmp_path / "a.ckpt")
    assert seen == [64, 64, 64, 64]


@MOVED
def test_hidden_values_survive_a_resume(tmp_path: Path) -> None:
    """Values that a user wrote under a mask."""

    class Write(Callback):
        def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
            with torch.no_grad():
                pl_module.first.weight_orig[pl_module.first.weight_orig == 0] = 7.0
            trainer.save_checkpoint(tmp_path / "hidden.ckpt")

    class Look(Callback):
        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            found.append(pl_module.first.weight_orig.detach().clone())

    found: list[torch.Tensor] = []
    model = net()
    trainer(tmp_path, Recorder(amount=0.5, epochs=[0], enforce="read"), Write(), epochs=1).fit(model)
    state = load(tmp_path / "hidden.ckpt")
    assert int((state["state_dict"]["first.weight"] == 0).sum()) == 64
    trainer(tmp_path, Recorder(amount=0.5, epochs=[0], enforce="read"), Look(), epochs=2).fit(
        net(1), ckpt_path=tmp_path / "hidden.ckpt"
    )
    assert int((found[0] == 7.0).sum()) == 64
    assert torch.equal(torch.where(found[0] == 7.0, 0, found[0]), state["state_dict"]["first.weight"])


@pytest.mark.parametrize("weights_only", [True, False])
def test_files_load_strictly_into_the_unpruned_model(tmp_path: Path, weights_only: bool) -> None:
    keep = ModelCheckpoint(tmp_path, save_top_k=-1, filename="{epoch}", save_weights_only=weights_only)
    callback = Recorder(schedule=Linear(final=0.8, initial=0.2, end=2), scope="global")
    fits = trainer(tmp_path, callback, keep)
    fits.fit(net())
    fits.save_checkpoint(tmp_path / "end.ckpt", weights_only=weights_only)
    for name, pruned in (("epoch=0", 35), ("epoch=1", 88), ("epoch=2", 141), ("end", 141)):
        path = tmp_path / f"{name}.ckpt"
        state = load(path)["state_dict"]
        plain = net(seed=1)
        assert list(state) == list(plain.state_dict())
        plain.load_state_dict(state, strict=True)
        assert zeros(plain) == pruned
        assert zeros(Net.load_from_checkpoint(path)) == pruned
        fresh = net(seed=2)
        trainer(tmp_path).test(fresh, ckpt_path=path, verbose=False)
        assert zeros(fresh) == pruned
        also = net(seed=3)
        trainer(tmp_path, Recorder(schedule=Linear(final=0.8, initial=0.2, end=2), scope="global")).test(
            also, ckpt_path=path, verbose=False
        )
        assert zeros(also) == pruned
        assert is_plain(also)


def test_fit_after_test_of_a_checkpoint_keeps_its_masks(tmp_path: Path) -> None:
    keep = ModelCheckpoint(tmp_path, save_top_k=-1, filename="{epoch}")
    callback = Recorder(schedule=Linear(final=0.8, initial=0.2, end=2), scope="global")
    model = net()
    fits = trainer(tmp_path, callback, keep)
    fits.fit(model)
    fits.test(model, ckpt_path=tmp_path / "epoch=1.ckpt", verbose=False)
    assert zeros(model) == 88
    dead = model.first.weight == 0
    trainer(tmp_path, callback, epochs=3).fit(model)
    assert bool((model.first.weight == 0)[dead].all())
    assert zeros(model) == 141


def saved(tmp_path: Path, callback: Callback | None, model: Net) -> Path:
    fits = trainer(tmp_path, *([callback] if callback else []), epochs=1)
    fits.fit(model)
    fits.save_checkpoint(tmp_path / "other.ckpt")
    return tmp_path / "other.ckpt"


@pytest.mark.parametrize(
    ("arguments", "described"),
    [
        ({"amount": 0.4}, r"plan\.amount: 0\.3 there, 0\.4 here"),
        ({"amount": 0.3, "scope": "global"}, r"scope\.scope: 'local' there, 'global' here"),
        (
            {"amount": 0.3, "scope": Budget(overrides={"last.*": 0.1})},
            r"scope\.overrides\.last\.\*: None there, 0\.1 here",
        ),
        ({"amount": 0.3, "scope": Budget(max_sparsity=0.9)}, r"scope\.max_sparsity: None there, 0\.9 here"),
        ({"amount": 0.3, "scope": Budget("global", normalize="l2")}, r"scope\.normalize: None there, 'l2' here"),
        (
            {"amount": 0.3, "rewind": Rewind(epoch=0)},
            r"rewind: None there, Rewind\(epoch=0, step=None, what='weights'\)",
        ),
        (
            {"method": "random_unstructured", "amount": 0.3},
            r"method\.cls: 'L1Unstructured' there, 'RandomUnstructured'",
        ),
        ({"schedule": Linear(final=0.5, end=1)}, r"AmountPlan\(.*Linear\(final=0.5, .*end=1"),
    ],
)
def test_the_state_of_another_plan_is_refused(tmp_path: Path, arguments: dict[str, Any], described: str) -> None:
    path = saved(tmp_path, PruningCallback(amount=0.3, verbose=False), net())
    model = net()
    with pytest.raises(ValueError, match=f"(?s)another pruning plan.*{described}"):
        trainer(tmp_path, PruningCallback(**arguments)).fit(model, ckpt_path=path)
    assert is_plain(model)


class Counting:
    """Scores of one's own, by an object that changes with each call."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, targets: Sequence[Target]) -> list[Tensor]:
        self.calls += 1
        return [t.parameter.detach().abs() for t in targets]


def test_an_object_that_changes_while_it_scores_can_go_on(tmp_path: Path) -> None:
    """In a new fit, and in a second one of the same callback, where its masks are kept."""
    plan: dict[str, Any] = {"amount": 0.3, "epochs": [1, 2], "scope": "global", "verbose": False}
    keep = ModelCheckpoint(tmp_path, every_n_epochs=2)
    callback = PruningCallback(criterion=Counting(), **plan)
    model = net()
    trainer(tmp_path, callback, keep, epochs=3).fit(model)
    assert zeros(model) == 53 + 37
    again = net()
    trainer(tmp_path, PruningCallback(criterion=Counting(), **plan), epochs=3).fit(
        again, ckpt_path=keep.best_model_path
    )
    assert all(torch.equal(p, again.state_dict()[name]) for name, p in model.state_dict().items())
    trainer(tmp_path, callback, epochs=3).fit(model)
    assert zeros(model) == 53 + 37 + 26 + 18


def test_the_state_of_another_selection_is_refused(tmp_path: Path) -> None:
    path = saved(tmp_path, PruningCallback(amount=0.3, parameters=is_weight, verbose=False), net())
    model = net()
    callback = PruningCallback(amount=0.3, parameters=is_weight, verbose=False)
    callback.settings.parameters = [is_weight_of_first]
    is_weight_of_first.__qualname__ = is_weight.__qualname__
    with pytest.raises(ValueError, match=r"has 'last\.weight' of shape \(3, 16\), which is not selected here"):
        trainer(tmp_path, callback).fit(model, ckpt_path=path)
    assert is_plain(model)


def is_weight(name: str, parameter: torch.Tensor) -> bool:
    return parameter.dim() == 2


def is_weight_of_first(name: str, parameter: torch.Tensor) -> bool:
    return parameter.dim() == 2 and name.startswith("first")


def test_a_checkpoint_without_pruning_state_starts_the_plan_afresh(tmp_path: Path) -> None:
    path = saved(tmp_path, None, net())
    model, callback = net(), Recorder(amount=0.5, epochs=[0, 1, 2], scope="global")
    with pytest.warns(UserWarning, match="no state of this pruning"):
        trainer(tmp_path, callback).fit(model, ckpt_path=path)
    assert [event[0] for event in callback.seen] == [1, 2]
    assert zeros(model) == 132
    other, late = net(), Recorder(schedule=Linear(final=0.8, initial=0.2, end=2), scope="global")
    with pytest.warns(UserWarning, match="no state of this pruning"):
        trainer(tmp_path, late).fit(other, ckpt_path=path)
    assert zeros(other) == 141


def two() -> list[PruningCallback]:
    return [
        Recorder("random_unstructured", schedule=Linear(final=0.5, initial=0.25, end=3), parameters="first"),
        Recorder(schedule=Linear(final=0.75, initial=0.25, end=3), parameters="last"),
    ]


def test_two_callbacks_on_different_parts(tmp_path: Path) -> None:
    straight, broken, resumed = net(), net(), net(seed=4)
    fits = trainer(tmp_path, *two(), epochs=4)
    fits.fit(straight)
    assert (zeros(straight, "first.weight"), zeros(straight, "last.weight")) == (64, 36)
    assert fits.callback_metrics["sparsity"] == pytest.approx(100 / 176)
    stop = StopAfter(1, tmp_path / "half.ckpt")
    trainer(tmp_path, *two(), stop, epochs=4).fit(broken)
    assert len([key for key in load(tmp_path / "half.ckpt")["callbacks"] if key.startswith("Recorder")]) == 2
    trainer(tmp_path, *two(), epochs=4).fit(resumed, ckpt_path=tmp_path / "half.ckpt")
    assert same(straight.state_dict(), resumed.state_dict())


def test_overlapping_callbacks_are_refused_by_name(tmp_path: Path) -> None:
    model = net()
    pair = [PruningCallback(parameters="first"), PruningCallback(parameters=["*.weight"])]
    with pytest.raises(ValueError, match=r"select the same tensors: first\.weight;"):
        trainer(tmp_path, *pair).fit(model)
    assert is_plain(model)
    assert zeros(model) == 0
