"""Events on coupled channels: exact numbers, floors, scores, overrides, and what is refused."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lightning_prune.prune import LnStructured
from lightning_prune.pruner.budgets import Budget
from lightning_prune.pruner.coupled import CoupledPruner, restricted
from lightning_prune.pruner.criteria import SNIP, Criterion, Movement, SynFlow, Taylor
from lightning_prune.pruner.criteria.scorer import Scorer, masks_in_rounds
from lightning_prune.pruner.dependency import find_groups
from lightning_prune.pruner.groups import dead_channels
from lightning_prune.pruner.method import Method, make_recipe
from lightning_prune.schedules.plan import Demand
from lightning_prune.targets.select import Target, all_targets, select
from tests.channel_models import ZOO, trained_looking, vgg


def pruner_of(
    model: nn.Module,
    inputs: Tensor,
    scope: Budget | str = "local",
    method: Method = "ln_structured",
    final: float | None = None,
    **selection: object,
) -> tuple[CoupledPruner, list[Target]]:
    chosen = select(model, **selection)
    groups, targets = restricted(find_groups(model, inputs), chosen, all_targets(model))
    budget = scope if isinstance(scope, Budget) else Budget(scope)
    return CoupledPruner(make_recipe(method, 2, "out", None), budget, final, groups), targets


def event(pruner: CoupledPruner, targets: list[Target], **demand: float) -> tuple[float, list[int]]:
    """The share of zeros of matrices and kernels, and the dead channels of each group, after an event."""
    masks = dict(zip([t.name for t in targets], pruner.masks(targets, Demand(0, **demand)), strict=True))
    counted = pruner.counted(targets)
    zeros = [0 if masks[t.name] is None else int((~masks[t.name]).sum()) for t in counted]
    return sum(zeros) / sum(t.parameter.numel() for t in counted), [
        sum(dead_channels(group, masks)) for group in pruner.groups.groups
    ]


def chain(scale: float = 1.0) -> nn.Sequential:
    """Two hidden layers of four channels with norms in the order of their numbers, the second one's ``scale`` times."""
    net = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    with torch.no_grad():
        for layer in net[::2]:
            layer.weight.zero_()
            layer.bias.zero_()
        net[0].bias.copy_(torch.tensor([1.0, 2.0, 3.0, 4.0]))
        net[2].bias.copy_(scale * torch.tensor([1.0, 2.0, 3.0, 10.0]))
    return net


X = torch.ones(1, 2)


@pytest.mark.parametrize("scope", ["local", "global"])
@pytest.mark.parametrize("method", ["ln_structured", "random_structured"])
@pytest.mark.parametrize("name", ZOO)
def test_the_number_of_zeros_is_the_nearest_that_whole_channels_can_give(name: str, method: str, scope: str):
    make, inputs = ZOO[name]
    model = trained_looking(make)
    pruner, targets = pruner_of(model, inputs(), scope, method)
    total = sum(t.parameter.numel() for t in pruner.counted(targets))
    for sparsity in (0.3, 0.5, 0.75):
        reached, dead = event(pruner, targets, sparsity=sparsity)
        assert abs(reached - sparsity) * total <= pruner.slack(targets) / 2 + 1
        assert all(n < group.channels for n, group in zip(dead, pruner.groups.groups, strict=True))


def test_each_group_alike_and_by_scores_within():
    model = chain()
    pruner, targets = pruner_of(model, X)
    masks = pruner.masks(targets, Demand(0, amount=0.5))
    found = {t.name: mask for t, mask in zip(targets, masks, strict=True)}
    assert found["0.bias"].tolist() == [False, False, True, True]
    assert found["2.weight"].tolist() == [
        [False] * 4,
        [False] * 4,
        [False, False, True, True],
        [False, False, True, True],
    ]
    assert found["4.weight"].tolist() == [[False, False, True, True]] * 2
    assert "4.bias" not in found


def test_one_ranking_compares_by_the_mean_of_a_group():
    # means 2.5 and 4 s: relative scores .4 .8 1.2 1.6 and .25 .5 .75 2.5, whatever the scale s of the second group is
    for scale in (1e-3, 1.0, 1e3):
        pruner, targets = pruner_of(chain(scale), X, "global")
        assert event(pruner, targets, amount=3)[1] == [1, 2]
        assert event(pruner, targets, amount=5)[1] == [2, 3]
        assert event(pruner, targets, amount=6)[1] == [3, 3]


