"""Erasing at an event: parameters, gradients, optimizer states, averages."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import StochasticWeightAveraging
from torch import nn
from torch.optim.swa_utils import AveragedModel

from lightning_prune.fit.enforcing import Enforcement
from lightning_prune.fit.erasing import erase, fill_second_moments
from lightning_prune.prune.attribute import Layout
from lightning_prune.schedules.plan import Demand
from lightning_prune.targets.select import select
from lightning_prune.trainer.averages import averaged_models
from tests.fit.test_run import network, run_of
from tests.versions import needs_averaging


def trained(optimizer: Any, **kwargs: Any) -> tuple[nn.Sequential, Any]:
    model = network()
    made = optimizer(model.parameters(), **kwargs)

    def closure() -> torch.Tensor:
        made.zero_grad()
        loss = model(torch.ones(2, 8)).square().sum()
        loss.backward()
        return loss

    for _ in range(2):
        made.step(closure)
    return model, made


@pytest.mark.parametrize(
    ("optimizer", "kwargs", "tensors"),
    [
        (torch.optim.SGD, {"lr": 0.01, "momentum": 0.9}, {"momentum_buffer": 0}),
        (torch.optim.Adam, {"amsgrad": True}, {"exp_avg": 0, "exp_avg_sq": 1, "max_exp_avg_sq": 1}),
        (
            torch.optim.RMSprop,
            {"momentum": 0.9, "centered": True},
            {"square_avg": 1, "momentum_buffer": 0, "grad_avg": 0},
        ),
        (torch.optim.Adagrad, {}, {"sum": 1}),
    ],
)
def test_all_state_of_the_shape_of_the_parameter_is_erased(
    optimizer: Any, kwargs: Any, tensors: dict[str, int]
) -> None:
    """With zeros (0), second moments with the mean of what is left of them (1)."""
    model, made = trained(optimizer, **kwargs)
    parameter = model[0].weight
    run = run_of(model)
    run.prune(Demand(0, amount=0.5))
    kept = {key: value.clone() for key, value in made.state[parameter].items()}
    dead = ~run.targets[0].alive
    erase(run.targets, [made])
    assert {key for key, value in made.state[parameter].items() if value.shape == dead.shape} == set(tensors)
    for key, filled in tensors.items():
        mean = kept[key][~dead].sum() / dead.numel()
        assert torch.allclose(made.state[parameter][key][dead], filled * mean, rtol=1e-5)
        assert torch.equal(made.state[parameter][key][~dead], kept[key][~dead])
    assert made.state[parameter].get("step", 0) == kept.get("step", 0)
    assert int(parameter[dead].count_nonzero()) == 0
    assert int(parameter.grad[dead].count_nonzero()) == 0


def test_erased_weights_stay_zero_without_any_mask() -> None:
    """After the event gradient and momentum are zero, so an entrywise optimizer leaves the parameter alone."""
    model, made = trained(torch.optim.AdamW, lr=0.1, weight_decay=0.1)
    run = run_of(model)
    run.prune(Demand(0, amount=0.5))
    erase(run.targets, [made])
    for _ in range(5):
        made.zero_grad()
        model(torch.randn(4, 8)).square().sum().backward()
        made.step()
    for target in run.targets:
        assert int(target.parameter[~target.alive].count_nonzero()) == 0
        assert int(target.parameter[target.alive].count_nonzero()) == int(target.alive.sum())


def test_lbfgs_starts_its_memory_afresh() -> None:
    model, made = trained(torch.optim.LBFGS, lr=0.1, max_iter=3)
    run = run_of(model)
    assert len(made.state) == 1
    erase(run.targets, [made])
    assert len(made.state) == 1
    run.prune(Demand(0, amount=0.5))
    erase(run.targets, [made])
    assert len(made.state) == 0


def test_nothing_is_erased_where_nothing_is_pruned() -> None:
    model, made = trained(torch.optim.Adam)
    before = copy.deepcopy(model.state_dict())
    erase(select(model), [made], [copy.deepcopy(model)])
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_copies_are_erased_by_name() -> None:
    model = network()
    plain, averaged, other = copy.deepcopy(model), AveragedModel(model), nn.Sequential(nn.Linear(5, 5))
    run = run_of(model)
    run.prune(Demand(0, amount=0.5))
    erase(run.targets, [], [plain, averaged, other])
    dead = ~run.targets[0].alive
    for copied in (plain, averaged.module):
        assert int(copied[0].weight[dead].count_nonzero()) == 0
        assert int(copied[0].weight.count_nonzero()) == 24
    assert int(other[0].weight.count_nonzero()) == 25


@needs_averaging
def test_averages_are_found_and_teachers_are_not() -> None:
    from lightning.pytorch.callbacks import EMAWeightAveraging

    class Holder(Callback):
        def __init__(self, model: nn.Module) -> None:
            self.model = model

    model = network()
    swa, ema = StochasticWeightAveraging(swa_lrs=0.1), EMAWeightAveraging()
    swa._average_model, ema._average_model = copy.deepcopy(model), AveragedModel(model)  # type: ignore[assignment]
    mine = AveragedModel(model)
    found = averaged_models([Holder(copy.deepcopy(model)), swa, ema, Holder(mine), EMAWeightAveraging()])
    assert [id(m) for m in found] == [id(swa._average_model), id(ema._average_model), id(mine)]


@pytest.mark.parametrize(
    ("optimizer", "kwargs"),
    [
        (torch.optim.Adam, {}),
        (torch.optim.Adam, {"amsgrad": True, "weight_decay": 0.01}),
        (torch.optim.Adam, {"eps": 1e-30, "foreach": True}),
        (torch.optim.AdamW, {"fused": True}),
        (torch.optim.NAdam, {}),
        (torch.optim.RAdam, {}),
        (torch.optim.RMSprop, {"momentum": 0.9, "centered": True}),
        (torch.optim.Adagrad, {}),
        (torch.optim.Adadelta, {}),
    ],
)
def test_second_moments_under_the_mask_change_no_weight(optimizer: Any, kwargs: dict[str, Any]) -> None:
    """The same training with the mean there, written every 10 steps, and with zeros."""
    filled, zeros = (_weights_trained_in_place(optimizer, kwargs, fill) for fill in (True, False))
    assert filled == zeros


def _weights_trained_in_place(optimizer: Any, kwargs: dict[str, Any], fill: bool) -> dict[str, list[Any]]:
    model, made = trained(optimizer, **kwargs)
    run = run_of(model, layout=Layout.PLAIN)
    run.prune(Demand(0, amount=0.5))
    erase(run.targets, [made])
    enforcement = Enforcement(run)
    enforcement.start([])
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(1))
    for _ in range(200):
        for target in run.targets:
            for value in made.state[target.parameter].values():
                value.mul_(1 if fill or not value.dim() else target.alive)
        made.zero_grad()
        (model(x) - 1).square().mean().backward()
        made.step()
        fill_second_moments(made, run.targets if fill else [], every=10)
    assert all(int(t.parameter[~t.alive].count_nonzero()) == 0 for t in run.targets)
    assert all(bool(p.isfinite().all()) for p in model.parameters())
    return {name: p.tolist() for name, p in model.named_parameters()}


def test_second_moments_stay_normal_numbers() -> None:
    """With a beta of 0.9 they would be denormals after 900 steps."""
    model, made = trained(torch.optim.Adam, betas=(0.9, 0.9))
    run = run_of(model)
    run.prune(Demand(0, amount=0.5))
    erase(run.targets, [made])
    Enforcement(run).start([made])
    x = torch.randn(4, 8)
    for _ in range(2000):
        made.zero_grad()
        (model(x) - 1).square().sum().add(model[0].weight.sum()).backward()
        made.step()
    state, dead = made.state[model[0].weight_orig], ~run.targets[0].alive
    assert float(state["exp_avg_sq"][dead].min()) >= torch.finfo(torch.float32).tiny
    assert int(state["exp_avg"][dead].count_nonzero()) == 0


def test_names_of_second_moments_count_for_optimizers_that_are_known_to_have_them() -> None:
    """Those that count steps; and ``sum`` is one of Adagrad alone."""
    model, made = trained(torch.optim.SGD, lr=0.1, momentum=0.9)
    weight = model[0].weight
    run = run_of(model)
    run.prune(Demand(0, amount=0.5))
    dead = ~run.targets[0].alive
    made.state[weight] = {"exp_avg_sq": torch.ones(6, 8)}
    erase(run.targets, [made])
    assert int(made.state[weight]["exp_avg_sq"][dead].count_nonzero()) == 0
    made.state[weight] = {"sum": torch.ones(6, 8), "exp_avg_sq": torch.ones(6, 8), "step": torch.tensor(3.0)}
    erase(run.targets, [made])
    assert int(made.state[weight]["sum"][dead].count_nonzero()) == 0
    assert made.state[weight]["exp_avg_sq"][dead].unique().tolist() == [0.5]
