"""A pruned module in the hands of other packages: parametrizations, FX, normalizations, clones and conversions."""

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize

from lightning_prune.prune import custom_from_mask, is_pruned, l1_unstructured, pruned_tensors, remove
from tests.expected import TWIN
from tests.prune.modules import assert_refused, linear, stored, zeros

pytestmark = [TWIN]


class Twice(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * x


class Three(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        for name in "abc":
            setattr(self, name, nn.Parameter(torch.tensor([1.0, 2.0, 3.0])))


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor([1.0, 2.0, 3.0]))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.w


class TestParametrizations:
    @pytest.mark.parametrize("first", [None, "a"])
    def test_another_tensor_is_parametrized_before_while_and_after_one_is_pruned(
        self, keep_name: bool, first: str | None
    ) -> None:
        module = Three()
        for name in filter(None, [first]):
            parametrize.register_parametrization(module, name, Twice())
        l1_unstructured(module, "b", 1, keep_name=keep_name)
        parametrize.register_parametrization(module, "c", Twice())
        assert module.b.tolist() == [0, 2, 3]
        assert module.c.tolist() == [2, 4, 6]
        remove(module, "b")
        assert [module.b.tolist(), module.c.tolist()] == [[0, 2, 3], [2, 4, 6]]
        assert module.a.tolist() == ([2, 4, 6] if first else [1, 2, 3])

    def test_a_parametrization_is_removed_while_another_tensor_is_pruned(self, keep_name: bool) -> None:
        module = Three()
        parametrize.register_parametrization(module, "a", Twice())
        l1_unstructured(module, "b", 1, keep_name=keep_name)
        parametrize.remove_parametrizations(module, "a")
        assert [module.a.tolist(), module.b.tolist()] == [[2, 4, 6], [0, 2, 3]]
        remove(module, "b")
        assert type(module) is Three

    def test_a_copy_of_a_parametrized_and_pruned_module_is_both(self, keep_name: bool) -> None:
        module = Three()
        parametrize.register_parametrization(module, "a", Twice())
        l1_unstructured(module, "b", 1, keep_name=keep_name)
        copied = copy.deepcopy(module)
        with torch.no_grad():
            stored(copied, "b").add_(1)
        assert [copied.a.tolist(), copied.b.tolist(), module.b.tolist()] == [[2, 4, 6], [0, 3, 4], [0, 2, 3]]
        assert remove(copied, "b").b.tolist() == [0, 3, 4]

    @pytest.mark.filterwarnings("ignore:.*deprecated.*")
    @pytest.mark.parametrize(
        "normalize",
        [
            nn.utils.weight_norm,
            nn.utils.spectral_norm,
            parametrizations.weight_norm,
            parametrizations.spectral_norm,
            parametrizations.orthogonal,
        ],
    )
    def test_a_pruned_tensor_is_not_normalized_and_stays_as_it_was(self, keep_name: bool, normalize: object) -> None:
        layer = l1_unstructured(nn.Linear(3, 3), "weight", 4, keep_name=keep_name)
        state = copy.deepcopy(layer.state_dict())
        expected = layer(torch.eye(3))
        with pytest.raises((KeyError, ValueError, AttributeError), match="weight"):
            normalize(layer, "weight")
        assert torch.equal(layer(torch.eye(3)), expected)
        assert all(torch.equal(layer.state_dict()[key], value) for key, value in state.items())
        assert zeros(remove(layer, "weight").weight) == 4


class TestGraphs:
    def test_a_graph_that_owns_a_pruned_parameter_is_recompiled(self, keep_name: bool) -> None:
        graph = torch.fx.symbolic_trace(Scaled())
        l1_unstructured(graph, "w", 1, keep_name=keep_name)
        graph.recompile()
        assert graph(torch.ones(3)).tolist() == [0, 2, 3]

    def test_a_graph_that_was_edited_while_pruned_stays_edited(self, keep_name: bool) -> None:
        graph = torch.fx.symbolic_trace(Scaled())
        l1_unstructured(graph, "w", 1, keep_name=keep_name)
        (product,) = [node for node in graph.graph.nodes if node.op == "call_function"]
        product.target = torch.add
        graph.recompile()
        assert graph(torch.ones(3)).tolist() == [1, 3, 4]
        assert remove(graph, "w")(torch.ones(3)).tolist() == [1, 3, 4]

    def test_what_is_written_to_the_class_while_pruned_is_there_afterwards(self, keep_name: bool) -> None:
        class Own(nn.Linear):
            pass

        layer = l1_unstructured(Own(2, 2), "weight", 1, keep_name=keep_name)
        type(layer).note = "kept"
        assert remove(layer, "weight").note == "kept"
        assert Own.note == "kept"

    def test_a_traced_graph_follows_the_parameter(self, keep_name: bool) -> None:
        class Reads(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.inner = l1_unstructured(linear([[1.0, 2.0, 3.0]]), "weight", 1, keep_name=keep_name)

            def forward(self, x: Tensor) -> Tensor:
                return nn.functional.linear(x, self.inner.weight)

        model = Reads()
        graph = torch.fx.symbolic_trace(model)
        with torch.no_grad():
            stored(model.inner).mul_(10)
        assert graph(torch.ones(1, 3)).tolist() == [[50]]
        assert [id(parameter) for parameter in graph.parameters()] == [id(stored(model.inner))]

    def test_torchscript_is_refused_with_what_to_do(self, keep_name: bool) -> None:
        model = nn.Sequential(l1_unstructured(nn.Linear(3, 2), "weight", 1, keep_name=keep_name))
        with pytest.raises(TypeError, match=r"'weight' of Linear is pruned.*remove_all\(model\) first"):
            torch.jit.script(model)


class TestConversions:
    def test_masks_stay_masks(self, keep_name: bool) -> None:
        layer = custom_from_mask(nn.Linear(3, 1), "weight", [[1, 0, 1]], keep_name=keep_name)
        nn.Sequential(layer).type(torch.float16)
        assert layer.weight_mask.tolist() == [[1, 0, 1]]
        assert layer.weight_mask.dtype is (torch.bool if keep_name else torch.float16)
        assert zeros(layer.state_dict()["weight" if keep_name else "weight_mask"]) == 1
        assert zeros(remove(layer, "weight").weight) == 1

    def test_masks_outside_of_the_state_survive_the_meta_device(self) -> None:
        layer = custom_from_mask(linear([[1.0, 2.0, 3.0]]), "weight", [[1, 0, 1]], keep_name=True)
        state = layer.state_dict()
        layer.to("meta")
        assert layer.weight.is_meta
        layer.to_empty(device="cpu").load_state_dict(state)
        assert layer.weight.tolist() == [[1, 0, 3]]
        assert layer.weight_mask.tolist() == [[True, False, True]]

    @pytest.mark.parametrize("of", [lambda layer: layer.__class__, type])
    def test_a_clone_made_of_the_class_alone_is_plain(self, keep_name: bool, of: object) -> None:
        layer = l1_unstructured(nn.Linear(3, 2), "weight", 1, keep_name=keep_name)
        cls = of(layer)
        clone = cls.__new__(cls)
        nn.Module.__init__(clone)
        clone.weight = nn.Parameter(layer.weight.detach().clone())
        assert type(clone) is nn.Linear
        assert torch.equal(clone.weight, layer.weight)
        assert list(clone.state_dict()) == ["weight"]
        assert is_pruned(layer)

    def test_a_clone_that_shares_the_state_is_masked(self, keep_name: bool) -> None:
        layer = l1_unstructured(linear([[1.0, 2.0]]), "weight", 1, keep_name=keep_name)
        clone = type(layer).__new__(type(layer))
        clone.__dict__ = layer.__dict__.copy()
        assert clone.weight.tolist() == [[0, 2]]

    def test_a_class_that_saves_in_its_own_way_gets_no_other_keys(self, keep_name: bool) -> None:
        class Own(nn.Linear):
            def _save_to_state_dict(self, destination: dict, prefix: str, keep_vars: bool) -> None:
                destination[f"{prefix}mine"] = self.weight.detach()

        layer = l1_unstructured(Own(3, 1), "weight", 1, keep_name=keep_name)
        with torch.no_grad():
            stored(layer).add_(1)
        assert list(layer.state_dict()) == ["mine"]
        assert zeros(layer.state_dict()["mine"]) == 1

    def test_replicas_read_their_parts_masked(self, keep_name: bool) -> None:
        layer = custom_from_mask(linear([[1.0, 2.0, 3.0]]), "weight", [[0, 0, 1]], keep_name=keep_name)
        replica = layer._replicate_for_data_parallel()
        for name, parameter in layer.named_parameters():
            setattr(replica, name, parameter * 2)
        for name, buffer in layer.named_buffers():
            setattr(replica, name, buffer.clone())
        assert replica.weight.tolist() == [[0, 0, 6]]
        replica(torch.ones(1, 3)).sum().backward()
        assert stored(layer).grad.tolist() == [[0, 0, 2]]
        assert layer.weight.tolist() == [[0, 0, 3]]


class TestAssigning:
    @pytest.mark.parametrize("slot", ["weight", "weight_orig", "weight_mask"])
    def test_a_module_is_refused_at_any_name_of_a_pruned_tensor(self, keep_name: bool, slot: str) -> None:
        layer = l1_unstructured(nn.Linear(3, 2), "weight", 1, keep_name=keep_name)
        assert_refused(layer, lambda: setattr(layer, slot, nn.Identity()), TypeError, slot, "got Identity")

    @pytest.mark.parametrize(
        ("value", "error", "message"),
        [
            (nn.Parameter(torch.ones(2, 3)), TypeError, "got Parameter"),
            (None, TypeError, "got NoneType"),
            (torch.ones(3, 3), ValueError, "should have the shape (2, 3) of the parameter, got (3, 3)"),
        ],
    )
    def test_what_is_no_mask_is_refused(self, keep_name: bool, value: object, error: type, message: str) -> None:
        layer = l1_unstructured(nn.Linear(3, 2), "weight", 1, keep_name=keep_name)
        assert_refused(layer, lambda: setattr(layer, "weight_mask", value), error, "weight_mask", message)

    def test_a_mask_is_taken(self, keep_name: bool) -> None:
        layer = l1_unstructured(linear([[1.0, 2.0, 3.0]]), "weight", 1, keep_name=keep_name)
        layer.weight_mask = torch.tensor([[1.0, 0.0, 1.0]])
        assert layer.weight.tolist() == [[1, 0, 3]]
        assert pruned_tensors(layer)["weight"].tolist() == [[True, False, True]]
        assert remove(layer, "weight").weight.tolist() == [[1, 0, 3]]

    def test_hundreds_of_tensors_of_one_list_share_one_class(self, keep_name: bool) -> None:
        several = nn.ParameterList([torch.tensor([1.0, 2.0]) for _ in range(200)])
        classes = set()
        for i in range(200):
            l1_unstructured(several, str(i), 1, keep_name=keep_name)
            classes.add(type(several))
        assert len(classes) == 1
        assert [value.tolist() for value in several] == [[0, 2]] * 200
        copied = copy.deepcopy(several)
        for i in range(200):
            remove(copied, str(i))
        assert type(copied) is nn.ParameterList
        assert [value.tolist() for value in copied.parameters()] == [[0, 2]] * 200
        assert is_pruned(several)
