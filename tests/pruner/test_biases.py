"""Biases that go with the dead channels of their layers."""

import pytest
import torch
from torch import nn

from lightning_prune.prune import custom_from_mask
from lightning_prune.pruner.biases import biases_of, mask_of_bias
from lightning_prune.pruner.granularity import Channels, Granularity, Weights
from lightning_prune.targets.biases import biases_for, living_channels
from lightning_prune.targets.select import all_targets, select


def names(model: nn.Module, units: Granularity | None = None) -> list[str]:
    return [bias.name for bias in biases_of(model, select(model), units or Channels())]


def test_layers_that_hold_their_bias_alone() -> None:
    model = nn.Sequential(
        nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 3, bias=False), nn.Conv2d(2, 4, 1), nn.ConvTranspose2d(4, 2, 1)
    )
    assert names(model) == ["0.bias", "3.bias", "4.bias"]
    assert names(model, Channels("in")) == []
    assert names(model, Weights()) == []
    assert names(nn.MultiheadAttention(4, 2)) == ["in_proj_bias", "out_proj.bias"]


def test_square_layers_tell_outputs_from_inputs() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.ConvTranspose1d(3, 3, 1))
    assert names(model, Channels("in")) == []
    assert names(model, Channels(0)) == ["0.bias"]
    assert names(model, Channels(1)) == ["1.bias"]


def test_shared_and_parametrized_biases_are_left_alone() -> None:
    shared = nn.Sequential(nn.Linear(4, 3), nn.Linear(4, 3), nn.Linear(3, 2))
    shared[1].bias = shared[0].bias
    assert names(shared) == ["2.bias"]
    computed = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    torch.nn.utils.parametrize.register_parametrization(computed[0], "bias", nn.Tanh())
    assert names(computed) == ["1.bias"]
    assert biases_of(shared, select(shared, "0.weight"), Channels()) == []


def test_weights_shared_by_two_layers_take_both_biases() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(4, 3), nn.Embedding(3, 4))
    model[1].weight = model[0].weight
    assert [b.name for b in biases_of(model, select(model, "0.weight"), Channels())] == ["0.bias", "1.bias"]
    model[2].weight = model[0].weight
    assert [b.name for b in biases_of(model, select(model, "0.weight"), Channels())] == ["0.bias", "1.bias"]


def test_masks_of_biases() -> None:
    layer = nn.Linear(2, 4)
    weight, bias = all_targets(layer)
    mask = torch.tensor([[True, False], [False, False], [True, True], [False, False]])
    assert mask_of_bias(bias, {weight: None}, Channels()) is None
    assert mask_of_bias(bias, {weight: torch.ones(4, 2, dtype=torch.bool)}, Channels()) is None
    found = mask_of_bias(bias, {weight: mask}, Channels())
    assert found is not None
    assert found.tolist() == [True, False, True, False]
    custom_from_mask(layer, "bias", torch.tensor([0, 1, 1, 1]))
    found = mask_of_bias(bias, {weight: mask}, Channels())
    assert found is not None
    assert found.tolist() == [False, False, True, False]


def test_transposed_convolutions_with_groups_have_several_biases_for_a_channel() -> None:
    layer = nn.ConvTranspose1d(4, 6, 1, groups=2)
    weight, bias = all_targets(layer)
    mask = torch.ones(4, 3, 1, dtype=torch.bool)
    mask[:, 1] = False
    found = mask_of_bias(bias, {weight: mask}, Channels())
    assert found is not None
    assert found.tolist() == [True, False, True, True, False, True]
    assert biases_for(torch.tensor([True, False]), nn.Conv1d(2, 2, 1, groups=2)).tolist() == [True, False]
    with torch.no_grad():
        layer.weight.mul_(mask)
        layer.bias.mul_(found)
        outputs = layer(torch.randn(5, 4, 7))
        assert outputs.abs().amax(dim=(0, 2)).gt(0).tolist() == found.tolist()
        assert living_channels(weight, layer.weight, 1).tolist() == [True, False, True]
        layer.bias[4] = 1
    assert living_channels(weight, layer.weight, 1).tolist() == [True, True, True]


@pytest.mark.parametrize("layer", [nn.Linear(4, 3), nn.Conv2d(4, 3, 1), nn.ConvTranspose2d(4, 3, 1)])
def test_a_channel_lives_by_its_bias(layer: nn.Module) -> None:
    weight = all_targets(layer)[0]
    dim = weight.channel_dim("out")
    with torch.no_grad():
        weight.parameter.select(dim, 0).zero_()
        weight.parameter.select(dim, 1).zero_()
        layer.bias.copy_(torch.tensor([0.5, 0.0, 0.0]))
    assert living_channels(weight, weight.parameter.detach(), dim).tolist() == [True, False, True]
