"""Which tensors are selected."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize

from lightning_prune.prune import l1_unstructured
from lightning_prune.targets.patterns import describe_patterns
from lightning_prune.targets.select import Target, all_targets, select, select_trainable


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(5, 4)
        self.body = nn.ModuleDict({"a": nn.Linear(4, 4), "b": nn.Sequential(nn.Conv1d(4, 4, 3), nn.BatchNorm1d(4))})
        self.up = nn.ConvTranspose1d(4, 2, 3)
        self.head = nn.Linear(4, 5, bias=False)
        self.head.weight = self.embed.weight
        self.scale = nn.Parameter(torch.ones(4))
        self.mix = nn.Parameter(torch.ones(4, 4))


def names(targets: list[Target]) -> list[str]:
    return [t.name for t in targets]


DEFAULT = ["mix", "body.a.weight", "body.b.0.weight", "up.weight"]


def test_default_selection_is_in_order_and_leaves_out_what_embeddings_share() -> None:
    assert names(select(Model())) == DEFAULT


@pytest.mark.parametrize(
    ("parameters", "selected"),
    [
        ("body", ["body.a.weight", "body.b.0.weight"]),
        ("body.b", ["body.b.0.weight"]),
        ("body.*", ["body.a.weight", "body.b.0.weight"]),
        ("*.weight", ["body.a.weight", "body.b.0.weight", "up.weight"]),
        ("scale", ["scale"]),
        ("head.weight", ["embed.weight"]),
        (["up.bias", "mix"], ["mix", "up.bias"]),
        (("mix", "up"), ["mix", "up.weight"]),
        (re.compile(r"\.b\.\d"), ["body.b.0.weight"]),
        (nn.Linear, ["body.a.weight"]),
        ([nn.Linear, nn.Conv1d], ["body.a.weight", "body.b.0.weight"]),
        (iter(["mix"]), ["mix"]),
        (lambda name, p: "bias" in name, ["body.a.bias", "body.b.0.bias", "body.b.1.bias", "up.bias"]),
    ],
)
def test_patterns(parameters: Any, selected: list[str]) -> None:
    assert names(select(Model(), parameters)) == selected


@pytest.mark.parametrize("parameters", ["b", nn.BatchNorm1d, 3, []])
def test_patterns_that_choose_nothing(parameters: Any) -> None:
    with pytest.raises((ValueError, TypeError)):
        select(Model(), parameters)


def test_modules_and_pairs() -> None:
    model = Model()
    assert names(select(model, model.body)) == ["body.a.weight", "body.b.0.weight"]
    assert names(select(model, model.body["b"])) == ["body.b.0.weight"]
    assert names(select(model, [(model.up, "bias"), model.body["a"]])) == ["body.a.weight", "up.bias"]
    assert names(select(model, (model.up, "weight"))) == ["up.weight"]
    assert names(select(model, exclude=[model.body, "mix"])) == ["up.weight"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"parameters": "bodi.a.weight"}, r"'bodi\.a\.weight' matches no parameter of the model; near names: body\.a"),
        ({"exclude": "heads"}, "'heads' matches no parameter"),
        ({"parameters": re.compile("x9")}, r"re\.compile\('x9'\) matches no parameter.*the parameters are mix, "),
        ({"parameters": nn.BatchNorm1d}, "only tensors that are not pruned by default.*Give their exact names"),
        ({"exclude": "*"}, "nothing is selected for pruning.*4 matched and were all excluded"),
    ],
)
def test_messages(arguments: dict[str, Any], message: str) -> None:
    model = Model()
    model.scale = None  # type: ignore[assignment]
    with pytest.raises(ValueError, match=message):
        select(model, **arguments)


def test_parameters_instead_of_pairs_are_refused_with_what_is_wanted() -> None:
    model = Model()
    for wrong in (model.parameters(), list(model.named_parameters()), model.mix):
        with pytest.raises(TypeError, match="chosen by names, globs"):
            select(model, wrong)  # type: ignore[arg-type]


def test_frozen_tensors() -> None:
    model = Model()
    model.body.requires_grad_(False)
    assert names(select(model)) == ["mix", "up.weight"]
    assert names(select(model, frozen=True)) == DEFAULT
    now, later = select_trainable(model, None, None, join=True)
    assert (names(now), names(later)) == (["mix", "up.weight"], ["body.a.weight", "body.b.0.weight"])
    now, later = select_trainable(model, "body.a.weight", None, join=False)
    assert (names(now), names(later)) == (["body.a.weight"], [])
    now, later = select_trainable(model, "body.a.weight", None, join=True)
    assert (names(now), names(later)) == ([], ["body.a.weight"])
    with pytest.raises(ValueError, match=r"body\.a\.weight \(frozen ones\), body\.a\.bias \(biases\)"):
        select(model, "body")


def test_shared_parameters_are_one_target_with_all_names() -> None:
    model = Model()
    (shared,) = [t for t in all_targets(model) if "head.weight" in t.aliases]
    assert shared.aliases == ("embed.weight", "head.weight")
    assert shared.owners == ((model.embed, "weight"), (model.head, "weight"))
    twice = nn.Sequential(nn.Linear(2, 2, bias=False), nn.ReLU())
    twice.append(twice[0])
    (target,) = all_targets(twice)
    assert target.owners == ((twice[0], "weight"),)


def test_a_target_knows_its_parameter_and_mask_while_it_is_pruned() -> None:
    model = Model()
    target = select(model, "up.weight")[0]
    parameter = model.up.weight
    assert target.alive is None
    assert target.zeros == 0
    for keep_name in (True, False):
        l1_unstructured(model.up, "weight", amount=5, keep_name=keep_name)
        assert target.parameter is parameter
    assert target.zeros == 10
    assert "up.weight" in names(select(model))


@pytest.mark.parametrize(
    ("name", "dims"),
    [
        ("body.a.weight", (0, 1)),
        ("body.b.0.weight", (0, 1)),
        ("up.weight", (1, 0)),
        ("embed.weight", (1, 0)),
    ],
)
def test_channel_dimensions(name: str, dims: tuple[int, int]) -> None:
    target = select(Model(), name)[0]
    assert (target.channel_dim("out"), target.channel_dim("in")) == dims
    assert target.channel_dim(-1) == target.parameter.dim() - 1
    with pytest.raises(IndexError, match=rf"dim=4 does not exist in '{re.escape(name)}'"):
        target.channel_dim(4)
    with pytest.raises(ValueError, match="'out' or 'in'"):
        target.channel_dim("up")


def test_vectors_with_dimensions_of_size_one_are_not_selected() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.to_one = nn.Linear(4, 1)
            self.layer_scale = nn.Parameter(torch.ones(6, 1, 1))
            self.class_token = nn.Parameter(torch.ones(1, 1, 6))

    block = Block()
    assert names(select(block)) == ["to_one.weight"]
    assert names(select(block, "layer_scale")) == ["layer_scale"]


class Doubled(nn.Module):
    """A parametrization with a parameter of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Parameter(torch.eye(4))

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return 2 * weight @ self.mix


