"""From demands to masks: amounts, targets, budgets, channels."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from lightning_prune.fit.run import PruningRun
from lightning_prune.prune import LnStructured
from lightning_prune.prune.attribute import Layout
from lightning_prune.pruner.budgets import Budget
from lightning_prune.pruner.candidates import candidates_of
from lightning_prune.pruner.channels import dropped_channels
from lightning_prune.pruner.granularity import Channels
from lightning_prune.pruner.method import make_recipe
from lightning_prune.pruner.normalization import normalized
from lightning_prune.pruner.pruner import Pruner
from lightning_prune.schedules.plan import Demand
from lightning_prune.targets.select import select


def network(*widths: int, seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(*(nn.Linear(a, b, bias=False) for a, b in itertools.pairwise(widths)))


def run_of(
    model: nn.Module, method: str = "l1_unstructured", dim: Any = "out", n: Any = 2, **kwargs: Any
) -> PruningRun:
    budget = {key: kwargs.pop(key) for key in ("scope", "overrides", "max_sparsity", "normalize") if key in kwargs}
    pruner = Pruner(make_recipe(method, n, dim, None), Budget(**budget), **kwargs)
    return PruningRun(select(model), pruner, seed=0, layout=Layout.KEPT)


def zeros(run: PruningRun) -> list[int]:
    return [t.zeros for t in run.targets]


def living(run: PruningRun) -> list[Tensor]:
    """Copies of the masks."""
    ones = [torch.ones_like(t.parameter, dtype=torch.bool) for t in run.targets]
    return [one if t.alive is None else t.alive.clone() for t, one in zip(run.targets, ones, strict=True)]


def test_local_amounts_are_fractions_of_what_is_left() -> None:
    run = run_of(network(10, 20, 5))
    for expected in ([100, 50], [150, 75], [175, 87]):  # half of the 25 that are left rounds to the even 12
        run.prune(Demand(0, amount=0.5))
        assert zeros(run) == expected


def test_global_amount_is_one_ranking() -> None:
    model = network(10, 20, 5)
    run = run_of(model, scope="global")
    weights = torch.cat([layer.weight.detach().flatten().abs() for layer in model])
    run.prune(Demand(0, amount=0.4))
    alive = torch.cat([t.alive.flatten() for t in run.targets])
    assert int((~alive).sum()) == 120
    assert float(weights[~alive].max()) <= float(weights[alive].min())
    run.prune(Demand(1, amount=0.5))
    assert sum(zeros(run)) == 120 + 90


@pytest.mark.parametrize("scope", ["local", "global", "erk"])
@pytest.mark.parametrize("method", ["l1_unstructured", "random_unstructured"])
def test_targets_are_exact_and_never_fall(scope: Any, method: str) -> None:
    run = run_of(network(7, 11, 5, 3), method, scope=scope, final=0.9)
    before = living(run)
    for share in (0.1, 0.33, 0.33, 0.2, 0.61, 0.9):
        event = run.prune(Demand(0, sparsity=share))
        assert event.zeros == max(event.before, round(share * 147))
        after = living(run)
        assert all(bool((old | ~new).all()) for old, new in zip(before, after, strict=True))
        before = after
    assert event.zeros == round(0.9 * 147)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(1, 9), min_size=2, max_size=5),
    st.lists(st.floats(0, 1), min_size=1, max_size=4),
    st.sampled_from(["local", "global", "erk"]),
    st.booleans(),
)
def test_any_plan_on_any_model_is_exact_under_ties(
    widths: list[int], shares: list[float], scope: Any, ties: bool
) -> None:
    model = network(*widths)
    with torch.no_grad():
        for layer in model:
            layer.weight.copy_(torch.ones_like(layer.weight) if ties else layer.weight)
    run = run_of(model, scope=scope, max_sparsity=1.0, final=1.0)
    for share in sorted(shares):
        assert run.prune(Demand(0, sparsity=share)).zeros == round(share * run.total)


def test_equal_weights_go_in_order() -> None:
    model = network(4, 3, 2)
    for layer in model:
        layer.weight.data.fill_(1.0)
    run = run_of(model, scope="global")
    run.prune(Demand(0, amount=14))
    assert run.targets[0].alive.flatten().tolist() == [False] * 11 + [True]  # one of each survives
    assert run.targets[1].alive.flatten().tolist() == [False] * 3 + [True] * 3


def test_overrides_and_caps() -> None:
    run = run_of(network(10, 10, 10, 10), scope="global", overrides={"1.*": 0.2}, max_sparsity=0.75, final=0.5)
    run.prune(Demand(0, sparsity=0.25))
    assert sum(zeros(run)) == 75
    assert zeros(run)[1] == 10
    run.prune(Demand(1, sparsity=0.5))
    assert sum(zeros(run)) == 150
    assert zeros(run)[1] == 20
    assert max(zeros(run)) <= 75


def test_override_as_an_amount_of_its_own() -> None:
    run = run_of(network(10, 10, 10), overrides={"1.weight": 0.1})
    run.prune(Demand(0, amount=0.5))
    run.prune(Demand(1, amount=0.5))
    assert zeros(run) == [75, 19]


@pytest.mark.parametrize(("dim", "axis"), [("out", 1), ("in", 0), (0, 1), (-1, 0)])
def test_structured_local_targets_are_whole_channels(dim: Any, axis: int) -> None:
    run = run_of(network(8, 12, 4), "ln_structured", dim)
    run.prune(Demand(0, sparsity=0.5))
    for target in run.targets:
        alive = target.alive.any(dim=axis)
        assert bool((target.alive == (alive.unsqueeze(axis))).all())
        assert int(alive.sum()) == len(alive) // 2


@pytest.mark.parametrize("method", ["ln_structured", "random_structured"])
def test_structured_global_counts_channels_or_weights(method: str) -> None:
    run = run_of(network(8, 12, 4), method, scope="global")
    run.prune(Demand(0, amount=6))
    assert sum(int((~t.alive.any(1)).sum()) for t in run.targets) == 6
    weights = run_of(network(8, 12, 4), method, scope="global")
    weights.prune(Demand(0, sparsity=0.5))
    assert abs(weights.zeros - 72) <= 6


def test_structured_global_ranks_by_the_mean_of_the_weights() -> None:
    """A wide and a narrow layer: the sizes of channels do not decide."""
    wide, narrow = nn.Linear(100, 2, bias=False), nn.Linear(4, 2, bias=False)
    wide.weight.data = torch.tensor([[0.3] * 100, [0.1] * 100])
    narrow.weight.data = torch.tensor([[0.2] * 4, [0.4] * 4])
    run = run_of(nn.Sequential(wide, narrow), "ln_structured", scope="global", max_sparsity=0.5)
    run.prune(Demand(0, amount=2))
    assert [t.alive.any(1).tolist() for t in run.targets] == [[True, False], [False, True]]


def test_each_tensor_keeps_a_channel() -> None:
    for scope in ("local", "global"):
        run = run_of(network(8, 6, 4), "ln_structured", scope=scope)
        run.prune(Demand(0, amount=100))
        assert [int(t.alive.any(1).sum()) for t in run.targets] == [1, 1]


def test_structured_counts_only_channels_that_live() -> None:
    run = run_of(network(8, 8), "ln_structured")
    run.prune(Demand(0, amount=0.5))
    assert Channels().dead(run.targets[0], run.targets[0].alive) == 4
    run.prune(Demand(1, amount=0.5))
    assert Channels().dead(run.targets[0], run.targets[0].alive) == 6


def test_channels_of_other_methods_cannot_be_ranked_together() -> None:
    from tests.pruner.test_method import Columns

    run = run_of(network(8, 6, 4))
    with pytest.raises(ValueError, match="Columns cannot rank the channels"):
        dropped_channels([Columns(1)] * 2, candidates_of(run.targets), [1, 1], 3, [5, 5], count_channels=True)
    pruner = Pruner(make_recipe(Columns, 2, "out", None), Budget("global"))
    with pytest.raises(ValueError, match="Columns cannot rank"):
        pruner.check(run.targets)


def test_own_structured_method_along_its_own_dimension() -> None:
    from tests.pruner.test_method import Columns

    model = network(8, 6, 4)
    run = PruningRun(select(model), Pruner(make_recipe(Columns, 2, "out", None), Budget()), seed=0)
    run.prune(Demand(0, sparsity=0.5))
    assert [t.alive.any(0).tolist() for t in run.targets] == [[False] * 4 + [True] * 4, [False] * 3 + [True] * 3]


@pytest.mark.parametrize("how", ["l2", "lamp"])
def test_normalized_rankings(how: Any) -> None:
    """A layer of ten times the weights is pruned as much as the others."""
    model = network(10, 10, 10)
    model[1].weight.data = model[0].weight.data * 10
    run = run_of(model, scope="global", normalize=how)
    run.prune(Demand(0, amount=0.5))
    assert abs(zeros(run)[0] - 50) <= 1
    assert abs(zeros(run)[1] - 50) <= 1
    plain = run_of(network(10, 10, 10), scope="global")
    plain.targets[1].parameter.data.mul_(10)
    plain.prune(Demand(0, amount=0.5))
    assert zeros(plain)[0] > 85


def test_lamp_scores_by_hand() -> None:
    scores = normalized(torch.tensor([[1.0, -2.0], [2.0, 3.0]]), None, "lamp")
    # squares 1, 4, 4, 9; of equal ones the later one counts both
    assert torch.allclose(scores, torch.tensor([[1 / 18, 4 / 13], [4 / 17, 1.0]]), atol=1e-6)
    alive = torch.tensor([[True, True], [True, False]])
    assert float(normalized(torch.tensor([[1.0, 2.0], [0.0, 5.0]]), alive, "lamp")[0, 1]) == 1.0
    with pytest.raises(ValueError, match="normalize should be"):
        normalized(scores, None, "l1")  # type: ignore[arg-type]


def test_a_target_out_of_reach_is_refused_by_name() -> None:
    run = run_of(network(10, 10, 10), max_sparsity=0.5, final=0.8)
    with pytest.raises(ValueError, match=r"160 zeros of 200 weights cannot be reached.*0\.weight \(50 of 100\)"):
        run.pruner.check(run.targets)


def test_nan_is_refused_by_name_and_changes_nothing() -> None:
    model = network(4, 4, 4)
    model[1].weight.data[0, 0] = torch.nan
    for scope in ("local", "global"):
        run = run_of(model, scope=scope)
        with pytest.raises(ValueError, match=r"1\.weight.*NaN"):
            run.prune(Demand(0, amount=0.5))
        assert zeros(run) == [0, 0]
        assert run.events == 0


def test_half_precision_and_strides() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), nn.Conv2d(8, 4, 3, bias=False)).to(torch.bfloat16)
    model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    run = run_of(model, scope="global", final=0.75)
    run.prune(Demand(0, sparsity=0.75))
    assert run.zeros == round(0.75 * 504)
    weight: Tensor = run.targets[0].parameter
    assert weight.is_contiguous(memory_format=torch.channels_last)
    assert run.targets[0].alive.stride() == weight.stride()


def test_directions_of_a_weight_norm_are_refused_when_pruned() -> None:
    net = nn.Sequential(parametrizations.weight_norm(nn.Linear(4, 3)), nn.Linear(3, 2))
    targets = select(net, "0.parametrizations.weight.original1")
    pruner = Pruner(make_recipe("ln_structured", 2, "out", None), Budget())
    with pytest.raises(ValueError, match=r"original1' is divided by the norms of its rows to make '0.weight'"):
        pruner.check(targets)
    pruner.check(select(net, "1.weight"))


def masks_of(run: PruningRun, demand: Demand, **kwargs: Any) -> list[Tensor]:
    found = run.pruner.masks(run.targets, demand, **kwargs)
    return [mask for mask in found if mask is not None]


@pytest.mark.parametrize("scope", ["local", "global", "erk"])
def test_scores_take_the_place_of_weights(scope: Any) -> None:
    """The masks are those of a model whose weights are the scores."""
    run, other = run_of(network(6, 8, 4), scope=scope), run_of(network(6, 8, 4, seed=1), scope=scope)
    scores = [t.parameter for t in other.targets]
    for demand in (Demand(0, amount=0.3), Demand(0, sparsity=0.4), Demand(0, amount=7)):
        found, wanted = masks_of(run, demand, scores=scores), masks_of(other, demand)
        assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))
        assert not all(torch.equal(a, b) for a, b in zip(found, masks_of(run, demand), strict=True))


def test_masks_to_start_from_take_the_place_of_the_present_ones() -> None:
    run = run_of(network(6, 8, 4), scope="global")
    first = masks_of(run, Demand(0, sparsity=0.3))
    second = masks_of(run, Demand(0, sparsity=0.6), alive=first)
    run.prune(Demand(0, sparsity=0.3))
    run.prune(Demand(0, sparsity=0.6))
    assert all(torch.equal(mask, t.alive) for mask, t in zip(second, run.targets, strict=True))


def test_scores_that_do_not_fit_are_refused_by_name() -> None:
    run = run_of(network(6, 8, 4))
    with pytest.raises(ValueError, match=r"scores should have the shape \(4, 8\) of '1\.weight', got \(8, 4\)"):
        masks_of(run, Demand(0, amount=0.5), scores=[torch.ones(8, 6), torch.ones(8, 4)])
    with pytest.raises(ValueError, match="1 scores and 2 masks are given for 2 tensors"):
        masks_of(run, Demand(0, amount=0.5), scores=[torch.ones(8, 6)])


def negative(t: Tensor, dim: int) -> Tensor:
    return -t.abs().sum([d for d in range(t.dim()) if d != dim])


class Heaviest(LnStructured):
    """Drops the heaviest channels."""

    def channel_scores(self, t: Tensor) -> Tensor:
        return negative(t, self.dim)


@pytest.mark.parametrize("scope", ["local", "global"])
def test_channel_scores_have_signs(scope: Any) -> None:
    model = network(6, 8)
    heaviest = model[0].weight.detach().abs().sum(1).argsort(descending=True)[:3]
    pruner = Pruner(make_recipe(Heaviest, 2, "out", None), Budget(scope))
    run = PruningRun(select(model), pruner, seed=0, layout=Layout.KEPT)
    run.prune(Demand(0, amount=3))
    assert sorted((~run.targets[0].alive.any(1)).nonzero().flatten().tolist()) == sorted(heaviest.tolist())


@pytest.mark.parametrize("scope", ["local", "global"])
def test_all_channels_go_where_the_budget_lets_them(scope: Any) -> None:
    run = run_of(network(8, 12, 8), "ln_structured", scope=scope, max_sparsity=1.0)
    assert run.prune(Demand(0, amount=1.0)).zeros == 192


@pytest.mark.parametrize(
    ("method", "arguments", "amount", "kept"),
    [
        ("l1_unstructured", {}, 1.0, ["1 of 200 of '0.weight'", "1 of 100 of '1.weight'"]),
        ("l1_unstructured", {}, 150, ["1 of 100 of '1.weight'"]),
        ("l1_unstructured", {"scope": "global"}, 10**6, ["1 of 200 of '0.weight'", "1 of 100 of '1.weight'"]),
        ("l1_unstructured", {"scope": "global"}, 298, []),
        ("l1_unstructured", {"max_sparsity": 0.75}, 0.8, ["50 of 200 of '0.weight'", "25 of 100 of '1.weight'"]),
        ("l1_unstructured", {"max_sparsity": 1.0}, 1.0, []),
        ("l1_unstructured", {"overrides": {"0": 0.5}}, 1.0, ["1 of 100 of '1.weight'"]),
        ("ln_structured", {}, 5, ["1 of 5 of '1.weight'"]),
        ("l1_unstructured", {}, 0.9, []),
    ],
)
def test_what_an_amount_cannot_take_is_known_before(
    method: str, arguments: dict[str, Any], amount: int | float, kept: list[str]
) -> None:
    run = run_of(network(10, 20, 5), method, **arguments)
    assert run.pruner.kept_back(run.targets, amount) == kept
    living = run.prune(Demand(0, amount=amount)).total - run.zeros
    asked = sum(int(words.split(" of ")[0].replace(",", "")) for words in kept)
    assert not kept or living >= asked


def test_others_make_up_for_a_tensor_of_one_channel() -> None:
    for scope in ("local", "global", "erk"):
        run = run_of(network(10, 10, 1), "ln_structured", scope=scope, final=0.8)
        run.pruner.check(run.targets)
        assert run.prune(Demand(0, sparsity=0.8)).zeros == 90  # 88 of 110, in whole channels of 10
        assert zeros(run) == [90, 0]


def test_a_target_out_of_reach_is_refused_in_channels() -> None:
    run = run_of(network(10, 4, 1), "ln_structured", final=0.75)
    with pytest.raises(ValueError, match=r"33 zeros of 44 .*30 at most.*0\.weight \(3 of 4 units of 10 weights\)"):
        run.pruner.check(run.targets)


@pytest.mark.parametrize("scope", ["local", "global"])
def test_overrides_of_a_method_without_amount_are_refused(scope: Any) -> None:
    from tests.pruner.test_method import Threshold

    recipe = make_recipe(Threshold, 2, "out", {"threshold": 0.1})
    pruner = Pruner(recipe, Budget(scope, overrides={"0.weight": 0.5}))
    with pytest.raises(ValueError, match="which Threshold decides itself"):
        pruner.check(select(network(4, 4, 4)))


def test_overridden_channels_have_their_own_share_in_one_ranking() -> None:
    run = run_of(network(10, 10, 10), "ln_structured", scope="global", overrides={"0.*": 0.2}, final=0.5)
    run.prune(Demand(0, sparsity=0.5))
    assert zeros(run) == [20, 80]
