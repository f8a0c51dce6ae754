"""Coupled channels: which ones are found, what is left alone and why, scores, masks and exact counts."""

import sys

import pytest
import torch
from torch import Tensor, nn

from lightning_prune.pruner.dependency import find_groups
from lightning_prune.pruner.groups import (
    ChannelGroup,
    Slice,
    channel_matrix,
    comparable,
    dead_channels,
    masks_without,
    nearest,
    zeros_after,
)
from tests.channel_models import ZOO, trained_looking


def reasons(model: nn.Module, inputs: Tensor) -> dict[str, str]:
    return {left.name: left.reason for left in find_groups(model.eval(), inputs).left_out}


def counts(model: nn.Module, inputs: Tensor) -> dict[str, int]:
    return {group.name: group.channels for group in find_groups(model.eval(), inputs).groups}


@pytest.mark.parametrize(
    ("name", "found", "left"),
    [
        ("resnet", 12, ["fc"]),
        ("vgg", 7, ["24"]),
        ("mobilenet", 6, ["35"]),
        ("unet", 7, ["head"]),
        ("encoder", 2, ["inside", "head"]),
        ("densenet", 8, ["15"]),
    ],
)
def test_groups_of_the_zoo(name: str, found: int, left: list[str]):
    make, inputs = ZOO[name]
    groups = find_groups(trained_looking(make), inputs())
    assert len(groups.groups) == found
    assert [one.name for one in groups.left_out] == left


def test_a_concatenation_puts_channels_behind_each_other():
    class Joined(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.out = nn.Linear(3, 2), nn.Linear(3, 4), nn.Linear(6, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(torch.cat([self.a(x), self.b(x)], dim=1))

    groups = find_groups(Joined(), torch.ones(2, 3)).groups
    columns = {group.name: next(group.of("read")) for group in groups}
    assert (columns["a"].index, columns["a"].channel) == ((0, 1), (0, 1))
    assert (columns["b"].index, columns["b"].channel) == ((2, 3, 4, 5), (0, 1, 2, 3))


def test_a_flatten_gives_a_channel_several_columns():
    net = nn.Sequential(nn.Conv2d(1, 2, 1), nn.Flatten(), nn.Linear(8, 3))
    (group,) = find_groups(net, torch.ones(1, 1, 2, 2)).groups
    assert next(group.of("read")).channel == (0, 0, 0, 0, 1, 1, 1, 1)


class Through(nn.Module):
    """Two linear or convolution layers with something between."""

    def __init__(self, between: nn.Module, conv: bool = False) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 1) if conv else nn.Linear(3, 8)
        self.between = between
        self.last = nn.Conv2d(8, 2, 1) if conv else nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        out = self.between(self.first(x))
        return self.last(out[0] if isinstance(out, tuple) else out)


@pytest.mark.parametrize(
    ("between", "reason"),
    [
        (nn.LayerNorm(8), "goes through LayerNorm, which mixes channels ('between')"),
        (nn.RMSNorm(8), "goes through RMSNorm, which mixes channels ('between')"),
        (nn.LSTM(8, 8, batch_first=True), "goes through a recurrent module ('between')"),
        (
            nn.GRU(8, 8, batch_first=True),
            "the dependency graph cannot follow its channels (IndexError: list index out of range)",
        ),
    ],
)
def test_modules_that_mix_channels_are_named(between: nn.Module, reason: str):
    assert reasons(Through(between), torch.randn(2, 5, 3))["first"] == reason


@pytest.mark.parametrize(
    ("between", "reason"),
    [
        (nn.GroupNorm(2, 8), "goes through GroupNorm, which mixes channels ('between')"),
        (nn.Conv2d(8, 8, 3, padding=1, groups=2), "'between' is a grouped convolution"),
        (nn.Softmax(dim=1), "outputs change by"),
        (nn.PixelShuffle(2), "the dependency graph finds more channels in 'last.weight' than there are"),
        (nn.utils.parametrizations.weight_norm(nn.Conv2d(8, 8, 1)), "'between' is parametrized"),
    ],
)
def test_layers_that_cannot_be_cut_are_named(between: nn.Module, reason: str):
    model = Through(between, conv=True)
    if isinstance(between, nn.PixelShuffle):
        model.last = nn.Conv2d(2, 2, 1)
    found = reasons(model, torch.randn(2, 3, 4, 4))
    assert any(text.startswith(reason) for text in found.values()), found
    assert counts(model, torch.randn(2, 3, 4, 4)) == {}


@pytest.mark.parametrize(
    "between", [nn.Sigmoid(), nn.InstanceNorm2d(8, affine=True), nn.InstanceNorm2d(8), nn.PReLU(8), nn.PReLU()]
)
def test_what_treats_channels_apart_may_lie_between(between: nn.Module):
    assert counts(Through(between, conv=True), torch.randn(2, 3, 4, 4)) == {"first": 8}


def test_a_squeeze_and_excitation_gate_is_part_of_the_channels():
    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.last = nn.Conv2d(3, 8, 1), nn.Conv2d(8, 2, 1)
            self.down, self.up = nn.Conv2d(8, 4, 1), nn.Conv2d(4, 8, 1)

        def forward(self, x: Tensor) -> Tensor:
            x = self.conv(x)
            gate = self.up(torch.relu(self.down(x.mean(dim=(2, 3), keepdim=True))))
            return self.last(x * torch.sigmoid(gate))

    groups = {g.name: g for g in find_groups(Gated(), torch.randn(1, 3, 4, 4)).groups}
    assert {s.name for s in groups["conv"].masked} == {
        *("conv.weight", "conv.bias", "up.weight", "up.bias", "down.weight", "last.weight")
    }
    assert groups["down"].channels == 4


def test_attention_with_heads_is_left_alone():
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q, self.k, self.v = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)
            self.out = nn.Linear(8, 2)

        def forward(self, x: Tensor) -> Tensor:
            q, k, v = (f(x).view(2, 5, 2, 4).transpose(1, 2) for f in (self.q, self.k, self.v))
            attended = nn.functional.scaled_dot_product_attention(q, k, v)
            return self.out(attended.transpose(1, 2).reshape(2, 5, 8))

    assert counts(Attention(), torch.randn(2, 5, 8)) == {}