def doubled(layer: nn.Module) -> nn.Module:
    return parametrize.register_parametrization(layer, "weight", Doubled())


OLD = pytest.mark.filterwarnings("ignore:.*weight_norm. is deprecated")
PARAMETRIZED: list[Any] = [
    (parametrizations.weight_norm, ["parametrizations.weight.original0", "parametrizations.weight.original1"]),
    (parametrizations.spectral_norm, ["parametrizations.weight.original"]),
    (parametrizations.orthogonal, ["parametrizations.weight.original"]),
    (doubled, ["parametrizations.weight.original", "parametrizations.weight.0.mix"]),
    pytest.param(nn.utils.weight_norm, ["weight_g", "weight_v"], marks=OLD),
    (nn.utils.spectral_norm, ["weight_orig"]),
]


@pytest.mark.parametrize(("parametrized", "originals"), PARAMETRIZED)
def test_originals_of_parametrizations_are_selected_by_exact_choice_only(
    parametrized: Callable[[nn.Module], nn.Module], originals: list[str]
) -> None:
    layer = parametrized(nn.Linear(4, 6, bias=False))
    net = nn.Sequential(nn.Linear(4, 4), layer)
    full = [f"1.{name}" for name in originals]
    assert names(select(net)) == names(select(net, "*")) == names(select(net, nn.Linear)) == ["0.weight"]
    assert names(select(net, full)) == names(select(net, lambda name, p: name in full)) == full
    with pytest.raises(ValueError, match=re.escape(f"{full[0]} (originals of a parametrization: 1.weight is")):
        select(net, "1")
    computed = re.escape(f"1.weight is computed by a parametrization, from {' and '.join(full)}") + "$"
    for missing in ("1.weight", "1.w*t", (layer, "weight")):
        with pytest.raises(ValueError, match=f"matches no parameter of the model; {computed}"):
            select(net, missing)
    with pytest.raises(ValueError, match=rf"{len(full)} of them are originals of a param.*{re.escape(full[0])}"):
        select(net, exclude="0")
    with pytest.raises(ValueError, match=r"\(originals of a parametrization: weight is computed"):
        select(layer, nn.Linear)
    with pytest.raises(ValueError, match=r"nothing is selected.*originals of a parametrization.*remove_parametriz"):
        select(layer)


