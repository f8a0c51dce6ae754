"""A model stays what it is while it is pruned: its classes, attributes, hooks and keys, and what others do with it."""

from __future__ import annotations

import copy
import io
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import Callback
from torch import Tensor, nn
from torch.ao.quantization import fuse_modules, get_default_qat_qconfig, prepare_qat, quantize_dynamic

from lightning_prune import Cubic, PruningCallback, Rewind
from tests.expected import MOVED
from tests.models import Net, net, trainer, zeros

pytestmark = MOVED

KEYS = [
    *("first.weight", "first.bias", "norm.weight", "norm.bias", "norm.running_mean", "norm.running_var"),
    *("norm.num_batches_tracked", "last.weight", "last.bias"),
]
HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_hooks", "_state_dict_hooks", "_load_state_dict_pre_hooks")


def described(module: nn.Module) -> list[Any]:
    """All that could be touched of a module: class, attributes, hooks, parameters and buffers, by identity."""
    return [
        (
            type(m),
            sorted(vars(m)),
            {hooks: list(getattr(m, hooks)) for hooks in HOOKS},
            {name: id(p) for name, p in m._parameters.items()},
            sorted(m._buffers),
        )
        for m in module.modules()
        if not isinstance(m, Net)  # whose attributes Lightning writes
    ]


class Everywhere(Callback):
    """Looks at the model in every hook of a fit."""

    def __init__(self, before: list[Any]) -> None:
        self.before = before
        self.hooks: set[str] = set()
        self.pickles: list[bytes] = []

    def look(self, name: str, pl_module: Any) -> None:
        assert described(pl_module) == self.before, name
        assert list(pl_module.state_dict()) == KEYS
        assert type(pl_module) is Net
        if name not in self.hooks:
            self.pickles.append(pickle.dumps(nn.Sequential(pl_module.first, pl_module.norm, pl_module.last)))
        self.hooks.add(name)


def _looking(name: str) -> Callable[..., None]:
    def hook(self: Everywhere, trainer: Any, pl_module: Any, *args: Any, **kwargs: Any) -> None:
        self.look(name, pl_module)

    return hook


FITS = [
    *(
        "setup",
        "on_fit_start",
        "on_sanity_check_start",
        "on_sanity_check_end",
        "on_train_start",
        "on_train_epoch_start",
    ),
    *("on_train_batch_start", "on_before_zero_grad", "on_before_backward", "on_after_backward"),
    *("on_before_optimizer_step", "on_train_batch_end", "on_validation_start", "on_validation_epoch_start"),
    *("on_validation_batch_start", "on_validation_batch_end", "on_validation_epoch_end", "on_validation_end"),
    *("on_train_epoch_end", "on_train_end", "on_fit_end", "teardown"),
]
for _name in FITS:
    setattr(Everywhere, _name, _looking(_name))


