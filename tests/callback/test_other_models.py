"""Masks belong to a model: fits one after another, of several models, refused, broken, and with changed layers."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from torch import nn

from lightning_prune import Cubic, Linear, OneShot, PruningCallback
from tests.expected import ENDED_EARLY, FEW_SELECTED
from tests.models import Net, Recorder, is_plain, net, trainer, zeros

pytestmark = [ENDED_EARLY, FEW_SELECTED]


def half(**kwargs: Any) -> PruningCallback:
    return PruningCallback(amount=0.5, epochs=[0], verbose=False, **kwargs)


def test_a_model_keeps_its_masks_while_another_one_is_fitted(tmp_path: Path) -> None:
    callback, first, second = half(), net(), net(seed=1)
    for model in (first, second):
        trainer(tmp_path, callback, epochs=1).fit(model)
    dead = [first.first.weight == 0, second.first.weight == 0]
    trainer(tmp_path, callback, epochs=1).fit(first)
    assert bool((first.first.weight == 0)[dead[0]].all())
    assert zeros(first, "first.weight") == 96
    assert torch.equal(second.first.weight == 0, dead[1])


def test_a_checkpoint_of_a_validated_model_holds_its_masks_and_no_others(tmp_path: Path) -> None:
    callback, fitted, other = half(), net(), net(seed=1)
    fits = trainer(tmp_path, callback, epochs=1)
    fits.fit(fitted)
    fits.save_checkpoint(tmp_path / "fitted.ckpt")
    fits.validate(other, verbose=False)
    fits.save_checkpoint(tmp_path / "other.ckpt")
    state = torch.load(tmp_path / "other.ckpt", weights_only=True)
    assert state["callbacks"].get(callback.state_key, {}) == {}
    assert sum(int((state["state_dict"][name] == 0).sum()) for name in ("first.weight", "last.weight")) == 0


def test_a_refused_resume_changes_nothing_for_the_next_fit(tmp_path: Path) -> None:
    fits = trainer(tmp_path, half(), epochs=1)
    fits.fit(net())
    fits.save_checkpoint(tmp_path / "half.ckpt")
    model = net(seed=1)
    callback = Recorder(schedule=OneShot(0.25))
    fits = trainer(tmp_path, callback, epochs=2)
    with pytest.raises(ValueError, match="another pruning plan"):
        fits.fit(model, ckpt_path=tmp_path / "half.ckpt")
    assert is_plain(model)
    model = net(seed=2)
    trainer(tmp_path, callback, epochs=2).fit(model)
    assert [event[-1] for event in callback.seen] == [44]
    assert zeros(model) == 44


def test_a_test_from_a_checkpoint_of_another_plan_does_not_stop_a_fit(tmp_path: Path) -> None:
    fits = trainer(tmp_path, half(), epochs=1)
    fits.fit(net())
    fits.save_checkpoint(tmp_path / "half.ckpt")
    callback, model = Recorder(schedule=OneShot(0.25)), net(seed=1)
    fits = trainer(tmp_path, callback, epochs=1)
    fits.test(model, ckpt_path=tmp_path / "half.ckpt", verbose=False)
    assert zeros(model) == 88
    fits.fit(model)
    assert [event[-1] for event in callback.seen] == [44]


class Raising(Callback):
    """Raises in the middle of a fit, and again when that is told."""

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *args: Any) -> None:
        if trainer.global_step == 3:
            raise RuntimeError("in the fit")

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        raise RuntimeError("in on_exception")


def test_another_callback_that_raises_in_its_end_leaves_ours_usable(tmp_path: Path) -> None:
    callback, model = half(), net()
    with pytest.raises(RuntimeError, match="in on_exception"):
        trainer(tmp_path, Raising(), callback).fit(model)
    assert is_plain(model)
    other = net(seed=1)
    trainer(tmp_path, callback, epochs=1).fit(other)
    assert zeros(other) == 88
    trainer(tmp_path, callback, epochs=1).fit(model)
    assert zeros(model) == 132
    model(torch.ones(2, 8)).sum().backward()
    assert float(model.first.weight.grad.abs().min()) >= 0


@pytest.mark.parametrize("enforce", ["in_place", "read"])
def test_a_parameter_that_vanished_keeps_no_other_one_masked(tmp_path: Path, enforce: Any) -> None:
    class Vanish(Callback):
        def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
            pl_module.last = nn.Linear(16, 3)
            raise KeyboardInterrupt

    callback, model = half(enforce=enforce), net()
    with pytest.raises(SystemExit):
        trainer(tmp_path, callback, Vanish()).fit(model)
    assert is_plain(model)
    assert zeros(model, "first.weight") == 64
    assert zeros(model, "last.weight") == 0


def test_a_layer_that_was_replaced_is_pruned_like_the_others_at_the_next_event(tmp_path: Path) -> None:
    class NewHead(Callback):
        def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
            if trainer.current_epoch == 1:
                torch.manual_seed(1)
                pl_module.last = nn.Linear(16, 3)
                trainer.optimizers[0].param_groups[0]["params"] += list(pl_module.last.parameters())

    callback, model = Recorder(schedule=Linear(final=0.75, initial=0.25, end=2)), net()
    with pytest.warns(UserWarning, match="'last.weight' of the model were replaced since the last event"):
        trainer(tmp_path, NewHead(), callback).fit(model)
    assert [event[-1] for event in callback.seen] == [44, 88, 132]
    assert zeros(model, "first.weight") == 96
    assert zeros(model, "last.weight") == 36
    assert set(callback.masks) == {"first.weight", "last.weight"}


def test_a_layer_that_is_gone_is_no_target_any_more(tmp_path: Path) -> None:
    class NoMore(Callback):
        def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
            if trainer.current_epoch == 1:
                pl_module.norm = nn.Identity()
                pl_module.extra = None

    model = net()
    model.extra = nn.Linear(4, 4)
    callback = Recorder(schedule=Linear(final=0.5, end=2))
    with pytest.warns(UserWarning, match="'extra.weight'"):
        trainer(tmp_path, NoMore(), callback).fit(model)
    assert zeros(model) == 88
    assert "extra.weight" not in callback.masks


def test_a_callback_that_joins_in_mid_fit_is_refused(tmp_path: Path) -> None:
    class Join(Callback):
        def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
            if trainer.current_epoch == 1:
                trainer.callbacks.append(half())

    with pytest.raises(RuntimeError, match="was not there when the fit began"):
        trainer(tmp_path, Join()).fit(net())


def test_another_trainer_may_test_the_model_within_a_fit(tmp_path: Path) -> None:
    class Tests(Callback):
        def on_train_epoch_end(self, trainer_: Any, pl_module: Any) -> None:
            inner = trainer(tmp_path, callback)
            inner.test(pl_module, verbose=False)
            pl_module.trainer = trainer_

    callback, model = Recorder(schedule=Linear(final=0.75, initial=0.25, end=2)), net()
    trainer(tmp_path, callback, Tests()).fit(model)
    assert [event[-1] for event in callback.seen] == [44, 88, 132]
    assert zeros(model) == 132


def test_states_that_cannot_be_read_are_refused_by_what_is_wrong(tmp_path: Path) -> None:
    fits = trainer(tmp_path, half(), epochs=1)
    fits.fit(net())
    fits.save_checkpoint(tmp_path / "a.ckpt")
    good = torch.load(tmp_path / "a.ckpt", weights_only=True)
    key = next(iter(good["callbacks"]))

    def resumed(message: str, **changes: Any) -> None:
        state = {**good["callbacks"][key], **changes}
        state = {name: value for name, value in state.items() if value is not ...}
        torch.save({**good, "callbacks": {key: state}}, tmp_path / "b.ckpt")
        model = net()
        with pytest.raises(ValueError, match=message):
            trainer(tmp_path, half(), epochs=2).fit(model, ckpt_path=tmp_path / "b.ckpt")
        assert is_plain(model)

    resumed("of version 99, this release reads versions up to 2", version=99)
    resumed("lacks done", done=...)
    cut = {name: dict(tensor) for name, tensor in good["callbacks"][key]["tensors"].items()}
    cut["first.weight"]["bits"] = cut["first.weight"]["bits"][:3]
    resumed(
        r"the mask of 'first\.weight' of shape \(16, 8\) should have 16 bytes in the pruning state, it has 3",
        tensors=cut,
    )


class Embedded(Net):
    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.table = nn.Embedding(5, 8, sparse=True)
        self.automatic_optimization = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x + self.table(torch.arange(len(x)) % 4))

    def training_step(self, batch: Any, batch_idx: int) -> None:
        dense, sparse = self.optimizers()
        dense.zero_grad()
        sparse.zero_grad()
        self.manual_backward(self.loss(batch))
        dense.step()
        sparse.step()

    def configure_optimizers(self) -> Any:
        rest = [p for name, p in self.named_parameters() if name != "table.weight"]
        return torch.optim.SGD(rest, lr=0.1), torch.optim.SparseAdam([self.table.weight], lr=0.1)


def test_an_embedding_with_sparse_gradients_keeps_its_zeros(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Embedded()
    before = model.table.weight.detach().clone()
    trainer(tmp_path, half(parameters="table.weight", exclude=None), epochs=2).fit(model)
    assert zeros(model, "table.weight") == 20
    assert torch.equal(model.table.weight[4], before[4] * (model.table.weight[4] != 0))
    assert int((model.table.weight[:4] != before[:4]).sum()) == 32


def test_a_tensor_that_begins_as_zeros_is_not_taken_as_pruned(tmp_path: Path) -> None:
    model = net()
    with torch.no_grad():
        model.first.weight[:, :2] = 0
        model.last.weight.zero_()
    callback = PruningCallback(keep_zeros=True, verbose=False)
    with pytest.warns(UserWarning, match="'last.weight' hold nothing but zeros"):
        trainer(tmp_path, callback, epochs=2).fit(model)
    assert zeros(model, "first.weight") == 32
    assert zeros(model, "last.weight") == 0
    assert set(callback.masks) == {"first.weight"}


def test_a_callback_is_pickled_in_mid_fit_without_the_fit(tmp_path: Path) -> None:
    class Pickled(Callback):
        def on_train_batch_end(self, trainer: Any, pl_module: Any, *args: Any) -> None:
            if trainer.global_step == 2:
                copies.append(pickle.loads(pickle.dumps(callback)))

    copies: list[PruningCallback] = []
    callback, model = half(), net()
    trainer(tmp_path, callback, Pickled(), epochs=1).fit(model)
    assert zeros(model) == 88
    other = net(seed=1)
    trainer(tmp_path, *copies, epochs=1).fit(other)
    assert zeros(other) == 88


def test_files_ranked_by_sparsity_have_it_in_their_scores(tmp_path: Path) -> None:
    files = ModelCheckpoint(tmp_path, monitor="sparsity", mode="max", filename="{sparsity:.3f}", save_top_k=2)
    pruning = PruningCallback(schedule=Cubic(final=0.9, begin=1, end=10, unit="step"), scope="global", verbose=False)
    fits = trainer(tmp_path, pruning, files)
    fits.fit(net())
    assert float(files.best_model_score) == pytest.approx(158 / 176)
    assert float(fits.callback_metrics["sparsity"]) == pytest.approx(158 / 176)