@pytest.mark.parametrize(
    ("layer", "out"),
    [
        (nn.ConvTranspose1d(4, 6, 3), 1),
        (nn.ConvTranspose2d(4, 6, 3, groups=2), 1),
        (nn.Conv1d(4, 6, 3), 0),
        (nn.Embedding(5, 4), 1),
    ],
)
def test_channels_of_originals_are_those_of_the_layer(layer: nn.Module, out: int) -> None:
    slots: list[tuple[Callable[[nn.Module], nn.Module], str]] = [
        (parametrizations.spectral_norm, "original"),
        (parametrizations.weight_norm, "original1"),
    ]
    for parametrized, slot in slots:
        plain = nn.Sequential(parametrized(layer))
        before = {name: value.clone() for name, value in plain.state_dict().items()}
        target = select(plain, f"0.parametrizations.weight.{slot}")[0]
        assert (target.channel_dim("out"), target.channel_dim("in")) == (out, 1 - out)
        assert all(torch.equal(value, before[name]) for name, value in plain.state_dict().items())
        parametrize.remove_parametrizations(layer, "weight")
    old = nn.utils.spectral_norm(layer)
    assert select(old, "weight_orig")[0].channel_dim("out") == out


def test_channels_of_a_matrix_that_a_parametrization_adds_are_not_those_of_the_layer() -> None:
    layer = doubled(nn.Embedding(4, 4))
    assert select(layer, "parametrizations.weight.original")[0].channel_dim("out") == 1
    added = select(layer, "parametrizations.weight.0.mix")[0]
    assert added.output_dim is None
    with pytest.raises(ValueError, match=r"which dimension of 'parametrizations.weight.0.mix' of shape \(4, 4\) holds"):
        added.channel_dim("out")
    assert added.channel_dim(1) == 1


def test_a_weight_is_selected_once_its_parametrization_is_removed() -> None:
    layer = parametrizations.weight_norm(nn.Linear(4, 6, bias=False))
    parametrize.remove_parametrizations(layer, "weight")
    assert names(select(layer)) == ["weight"]


def test_a_tied_tensor_is_said_to_be_shared_with_the_embedding() -> None:
    model = Model()
    for pattern in ("head.*", "head", model.head):
        with pytest.raises(ValueError, match=r"embeddings: head\.weight is shared with embed\.weight\)"):
            select(model, pattern)
    with pytest.raises(ValueError, match=r"0\.weight \(embeddings\)\."):
        select(nn.Sequential(nn.Embedding(3, 2)), "0.*")


def test_descriptions_tell_closures_and_partials_apart() -> None:
    def chosen(wanted: str, name: str, parameter: nn.Parameter) -> bool:
        return name == wanted

    def choose(wanted: str) -> Callable[[str, nn.Parameter], bool]:
        def choice(name: str, parameter: nn.Parameter) -> bool:
            return name == wanted

        return choice

    assert describe_patterns(choose("a")).endswith("choose.<locals>.choice(a)")
    assert describe_patterns(choose("b")).endswith("choose.<locals>.choice(b)")
    assert describe_patterns(functools.partial(chosen, "a")).endswith("chosen(a)")
    assert describe_patterns(functools.partial(chosen, wanted="b")).endswith("chosen(b)")


def test_descriptions_tell_lambdas_apart() -> None:
    first, last = describe_patterns(lambda name, p: name == "first"), describe_patterns(lambda name, p: name == "last")
    assert first != last
    assert first.endswith("<lambda>(first)")


def test_descriptions_are_the_same_in_every_process() -> None:
    model = Model()
    patterns = ["a.*", re.compile("b"), nn.Linear, (model.up, "bias"), model.body, test_messages]
    assert describe_patterns(patterns) == (
        "'a.*', (ConvTranspose1d, 'bias'), Linear, ModuleDict, re.compile('b'), test_messages"
    )
    assert describe_patterns(None) == "default"


def test_the_same_selection_in_another_order_is_described_alike() -> None:
    assert describe_patterns(["a.*", "b", nn.Linear]) == describe_patterns([nn.Linear, "b", "a.*", "b"])
    assert describe_patterns(["a.*", "b"]) != describe_patterns(["a.*", "c"])


def test_pairs_may_be_lists() -> None:
    net = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2))
    assert names(select(net, [[net[0], "weight"]])) == ["0.weight"]
    assert names(select(net, [net[1], "bias"])) == ["1.bias"]
    assert names(select(net, [net[1], "0.weight"])) == ["0.weight", "1.weight"]  # two patterns: no such attribute


