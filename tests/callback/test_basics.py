"""PruningCallback in a Trainer: amounts, schedules, selection, methods."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.utils.prune as torch_prune
from torch import Tensor, nn

from lightning_prune import Budget, Constant, Cubic, Demand, Linear, OneShot, PruningCallback
from lightning_prune.prune import BasePruningMethod, L1Unstructured, l1_unstructured
from tests.expected import CUT_OFF, DEAD, FEW_SELECTED, NOTHING_LEFT
from tests.models import DigitsNet, Net, Recorder, is_plain, net, trainer, zeros

pytestmark = FEW_SELECTED

WEIGHTS = 176


def fit(root: Path, callback: PruningCallback, model: Any = None, **kwargs: Any) -> Net:
    model = net() if model is None else model
    trainer(root, callback, **kwargs).fit(model)
    return model


@pytest.mark.parametrize(("epochs", "left"), [(1, 88), (5, 5)])
def test_survivors_are_trained_weights(tmp_path: Path, epochs: int, left: int) -> None:
    before = {name: p.clone() for name, p in net().named_parameters()}
    model = fit(tmp_path, PruningCallback(amount=0.5), epochs=epochs)
    # 128 * 0.5 ** 5 = 4 of the first; of the last 48, 24, 12, 6, 3 are left, and then 1: half of 3 rounds to 2
    assert WEIGHTS - zeros(model) == left
    for name in ("first.weight", "last.weight"):
        weight = model.get_parameter(name)
        assert float((weight != before[name])[weight != 0].float().mean()) > 0.8
    assert is_plain(model)


def test_half_each_epoch_by_documented_meaning(tmp_path: Path) -> None:
    callback = Recorder(amount=0.5, scope="global")
    fit(tmp_path, callback, epochs=5)
    assert [event[-1] for event in callback.seen] == [88, 132, 154, 165, 171]  # 171 / 176 = 0.972; 1 - 0.5 ** 5 = 0.969


def test_schedule_ends_exactly(tmp_path: Path) -> None:
    callback = Recorder(schedule=Cubic(final=0.8, begin=0, end=4))
    model = fit(tmp_path, callback, epochs=6)
    assert zeros(model) == round(0.8 * WEIGHTS) == 141
    assert [event[1] for event in callback.seen] == [0, 1, 2, 3, 4]


def test_counts_stop_where_nothing_is_left(tmp_path: Path) -> None:
    callback = Recorder(amount=60, scope="global")
    with pytest.warns(UserWarning, match="nothing was left to prune") as warned:
        model = fit(tmp_path, callback, epochs=5)
    assert [event[-1] for event in callback.seen] == [60, 120, 174, 174, 174]
    assert zeros(model, "first.weight") == 127
    assert zeros(model, "last.weight") == 47
    assert sum("nothing was left" in str(w.message) for w in warned) == 1


@pytest.mark.parametrize("epochs", [1, 3, 12])
def test_a_first_try_without_arguments_prunes_half_gradually(tmp_path: Path, epochs: int) -> None:
    callback = Recorder()
    model = fit(tmp_path, callback, epochs=epochs)
    assert zeros(model) == 88
    first, last = callback.seen[0], callback.seen[-1]
    assert first[2:] == (round(0.1 * 4 * epochs), 0)
    assert last[2:] == (round(0.6 * 4 * epochs), 88)


def test_a_policy_of_ones_own_without_arguments_is_asked_at_each_epoch(tmp_path: Path) -> None:
    class Asked(PruningCallback):
        def due(self, trainer: Any, time: int) -> list[Demand]:
            asked.append(time)
            return [Demand(time, amount=0.5)] if time == 1 else []

    asked: list[int] = []
    model = fit(tmp_path, Asked(verbose=False), epochs=3)
    assert asked == [0, 1, 2]
    assert zeros(model) == 88


@DEAD
@CUT_OFF
def test_everything_goes_if_it_may(tmp_path: Path) -> None:
    model = fit(tmp_path, PruningCallback(amount=1.0, scope=Budget(max_sparsity=1.0), verbose=False), epochs=1)
    assert zeros(model) == WEIGHTS


@NOTHING_LEFT
@DEAD
def test_structured_defaults(tmp_path: Path) -> None:
    callback = Recorder("ln_structured", amount=0.5)
    model = fit(tmp_path, callback, epochs=5)
    rows = (model.first.weight != 0).any(dim=1)
    assert int(rows.sum()) == 1  # 16, 8, 4, 2, 1
    assert bool((model.first.weight[rows] != 0).all())
    assert zeros(model, "last.weight") == 0  # its rows are the model's outputs
    assert zeros(model, "norm.weight", "last.bias") == 0
    assert torch.equal(model.first.bias != 0, rows)  # those of dead rows go with them
    assert len(callback.seen) == 5


def test_norms_biases_and_embeddings_are_not_selected(tmp_path: Path) -> None:
    class Rich(Net):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(4, 8)
            self.layer_norm = nn.LayerNorm(8)
            self.recurrent = nn.LSTM(8, 8, batch_first=True)
            self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            rows = self.recurrent(self.layer_norm(x + self.embedding.weight.sum(0)).unsqueeze(1))[0]
            return super().forward(self.attention(rows, rows, rows)[0].squeeze(1))

    callback = PruningCallback(amount=0.5, epochs=[0], verbose=False)
    model = fit(tmp_path, callback, Rich(), epochs=1)
    pruned = [name for name, p in model.named_parameters() if p.dim() > 1 and zeros(model, name)]
    assert pruned == [
        "first.weight",
        "last.weight",
        "recurrent.weight_ih_l0",
        "recurrent.weight_hh_l0",
        "attention.in_proj_weight",
        "attention.out_proj.weight",
    ]
    assert [zeros(model, name) for name in pruned] == [64, 24, 128, 128, 96, 32]
    assert callback.state_dict()["tensors"].keys() == set(pruned)


def test_layers_made_in_setup_and_configure_model(tmp_path: Path) -> None:
    class Late(Net):
        def __init__(self) -> None:
            super().__init__()
            del self.first, self.last

        def setup(self, stage: str) -> None:
            self.first = nn.Linear(8, 16)

        def configure_model(self) -> None:
            self.last = nn.Linear(16, 3)

    model = fit(tmp_path, PruningCallback(amount=0.5, epochs=[0], verbose=False), Late(), epochs=1)
    assert zeros(model, "first.weight") == 64
    assert zeros(model, "last.weight") == 24


def test_parameters_of_the_module_itself_and_of_a_sequential(tmp_path: Path) -> None:
    class Scaled(nn.Sequential):
        def __init__(self) -> None:
            super().__init__(nn.Linear(16, 3))
            self.mix = nn.Parameter(torch.eye(16) + 0.01)

        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x @ self.mix)

    class Own(Net):
        def __init__(self) -> None:
            super().__init__()
            self.rotate = nn.Parameter(torch.eye(8) + 0.01)
            self.last = Scaled()

        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x @ self.rotate)

    model = fit(tmp_path, PruningCallback(amount=0.75, epochs=[0], verbose=False), Own(), epochs=1)
    assert [zeros(model, n) for n in ("rotate", "last.mix", "last.0.weight", "first.weight")] == [48, 192, 36, 96]


@pytest.mark.parametrize(
    ("parameters", "exclude", "pruned"),
    [
        ("first.weight", None, {"first.weight"}),
        ("first", None, {"first.weight"}),
        ("*.weight", "last.*", {"first.weight"}),
        (re.compile("^l"), None, {"last.weight"}),
        (nn.Linear, None, {"first.weight", "last.weight"}),
        ((name for name in ["first.weight", "last.bias"]), None, {"first.weight", "last.bias"}),
        (lambda name, p: p.numel() == 48, None, {"last.weight"}),
        (None, ["last"], {"first.weight"}),
        (["first.bias"], None, {"first.bias"}),
    ],
)
def test_ways_to_select(tmp_path: Path, parameters: Any, exclude: Any, pruned: set[str]) -> None:
    callback = PruningCallback(amount=1, epochs=[0], parameters=parameters, exclude=exclude, verbose=False)
    model = fit(tmp_path, callback, epochs=1)
    assert {name for name, _ in model.named_parameters() if zeros(model, name)} == pruned


def test_pairs_and_modules(tmp_path: Path) -> None:
    model = net()
    callback = PruningCallback(amount=1, epochs=[0], parameters=[(model.first, "bias"), model.last], verbose=False)
    fit(tmp_path, callback, model, epochs=1)
    assert {name for name, _ in model.named_parameters() if zeros(model, name)} == {"first.bias", "last.weight"}


def test_a_pattern_without_match_lists_near_names(tmp_path: Path) -> None:
    model = net()
    before = {name: p.clone() for name, p in model.named_parameters()}
    with pytest.raises(ValueError, match=r"'frist\.weight' matches no parameter.*near names: first\.weight"):
        fit(tmp_path, PruningCallback(parameters="frist.weight"), model)
    assert is_plain(model)
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())


class AtLeast(BasePruningMethod):
    """A user's method with an argument of its own and no amount."""

    PRUNING_TYPE = "unstructured"

    def __init__(self, threshold: float) -> None:
        self.threshold = threshold

    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        return default_mask * (t.abs() >= self.threshold)


