"""Compilers, tracers and transforms of torch on pruned modules."""

import copy
from itertools import pairwise

import pytest
import torch
import torch._dynamo
from torch import nn
from torch._dynamo.testing import CompileCounter
from torch.func import functional_call, grad, vmap
from torch.utils.checkpoint import checkpoint

from lightning_prune.prune import (
    L1Unstructured,
    global_unstructured,
    l1_unstructured,
    remove_all,
)
from tests.prune.modules import ReadsChild, linear, stored, train_step
from tests.versions import needs_torch

COMPILES = needs_torch(9, "the compiler of 2.6 looks for masked attributes in the class of the module only")
EXPORTS_STRICTLY = needs_torch(13, "strict export of 2.6 and 2.9 does the same")


def prune_all(model: ReadsChild, keep_name: bool) -> None:
    global_unstructured(model.tensors(), L1Unstructured, amount=0.3, keep_name=keep_name)


@COMPILES
def test_compile_recompiles_at_most_once_per_pruning(keep_name: bool) -> None:
    torch._dynamo.reset()
    model, x, counter = ReadsChild(), torch.randn(3, 4), CompileCounter()
    compiled = torch.compile(model, backend=counter, fullgraph=True)
    assert torch.equal(compiled(x), model(x))
    counts = [counter.frame_count]
    for _ in range(4):
        prune_all(model, keep_name)
        output = compiled(x)
        assert torch.equal(output, model(x))
        output.sum().backward()
        compiled(x)
        counts.append(counter.frame_count)
    assert [b - a for a, b in pairwise(counts)] == [1, 1, 0, 0]
    remove_all(model)
    assert torch.equal(compiled(x), model(x))
    assert counter.frame_count <= counts[-1] + 1


@COMPILES
def test_compiled_backward_is_the_eager_one(keep_name: bool) -> None:
    torch._dynamo.reset()
    model, x = ReadsChild(), torch.randn(3, 4)
    prune_all(model, keep_name)
    compiled = torch.compile(copy.deepcopy(model), backend="aot_eager", fullgraph=True)
    for runs in (model, compiled):
        runs(x).square().sum().backward()
    expected = [parameter.grad for parameter in model.parameters()]
    torch.testing.assert_close([parameter.grad for parameter in compiled.parameters()], expected)


@pytest.mark.parametrize("strict", [False, pytest.param(True, marks=EXPORTS_STRICTLY)])
def test_export(keep_name: bool, strict: bool) -> None:
    model, x = ReadsChild(), torch.randn(3, 4)
    prune_all(model, keep_name)
    program = torch.export.export(model, (x,), strict=strict)
    torch.testing.assert_close(program.module()(x), model(x))


def test_fx(keep_name: bool) -> None:
    model, x = ReadsChild(), torch.randn(3, 4)
    prune_all(model, keep_name)
    graph = torch.fx.symbolic_trace(model)
    assert torch.equal(graph(x), model(x))
    assert graph.head.weight.count_nonzero() == model.head.weight.count_nonzero()


def test_fx_graphs_train_the_same_parameters(keep_name: bool) -> None:
    model, x = ReadsChild(), torch.randn(3, 4)
    prune_all(model, keep_name)
    graph = torch.fx.symbolic_trace(model)
    for runs in (model, graph):
        train_step(runs, x)
    assert {id(parameter) for parameter in graph.parameters()} == {id(parameter) for parameter in model.parameters()}
    torch.testing.assert_close(graph(x), model(x))


def test_functional_call_grad_and_vmap(keep_name: bool) -> None:
    layer = l1_unstructured(linear([[1.0, 2.0, 3.0]]), "weight", 1, keep_name=keep_name)
    name = "weight" if keep_name else "weight_orig"
    replaced = {name: torch.tensor([[10.0, 20.0, 30.0]]), "bias": torch.zeros(1)}
    assert functional_call(layer, replaced, torch.ones(1, 3)).tolist() == [[50]]
    rows = torch.eye(3).view(3, 1, 3)
    gradients = grad(lambda p: functional_call(layer, p, torch.ones(1, 3)).sum())(replaced)
    assert gradients[name].tolist() == [[0, 1, 1]]
    per_sample = vmap(grad(lambda p, row: functional_call(layer, p, row).sum()), (None, 0))(replaced, rows)
    assert per_sample[name].tolist() == [[[0, 0, 0]], [[0, 1, 0]], [[0, 0, 1]]]


@pytest.mark.parametrize("reentrant", [False, True])
def test_activation_checkpointing(keep_name: bool, reentrant: bool) -> None:
    model, x = ReadsChild(), torch.randn(3, 4, requires_grad=True)
    prune_all(model, keep_name)
    plain = copy.deepcopy(model)
    checkpoint(model, x, use_reentrant=reentrant).sum().backward()
    plain(x).sum().backward()
    for a, b in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(a.grad, b.grad)


def test_double_backward(keep_name: bool) -> None:
    layer = l1_unstructured(nn.Linear(3, 1), "weight", 1, keep_name=keep_name)
    x = torch.randn(4, 3, requires_grad=True)
    (slope,) = torch.autograd.grad(layer(x).square().sum(), x, create_graph=True)
    slope.square().sum().backward()
    assert torch.equal(stored(layer).grad != 0, layer.weight_mask.bool())