def test_normalize_takes_the_place_of_the_mean():
    # l2 norms 5.48 and 10.68: .18 .37 .55 .73 and .09 .19 .28 .94
    pruner, targets = pruner_of(chain(), X, Budget("global", normalize="l2"))
    assert event(pruner, targets, amount=4)[1] == [1, 3]


def test_a_channel_of_each_group_survives():
    for scope in ("local", "global"):
        pruner, targets = pruner_of(chain(), X, Budget(scope, max_sparsity=1.0))
        assert event(pruner, targets, amount=8 if scope == "global" else 4)[1] == [3, 3]


def test_max_sparsity_holds_for_channels():
    pruner, targets = pruner_of(chain(), X, Budget("global", max_sparsity=0.5))
    assert event(pruner, targets, amount=8)[1] == [2, 2]


def test_overrides_name_the_layer_that_makes_the_channels():
    pruner, targets = pruner_of(chain(), X, Budget("local", overrides={"0.*": 0.0}))
    assert event(pruner, targets, sparsity=0.4)[1] == [0, 2]
    pruner, targets = pruner_of(chain(), X, Budget("global", overrides={"2.weight": 0.5}), final=0.5)
    assert event(pruner, targets, sparsity=0.25)[1][1] == 1
    assert event(pruner, targets, sparsity=0.5)[1][1] == 2


def test_overrides_that_differ_within_a_group_are_refused():
    make, inputs = ZOO["resnet"]
    budget = Budget("local", overrides={"conv1.weight": 0.5, "blocks.0.conv2.weight": 0.25})
    pruner, targets = pruner_of(trained_looking(make), inputs(), budget)
    with pytest.raises(ValueError, match=r"give 'blocks.0.conv2.weight' 0.25, and 0.5 to another layer of the same"):
        pruner.check(targets)
    pruner, targets = pruner_of(chain(), X, Budget(overrides={"4.weight": 0.5}))
    with pytest.raises(ValueError, match="matches no tensor; near names"):
        pruner.check(targets)


def test_dead_channels_stay_dead_and_count():
    model = chain()
    pruner, targets = pruner_of(model, X)
    first = pruner.masks(targets, Demand(0, sparsity=0.4))
    from lightning_prune.prune import custom_from_mask

    for target, mask in zip(targets, first, strict=True):
        if mask is not None:
            custom_from_mask(target.module, target.owners[0][1], mask, keep_name=True)
    same = pruner.masks(targets, Demand(1, sparsity=0.3))
    assert all(a is None or torch.equal(a, b) for a, b in zip(first, same, strict=True))
    later = pruner.masks(targets, Demand(1, sparsity=0.7))
    assert all(a is None or not bool((b & ~a).any()) for a, b in zip(first, later, strict=True))
    assert event(pruner, targets, sparsity=0.7)[0] == pytest.approx(0.7, abs=0.1)


def test_an_own_method_sees_channels_as_rows():
    seen = []

    class Largest(LnStructured):
        def channel_scores(self, t: Tensor) -> Tensor:
            seen.append(tuple(t.shape))
            return 1 / super().channel_scores(t)

    pruner, targets = pruner_of(chain(), X, "local", Largest)
    masks = dict(zip([t.name for t in targets], pruner.masks(targets, Demand(0, amount=1)), strict=True))
    assert [dead_channels(group, masks) for group in pruner.groups.groups] == [[False, False, False, True]] * 2
    assert seen[0] == (4, 2 + 1 + 4)


def test_torchs_structured_methods_prune_coupled_channels():
    import torch.nn.utils.prune as torch_prune

    class Mine(torch_prune.LnStructured):
        """Not one that is replaced by this package's."""

    pruner, targets = pruner_of(chain(), X, "local", Mine)
    pruner.check(targets)
    assert event(pruner, targets, amount=2)[1] == [2, 2]
    pruner, targets = pruner_of(chain(), X, "global", Mine)
    with pytest.raises(ValueError, match="Mine cannot rank the channels"):
        pruner.check(targets)