class Torch(torch_prune.BasePruningMethod):
    """A user's method written for torch; masks the first ``amount`` entries."""

    PRUNING_TYPE = "unstructured"

    def __init__(self, amount: int) -> None:
        self.amount = amount

    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        mask = default_mask.clone()
        mask.view(-1)[: self.amount] = 0
        return mask


@pytest.mark.parametrize("scope", ["local", "global"])
@pytest.mark.parametrize(
    "arguments",
    [
        {"method": AtLeast, "method_kwargs": {"threshold": 0.1}},
        {"method": functools.partial(AtLeast, threshold=0.1)},
    ],
)
def test_own_method_with_arguments(tmp_path: Path, arguments: dict[str, Any], scope: Any) -> None:
    model = net()
    small = {name: p.abs() < 0.1 for name, p in model.named_parameters() if p.dim() > 1}
    fit(tmp_path, PruningCallback(epochs=[0], scope=scope, verbose=False, **arguments), model, epochs=1)
    assert all(torch.equal(model.get_parameter(name) == 0, wanted) for name, wanted in small.items())


def test_torch_method_by_amount_and_by_schedule(tmp_path: Path) -> None:
    model = fit(tmp_path, PruningCallback(Torch, 3, epochs=[0, 2], verbose=False))
    assert torch.equal(model.last.weight.flatten().eq(0).nonzero().flatten(), torch.arange(6))
    model = fit(tmp_path, PruningCallback(Torch, schedule=OneShot(0.25), verbose=False), net())
    assert torch.equal(model.first.weight.flatten().eq(0).nonzero().flatten(), torch.arange(32))


