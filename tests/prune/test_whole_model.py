import pytest
import torch
from torch import nn

from lightning_prune.prune import (
    L1Unstructured,
    effective_parameters,
    global_unstructured,
    is_pruned,
    l1_unstructured,
    pruned_tensors,
    remove_all,
    sparsity,
)
from tests.prune.modules import ReadsChild, linear, stored


def pruned(keep_name: bool) -> ReadsChild:
    model = ReadsChild()
    global_unstructured(model.tensors(), L1Unstructured, amount=30, keep_name=keep_name)
    return model


def test_pruned_tensors_by_full_name(keep_name: bool) -> None:
    model = pruned(keep_name)
    masks = pruned_tensors(model)
    assert list(masks) == ["own", "qkv.weight", "head.weight"]
    assert {mask.dtype for mask in masks.values()} == {torch.bool}
    assert sum(int((~mask).sum()) for mask in masks.values()) == 30
    assert torch.equal(masks["qkv.weight"], model.qkv.weight_mask.bool())
    assert pruned_tensors(nn.Linear(2, 2)) == {}


def test_masks_that_were_listed_stay_when_more_is_pruned(keep_name: bool) -> None:
    model = pruned(keep_name)
    before = pruned_tensors(model)
    l1_unstructured(model.head, "weight", 1.0)
    assert before["head.weight"].any()
    assert not pruned_tensors(model)["head.weight"].any()


def test_sparsity_is_the_same_before_and_after_removing(keep_name: bool) -> None:
    model = pruned(keep_name)
    total = sum(parameter.numel() for parameter in model.parameters())
    assert sparsity(model) == pytest.approx(30 / total)
    assert remove_all(model) is model
    assert sparsity(model) == pytest.approx(30 / total)


def test_sparsity_of_modules_without_zeros_and_without_parameters() -> None:
    assert sparsity(linear([[1.0]])) == pytest.approx(0.0, abs=0.0)
    assert sparsity(nn.ReLU()) == 0.0


def test_a_shared_parameter_counts_once(keep_name: bool) -> None:
    first, second = nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)
    second.weight = first.weight
    model = nn.Sequential(first, second)
    for layer in model:
        l1_unstructured(layer, "weight", 1, keep_name=keep_name)
    assert sparsity(model) == 0.25
    assert list(effective_parameters(model)) == ["0.weight"]


def test_remove_all(keep_name: bool) -> None:
    model, fresh = pruned(keep_name), ReadsChild()
    l1_unstructured(model.head, "bias", 1, keep_name=keep_name)
    parameters = dict(model.named_parameters())
    remove_all(model)
    assert not is_pruned(model)
    assert [type(m) for m in model.modules()] == [type(m) for m in fresh.modules()]
    assert list(model.state_dict()) == list(fresh.state_dict())
    assert {id(p) for p in parameters.values()} == {id(p) for p in model.parameters()}
    assert is_pruned(remove_all(model)) is False


def test_effective_parameters_are_what_the_forward_sees(keep_name: bool) -> None:
    model = pruned(keep_name)
    with torch.no_grad():
        stored(model.qkv).add_(1)
    values = effective_parameters(model)
    assert list(values) == list(ReadsChild().state_dict())
    assert torch.equal(values["qkv.weight"], model.qkv.weight)
    assert torch.equal(values["own"], model.own)
    assert not any(value.requires_grad for value in values.values())