def test_only_groups_that_are_selected_as_a_whole_are_pruned():
    model = vgg().eval()
    inputs = torch.randn(1, 3, 16, 16)
    pruner, targets = pruner_of(model, inputs, exclude="10.weight")
    names = [group.name for group in pruner.groups.groups]
    assert names == ["0", "3", "14", "17", "22"]
    left = {one.name: one.reason for one in pruner.groups.left_out}
    assert left["7"] == left["10"] == "'10.weight' belongs to its channels and is not selected"
    assert "10.weight" not in [t.name for t in targets]
    with pytest.raises(ValueError, match="finds no channels to prune: 24: they are outputs of the network, 0: '"):
        pruner_of(model, inputs, parameters="0.weight")


def test_other_methods_scopes_and_dimensions_are_refused():
    for arguments, message in [
        ({"method": "l1_unstructured"}, "prunes whole channels, L1Unstructured does not"),
        ({"scope": Budget("erk")}, "scope='erk' is not there for coupled channels"),
    ]:
        pruner, targets = pruner_of(chain(), X, **arguments)
        with pytest.raises(ValueError, match=message):
            pruner.check(targets)
    pruner, targets = pruner_of(chain(), X)
    other = CoupledPruner(make_recipe("ln_structured", 2, "in", None), pruner.budget, None, pruner.groups)
    with pytest.raises(ValueError, match="dim='in': coupled channels have no other dimension"):
        other.check(targets)


def test_a_target_out_of_reach_is_refused_in_channels():
    pruner, targets = pruner_of(chain(), X, Budget("local", max_sparsity=0.5), final=0.9)
    with pytest.raises(ValueError, match=r"29 zeros of 32 weights cannot be reached: 20 at most, with 4 of 8 channels"):
        pruner.check(targets)


def test_zeros_that_are_no_whole_channels_count_for_the_target():
    from lightning_prune.prune import custom_from_mask

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8)).eval()
    mask = torch.rand(16, 8) > 0.4
    pruner, targets = pruner_of(model, torch.ones(1, 8))
    custom_from_mask(model[0], "weight", mask, keep_name=True)
    reached, _ = event(pruner, targets, sparsity=0.5)
    assert reached == pytest.approx(0.5, abs=0.03)


@pytest.mark.parametrize(("criterion", "total"), [
    (SNIP(), lambda parts: sum(float(p.abs().sum()) for p in parts)),
    (Taylor(), lambda parts: sum(float(p.square().sum()) for p in parts) ** 0.5),
    (Movement(), lambda parts: sum(float(p.sum()) for p in parts)),
])  # fmt: skip
def test_a_criterion_is_added_up_over_all_that_belongs_to_a_channel(criterion: Criterion, total: Any) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 2))
    pruner, targets = pruner_of(net, torch.ones(1, 3))
    pruner = replace(pruner, recipe=pruner.recipe.ranking(criterion))
    net(torch.randn(9, 3)).square().sum().backward()
    scorer = Scorer(criterion)
    scorer.observe(targets)
    sign = -1 if isinstance(criterion, Movement) else 1
    first, bias, last = (sign * p.detach() * p.grad for p in (net[0].weight, net[0].bias, net[2].weight))
    sums = [total([first[c], bias[c], last[:, c]]) for c in range(6)]
    masks = dict(
        zip([t.name for t in targets], masks_in_rounds(pruner, scorer, net, targets, Demand(0, amount=2)), strict=True)
    )
    dead = sorted(range(6), key=sums.__getitem__)[:2]
    assert [c for c in range(6) if not masks["0.weight"][c].any()] == sorted(dead)
    assert [c for c in range(6) if not masks["0.bias"][c]] == [c for c in range(6) if not masks["2.weight"][:, c].any()]
    assert [c for c in range(6) if not masks["0.bias"][c]] == sorted(dead)


def test_synflow_thins_coupled_channels_in_rounds_to_the_nearest_number() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))
    pruner, targets = pruner_of(net, torch.ones(1, 8), scope="global")
    criterion = SynFlow(rounds=5, example_inputs=torch.zeros(1, 8))
    pruner = replace(pruner, recipe=pruner.recipe.ranking(criterion))
    masks = masks_in_rounds(pruner, Scorer(criterion), net, targets, Demand(0, sparsity=0.6))
    kernels = [m for t, m in zip(targets, masks, strict=True) if t.parameter.dim() > 1]
    share = sum(int((~m).sum()) for m in kernels) / sum(m.numel() for m in kernels)
    assert abs(share - 0.6) * sum(m.numel() for m in kernels) <= pruner.slack(targets)
    assert all(bool(m.any()) for m in kernels)
