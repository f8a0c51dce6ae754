import pytest
import torch
from torch import nn

from lightning_prune import metrics
from lightning_prune.prune import custom_from_mask, l1_unstructured, remove_all
from lightning_prune.prune.attribute import Layout, erase
from lightning_prune.prune.base import impose
from lightning_prune.prune.methods import CustomFromMask


def net():
    """Weights 1 to 8 and 1 to 4; the first three of "0.weight" get pruned below."""
    model = nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2), nn.Linear(2, 2, bias=False))
    with torch.no_grad():
        model[0].weight.copy_(torch.arange(1.0, 9.0).view(2, 4))
        model[0].bias.fill_(1.0)
        model[1].bias.fill_(1.0)
        model[2].weight.copy_(torch.arange(1.0, 5.0).view(2, 2))
    return model


def prune(model, layout, dropped=3):
    mask = torch.arange(8).view(2, 4) >= dropped
    if layout == "documented":
        custom_from_mask(model[0], "weight", mask)
    elif layout == "removed":
        remove_all(prune(model, "documented", dropped))
    else:
        impose(CustomFromMask(None), model[0], "weight", mask, Layout(layout))
        erase(model[0], "weight")
    return model


LAYOUTS = ["documented", "kept", "plain", "removed"]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_counts_are_the_same_in_every_layout(layout):
    model = prune(net(), layout)
    assert metrics.sparsity(model) == 3 / 18
    assert metrics.sparsity(model, "*") == 3 / 12
    assert metrics.sparsity(model, ["0.weight", "0.bias"]) == 3 / 10
    assert metrics.sparsity(model, exclude="2.*") == 3 / 8
    assert metrics.nonzero_parameters(model) == 15
    assert metrics.compression_rate(model, "0.weight") == 8 / 5
    assert metrics.sparsity_per_tensor(model, "*") == {"0.weight": 3 / 8, "2.weight": 0.0}
    assert metrics.masks_of(model)["0.weight"].int().tolist() == [[0, 0, 0, 1], [1, 1, 1, 1]]


def test_counts_of_a_dense_model():
    assert metrics.sparsity(net()) == 0.0
    assert metrics.compression_rate(net()) == 1.0
    assert metrics.nonzero_parameters(net()) == 18


def test_shared_and_frozen_parameters_count_once():
    first = nn.Linear(2, 2, bias=False)
    model = nn.ModuleDict({"a": first, "b": first}).requires_grad_(False)
    l1_unstructured(first, "weight", amount=1)
    assert metrics.sparsity_per_tensor(model, "*") == {"a.weight": 0.25}
    assert metrics.nonzero_parameters(model) == 3


def test_edges_of_ratios():
    empty, dead = nn.Identity(), nn.Linear(2, 2, bias=False)
    nn.init.zeros_(dead.weight)
    assert (metrics.sparsity(empty), metrics.compression_rate(empty)) == (0.0, 1.0)
    assert (metrics.sparsity(dead), metrics.compression_rate(dead)) == (1.0, float("inf"))


def test_a_pattern_without_a_match_is_an_error():
    with pytest.raises(ValueError, match=r"'0.wieght' matches no parameter.*0.weight"):
        metrics.sparsity(net(), "0.wieght")


def test_a_kept_weight_of_zero_is_a_zero_but_not_masked():
    model = prune(net(), "kept")
    with torch.no_grad():
        model[0].weight_orig[1, 3] = 0.0
    assert metrics.sparsity(model, "0.weight") == 0.5
    assert int(metrics.masks_of(model)["0.weight"].sum()) == 5


def test_masks_of_is_a_copy():
    model = prune(net(), "kept")
    before = metrics.masks_of(model)
    prune(model, "kept", dropped=5)
    assert metrics.mask_churn(before, model) == 2 / 12
    assert metrics.mask_overlap(before, model) == 7 / 9


def test_overlap_by_hand():
    first = {"a": torch.tensor([1, 1, 1, 0]), "b": torch.tensor([[1.0, 0.0], [0.0, 0.0]])}
    second = {"a": torch.tensor([1, 1, 0, 1]), "b": torch.tensor([[False, True], [True, True]])}
    chance = (4 * 9 / 16 + 4 * 3 / 16) / (4 * (1.5 - 9 / 16) + 4 * (1.0 - 3 / 16))
    assert metrics.mask_overlap(first, second) == 2 / 8
    assert metrics.chance_overlap(first, second) == pytest.approx(chance, abs=1e-15)
    assert metrics.mask_overlap(first, second, adjusted=True) == pytest.approx((0.25 - chance) / (1 - chance))
    assert metrics.mask_churn(first, second) == 6 / 8


def test_chance_is_what_random_masks_give():
    generator = torch.Generator().manual_seed(0)
    first, second = ({"w": torch.rand(400, 500, generator=generator) < share} for share in (0.3, 0.6))
    overlap = metrics.mask_overlap(first, second)
    assert overlap == pytest.approx(0.18 / 0.72, abs=3e-3)
    assert metrics.chance_overlap(first, second) == pytest.approx(overlap, abs=3e-3)
    assert metrics.mask_overlap(first, second, adjusted=True) == pytest.approx(0.0, abs=4e-3)


@pytest.mark.parametrize("kept", [0, 2, 4])
def test_equal_masks_overlap_fully(kept):
    mask = {"w": torch.arange(4) < kept}
    assert metrics.mask_overlap(mask, mask) == 1.0
    assert metrics.mask_overlap(mask, mask, adjusted=True) == 1.0
    assert metrics.mask_churn(mask, mask) == 0.0


@pytest.mark.parametrize(
    ("second", "message"),
    [
        ({"v": torch.ones(2)}, "'w' is of shape .2,. in the first and missing in the second"),
        ({"w": torch.ones(3)}, "'w' is of shape .2,. in the first and of shape .3,. in the second"),
        ({"w": torch.ones(2), "v": torch.ones(1)}, "'v' is missing in the first and of shape .1,. in the second"),
    ],
)
def test_masks_of_other_tensors_are_refused(second, message):
    with pytest.raises(ValueError, match=message):
        metrics.mask_overlap({"w": torch.ones(2)}, second)


def test_no_masks_are_refused():
    with pytest.raises(ValueError, match="no masks"):
        metrics.mask_churn({}, {})