def test_attention_that_counts_its_heads_anew_is_left_alone_however_small_its_weights():
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q, self.k, self.v, self.o = (nn.Linear(16, 16) for _ in range(4))
            self.norm, self.up, self.down = nn.LayerNorm(16), nn.Linear(16, 32), nn.Linear(32, 16)

        def forward(self, x: Tensor) -> Tensor:
            normed = self.norm(x)
            q, k, v = (f(normed).view(*x.shape[:-1], -1, 4).transpose(1, 2) for f in (self.q, self.k, self.v))
            mixed = (q @ k.transpose(-1, -2) / 2).softmax(-1) @ v  # with queries near zero hardly more than a mean
            x = x + self.o(mixed.transpose(1, 2).flatten(2))
            return x + self.down(torch.relu(self.up(self.norm(x))))

    torch.manual_seed(0)
    model = nn.Sequential(Attention(), nn.Linear(16, 3))
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.02)
    x = torch.randn(2, 5, 16)
    assert counts(model, x) == {"0.up": 32}
    assert "outputs change" in reasons(model, x)["0.q"]


def test_outputs_and_shared_layers_stay():
    layer = nn.Linear(4, 4)
    net = nn.Sequential(layer, nn.ReLU(), nn.Linear(4, 3))
    net.append(nn.Linear(3, 4))
    net.append(nn.Linear(4, 4))
    net[4].weight = layer.weight
    found = reasons(net, torch.randn(2, 4))
    assert found["0"] == "'0' shares its parameters with another layer"
    assert found["4"] == "they are outputs of the network"


def test_several_outputs_and_inputs_by_name():
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.one, self.two = nn.Linear(3, 6), nn.Linear(6, 2), nn.Linear(6, 1)

        def forward(self, x: Tensor, scale: Tensor) -> dict[str, Tensor]:
            out = torch.relu(self.body(x)) * scale
            return {"one": self.one(out), "two": self.two(out)}

    groups = find_groups(Two(), {"x": torch.ones(2, 3), "scale": torch.ones(1)})
    assert [(g.name, g.channels) for g in groups.groups] == [("body", 6)]
    assert {left.name for left in groups.left_out} == {"one", "two"}


def test_zero_initialised_scales_do_not_make_the_proof_blind():
    net = nn.Sequential(nn.Conv2d(1, 4, 1), nn.BatchNorm2d(4), nn.Softmax(dim=1), nn.Conv2d(4, 1, 1))
    nn.init.zeros_(net[1].weight)
    assert counts(net, torch.randn(2, 1, 3, 3)) == {}


class Deciding(nn.Module):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.layer, self.last, self.how = nn.Linear(3, 4), nn.Linear(4, 2), how

    def forward(self, x: Tensor) -> Tensor:
        out = self.layer(x)
        if self.how == "if" and out.sum() > 0:
            out = out * 2
        if self.how == "item":
            out = out * float(out.max())
        if self.how == "random":
            out = out + torch.randn_like(out)
        if self.how == "fails":
            raise RuntimeError("no such path")
        return self.last(out) if self.how != "nothing" else None


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("if", r"forward of Deciding depends on data: at test_groups.py:\d+ it reads the value"),
        ("item", r"depends on data: at test_groups.py:\d+"),
        ("random", "give different outputs in evaluation mode"),
        ("fails", "cannot be called with the example inputs: RuntimeError: no such path"),
        ("nothing", "returns no tensor"),
    ],
)
def test_models_that_cannot_be_traced_are_refused(how: str, message: str):
    with pytest.raises(ValueError, match=message):
        find_groups(Deciding(how), torch.ones(1, 3))


