import pickle

import pytest
import torch
import torch.nn.utils.prune as torch_prune
from torch import nn

from lightning_prune.prune import (
    CustomFromMask,
    Identity,
    L1Unstructured,
    LnStructured,
    PruningContainer,
    RandomUnstructured,
    l1_unstructured,
    ln_structured,
)
from tests.prune.modules import linear


def named(method: torch_prune.BasePruningMethod, name: str = "weight") -> torch_prune.BasePruningMethod:
    method._tensor_name = name
    return method


def test_methods_are_listed_in_order() -> None:
    methods = [named(L1Unstructured(1)), named(LnStructured(0.5, 2, 0)), named(Identity())]
    container = PruningContainer(*methods)
    assert len(container) == 3
    assert list(container) == methods
    assert [container[0], container[-1]] == [methods[0], methods[2]]
    assert container[1:] == tuple(methods[1:])
    assert isinstance(container, torch_prune.PruningContainer)
    with pytest.raises(IndexError):
        container[3]


def test_equal_methods_in_a_row_are_stored_once_and_counted() -> None:
    container = PruningContainer(*(named(L1Unstructured(0.1)) for _ in range(300)), named(L1Unstructured(1)))
    assert len(container) == 301
    assert [method.amount for method in container[298:]] == [0.1, 0.1, 1]
    assert repr(container) == "PruningContainer(300 x L1Unstructured(amount=0.1), L1Unstructured(amount=1))"
    assert len(pickle.dumps(container)) < 1000


def test_a_count_and_a_fraction_stay_apart() -> None:
    container = PruningContainer(named(L1Unstructured(1)), named(L1Unstructured(1.0)))
    assert [type(method.amount) for method in container] == [int, float]


@pytest.mark.parametrize("wrong", [None, L1Unstructured, "l1"])
def test_only_methods_are_added(wrong: object) -> None:
    container = PruningContainer(named(Identity()))
    with pytest.raises(TypeError, match="a pruning method is wanted, got"):
        container.add_pruning_method(wrong)
    assert len(container) == 1


def test_methods_of_another_tensor_are_refused() -> None:
    container = PruningContainer(named(Identity()))
    with pytest.raises(ValueError, match="this container prunes 'weight', the method prunes 'bias'"):
        container.add_pruning_method(named(Identity(), "bias"))
    assert len(container) == 1


def test_methods_of_torch_are_added() -> None:
    container = PruningContainer(named(torch_prune.Identity()))
    container.add_pruning_method(named(torch_prune.L1Unstructured(1)))
    assert len(container) == 2


def test_compute_mask_applies_the_latest_method_to_what_is_left() -> None:
    tensor = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    before = torch.tensor([[0.0, 1.0], [1.0, 1.0]])
    container = PruningContainer(named(L1Unstructured(1)), named(torch_prune.L1Unstructured(1)))
    assert container.compute_mask(tensor, before).tolist() == [[0, 0], [1, 1]]
    container.add_pruning_method(named(LnStructured(1, n=1, dim=0)))
    assert container.compute_mask(tensor, before).tolist() == [[0, 0], [1, 1]]
    container.add_pruning_method(named(CustomFromMask([[1, 1], [0, 1]])))
    assert container.compute_mask(tensor, before).tolist() == [[0, 1], [0, 1]]
    assert container.compute_mask(tensor, before.bool()).dtype is torch.float32
    assert container.compute_mask(tensor.double(), before.long()).dtype is torch.float64


def test_compute_mask_scores_channels_by_all_of_the_tensor_that_it_is_given() -> None:
    tensor = torch.tensor([[1.0, 2.0, 3.0], [5.0, 6.0, 7.0]])
    before = torch.tensor([[1, 1, 1], [1, 1, 0]])
    container = PruningContainer(named(LnStructured(1, n=2, dim=1)))
    assert container.compute_mask(tensor, before).tolist() == [[0, 1, 1], [0, 1, 0]]


def test_an_empty_container_computes_no_mask() -> None:
    with pytest.raises(ValueError, match="holds no pruning method"):
        PruningContainer().compute_mask(torch.ones(2), torch.ones(2))


def test_unstructured_then_structured_then_global(keep_name: bool) -> None:
    layer = linear([[1.0, 9.0, 9.0], [2.0, 2.0, 2.0], [8.0, 3.0, 0.5]])
    l1_unstructured(layer, "weight", 2, keep_name=keep_name)
    assert layer.weight.tolist() == [[0, 9, 9], [2, 2, 2], [8, 3, 0]]
    ln_structured(layer, "weight", 1, n=2, dim=0)
    assert layer.weight.tolist() == [[0, 9, 9], [0, 0, 0], [8, 3, 0]]
    l1_unstructured(layer, "weight", 0.5)
    assert layer.weight.tolist() == [[0, 9, 9], [0, 0, 0], [0, 0, 0]]
    CustomFromMask.apply(layer, "weight", [[1, 0, 1], [1, 1, 1], [1, 1, 1]])
    assert layer.weight.tolist() == [[0, 0, 9], [0, 0, 0], [0, 0, 0]]
    (hook,) = layer._forward_pre_hooks.values()
    kinds = [type(method).__name__ for method in hook]
    assert kinds == ["L1Unstructured", "LnStructured", "L1Unstructured", "CustomFromMask"]


def test_random_methods_can_be_recorded_with_a_generator(keep_name: bool) -> None:
    layer = nn.Linear(4, 4)
    generator = torch.Generator().manual_seed(1)
    for _ in range(2):
        RandomUnstructured.apply(layer, "weight", 0.5, generator, keep_name=keep_name)
    (hook,) = layer._forward_pre_hooks.values()
    assert repr(pickle.loads(pickle.dumps(hook))) == "PruningContainer(2 x RandomUnstructured(amount=0.5))"