class Brackets(nn.Module):
    """Layers whose names read as globs."""

    def __init__(self) -> None:
        super().__init__()
        self.add_module("conv[3x3]", nn.Linear(2, 2))
        self.add_module("conv3", nn.Linear(2, 2))


def test_a_name_that_is_written_out_is_meant_though_it_reads_as_a_glob() -> None:
    assert names(select(Brackets(), "conv[3x3].weight")) == ["conv[3x3].weight"]
    assert names(select(Brackets(), "conv[3x3]")) == ["conv[3x3].weight"]
    assert names(select(Brackets(), "conv[0-9].weight")) == ["conv3.weight"]
    assert names(select(Brackets(), exclude="conv[3x3]")) == ["conv3.weight"]


class Vision(nn.Module):
    """Parameters that are added to activations, beside weights that the model itself holds."""

    def __init__(self) -> None:
        super().__init__()
        self.pos_embed = nn.Parameter(torch.ones(1, 5, 4))
        self.register_tokens = nn.Parameter(torch.ones(3, 4))
        self.relative_position_table = nn.Parameter(torch.ones(9, 2))
        self.attention_biases = nn.Parameter(torch.ones(4, 16))
        self.rel_bias = nn.Parameter(torch.ones(4, 16))
        self.scale = nn.Parameter(torch.ones(1, 4, 4))
        self.experts = nn.Parameter(torch.ones(2, 4, 4))
        self.proj = nn.Linear(4, 4)


def test_parameters_that_are_no_weights_are_not_selected_by_default() -> None:
    assert names(select(Vision())) == ["experts", "proj.weight"]
    assert names(select(Vision(), ["pos_embed"])) == ["pos_embed"]
    with pytest.raises(ValueError, match=r"attention_biases \(biases\)"):
        select(Vision(), "attention*")
    with pytest.raises(ValueError, match=r"pos_embed \(embeddings and other parameters that are not weights\)"):
        select(Vision(), "pos*")


class Conv1D(nn.Module):
    """Stores inputs first, as the layer of this name in transformers."""

    def __init__(self, nf: int, nx: int) -> None:
        super().__init__()
        self.nf, self.nx = nf, nx
        self.weight = nn.Parameter(torch.empty(nx, nf))


class Message(nn.Module):
    """Says its sizes, as the layers of PyTorch Geometric."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.in_channels, self.out_channels = 3, 5
        self.weight = nn.Parameter(torch.empty(shape))


@pytest.mark.parametrize(
    ("layer", "out"),
    [
        (Conv1D(4, 4), 1),
        (Conv1D(6, 2), 1),
        (Message((3, 5)), 1),
        (Message((5, 3)), 0),
        (Message((2, 3, 5)), None),
        (nn.LSTM(2, 2), 0),
        (nn.Bilinear(2, 3, 4), 0),
        (nn.MultiheadAttention(4, 2), 0),
    ],
)
def test_outputs_are_found_where_the_way_to_store_them_is_known(layer: nn.Module, out: int | None) -> None:
    assert all_targets(layer)[0].output_dim == out


def test_a_second_name_of_a_shared_module_is_kept() -> None:
    shared = nn.Linear(2, 2)
    (target,) = select(nn.ModuleDict({"a": shared, "b": shared}))
    assert target.aliases == ("a.weight", "b.weight")
    assert target.owners == ((shared, "weight"),)


@pytest.mark.parametrize(
    ("arguments", "chosen"),
    [
        ({}, ["0.weight", "1.weight"]),
        ({"outputs": ()}, ["0.weight", "1.weight", "2.weight"]),
        ({"outputs": ("0.weight", "2.weight")}, ["1.weight"]),
        ({"outputs": ("0.weight", "1.weight", "2.weight")}, ["0.weight", "1.weight", "2.weight"]),
        ({"parameters": "*"}, ["0.weight", "1.weight", "2.weight"]),
        ({"exclude": "2.*"}, ["0.weight", "1.weight"]),
        ({"exclude": ["0.*", "1.*"]}, ["2.weight"]),
    ],
)
def test_what_makes_the_outputs_is_spared(arguments: dict[str, Any], chosen: list[str]) -> None:
    net = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 3), nn.Linear(3, 2), nn.BatchNorm1d(2))
    arguments = {"parameters": None, "exclude": None, "join": False, "outputs": ("2.weight",), **arguments}
    assert names(select_trainable(net, **arguments)[0]) == chosen