def test_missing_inputs_are_refused():
    with pytest.raises(ValueError, match="set example_input_array in the LightningModule"):
        find_groups(nn.Linear(2, 2))


def test_a_missing_library_is_named_with_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch_pruning", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'lightning-prune\[shrink\]'"):
        find_groups(nn.Linear(2, 2), torch.ones(1, 2))


def test_the_model_is_left_as_it_is():
    make, inputs = ZOO["resnet"]
    model = trained_looking(make).train()
    model.fc.weight.requires_grad_(False)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    find_groups(model, inputs())
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert model.training
    assert not model.fc.weight.requires_grad
    assert all(not m._forward_hooks for m in model.modules())


def two_layers() -> ChannelGroup:
    return ChannelGroup(
        "a",
        2,
        (
            Slice("a.weight", 0, (0, 1), (0, 1), "write"),
            Slice("a.bias", 0, (0, 1), (0, 1), "write"),
            Slice("b.weight", 1, (0, 1, 2, 3), (0, 0, 1, 1), "read"),
        ),
    )


def test_the_matrix_of_a_group_has_all_of_a_channel_in_a_row():
    tensors = {
        "a.weight": torch.tensor([[1.0, 2.0], [3.0, 4.0]]),
        "a.bias": torch.tensor([5.0, 6.0]),
        "b.weight": torch.tensor([[7.0, 8.0, 9.0, 10.0]]),
    }
    assert channel_matrix(two_layers(), tensors).tolist() == [[1, 2, 5, 7, 8], [3, 4, 6, 9, 10]]


def test_uneven_channels_are_filled_up_with_zeros():
    group = ChannelGroup("a", 2, (Slice("b.weight", 1, (0, 1, 2), (1, 0, 1), "read"),))
    assert channel_matrix(group, {"b.weight": torch.tensor([[1.0, 2.0, 3.0]])}).tolist() == [[2, 0], [1, 3]]


def test_scores_compare_by_the_mean_of_living_channels():
    scores = comparable(torch.tensor([2.0, 6.0, 100.0]), torch.tensor([True, True, False]))
    assert scores.tolist() == [0.5, 1.5, 25.0]
    assert comparable(torch.zeros(2), torch.ones(2, dtype=torch.bool)).tolist() == [0, 0]


def test_masks_and_dead_channels_are_inverse():
    group = two_layers()
    like = {"a.weight": torch.zeros(2, 2), "a.bias": torch.zeros(2), "b.weight": torch.zeros(1, 4)}
    nothing = dict.fromkeys(like)
    assert dead_channels(group, nothing) == [False, False]
    masks = masks_without([group], [[False, True]], nothing, like)
    assert masks["a.weight"].tolist() == [[True, True], [False, False]]
    assert masks["a.bias"].tolist() == [True, False]
    assert masks["b.weight"].tolist() == [[True, True, False, False]]
    assert dead_channels(group, masks) == [False, True]
    same = masks_without([group], [[False, False]], masks, like)
    assert all(same[name] is masks[name] for name in masks)


def test_entries_in_a_dead_row_and_a_dead_column_count_once():
    one = ChannelGroup(
        "a", 3, (Slice("w", 0, (0, 1, 2), (0, 1, 2), "write"), Slice("v", 0, (0, 1, 2), (0, 1, 2), "write"))
    )
    two = ChannelGroup("b", 4, (Slice("w", 1, (0, 1, 2, 3), (0, 1, 2, 3), "read"),))
    shapes = {"w": (3, 4)}
    assert zeros_after([one, two], [[2], [0, 1]], shapes) == 12 - 2 * 2
    assert zeros_after([one, two], [[], []], shapes) == 0
    flattened = ChannelGroup("c", 2, (Slice("u", 1, (0, 1, 2), (0, 0, 1), "read"),))  # channels of unequal sizes
    assert [zeros_after([flattened], [[channel]], {"u": (5, 3)}) for channel in (0, 1)] == [10, 5]


@pytest.mark.parametrize(("target", "step"), [(0, 0), (4, 2), (6, 2), (7, 3), (100, 10), (1000, 10)])
def test_nearest_step(target: int, step: int):
    assert nearest(10, lambda n: n * n, target) == step
