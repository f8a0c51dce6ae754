"""The masked attribute: what can be done to a pruned module, of any class, and what is refused."""

import copy
import gc
import inspect
import weakref
from abc import ABC, abstractmethod
from typing import Any, ClassVar

import pytest
import torch
import torch.nn.utils.prune as torch_prune
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize

from lightning_prune.prune import is_pruned, l1_unstructured, pruned_tensors, remove, remove_all, sparsity
from lightning_prune.prune.attribute import (
    Layout,
    alive_mask,
    attach,
    detach,
    erase,
    hidden_values,
    layout_of,
    masked_names,
    set_mask,
    stored_parameter,
)
from tests.expected import TWIN
from tests.prune.modules import history, linear, snapshot, stored, train_step, zeros

pytestmark = [TWIN]


class Slots(nn.Linear):
    __slots__ = ("note",)


class OwnSetattr(nn.Linear):
    def __setattr__(self, name: str, value: object) -> None:
        if name == "__class__":
            raise AssertionError("the class of this module is its own affair")
        super().__setattr__(name, value)


class Delegating(nn.Linear):
    """Passes on what it does not have to a module that is pruned itself."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)
        self.inner = l1_unstructured(nn.Linear(inputs, outputs), "weight", 1)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("inner"), name)


class Registry(nn.Linear):
    known: ClassVar[dict[str, type]] = {}

    def __init_subclass__(cls, label: str) -> None:
        Registry.known[label] = cls


class Registered(Registry, label="registered"):
    pass


class Abstract(nn.Linear, ABC):
    @abstractmethod
    def size(self) -> int: ...


class Concrete(Abstract):
    def size(self) -> int:
        return self.weight.numel()


class WithProperty(nn.Linear):
    @property
    def transposed(self) -> Tensor:
        return self.weight.t()


@pytest.mark.parametrize("cls", [Slots, OwnSetattr, Delegating, Registered, Concrete, WithProperty])
def test_modules_of_any_class(keep_name: bool, cls: type[nn.Linear]) -> None:
    layer = cls(4, 3)
    dense = snapshot(layer)
    for _ in range(2):
        l1_unstructured(layer, "weight", 3, keep_name=keep_name)
    assert isinstance(layer, cls)
    assert type(layer).__name__ == cls.__name__
    assert repr(layer) == repr(cls(4, 3))
    train_step(layer, torch.randn(2, 4))
    assert zeros(layer.weight) == 6
    remove(layer, "weight")
    assert {**snapshot(layer)[""], "values": 0} == {**dense[""], "values": 0}
    assert Registry.known == {"registered": Registered}


def test_properties_of_the_class_see_the_masked_value(keep_name: bool) -> None:
    layer = l1_unstructured(WithProperty(4, 3), "weight", 6, keep_name=keep_name)
    assert torch.equal(layer.transposed, layer.weight.t())


def test_a_new_module_of_the_type_of_a_pruned_one_is_plain(keep_name: bool) -> None:
    layer = l1_unstructured(nn.Linear(4, 3), "weight", 6, keep_name=keep_name)
    other = type(layer)(2, out_features=5, bias=False)
    assert type(other) is nn.Linear
    assert other(torch.ones(1, 2)).shape == (1, 5)
    assert inspect.signature(type(layer)) == inspect.signature(nn.Linear)


def test_one_class_serves_all_layers_and_is_given_back(keep_name: bool) -> None:
    class Own(nn.Linear):
        """Of this test alone, so that no other pruned module keeps its subclass alive."""

    layers = [l1_unstructured(Own(4, 3), "weight", 6, keep_name=keep_name) for _ in range(3)]
    assert len({type(layer) for layer in layers}) == 1
    assert type(layers[0]) is not Own
    masked_class = weakref.ref(type(layers[0]))
    remove_all(nn.ModuleList(layers))
    del layers
    gc.collect()
    assert masked_class() is None


def test_names_order_and_identity(keep_name: bool) -> None:
    layer = nn.Linear(4, 3)
    weight, bias = layer.weight, layer.bias
    l1_unstructured(layer, "bias", 1, keep_name=keep_name)
    l1_unstructured(layer, "weight", 1, keep_name=keep_name)
    assert [id(parameter) for parameter in layer.parameters()] == [id(weight), id(bias)]
    names = ["weight", "bias"] if keep_name else ["weight_orig", "bias_orig"]
    assert [name for name, _ in layer.named_parameters()] == names
    assert list(layer.state_dict()) == (names if keep_name else [*names, "bias_mask", "weight_mask"])
    assert [name for name, _ in layer.named_buffers()] == ([] if keep_name else ["bias_mask", "weight_mask"])
    assert layer.weight_orig is weight
    assert set(masked_names(layer)) == {"weight", "bias"}


class TestAssigning:
    def test_a_parameter_takes_the_place_of_the_stored_one(self, keep_name: bool) -> None:
        layer = l1_unstructured(linear([[1.0, 2.0, 3.0]]), "weight", 2, keep_name=keep_name)
        names = [name for name, _ in layer.named_parameters()]
        for name in ("weight", "weight_orig"):
            new = nn.Parameter(torch.tensor([[7.0, 8.0, 9.0]]))
            setattr(layer, name, new)
            assert stored(layer) is new
            assert layer.weight.tolist() == [[0, 0, 9]]
        assert [name for name, _ in layer.named_parameters()] == names

    @pytest.mark.parametrize("value", [nn.Parameter(torch.ones(1, 3)), None, torch.ones(3, 4), "text"])
    def test_anything_else_is_refused(self, keep_name: bool, value: object) -> None:
        layer = l1_unstructured(nn.Linear(4, 3), "weight", 2, keep_name=keep_name)
        before = snapshot(layer)
        with pytest.raises((TypeError, ValueError), match="'weight'"):
            layer.weight = value
        assert snapshot(layer) == before

    @pytest.mark.parametrize("name", ["weight", "weight_orig", "weight_mask"])
    def test_deleting_is_refused(self, keep_name: bool, name: str) -> None:
        layer = l1_unstructured(nn.Linear(4, 3), "weight", 2, keep_name=keep_name)
        before = snapshot(layer)
        with pytest.raises(AttributeError, match=rf"'{name}' of Linear cannot be deleted"):
            delattr(layer, name)
        assert snapshot(layer) == before
        del layer.bias
        assert not hasattr(layer, "bias")


class TestWhenItIsDone:
    def test_in_inference_mode(self, keep_name: bool) -> None:
        layer = nn.Linear(4, 4)
        for _ in range(2):
            with torch.inference_mode():
                l1_unstructured(layer, "weight", 4, keep_name=keep_name)
            train_step(layer, torch.randn(2, 4))
        assert zeros(layer.weight) == 8

    def test_between_forward_and_backward(self, keep_name: bool) -> None:
        layer = l1_unstructured(nn.Linear(4, 4), "weight", 4, keep_name=keep_name)
        alive = layer.weight_mask.clone().bool()
        loss = layer(torch.ones(1, 4)).sum()
        l1_unstructured(layer, "weight", 4)
        loss.backward()
        assert torch.equal(stored(layer).grad != 0, alive)

    def test_removed_between_forward_and_backward(self, keep_name: bool) -> None:
        layer = l1_unstructured(nn.Linear(4, 4), "weight", 4, keep_name=keep_name)
        loss = layer(torch.ones(1, 4)).sum()
        parameter = remove(layer, "weight").weight
        loss.backward()
        assert torch.equal(parameter.grad != 0, parameter != 0)

    def test_frozen(self, keep_name: bool) -> None:
        layer = l1_unstructured(nn.Linear(4, 4).requires_grad_(False), "weight", 4, keep_name=keep_name)
        assert not layer.weight.requires_grad
        assert not remove(layer, "weight").weight.requires_grad


class TestOddTensors:
    def test_without_dimensions_and_without_entries(self, keep_name: bool) -> None:
        module = nn.Module()
        module.scale, module.empty = nn.Parameter(torch.tensor(2.0)), nn.Parameter(torch.empty(0, 3))
        l1_unstructured(module, "scale", 1, keep_name=keep_name)
        l1_unstructured(module, "empty", 0.5, keep_name=keep_name)
        assert module.scale.item() == 0
        assert module.empty.shape == (0, 3)
        assert sparsity(module) == 1.0

    def test_lists_and_dicts_of_parameters(self, keep_name: bool) -> None:
        several = nn.ParameterList([torch.ones(4), torch.ones(4)])
        named = nn.ParameterDict({"a": torch.ones(4), "b": torch.ones(4)})
        l1_unstructured(several, "1", 3, keep_name=keep_name)
        l1_unstructured(named, "a", 1, keep_name=keep_name)
        assert [zeros(parameter) for parameter in several] == [0, 3]
        assert [zeros(parameter) for parameter in named.values()] == [1, 0]
        assert zeros(copy.deepcopy(named)["a"]) == 1

    def test_integers(self, keep_name: bool) -> None:
        module = nn.Module()
        module.codes = nn.Parameter(torch.tensor([3, -1, 2], dtype=torch.int8), requires_grad=False)
        assert l1_unstructured(module, "codes", 1, keep_name=keep_name).codes.tolist() == [3, 0, 2]

    def test_a_parameter_of_two_modules(self, keep_name: bool) -> None:
        first, second = linear([[1.0, 2.0]]), linear([[0.0, 0.0]])
        second.weight = first.weight
        l1_unstructured(first, "weight", 1, keep_name=keep_name)
        assert first.weight.tolist() == [[0, 2]]
        assert second.weight.tolist() == [[1, 2]]
        assert stored(first) is second.weight
        assert remove(first, "weight").weight is second.weight
        assert second.weight.tolist() == [[0, 2]]


class TestParametrizations:
    def test_the_tensors_of_a_parametrization_can_be_pruned(self, keep_name: bool) -> None:
        layer = parametrizations.weight_norm(nn.Linear(4, 3))
        l1_unstructured(layer.parametrizations["weight"], "original1", 6, keep_name=keep_name)
        l1_unstructured(layer, "bias", 1, keep_name=keep_name)
        for _ in range(2):
            train_step(layer, torch.randn(2, 4))
        assert (zeros(layer.weight), zeros(layer.bias)) == (6, 1)
        remove_all(layer)
        assert (zeros(layer.weight), zeros(layer.bias)) == (6, 1)
        parametrize.remove_parametrizations(layer, "weight")
        assert type(layer) is nn.Linear
        assert zeros(layer.weight) == 6

    @pytest.mark.parametrize("register", [parametrizations.weight_norm, parametrizations.spectral_norm])
    def test_a_pruned_tensor_cannot_be_parametrized(self, keep_name: bool, register: Any) -> None:
        layer = l1_unstructured(nn.Linear(4, 3), "weight", 6, keep_name=keep_name)
        before = snapshot(layer)
        with pytest.raises((AttributeError, ValueError), match="weight"):
            register(layer, "weight")
        assert snapshot(layer) == before

    def test_a_class_that_was_changed_after_pruning(self, keep_name: bool) -> None:
        layer = l1_unstructured(nn.Linear(4, 3), "weight", 6, keep_name=keep_name)
        with torch.no_grad():
            stored(layer).add_(1)
        parametrizations.weight_norm(layer, "bias", dim=0)
        train_step(layer, torch.randn(2, 4))
        assert zeros(layer.weight) == 6
        remove(layer, "weight")
        assert parametrize.is_parametrized(layer, "bias")
        parametrize.remove_parametrizations(layer, "bias")
        assert zeros(layer.weight) == 6
        assert type(layer) is nn.Linear


class TestFunctionsOfTorch:
    def test_torchs_functions_go_on_from_ours_in_the_documented_layout(self) -> None:
        layer = l1_unstructured(linear([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]), "weight", 1)
        torch_prune.l1_unstructured(layer, "weight", 1)
        torch_prune.ln_structured(layer, "weight", 1, n=2, dim=1)
        assert layer.weight.tolist() == [[0, 0, 3], [0, 5, 6]]
        train_step(layer, torch.ones(1, 3), lr=0.001)
        l1_unstructured(layer, "weight", 1)
        assert zeros(layer.weight) == 4
        assert [type(m).__name__ for m in history(layer)] == ["L1Unstructured"] * 2 + ["LnStructured", "L1Unstructured"]
        assert zeros(torch_prune.remove(layer, "weight").weight) == 4
        assert not is_pruned(layer)

    def test_replicas_of_data_parallel(self) -> None:
        layer = l1_unstructured(linear([[1.0, 2.0, 3.0]]), "weight", 2)
        replica = layer._replicate_for_data_parallel()
        for name, parameter in layer.named_parameters():
            setattr(replica, name, parameter * 2)
        replica._buffers["weight_mask"] = layer.weight_mask.clone()
        assert replica.weight.tolist() == [[0, 0, 6]]


class TestKeptLayout:
    def test_the_state_is_zeroed_and_dense(self) -> None:
        layer = l1_unstructured(linear([[1.0, 2.0, 3.0]]), "weight", 2, keep_name=True)
        with torch.no_grad():
            stored(layer).add_(1)
        assert hidden_values(stored(layer), layer.weight_mask)
        state = layer.state_dict()
        assert {key: value.tolist() for key, value in state.items() if key == "weight"} == {"weight": [[0, 0, 4]]}
        assert stored(layer).tolist() == [[2, 3, 4]]
        assert layer.state_dict(keep_vars=True)["weight"].requires_grad
        erase(layer, "weight")
        assert stored(layer).tolist() == [[0, 0, 4]]
        assert not hidden_values(stored(layer), layer.weight_mask)
        assert layer.state_dict()["weight"].data_ptr() == stored(layer).data_ptr()

    def test_masks_follow_conversions_of_a_parent(self) -> None:
        model = nn.Sequential(l1_unstructured(nn.Linear(4, 3), "weight", 2, keep_name=True))
        assert model.to("meta")[0].weight.is_meta
        assert model.double()[0].weight.dtype is torch.float64


class TestLayouts:
    @pytest.mark.parametrize("layout", list(Layout))
    def test_attach_and_detach(self, layout: Layout) -> None:
        layer = linear([[1.0, 2.0, 3.0]])
        parameter, mask = layer.weight, torch.tensor([[True, False, True]])
        assert layout_of(layer, "weight") is None
        assert alive_mask(layer, "weight") is None
        attach(layer, "weight", mask, layout)
        assert layout_of(layer, "weight") is layout
        assert stored_parameter(layer, "weight") is parameter
        assert alive_mask(layer, "weight").tolist() == mask.tolist()
        set_mask(layer, "weight", torch.tensor([[True, False, False]]))
        assert alive_mask(layer, "weight").tolist() == [[True, False, False]]
        assert pruned_tensors(layer)["weight"].tolist() == [[True, False, False]]
        expected = [[1, 2, 3]] if layout is Layout.PLAIN else [[1, 0, 0]]
        assert layer.weight.tolist() == expected
        detach(layer, "weight")
        assert layer.weight is parameter
        assert parameter.tolist() == [[1, 0, 0]]
        assert type(layer) is nn.Linear

    def test_plain_leaves_the_module_as_it_is(self) -> None:
        layer = linear([[1.0, 2.0]])
        parameter, before = layer.weight, dict(vars(layer))
        attach(layer, "weight", torch.tensor([[False, True]]), Layout.PLAIN)
        assert vars(layer) == before
        assert type(layer) is nn.Linear
        assert layer.weight is parameter is stored_parameter(layer, "weight")
        erase(layer, "weight")
        assert layer.weight.tolist() == [[0, 2]]
        again = copy.deepcopy(layer)
        assert again.weight.tolist() == [[0, 2]]
        assert layout_of(again, "weight") is None
        assert layout_of(layer, "weight") is Layout.PLAIN
