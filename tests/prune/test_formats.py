"""Weights in other formats of memory and of numbers."""

from collections.abc import Callable

import pytest
import torch
import torch._dynamo
from torch import nn

from lightning_prune.prune import (
    L1Unstructured,
    custom_from_mask,
    global_unstructured,
    identity,
    l1_unstructured,
    ln_structured,
    random_structured,
    random_unstructured,
    remove,
)
from tests.prune.modules import stored, train_step, zeros

METHODS: list[Callable[..., nn.Module]] = [
    lambda m, **k: l1_unstructured(m, "weight", 0.5, **k),
    lambda m, **k: random_unstructured(m, "weight", 0.5, **k),
    lambda m, **k: ln_structured(m, "weight", 0.5, n=2, dim=0, **k),
    lambda m, **k: random_structured(m, "weight", 0.5, dim=1, **k),
    lambda m, **k: custom_from_mask(m, "weight", torch.arange(m.weight.numel()).view(m.weight.shape) % 2, **k),
    lambda m, **k: global_unstructured([(m, "weight")], L1Unstructured, amount=0.5, **k) or m,
]


@pytest.mark.parametrize("method", METHODS)
def test_channels_last(keep_name: bool, method: Callable) -> None:
    plain, conv = (nn.Conv2d(4, 6, 3) for _ in range(2))
    conv.load_state_dict(plain.state_dict())
    conv.to(memory_format=torch.channels_last)
    for module in (plain, conv):
        torch.manual_seed(1)
        method(module, keep_name=keep_name)
    assert zeros(conv.weight) == zeros(plain.weight) == 108
    last = {"memory_format": torch.channels_last}
    assert conv.weight.is_contiguous(**last)
    train_step(conv, torch.randn(2, 4, 8, 8))
    assert remove(conv, "weight").weight.is_contiguous(**last)
    assert zeros(conv.weight) == 108


@pytest.mark.parametrize("method", METHODS[:1] + METHODS[2:3] + METHODS[4:])
def test_channels_last_masks_are_those_of_contiguous_weights(keep_name: bool, method: Callable) -> None:
    plain, conv = (nn.Conv2d(4, 6, 3) for _ in range(2))
    conv.load_state_dict(plain.state_dict())
    conv.to(memory_format=torch.channels_last)
    for module in (plain, conv):
        method(module, keep_name=keep_name)
    assert torch.equal(conv.weight_mask, plain.weight_mask)
    plain.to(memory_format=torch.channels_last)
    assert plain.weight.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(conv.weight, plain.weight)


@pytest.mark.parametrize("method", METHODS)
def test_transposed_weight(keep_name: bool, method: Callable) -> None:
    layer = nn.Linear(6, 4)
    layer.weight = nn.Parameter(torch.randn(6, 4).t())
    strides = layer.weight.stride()
    method(layer, keep_name=keep_name)
    assert zeros(layer.weight) == 12
    assert layer.weight.stride() == strides
    assert remove(layer, "weight").weight.stride() == strides


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("method", METHODS)
def test_dtypes(keep_name: bool, method: Callable, dtype: torch.dtype) -> None:
    layer = method(nn.Linear(6, 4).to(dtype), keep_name=keep_name)
    assert layer.weight.dtype is dtype
    assert layer.weight_mask.dtype is (torch.bool if keep_name else dtype)
    assert zeros(layer.weight) == 12


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.half, torch.double])
def test_conversion_after_pruning(keep_name: bool, dtype: torch.dtype) -> None:
    layer = l1_unstructured(nn.Linear(6, 4), "weight", 0.5, keep_name=keep_name)
    alive = layer.weight != 0
    layer.to(dtype)
    assert layer.weight.dtype is dtype
    assert layer.weight_mask.dtype is (torch.bool if keep_name else dtype)
    assert torch.equal(layer.weight != 0, alive)
    l1_unstructured(layer, "weight", 0.5)
    assert zeros(layer.weight) == 18


def test_meta(keep_name: bool) -> None:
    layer = l1_unstructured(nn.Linear(6, 4), "weight", 0.5, keep_name=keep_name).to("meta")
    assert layer.weight.is_meta
    assert layer(torch.ones(2, 6, device="meta")).shape == (2, 4)
    assert remove(layer, "weight").weight.is_meta
    never = identity(nn.Linear(6, 4, device="meta"), "weight", keep_name=keep_name)
    assert never.weight.is_meta


def test_complex_weights(keep_name: bool) -> None:
    layer = nn.Linear(2, 2, dtype=torch.complex64)
    layer.weight = nn.Parameter(torch.tensor([[3 + 4j, 4 + 0j], [1 + 1j, 0 + 1.2j]]))
    l1_unstructured(layer, "weight", 1, keep_name=keep_name)
    assert layer.weight.tolist() == [[3 + 4j, 4], [1 + 1j, 0]]
    assert layer.weight_mask.dtype is (torch.bool if keep_name else torch.float32)
    ln_structured(layer, "weight", 1, n=2, dim=1)
    assert layer.weight.tolist() == [[3 + 4j, 0], [1 + 1j, 0]]
    layer(torch.ones(1, 2, dtype=torch.complex64)).abs().sum().backward()
    assert torch.equal(stored(layer).grad != 0, layer.weight_mask.bool())
    assert remove(layer, "weight").weight.tolist() == [[3 + 4j, 0], [1 + 1j, 0]]
