"""The pruning of one model during one fit."""

from __future__ import annotations

import copy
import gc
from typing import Any

import pytest
import torch
from torch import nn

from lightning_prune.fit.erasing import erase
from lightning_prune.fit.run import PruningRun, sparsity_of
from lightning_prune.fit.selection import refuse_overlap
from lightning_prune.prune import is_pruned, l1_unstructured
from lightning_prune.prune.attribute import Layout
from lightning_prune.pruner.biases import biases_of
from lightning_prune.pruner.budgets import Budget
from lightning_prune.pruner.method import make_recipe
from lightning_prune.pruner.pruner import Pruner
from lightning_prune.schedules.plan import Demand
from lightning_prune.targets.select import select, select_trainable


def network(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 4))


def run_of(
    model: nn.Module, method: str = "l1_unstructured", layout: Layout = Layout.KEPT, **kwargs: Any
) -> PruningRun:
    pruner = Pruner(make_recipe(method, 2, "out", None), Budget())
    return PruningRun(select(model, kwargs.pop("parameters", None)), pruner, 5, layout, **kwargs)


@pytest.mark.parametrize("layout", [Layout.KEPT, Layout.PLAIN])
def test_events_and_the_end(layout: Layout) -> None:
    model = network()
    parameters = list(model.named_parameters())
    run = run_of(model, layout=layout)
    event = run.prune(Demand(3, amount=0.5))
    assert event.demand == Demand(3, amount=0.5)
    assert (event.zeros, event.total, event.before, event.sparsity) == (36, 72, 0, 0.5)
    assert event.tensors == {"0.weight": 24, "2.weight": 12}
    assert event.sparser
    assert not run.prune(Demand(4, amount=0)).sparser
    assert (run.events, run.sparsity, run.zeros, run.total) == (2, 0.5, 36, 72)
    run.close()
    assert not is_pruned(model)
    assert [(n, id(p)) for n, p in model.named_parameters()] == [(n, id(p)) for n, p in parameters]
    assert [int((layer.weight == 0).sum()) for layer in (model[0], model[2])] == [24, 12]


@pytest.mark.parametrize("method", ["random_unstructured", "random_structured"])
def test_random_choices_depend_on_seed_and_event_alone(method: str) -> None:
    masks = []
    for noise in (1, 2):
        run = run_of(network(), method)
        for _ in range(2):
            torch.manual_seed(noise)
            before = torch.get_rng_state()
            run.prune(Demand(0, amount=0.25))
            assert torch.equal(torch.get_rng_state(), before)
            masks.append([t.alive.clone() for t in run.targets])
    assert all(torch.equal(a, b) for a, b in zip(masks[0], masks[2], strict=True))
    assert all(torch.equal(a, b) for a, b in zip(masks[1], masks[3], strict=True))
    assert not torch.equal(masks[0][0], masks[1][0])


@pytest.mark.parametrize("layout", [Layout.KEPT, Layout.PLAIN])
@pytest.mark.parametrize("method", ["l1_unstructured", "random_unstructured", "ln_structured"])
def test_state_goes_on_equal_to_the_last_bit(method: str, layout: Layout) -> None:
    model = network()
    run = run_of(model, method)
    run.prune(Demand(0, amount=0.25))
    run.done = 7
    state = copy.deepcopy(run.state_dict())
    other = network(seed=1)
    other.load_state_dict(model.state_dict())
    resumed = run_of(other, method, layout)
    resumed.start()
    resumed.load_state_dict(state)
    assert (resumed.done, resumed.events, resumed.zeros) == (7, 1, run.zeros)
    for r in (run, resumed):
        r.prune(Demand(8, amount=0.5))
        r.close()
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), other.parameters(), strict=True))
    assert run.zeros == resumed.zeros == 0


def test_hidden_values_are_in_the_state_only_where_there_are_some() -> None:
    model = network()
    run = run_of(model)
    run.prune(Demand(0, amount=0.25))
    with torch.no_grad():
        model[0].weight_orig.masked_fill_(~model[0].weight_mask, 3.5)
        model[2].weight_orig.masked_fill_(~model[2].weight_mask, 0.0)
    tensors = run.state_dict()["tensors"]
    assert tensors["0.weight"]["hidden"].tolist() == [3.5] * 12
    assert set(tensors["2.weight"]) == {"shape", "bits"}
    other = run_of(network(seed=2))
    other.start()
    other.load_state_dict(run.state_dict())
    parameter = other.targets[0].parameter
    assert parameter[~other.targets[0].alive].tolist() == [3.5] * 12