@pytest.mark.parametrize("scope", ["local", "global"])
def test_amount_given_with_the_method(tmp_path: Path, scope: Any) -> None:
    callback = Recorder(functools.partial(L1Unstructured, amount=0.25), epochs=[0], scope=scope)
    fit(tmp_path, callback, epochs=1)
    assert callback.seen == [(0, 0, 0, 44)]


@pytest.mark.parametrize("method", ["l1_unstructured", torch_prune.L1Unstructured, L1Unstructured])
def test_names_and_classes_are_the_same(tmp_path: Path, method: Any) -> None:
    model = fit(tmp_path, PruningCallback(method, 0.5, epochs=[0], verbose=False), epochs=1)
    same = fit(tmp_path, PruningCallback("l1_unstructured", 0.5, epochs=[0], verbose=False), epochs=1)
    assert torch.equal(model.first.weight, same.first.weight)


def test_dim_given_with_the_method(tmp_path: Path) -> None:
    method = functools.partial(torch_prune.LnStructured, n=1, dim=1)
    model = fit(tmp_path, PruningCallback(method, schedule=OneShot(0.5), verbose=False), epochs=1)
    assert int((model.first.weight == 0).all(dim=0).sum()) == 4
    assert int((model.last.weight == 0).all(dim=0).sum()) == 8


