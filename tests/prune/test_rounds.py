"""Many rounds, many methods and many hooks: history, memory and whole models."""

import gc
import pickle
from collections.abc import Callable, Iterator

import pytest
import torch
import torch._dynamo
import torch.nn.utils.prune as torch_prune
from torch import Tensor, nn

from lightning_prune.prune import (
    BasePruningMethod,
    L1Unstructured,
    custom_from_mask,
    global_unstructured,
    identity,
    is_pruned,
    l1_unstructured,
    ln_structured,
    pruned_tensors,
    random_unstructured,
    remove_all,
    sparsity,
)
from lightning_prune.prune.attribute import Layout
from lightning_prune.prune.base import apply_method
from tests.prune.modules import LeNet, history, linear, train_step, zeros


@pytest.fixture
def only_new_objects() -> Iterator[None]:
    """Hides all objects that are there already from the garbage collector."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def live_bytes() -> int:
    gc.collect()
    tensors = [o for o in gc.get_objects() if type(o) in (Tensor, nn.Parameter)]
    return sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}.values())


def rounds_of(function: Callable, layer: nn.Module, count: int) -> tuple[int, int]:
    for _ in range(count):
        function(layer)
    return live_bytes(), len(pickle.dumps(layer))


@pytest.mark.usefixtures("only_new_objects")
@pytest.mark.parametrize(
    "function",
    [
        lambda layer: l1_unstructured(layer, "weight", 1),
        lambda layer: random_unstructured(layer, "weight", 0.01, generator=torch.Generator().manual_seed(1)),
        lambda layer: custom_from_mask(layer, "weight", torch.rand(40, 40) < 0.99),
        lambda layer: apply_method(
            torch_prune.CustomFromMask(torch.rand(40, 40) < 0.99), layer, "weight", None, Layout.KEPT
        ),
        lambda layer: global_unstructured([(layer, "weight")], L1Unstructured, amount=1),
    ],
)
def test_rounds_keep_memory_and_file_size(keep_name: bool, function: Callable) -> None:
    layer = identity(nn.Linear(40, 40), "weight", keep_name=keep_name)
    memory, size = rounds_of(function, layer, 3)
    more_memory, more_size = rounds_of(function, layer, 50)
    assert len(history(layer)) == 54
    assert memory >= 40 * 40 * 5
    assert more_memory <= memory
    assert more_size <= size + 50 * 40  # a few bytes a round for methods that cannot be compared; a mask has 1600


def test_four_hundred_rounds_stay_readable(keep_name: bool) -> None:
    layer = nn.Linear(40, 40)
    for _ in range(400):
        l1_unstructured(layer, "weight", 0.005, keep_name=keep_name)
    (hook,) = layer._forward_pre_hooks.values()
    assert len(hook) == 400
    assert repr(hook) == "PruningContainer(400 x L1Unstructured(amount=0.005))"
    assert len(pickle.dumps(hook)) < 1000


def test_a_small_layer_pins_nothing_of_the_model(keep_name: bool) -> None:
    model = LeNet()
    global_unstructured(model.tensors(), L1Unstructured, amount=0.5, keep_name=keep_name)
    alone = len(pickle.dumps(model.conv1))
    assert alone < 2 * 4 * (150 + 150 + 6) + 3000


def test_whole_models(keep_name: bool) -> None:
    model = LeNet()
    total = sum(parameter.numel() for parameter in model.parameters())
    global_unstructured(model.tensors(), L1Unstructured, amount=1000, keep_name=keep_name)
    assert list(pruned_tensors(model)) == ["conv1.weight", "conv2.weight", "fc1.weight", "fc2.weight", "fc3.weight"]
    assert sparsity(model) == pytest.approx(1000 / total)
    assert list(remove_all(model).state_dict()) == list(LeNet().state_dict())
    assert not is_pruned(model)


def test_hooks_of_users_stay_in_order(keep_name: bool) -> None:
    layer, calls = nn.Linear(4, 4), []
    layer.register_forward_pre_hook(lambda *_: calls.append("a"))
    l1_unstructured(layer, "weight", 1, keep_name=keep_name)
    layer.register_forward_pre_hook(lambda *_: calls.append("b"))
    layer.register_forward_hook(lambda *_: calls.append("c"))
    order = list(layer._forward_pre_hooks)
    for _ in range(3):
        l1_unstructured(layer, "weight", 1)
        random_unstructured(layer, "bias", 1, keep_name=keep_name)
    assert list(layer._forward_pre_hooks)[:3] == order
    layer(torch.ones(1, 4))
    remove_all(layer)(torch.ones(1, 4))
    assert calls == ["a", "b", "c"] * 2


class Threshold(torch_prune.BasePruningMethod):
    """Written for torch; gives masks of the dtype that it is asked for."""

    PRUNING_TYPE = "unstructured"

    def __init__(self, threshold: float, dtype: torch.dtype) -> None:
        self.threshold, self.dtype = threshold, dtype

    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        return (t.abs() > self.threshold).to(self.dtype)


class OurThreshold(Threshold, BasePruningMethod):
    pass


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.float64, torch.float32])
@pytest.mark.parametrize("method", [Threshold, OurThreshold])
def test_methods_of_users_compose_with_ours(keep_name: bool, method: type, dtype: torch.dtype) -> None:
    layout = Layout.KEPT if keep_name else Layout.DOCUMENTED
    layer = linear([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    apply_method(method(1.5, dtype), layer, "weight", None, layout)
    ln_structured(layer, "weight", 1, n=2, dim=1)
    apply_method(method(4.5, dtype), layer, "weight", None, layout)
    assert layer.weight.tolist() == [[0, 0, 0], [0, 5, 6]]
    assert layer.weight_mask.dtype is (torch.bool if keep_name else torch.float32)
    assert [type(m).__name__ for m in history(layer)] == [method.__name__, "LnStructured", method.__name__]
    assert len(pickle.dumps(layer)) > 0
    train_step(layer, torch.ones(1, 3))
    assert zeros(torch_prune.remove(layer, "weight").weight) == 4