def test_the_state_is_small() -> None:
    model = nn.Sequential(nn.Linear(256, 256, bias=False))
    run = run_of(model)
    run.prune(Demand(0, amount=0.9))
    model[0].weight_orig.data.masked_fill_(~model[0].weight_mask, 0)
    assert run.state_dict()["tensors"]["0.weight"]["bits"].untyped_storage().nbytes() == 256 * 256 // 8


def test_another_model_is_refused_before_anything_changed() -> None:
    run = run_of(network())
    run.prune(Demand(0, amount=0.25))
    other = nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 5))
    wrong = run_of(other)
    with pytest.raises(ValueError, match=r"'2\.weight' of shape \(4, 6\), which is of shape \(5, 6\) here"):
        wrong.load_state_dict(run.state_dict())
    assert not is_pruned(other)
    assert (wrong.done, wrong.events) == (None, 0)
    with pytest.raises(
        ValueError, match=r"has '0\.weight' of shape \(6, 8\), which is not selected here; selected are 2"
    ):
        run_of(network(), parameters="2.weight").load_state_dict(run.state_dict())


def test_masks_of_an_earlier_fit_on_a_selection_of_now() -> None:
    model = network()
    run = run_of(model, parameters="0.weight")
    run.prune(Demand(0, amount=0.5))
    state = run.state_dict()
    run.close()
    again = run_of(model)
    again.start()
    again.keep_masks_of(state)
    assert [t.zeros for t in again.targets] == [24, 0]
    assert (again.events, again.done) == (1, None)


def test_kept_zeros() -> None:
    model = network()
    model[0].weight.data.view(-1)[::3] = 0
    run = run_of(model)
    run.start(keep_zeros=True)
    assert (run.targets[0].zeros, run.targets[1].zeros) == (16, 0)
    assert run.targets[1].alive is None
    assert run.prune(Demand(0, amount=0.5)).tensors == {"0.weight": 32, "2.weight": 12}


def test_frozen_tensors_join_when_they_are_trained() -> None:
    model = network()
    model[0].weight.requires_grad_(False)
    model[0].weight.data.view(-1)[:6] = 0
    targets, frozen = select_trainable(model, None, None, join=True)
    pruner = Pruner(make_recipe("l1_unstructured", 2, "out", None), Budget(overrides={"0.*": 0.25}), final=0.5)
    run = PruningRun(targets, pruner, 0, frozen=frozen, join=True)
    run.start(keep_zeros=True)
    assert run.prune(Demand(0, sparsity=0.25)).tensors == {"2.weight": 6}
    model[0].weight.requires_grad_(True)
    assert run.prune(Demand(1, sparsity=0.45)).tensors == {"2.weight": 21, "0.weight": 11}
    assert run.total == 72
    assert bool((~run.targets[1].alive.view(-1)[:6]).all())


def test_no_target_yet() -> None:
    model = network().requires_grad_(False)
    targets, frozen = select_trainable(model, None, None, join=True)
    run = PruningRun(targets, run_of(network()).pruner, 0, frozen=frozen, join=True)
    event = run.prune(Demand(0, sparsity=0.5))
    assert (event.zeros, event.total, event.sparsity, event.sparser) == (0, 0, 0.0, False)
    assert (run.sparsity, sparsity_of([run])) == (0.0, 0.0)


def test_documented_layout_is_taken_over() -> None:
    model = network()
    parameter = model[0].weight
    l1_unstructured(model[0], "weight", 0.5)
    run = run_of(model)
    run.start()
    assert list(model.state_dict()) == list(network().state_dict())
    assert model[0].weight_orig is parameter
    assert run.zeros == 24
    assert run.prune(Demand(0, amount=0.5)).tensors == {"0.weight": 36, "2.weight": 12}


def test_runs_of_one_model() -> None:
    model = network()
    first, last, both = run_of(model, parameters="0.*"), run_of(model, parameters="2.*"), run_of(model)
    refuse_overlap(first, [last])
    with pytest.raises(ValueError, match=r"the same tensors: 0\.weight, 2\.weight;"):
        refuse_overlap(both, [first, last])
    first.prune(Demand(0, amount=0.5))
    assert sparsity_of([first, last]) == 24 / 72


def with_biases(model: nn.Module, layout: Layout = Layout.KEPT) -> PruningRun:
    pruner = Pruner(make_recipe("ln_structured", 2, "out", None), Budget())
    weights = select(model)
    return PruningRun(weights, pruner, 5, layout, biases=biases_of(model, weights, pruner.granularity))


