"""Calls that are refused before anything changed."""

import pytest
import torch
import torch._dynamo
from torch import nn

from lightning_prune.prune import (
    L1Unstructured,
    global_unstructured,
    identity,
    l1_unstructured,
    remove,
)
from tests.prune.modules import LeNet, assert_refused, history, stored, train_step, zeros


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"amount": 1.5}, ValueError, "got 1.5"),
        ({"amount": 1000}, ValueError, "amount=1000 is more than the 12 units"),
        ({"amount": 1, "importance_scores": torch.ones(3)}, ValueError, "(4, 4) of Linear.weight, got (3,)"),
    ],
)
def test_a_refused_second_call(keep_name: bool, arguments: dict, error: type[Exception], message: str) -> None:
    layer = l1_unstructured(nn.Linear(4, 4), "weight", 4, keep_name=keep_name)
    assert_refused(layer, lambda: l1_unstructured(layer, "weight", **arguments), error, message)
    before = stored(layer).detach().clone()
    train_step(layer, torch.randn(3, 4))
    assert not torch.equal(stored(layer), before)
    assert zeros(layer.weight) == 4
    assert [repr(method) for method in history(layer)] == ["L1Unstructured(amount=4)"]
    remove(layer, "weight")
    assert zeros(layer.weight) == 4


@pytest.mark.filterwarnings("ignore:.*deprecated.*")
def test_what_cannot_be_pruned(keep_name: bool) -> None:
    without, lstm, lazy = nn.Linear(2, 2, bias=False), nn.LSTM(2, 2), nn.LazyLinear(3)
    for module, name, error, message in [
        (without, "bias", TypeError, "Linear.bias is None"),
        (lstm, "bias", TypeError, "LSTM.bias is not a parameter but a bool; parameters of this module: weight_ih_l0"),
        (nn.BatchNorm1d(2), "running_mean", TypeError, "BatchNorm1d.running_mean is not a parameter but a Tensor"),
        (torch.compile(nn.Linear(2, 2)), "weight", TypeError, "a wrapper, such as torch.compile's"),
        (nn.utils.parametrizations.weight_norm(nn.Linear(2, 2)), "weight", TypeError, "is parametrized: prune"),
    ]:
        assert_refused(module, lambda m=module, n=name: identity(m, n, keep_name=keep_name), error, message)
    assert lstm.bias is True
    with pytest.raises(TypeError, match="prune before scripting"):
        identity(torch.jit.ScriptModule(), "weight", keep_name=keep_name)
    with pytest.raises(ValueError, match=r"LazyLinear.weight has no shape yet .*: call it once, then prune"):
        identity(lazy, "weight", keep_name=keep_name)
    lazy(torch.ones(1, 5))
    assert l1_unstructured(lazy, "weight", 5, keep_name=keep_name).weight.shape == (3, 5)


def test_a_lazy_module_with_one_parameter_that_has_a_shape(keep_name: bool) -> None:
    lazy = nn.LazyLinear(3)
    lazy.bias = nn.Parameter(torch.ones(3))
    with pytest.raises(ValueError, match="has no shape yet"):
        identity(lazy, "bias", keep_name=keep_name)
    assert type(lazy) is nn.LazyLinear


def test_names_that_are_taken(keep_name: bool) -> None:
    for taken in ("weight_orig", "weight_mask"):
        layer = nn.Linear(2, 2)
        layer.register_buffer(taken, torch.ones(1))
        assert_refused(layer, lambda m=layer: identity(m, "weight", keep_name=keep_name), ValueError, f"{taken} exists")


def test_global_pairs(keep_name: bool) -> None:
    model = LeNet()
    total = sum(module.weight.numel() for module, _ in model.tensors())
    global_unstructured((pair for pair in model.tensors() * 2), L1Unstructured, amount=0.5, keep_name=keep_name)
    assert sum(zeros(module.weight) for module, _ in model.tensors()) == round(0.5 * total)
    dense = LeNet()
    for parameters, error, message in [
        ([], ValueError, "holds no (module, name) pair"),
        (iter(()), ValueError, "holds no (module, name) pair"),
        (dense.parameters(), TypeError, "pairs such as (model.conv1, 'weight'), got an item of type Parameter"),
        ([(dense.conv1, "weight", 1)], TypeError, "got an item of type tuple"),
        (dense, TypeError, "got LeNet"),
    ]:
        call = lambda p=parameters: global_unstructured(p, L1Unstructured, amount=1, keep_name=keep_name)  # noqa: E731
        assert_refused(dense, call, error, message)