@pytest.mark.parametrize("first", [True, False], ids=["looking first", "looking last"])
def test_every_hook_of_a_fit_finds_the_plain_model(tmp_path: Path, first: bool) -> None:
    model = net()
    pruning = PruningCallback(schedule=Cubic(final=0.8, end=2), scope="global", rewind=Rewind(epoch=0), verbose=False)
    everywhere = Everywhere(described(model))
    trainer(tmp_path, *([everywhere, pruning] if first else [pruning, everywhere])).fit(model)
    assert everywhere.hooks == set(FITS)
    assert described(model) == everywhere.before
    assert zeros(model) == 141
    assert {name: int((~mask).sum()) for name, mask in pruning.masks.items()} == {
        name: zeros(model, name) for name in ("first.weight", "last.weight")
    }
    (tmp_path / "models.pickle").write_bytes(pickle.dumps(everywhere.pickles))
    code = (
        "import sys, pickle; sys.modules['lightning_prune'] = None\n"
        f"models = [pickle.loads(m) for m in pickle.load(open({str(tmp_path / 'models.pickle')!r}, 'rb'))]\n"
        "print(len(models), int((models[-1][0].weight == 0).sum() + (models[-1][2].weight == 0).sum()))"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert shown.stdout.split() == [str(len(FITS)), "141"]


class InTheMiddle(Callback):
    """Does something with the model after the batch in which half of its weights are zero."""

    def __init__(self, act: Callable[[Any], Any]) -> None:
        self.act = act
        self.result: Any = None

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        if trainer.current_epoch == 1 and not trainer.sanity_checking:
            self.result = self.act(pl_module)


def in_mid_fit(tmp_path: Path, act: Callable[[Any], Any], model: Net | None = None, epochs: int = 3) -> tuple[Any, Net]:
    model = net() if model is None else model
    middle = InTheMiddle(act)
    pruning = PruningCallback(amount=0.5, epochs=[1], verbose=False)
    trainer(tmp_path, pruning, middle, epochs=epochs).fit(model)
    return middle.result, model


def quantized(model: Net) -> int:
    copied = quantize_dynamic(copy.deepcopy(nn.Sequential(model.first, model.last)), {nn.Linear})
    assert [type(layer).__module__ for layer in copied] == ["torch.ao.nn.quantized.dynamic.modules.linear"] * 2
    return sum(int((layer.weight().int_repr() == 0).sum()) for layer in copied) >= 88


def fake_quantized(model: Net) -> int:
    layers = copy.deepcopy(nn.Sequential(model.first, model.last)).train()
    layers.qconfig = get_default_qat_qconfig("fbgemm")
    prepared = prepare_qat(layers)
    assert [type(layer).__module__ for layer in prepared] == ["torch.ao.nn.qat.modules.linear"] * 2
    return sum(int((layer.weight == 0).sum()) for layer in prepared)


def fused(model: Net) -> int:
    pair = nn.Sequential(nn.Conv2d(1, 2, 1), nn.ReLU())
    pair.add_module("linear", copy.deepcopy(model.last))
    pair.add_module("relu", nn.ReLU())
    both = fuse_modules(pair.eval(), [["linear", "relu"]])
    return int((both.linear[0].weight == 0).sum())


def scripted(model: Net) -> int:
    script = torch.jit.script(nn.Sequential(model.first, model.last))
    return sum(int((p == 0).sum()) for p in script.parameters() if p.dim() > 1)


def traced_by_lightning(model: Net) -> int:
    script = model.to_torchscript(method="trace", example_inputs=torch.ones(2, 8))
    assert torch.equal(script(torch.ones(2, 8)), model.eval()(torch.ones(2, 8)))
    return sum(int((p == 0).sum()) for p in script.parameters() if p.dim() > 1)


def traced_by_fx(model: Net) -> int:
    graph = torch.fx.symbolic_trace(nn.Sequential(model.first, nn.ReLU(), model.last))
    assert [node.op for node in graph.graph.nodes] == [
        "placeholder",
        "call_module",
        "call_module",
        "call_module",
        "output",
    ]
    return sum(int((p == 0).sum()) for p in graph.parameters() if p.dim() > 1)


def saved_whole(model: Net) -> int:
    file = io.BytesIO()
    torch.save(nn.Sequential(model.first, model.last), file)
    file.seek(0)
    return zeros(torch.load(file, weights_only=False))


def copied(model: Net) -> int:
    again = copy.deepcopy(nn.Sequential(model.first, model.last))
    with torch.no_grad():
        again[0].weight.add_(1)  # a copy is a dense network, nobody keeps its zeros
    return zeros(again) + 64 - zeros(again, "0.weight")


def by_name(model: Net) -> int:
    return sum(int((model.get_parameter(name) == 0).sum()) for name in ("first.weight", "last.weight"))


@pytest.mark.parametrize(
    ("act", "expected"),
    [
        (quantized, True),
        (fake_quantized, 88),
        (fused, 24),
        (scripted, 88),
        (traced_by_lightning, 88),
        (traced_by_fx, 88),
        (saved_whole, 88),
        (copied, 88),
        (by_name, 88),
    ],
)
def test_what_others_do_in_mid_fit_is_done_to_a_dense_model_with_zeros(
    tmp_path: Path, act: Callable[[Any], Any], expected: int
) -> None:
    found, model = in_mid_fit(tmp_path, act)
    assert found == expected
    assert zeros(model) == 88


def drawn(model: Net) -> None:
    nn.init.normal_(model.first.weight, 3.0)


def drawn_anew(model: Net) -> None:
    model.first.reset_parameters()


def noisy(model: Net) -> None:
    with torch.no_grad():
        model.first.weight.add_(1.0)


def noisy_behind_autograd(model: Net) -> None:
    model.first.weight.data.add_(1.0)


def loaded(model: Net) -> None:
    model.load_state_dict(net(seed=7).state_dict())


def replaced(model: Net) -> None:
    model.first.weight.data = torch.ones(16, 8)


@pytest.mark.parametrize("write", [drawn, drawn_anew, noisy, noisy_behind_autograd, loaded, replaced])
def test_zeros_are_there_again_before_the_next_forward(tmp_path: Path, write: Callable[[Any], None]) -> None:
    seen: list[int] = []

    class Watching(Net):
        def forward(self, x: Tensor) -> Tensor:
            seen.append(zeros(self))
            return super().forward(x)

    torch.manual_seed(0)
    model = Watching()
    _, model = in_mid_fit(tmp_path, write, model)
    assert seen.index(88) > 0
    assert set(seen[seen.index(88) :]) == {88}
    assert zeros(model) == 88


def test_what_a_layer_writes_into_its_own_weight_is_in_the_parameter(tmp_path: Path) -> None:
    class Bounded(Net):
        def forward(self, x: Tensor) -> Tensor:
            self.first.weight.data = torch.renorm(self.first.weight.data, 2, 0, 0.25)
            return super().forward(x)

    torch.manual_seed(0)
    model = Bounded()
    in_mid_fit(tmp_path, lambda module: None, model)
    model.eval()(torch.ones(1, 8))
    assert float(model.first.weight.norm(dim=1).max()) <= 0.2501
    assert zeros(model) == 88


def test_a_tensor_that_is_parametrized_in_mid_fit_keeps_its_zeros(tmp_path: Path) -> None:
    class Double(nn.Module):
        def forward(self, weight: Tensor) -> Tensor:
            return 2 * weight

        def right_inverse(self, weight: Tensor) -> Tensor:
            return weight / 2

    def parametrized(model: Net) -> None:
        nn.utils.parametrize.register_parametrization(model.first, "weight", Double())

    _, model = in_mid_fit(tmp_path, parametrized)
    assert int((model.first.weight == 0).sum()) == 64
    nn.utils.parametrize.remove_parametrizations(model.first, "weight")
    assert zeros(model) == 88
