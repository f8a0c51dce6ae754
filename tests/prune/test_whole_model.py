import pytest
import torch
from torch import nn

from lightning_prune.prune import (
    L1Unstructured,
    custom_from_mask,
    effective_parameters,
    global_unstructured,
    identity,
    is_pruned,
    l1_unstructured,
    ln_structured,
    pruned_tensors,
    random_unstructured,
    remove,
    remove_all,
    sparsity,
)
from tests.expected import TWIN
from tests.prune.modules import ReadsChild, assert_refused, linear, stored
from tests.versions import needs_torch

pytestmark = [TWIN]


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


def test_remove_points_at_the_modules_inside(keep_name: bool) -> None:
    model = nn.Sequential(*(l1_unstructured(nn.Linear(2, 2), "weight", 1, keep_name=keep_name) for _ in range(5)))
    message = "tensors of modules inside it are (0.weight, 1.weight, 2.weight and 2 more): remove each from the module"
    assert_refused(model, lambda: remove(model, "weight"), ValueError, message, "remove_all(module)")


class TestWithoutData:
    @pytest.mark.parametrize(
        "prune",
        [
            lambda layer: l1_unstructured(layer, "weight", 1),
            lambda layer: random_unstructured(layer, "weight", 1),
            lambda layer: ln_structured(layer, "weight", 1, n=2, dim=0),
            lambda layer: custom_from_mask(layer, "weight", torch.ones(2, 2)),
            lambda layer: global_unstructured([(layer, "weight")], L1Unstructured, amount=1),
        ],
    )
    def test_what_needs_values_names_the_tensor(self, prune: object) -> None:
        layer = nn.Linear(2, 2, device="meta")
        with pytest.raises(ValueError, match=r"Linear\.weight is on the meta device and has no data"):
            prune(layer)
        assert not is_pruned(layer)

    def test_sparsity_names_the_tensor(self) -> None:
        with pytest.raises(ValueError, match=r"'1\.weight' is on the meta device and has no data"):
            sparsity(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2, device="meta")))

    def test_masks_can_be_made_before_a_pruned_state_is_loaded(self, keep_name: bool) -> None:
        pruned = l1_unstructured(linear([[1.0, 2.0]]), "weight", 1)
        layer = identity(nn.Linear(2, 1, device="meta"), "weight")
        layer.load_state_dict(pruned.state_dict(), assign=True)
        assert layer.weight.tolist() == [[0, 2]]
        assert remove(layer, "weight").weight.tolist() == [[0, 2]]


OF_THESE_KINDS = needs_torch(9, "older ones, such as 2.6, have no where for these dtypes")


class TestOddTensors:
    @pytest.mark.parametrize(
        "values",
        [
            pytest.param(torch.tensor([1.0, 2.0, 3.0]).to(torch.float8_e4m3fn), marks=OF_THESE_KINDS),
            pytest.param(torch.tensor([1.0, 2.0, 3.0]).to(torch.float8_e5m2), marks=OF_THESE_KINDS),
            pytest.param(torch.tensor([1, 2, 3]).to(torch.uint16), marks=OF_THESE_KINDS),
            pytest.param(torch.tensor([1, 2, 3]).to(torch.uint32), marks=OF_THESE_KINDS),
            torch.tensor([True, True, True]),
            torch.tensor([2.0]).expand(3),
        ],
    )
    def test_what_is_pruned_can_be_removed(self, keep_name: bool, values: torch.Tensor) -> None:
        model = nn.Sequential(nn.Linear(1, 1), nn.Module())
        model[1].codes = nn.Parameter(values, requires_grad=False)
        l1_unstructured(model[0], "weight", 1, keep_name=keep_name)
        custom_from_mask(model[1], "codes", [1, 0, 1], keep_name=keep_name)
        expected = (values.float() * torch.tensor([1, 0, 1])).tolist()
        assert model[1].codes.float().tolist() == expected
        remove_all(model)
        assert not is_pruned(model)
        assert model[1].codes.float().tolist() == expected
        assert model[1].codes.dtype is values.dtype

    def test_parameters_made_in_inference_mode_are_removed(self, keep_name: bool) -> None:
        with torch.inference_mode():
            layer = nn.Linear(2, 2)
        l1_unstructured(layer, "weight", 3, keep_name=keep_name)
        assert int((remove(layer, "weight").weight == 0).sum()) == 3

    @pytest.mark.parametrize("convert", [torch.Tensor.to_sparse, torch.Tensor.to_sparse_csr])
    def test_what_cannot_be_masked_is_refused(self, keep_name: bool, convert: object) -> None:
        module = nn.Module()
        module.w = nn.Parameter(convert(torch.eye(2)))
        with pytest.raises(TypeError, match=r"Module\.w is torch\.sparse_(coo|csr), which cannot be masked"):
            identity(module, "w", keep_name=keep_name)
        assert type(module) is nn.Module
        assert list(dict(module.named_parameters())) == ["w"]