@pytest.mark.parametrize("layout", [Layout.KEPT, Layout.PLAIN])
def test_biases_of_dead_channels_go_uncounted(layout: Layout) -> None:
    model = network()
    biases = [model[0].bias.detach().clone(), model[2].bias.detach().clone()]
    run = with_biases(model, layout)
    event = run.prune(Demand(0, amount=0.5))
    assert (event.zeros, event.total, run.units) == (3 * 8 + 2 * 6, 72, 14)
    assert event.tensors == {"0.weight": 24, "2.weight": 12, "0.bias": 3, "2.bias": 2}
    assert [t.name for t in run.counted] == [t.name for t in run.ranked] == ["0.weight", "2.weight"]
    for slot, layer in (("0", model[0]), ("2", model[2])):
        alive = run.pruned[f"{slot}.weight"].any(dim=1)
        assert torch.equal(run.pruned[f"{slot}.bias"], alive)
        if_kept = torch.where(alive, biases[int(slot) // 2], 0)
        erase(run.targets, [])
        assert torch.equal(layer.bias.detach(), if_kept)
    same = run.pruned["0.bias"]
    run.prune(Demand(1, amount=0))
    assert run.pruned["0.bias"] is same
    run.close()
    assert not is_pruned(model)
    assert [int((layer.bias == 0).sum()) for layer in (model[0], model[2])] == [3, 2]


def test_states_with_and_without_biases() -> None:
    model, other = network(), network()
    run = with_biases(model)
    run.prune(Demand(0, amount=0.5))
    resumed = with_biases(other)
    resumed.load_state_dict(run.state_dict())
    assert resumed.pruned["0.bias"].tolist() == run.pruned["0.bias"].tolist()
    before = run_of(network(), "ln_structured")
    before.prune(Demand(0, amount=0.5))
    late = with_biases(network())
    late.load_state_dict(before.state_dict())
    assert [t.name for t in late.targets] == ["0.weight", "2.weight", "0.bias", "2.bias"]
    assert set(late.pruned) == {"0.weight", "2.weight"}
    late.prune(Demand(1, amount=0))
    assert [late.pruned[name].tolist() for name in ("0.bias", "2.bias")] == [
        run.pruned[name].tolist() for name in ("0.bias", "2.bias")
    ]


def test_a_bias_is_left_to_the_run_that_has_selected_it() -> None:
    model = network()
    run, own = with_biases(model), run_of(model, parameters="2.bias")
    refuse_overlap(own, [run])
    assert [t.name for t in run.targets] == ["0.weight", "2.weight", "0.bias"]
    assert [t.name for t in own.targets] == ["2.bias"]
    run.prune(Demand(0, amount=0.5))
    assert (own.zeros, set(run.pruned)) == (0, {"0.weight", "2.weight", "0.bias"})


def test_a_replaced_layer_takes_the_place_of_its_bias_too() -> None:
    model = network()
    run = with_biases(model)
    run.prune(Demand(0, amount=0.5))
    model[0] = nn.Linear(8, 6)
    model[2] = nn.Linear(6, 4, bias=False)
    assert run.refresh(model) == ["0.weight", "2.weight", "0.bias", "2.bias"]
    event = run.prune(Demand(1, amount=0.5))
    assert event.tensors == {"0.weight": 24, "2.weight": 12, "0.bias": 3}
    assert torch.equal(run.pruned["0.bias"], run.pruned["0.weight"].any(dim=1))


def test_a_run_can_be_moved_to_a_copy_of_the_model() -> None:
    model = network()
    run = run_of(model, parameters="2.*")
    trial = run.moved_to(copy.deepcopy(model))
    trial.prune(Demand(0, amount=0.5))
    assert (trial.zeros, run.zeros) == (12, 0)
    assert not is_pruned(model)


def test_units_of_rounding() -> None:
    assert run_of(network()).units == 1
    assert run_of(network(), "ln_structured").units == 8 + 6


def test_rounds_cost_no_memory() -> None:
    model = network()
    run = run_of(model, "random_unstructured")
    sizes = []
    for number in range(25):
        run.prune(Demand(number, amount=0.02))
        gc.collect()
        kinds = (torch.Tensor, nn.Parameter)
        sizes.append(sum(o.untyped_storage().nbytes() for o in gc.get_objects() if type(o) in kinds))
    assert run.zeros == 23
    assert len(set(sizes[5:])) == 1
