"""Copies, files and states of pruned modules."""

import copy
import io
import pickle
from collections.abc import Callable

import pytest
import torch
import torch._dynamo
from torch import nn

from lightning_prune.prune import (
    is_pruned,
    l1_unstructured,
    remove,
)
from tests.prune.modules import LeNet, history, linear, stored, train_step, zeros


def fresh(layer: nn.Linear) -> None:
    """Straight after pruning."""


def after_forward(layer: nn.Linear) -> None:
    layer.train()(torch.randn(2, 4))


def after_backward(layer: nn.Linear) -> None:
    layer(torch.randn(2, 4)).sum().backward()


class OwnState(nn.Linear):
    """Cannot be pickled but for its own ``__getstate__``."""

    def __init__(self) -> None:
        super().__init__(4, 3)
        self.generator = (i for i in range(3))

    def __getstate__(self) -> dict[str, object]:
        return {key: value for key, value in self.__dict__.items() if key != "generator"}

    def __setstate__(self, state: dict[str, object]) -> None:
        super().__setstate__(state)
        self.generator = None


class OwnReduce(nn.Linear):
    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (4, 3), self.__dict__


class NewArguments(nn.Linear):
    def __new__(cls, *, size: int) -> "NewArguments":
        return super().__new__(cls)

    def __init__(self, size: int) -> None:
        super().__init__(size, 3)

    def __getnewargs_ex__(self) -> tuple[tuple[()], dict[str, int]]:
        return (), {"size": 4}


def by_torch_save(module: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def assert_equal_and_independent(layer: nn.Linear, other: nn.Linear) -> None:
    before = layer.weight.detach().clone()
    assert is_pruned(other)
    assert torch.equal(other.weight, before)
    assert torch.equal(other.weight_mask, layer.weight_mask)
    assert [repr(m) for m in history(other)] == [repr(m) for m in history(layer)]
    train_step(other, torch.randn(5, 4))
    l1_unstructured(other, "weight", 2)
    assert torch.equal(layer.weight, before)
    assert zeros(other.weight) == 8
    assert len(history(other)) == len(history(layer)) + 1
    assert not torch.equal(stored(other), stored(layer))
    parameter = stored(other)
    assert remove(other, "weight").weight is parameter


@pytest.mark.parametrize("what", [fresh, after_forward, after_backward])
def test_deepcopy(keep_name: bool, what: Callable[[nn.Linear], None]) -> None:
    layer = l1_unstructured(nn.Linear(4, 3), "weight", 6, keep_name=keep_name)
    what(layer)
    assert_equal_and_independent(layer, copy.deepcopy(layer))


@pytest.mark.parametrize("make", [OwnState, lambda: OwnReduce(4, 3), lambda: NewArguments(size=4)])
@pytest.mark.parametrize("copied", [copy.deepcopy, by_torch_save])
def test_modules_that_say_how_they_are_copied(keep_name: bool, make: Callable, copied: Callable) -> None:
    layer = l1_unstructured(make(), "weight", 6, keep_name=keep_name)
    other = copied(layer)
    assert type(remove(copied(layer), "weight")) is type(make())
    assert_equal_and_independent(layer, other)


@pytest.mark.parametrize("what", [fresh, after_backward])
def test_torch_save(keep_name: bool, what: Callable[[nn.Linear], None]) -> None:
    layer = l1_unstructured(nn.Linear(4, 3), "weight", 6, keep_name=keep_name)
    what(layer)
    assert_equal_and_independent(layer, by_torch_save(layer))


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_pickle_protocols(keep_name: bool, protocol: int) -> None:
    layer = l1_unstructured(nn.Linear(4, 3), "weight", 6, keep_name=keep_name)
    assert_equal_and_independent(layer, pickle.loads(pickle.dumps(layer, protocol)))


def test_shared_memory(keep_name: bool) -> None:
    layer = l1_unstructured(nn.Linear(4, 3), "weight", 6, keep_name=keep_name)
    layer.share_memory()
    assert layer.weight_mask.is_shared()
    assert stored(layer).is_shared()
    assert zeros(layer.weight) == 6


def test_loading_then_pruning_ranks_what_was_loaded(keep_name: bool) -> None:
    layer = l1_unstructured(linear([[1.0, 2.0, 3.0, 4.0]]), "weight", 1, keep_name=keep_name)
    other = l1_unstructured(linear([[0.5, 9.0, 8.0, 7.0]]), "weight", 1, keep_name=keep_name)
    layer.load_state_dict(other.state_dict())
    l1_unstructured(layer, "weight", 1)
    assert layer.weight.tolist() == [[0, 9, 8, 0]]


@pytest.mark.parametrize("assign", [False, True])
def test_loading_by_assignment_stays_masked(keep_name: bool, assign: bool) -> None:
    layer = l1_unstructured(linear([[1.0, 2.0, 3.0, 4.0]]), "weight", 2, keep_name=keep_name)
    state = {key: torch.full_like(value, 5.0) for key, value in layer.state_dict().items() if "mask" not in key}
    layer.load_state_dict(state, strict=False, assign=assign)
    assert layer.weight.tolist() == [[0, 0, 5, 5]]
    train_step(layer, torch.ones(1, 4))
    assert zeros(layer.weight) == 2


@pytest.mark.parametrize("strict", [False, True])
def test_states_of_the_other_kind_name_the_helper(strict: bool) -> None:
    documented, kept = LeNet(), LeNet()
    l1_unstructured(documented.conv1, "weight", 0.5)
    l1_unstructured(kept.conv1, "weight", 0.5, keep_name=True)
    with pytest.raises(
        RuntimeError, match=r"'conv1.weight' is pruned in this module .*lightning_prune.checkpoint.to_pruned"
    ):
        documented.load_state_dict(LeNet().state_dict(), strict=strict)
    with pytest.raises(RuntimeError, match=r"'conv1.weight_orig' and .*lightning_prune.checkpoint.to_dense"):
        kept.load_state_dict(documented.state_dict(), strict=strict)


def test_the_kept_layout_loads_dense_states_both_ways() -> None:
    model, dense = LeNet(), LeNet()
    l1_unstructured(model.conv1, "weight", 0.5, keep_name=True)
    with torch.no_grad():
        model.conv1._parameters["weight"].add_(1)
    dense.load_state_dict(model.state_dict())
    assert zeros(dense.conv1.weight) == 75
    model.load_state_dict(LeNet().state_dict())
    assert zeros(model.conv1.weight) == 75
