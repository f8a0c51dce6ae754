"""Erasing at an event: parameters, gradients, optimizer states, averages."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import EMAWeightAveraging, StochasticWeightAveraging
from torch import nn
from torch.optim.swa_utils import AveragedModel

from lightning_prune.erasing import averaged_models, erase
from lightning_prune.plan import Demand
from lightning_prune.targets import select
from tests.test_run import network, run_of


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


def test_averages_are_found_and_teachers_are_not() -> None:
    class Holder(Callback):
        def __init__(self, model: nn.Module) -> None:
            self.model = model

    model = network()
    swa, ema = StochasticWeightAveraging(swa_lrs=0.1), EMAWeightAveraging()
    swa._average_model, ema._average_model = copy.deepcopy(model), AveragedModel(model)  # type: ignore[assignment]
    mine = AveragedModel(model)
    found = averaged_models([Holder(copy.deepcopy(model)), swa, ema, Holder(mine), EMAWeightAveraging()])
    assert [id(m) for m in found] == [id(swa._average_model), id(ema._average_model), id(mine)]