def test_structured_in_and_out_by_type_of_layer(tmp_path: Path) -> None:
    class Up(Net):
        def __init__(self) -> None:
            super().__init__()
            self.up = nn.ConvTranspose1d(8, 4, 2)

        def forward(self, x: Tensor) -> Tensor:
            return super().forward(self.up(x.unsqueeze(-1)).flatten(1))

    for dim, axis in (("out", (0, 2)), ("in", (1, 2))):
        callback = PruningCallback("ln_structured", 0.5, epochs=[0], dim=dim, parameters="up", verbose=False)
        model = fit(tmp_path, callback, Up(), epochs=1)
        assert int((model.up.weight == 0).all(dim=axis[0]).all(dim=-1).sum()) == (2 if dim == "out" else 4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"method": "ln_structured", "parameters": ["first.bias"]}, r"'first\.bias' of shape \(16,\) has no channels"),
        ({"method": "ln_structured", "dim": 2}, r"dim=2 does not exist in 'first\.weight' of shape \(16, 8\)"),
        ({"scope": Budget(overrides={"frist*": 0.2})}, r"overrides\['frist\*'\] matches no tensor"),
        ({"schedule": Constant(final=0.9), "scope": Budget(max_sparsity=0.5)}, "cannot be reached"),
        ({"method": "ln_structured", "scope": Budget("global", {"nothing": 0.1}), "n": 2}, "matches no tensor"),
    ],
)
def test_what_cannot_work_is_refused_at_the_start(tmp_path: Path, arguments: dict[str, Any], message: str) -> None:
    model = net()
    callback = PruningCallback(**arguments)
    with pytest.raises((ValueError, IndexError), match=message):
        fit(tmp_path, callback, model)
    assert is_plain(model)
    assert zeros(model) == 0
    assert callback.run is None


def test_lazy_layers_are_refused_by_name(tmp_path: Path) -> None:
    class Lazy(Net):
        def __init__(self) -> None:
            super().__init__()
            self.last = nn.LazyLinear(3)

    with pytest.raises(ValueError, match=r"'last\.weight' has no shape yet"):
        fit(tmp_path, PruningCallback(), Lazy())


def test_model_pruned_by_torch_is_refused_by_name(tmp_path: Path) -> None:
    model = net()
    torch_prune.l1_unstructured(model.first, "weight", 0.5)
    with pytest.raises(ValueError, match=r"'first\.weight' is pruned by torch\.nn\.utils\.prune"):
        fit(tmp_path, PruningCallback(), model)


def test_torchscript_layers_are_refused_by_name_at_the_start(tmp_path: Path) -> None:
    model = net()
    model.first = torch.jit.script(model.first)
    with pytest.raises(TypeError, match=r"'first\.weight' cannot be pruned: .*TorchScript"):
        fit(tmp_path, PruningCallback(), model)
    assert zeros(model) == 0
    model = fit(tmp_path, PruningCallback(amount=0.5, epochs=[0], exclude="first", verbose=False), model)
    assert zeros(model, "last.weight") == 24


def test_model_pruned_by_the_engine_goes_on(tmp_path: Path) -> None:
    model = net()
    parameter = model.first.weight
    l1_unstructured(model.first, "weight", 0.5)
    dead = ~model.first.weight_mask.bool()
    names: list[str] = []

    class Look(Recorder):
        def on_train_batch_end(self, trainer: Any, pl_module: Any, *args: Any) -> None:
            names.extend(pl_module.state_dict())

    fit(tmp_path, Look(amount=0.5, epochs=[1]), model)
    assert bool((model.first.weight[dead] == 0).all())
    assert zeros(model, "first.weight") == 96
    assert model.first.weight is parameter
    assert is_plain(model)
    assert not any(name.endswith(("_orig", "_mask")) for name in names)


def test_shared_parameter_has_one_mask(tmp_path: Path) -> None:
    class Tied(Net):
        def __init__(self) -> None:
            super().__init__()
            self.second = nn.Linear(8, 16)
            self.second.weight = self.first.weight

        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) + 0 * self.second(x).sum()

    callback = Recorder(schedule=Linear(final=0.5, end=2))
    model = fit(tmp_path, callback, Tied())
    assert model.second.weight is model.first.weight
    assert [event[-1] for event in callback.seen] == [0, 44, 88]
    assert zeros(model, "first.weight") == 64


def test_digits_keep_their_accuracy_at_80_percent(tmp_path: Path) -> None:
    torch.manual_seed(1)
    model = DigitsNet()
    callback = PruningCallback(schedule=Cubic(final=0.8, begin=1, end=4), scope="global", verbose=False)
    fit(tmp_path, callback, model, epochs=8)
    assert zeros(model) == round(0.8 * 1864) == 1491
    assert model.accuracy() > 0.88
