"""Which tensors are selected."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import nn

from lightning_prune.prune import l1_unstructured
from lightning_prune.targets import Target, all_targets, describe_patterns, select, select_trainable


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
        ("b", None),
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
        (nn.BatchNorm1d, None),
        (3, None),
        ([], None),
    ],
)
def test_patterns(parameters: Any, selected: list[str] | None) -> None:
    if selected is None:
        with pytest.raises((ValueError, TypeError)):
            select(Model(), parameters)
    else:
        assert names(select(Model(), parameters)) == selected


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
    model.scale = None
    with pytest.raises(ValueError, match=message):
        select(model, **arguments)


def test_parameters_instead_of_pairs_are_refused_with_what_is_wanted() -> None:
    model = Model()
    for wrong in (model.parameters(), list(model.named_parameters()), model.mix):
        with pytest.raises(TypeError, match="chosen by names, globs"):
            select(model, wrong)


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
    with pytest.raises(ValueError, match="frozen ones"):
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
        ("mix", (0, 1)),
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
            self.linear = nn.utils.parametrizations.weight_norm(nn.Linear(4, 6))
            self.to_one = nn.Linear(4, 1)
            self.layer_scale = nn.Parameter(torch.ones(6, 1, 1))
            self.class_token = nn.Parameter(torch.ones(1, 1, 6))

    block = Block()
    assert names(select(block)) == ["linear.parametrizations.weight.original1", "to_one.weight"]
    assert names(select(block, "layer_scale")) == ["layer_scale"]


def test_descriptions_tell_lambdas_apart() -> None:
    first, last = describe_patterns(lambda name, p: name == "first"), describe_patterns(lambda name, p: name == "last")
    assert first != last
    assert first.endswith("<lambda>(first)")


def test_descriptions_are_the_same_in_every_process() -> None:
    model = Model()
    patterns = ["a.*", re.compile("b"), nn.Linear, (model.up, "bias"), model.body, test_messages]
    assert describe_patterns(patterns) == (
        "'a.*', re.compile('b'), Linear, (ConvTranspose1d, 'bias'), ModuleDict, test_messages"
    )
    assert describe_patterns(None) == "default"
