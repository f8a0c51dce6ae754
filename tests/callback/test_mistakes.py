"""What users do by mistake, or models do unexpectedly, around a fit."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.utils.prune
from lightning.pytorch.callbacks import ModelPruning, StochasticWeightAveraging
from torch import Tensor, nn
from torch.nn.functional import linear

from lightning_prune import FromFunction, Linear, OneShot, PruningCallback, PruningWarning, Rewind
from lightning_prune.prune import BasePruningMethod
from tests.expected import CUT_OFF, DEAD, ENDED_EARLY, FEW_SELECTED
from tests.models import Net, net, trainer, zeros

pytestmark = [ENDED_EARLY, FEW_SELECTED]


@pytest.mark.parametrize(
    ("argument", "error"),
    [
        ({"schedule": 0.5}, r"schedule should be a value such as Cubic.*0\.5"),
        ({"rewind": 0}, "rewind should be a value such as Rewind"),
        ({"rewind": True}, "rewind should be a value such as Rewind"),
        ({"seed": "x"}, "seed should be a value such as 42"),
        ({"keep_zeros": "x"}, "keep_zeros should be False or True"),
        ({"dim": "outt"}, "dim should be 'out' or 'in', got 'outt'"),
        ({"enforce": "x"}, "enforce should be 'in_place' or 'read'"),
        ({"amount": 0.5, "scope": "erk"}, "scope='erk' spreads the target of a schedule"),
    ],
)
def test_wrong_arguments_are_refused_at_once(argument: dict[str, Any], error: str) -> None:
    with pytest.raises((TypeError, ValueError), match=error):
        PruningCallback(**argument)


@pytest.mark.parametrize("amount", [1.0, 10**6])
def test_an_amount_of_all_says_what_stays(tmp_path: Path, amount: int | float) -> None:
    model = net()
    with pytest.warns(PruningWarning, match="what stays is 1 of 128 of 'first.weight', 1 of 48 of 'last.weight'"):
        trainer(tmp_path, PruningCallback(amount=amount, epochs=[0], verbose=False), epochs=1).fit(model)
    assert zeros(model, "first.weight", "last.weight") == 127 + 47


class Oddly(BasePruningMethod):
    PRUNING_TYPE = "unstructured"

    def __init__(this, at: float) -> None:
        this.at = at

    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        return default_mask * (t.abs() >= self.at)


@DEAD
@CUT_OFF
def test_the_first_argument_of_a_method_may_have_any_name(tmp_path: Any) -> None:
    model = net()
    callback = PruningCallback(Oddly, method_kwargs={"at": 10.0}, epochs=[0], verbose=False)
    trainer(tmp_path, callback, epochs=1).fit(model)
    assert zeros(model, "first.weight", "last.weight") == 8 * 16 + 16 * 3


class OwnError(ValueError):
    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} {second}")


@pytest.mark.parametrize(
    ("error", "message"), [(OwnError("a", "b"), "^a b$"), (RuntimeError("c"), "'first.weight'.*c$")]
)
def test_errors_of_a_method_name_the_tensor_or_stay_as_they_are(tmp_path: Any, error: Exception, message: str) -> None:
    class Failing(Oddly):
        def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
            raise error

    callback = PruningCallback(Failing, method_kwargs={"at": 1.0}, epochs=[0], verbose=False)
    with pytest.raises(type(error), match=message):
        trainer(tmp_path, callback, epochs=1).fit(net())


@pytest.mark.parametrize("enforce", ["read", "in_place"])
def test_complex_weights_train_with_adam(tmp_path: Any, enforce: str) -> None:
    model = net(optimizer=torch.optim.Adam)
    model.first.weight = nn.Parameter(model.first.weight.detach().to(torch.complex64))
    plain = model.first.forward
    model.first.forward = lambda x: (
        linear(x.to(torch.complex64), model.first.weight).abs() + model.first.bias if plain else x
    )
    schedule = Linear(final=0.5, begin=1, end=2)
    callback = PruningCallback(schedule=schedule, enforce=enforce, parameters="first.weight", verbose=False)
    trainer(tmp_path, callback, epochs=3).fit(model)
    assert zeros(model, "first.weight") == 64


def test_masks_are_forgotten_when_the_model_got_other_weights(tmp_path: Any) -> None:
    model = net()
    dense = {name: value.clone() for name, value in model.state_dict().items()}
    callback = PruningCallback(schedule=Linear(final=0.8, begin=1, end=2), verbose=False)
    seen: list[float] = []
    callback.on_pruned = lambda trainer, module, event: seen.append(round(event.sparsity, 2))  # type: ignore
    trainer(tmp_path, callback, epochs=3).fit(model)
    model.load_state_dict(dense)
    with pytest.warns(UserWarning, match="'first.weight', 'last.weight' are not zero.*begins anew"):
        trainer(tmp_path, callback, epochs=3).fit(model)
    assert seen == [0.0, 0.8, 0.0, 0.8]


def test_a_forward_that_holds_the_parameter_itself_is_told_of(tmp_path: Any) -> None:
    model = net(optimizer=torch.optim.SGD)
    held = [model.first.weight]
    model.first.forward = lambda x: linear(x, held[0], model.first.bias)  # type: ignore
    with pytest.warns(UserWarning, match="masked weights of 'first.weight' away from zero.*in_place"):
        trainer(tmp_path, PruningCallback(schedule=OneShot(0.5), enforce="read", verbose=False), epochs=1).fit(model)


def test_a_falling_target_is_refused_before_training(tmp_path: Any) -> None:
    schedule = FromFunction(lambda epoch: 0.5 - 0.1 * epoch, final=0.5)
    model = net()
    with pytest.raises(ValueError, match=r"falls from 0\.5 at epoch 0 to 0\.4 at epoch 1"):
        trainer(tmp_path, PruningCallback(schedule=schedule, verbose=False), epochs=3).fit(model)
    assert zeros(model) == 0


@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag])
def test_masks_that_are_read_refuse_sparse_gradients(kind: Any, tmp_path: Any) -> None:
    model = net()
    model.table = kind(5, 8, sparse=True)
    with pytest.raises(ValueError, match=r"'table\.weight' belongs to Embedding.*sparse=True.*in_place.*exclude"):
        trainer(tmp_path, PruningCallback(parameters="table.weight", enforce="read", verbose=False)).fit(model)
    assert zeros(model) == 0


def test_a_frozen_embedding_has_no_sparse_gradients(tmp_path: Any) -> None:
    model = net()
    model.table = nn.Embedding(5, 8, sparse=True).requires_grad_(False)
    chosen = ["table.weight", "first.weight"]
    trainer(tmp_path, PruningCallback(amount=8, parameters=chosen, epochs=[0], verbose=False), epochs=1).fit(model)
    assert (zeros(model, "first.weight"), zeros(model, "table.weight")) == (8, 8)


def test_two_tools_that_prune_in_one_trainer_are_refused(tmp_path: Path) -> None:
    model = net()
    before = model.first.weight.detach().clone()
    other = ModelPruning("l1_unstructured", [(model.first, "weight")], amount=0.5)
    with pytest.raises(ValueError, match="a ModelPruning callback prunes in the same Trainer"):
        trainer(tmp_path, PruningCallback(amount=0.5, verbose=False), other).fit(model)
    assert torch.equal(model.first.weight, before)


def test_a_function_as_amount_is_refused_with_what_decides_instead() -> None:
    with pytest.raises(TypeError, match=r"got a function: schedule=Steps.*FromFunction.*due"):
        PruningCallback(amount=lambda epoch: 0.1)  # type: ignore[arg-type]


def test_resuming_a_checkpoint_with_masks_of_torch_says_how_to_make_it_plain(tmp_path: Path) -> None:
    theirs = net()
    torch.nn.utils.prune.l1_unstructured(theirs.first, "weight", amount=0.5)
    fit = trainer(tmp_path)
    fit.fit(theirs)
    fit.save_checkpoint(tmp_path / "torch.ckpt")
    with pytest.raises(RuntimeError, match=r"dense IN OUT.*to_dense.*keep_zeros=True"):
        trainer(tmp_path, PruningCallback(), epochs=5).fit(net(), ckpt_path=tmp_path / "torch.ckpt")


def test_a_fit_that_an_error_ends_says_nothing_of_its_plan(tmp_path: Path) -> None:
    class Broken(Net):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            raise ArithmeticError("no loss")

    with warnings.catch_warnings():
        warnings.simplefilter("error", PruningWarning)
        with pytest.raises(ArithmeticError, match="no loss"):
            trainer(tmp_path, PruningCallback(amount=0.5, epochs=[0, 2])).fit(Broken())


def test_what_averaging_makes_impossible_to_rewind_is_refused_at_the_start(tmp_path: Path) -> None:
    model, pruning = net(), PruningCallback(amount=0.5, epochs=[1, 4], rewind=Rewind(epoch=0), verbose=False)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    averaging = StochasticWeightAveraging(1e-2, swa_epoch_start=4)
    with pytest.raises(ValueError, match="at the start of epoch 3, and rewind= cannot bring them back at epoch 4"):
        trainer(tmp_path, pruning, averaging, epochs=6).fit(model)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())

    model, averaging = net(), StochasticWeightAveraging(1e-2, swa_epoch_start=6)
    trainer(tmp_path, pruning, averaging, epochs=7).fit(model)
    assert zeros(model) == 132
