"""The functions, and the worked examples of the PyTorch pruning tutorial."""

from functools import partial

import pytest
import torch
import torch.nn.utils.prune as torch_prune
from torch import nn

from lightning_prune.prune import (
    CustomFromMask,
    L1Unstructured,
    LnStructured,
    PruningContainer,
    RandomUnstructured,
    custom_from_mask,
    global_unstructured,
    identity,
    is_pruned,
    l1_unstructured,
    ln_structured,
    random_structured,
    random_unstructured,
    remove,
)
from tests.expected import TWIN
from tests.prune.modules import EveryOther, LeNet, assert_refused, history, linear, stored, zeros

pytestmark = [TWIN]

ROWS = [[3.0, -4.0, 0.5], [1.0, 1.0, -6.0], [2.0, 0.1, 0.0]]


class TestTutorial:
    def test_random_unstructured_moves_the_parameter(self) -> None:
        conv1 = LeNet().conv1
        parameter = conv1.weight
        before = parameter.detach().clone()
        assert [name for name, _ in conv1.named_parameters()] == ["weight", "bias"]
        assert random_unstructured(conv1, name="weight", amount=0.3) is conv1
        assert [name for name, _ in conv1.named_parameters()] == ["weight_orig", "bias"]
        assert [name for name, _ in conv1.named_buffers()] == ["weight_mask"]
        assert conv1.weight_orig is parameter
        assert zeros(conv1.weight_mask) == round(0.3 * 150) == 45
        assert torch.equal(conv1.weight, before * conv1.weight_mask)
        assert conv1.weight_mask.dtype is torch.float32
        assert [repr(method) for method in history(conv1)] == ["RandomUnstructured(amount=0.3)"]

    def test_a_second_parameter(self) -> None:
        conv1 = LeNet().conv1
        random_unstructured(conv1, name="weight", amount=0.3)
        smallest = conv1.bias.detach().abs().argsort()[:3]
        l1_unstructured(conv1, name="bias", amount=3)
        assert list(dict(conv1.named_parameters())) == ["weight_orig", "bias_orig"]
        assert list(dict(conv1.named_buffers())) == ["weight_mask", "bias_mask"]
        assert (conv1.bias == 0).nonzero().flatten().tolist() == sorted(smallest.tolist())
        assert len(conv1._forward_pre_hooks) == 2

    def test_iterative_pruning_composes_and_is_recorded(self) -> None:
        conv1 = LeNet().conv1
        random_unstructured(conv1, name="weight", amount=0.3)
        first = conv1.weight_mask.clone()
        norms = conv1.weight.detach().flatten(1).norm(dim=1)
        ln_structured(conv1, name="weight", amount=0.5, n=2, dim=0)
        expected = first.clone()
        expected[norms.argsort()[:3]] = 0
        assert torch.equal(conv1.weight_mask, expected)
        (hook,) = conv1._forward_pre_hooks.values()
        assert isinstance(hook, PruningContainer)
        assert [repr(m) for m in hook] == ["RandomUnstructured(amount=0.3)", "LnStructured(amount=0.5, dim=0, n=2)"]

    def test_state_dict_and_remove(self) -> None:
        model = LeNet()
        keys = list(model.state_dict())
        conv1, parameter = model.conv1, model.conv1.weight
        random_unstructured(conv1, name="weight", amount=0.3)
        l1_unstructured(conv1, name="bias", amount=3)
        masked = conv1.weight.detach().clone()
        assert list(model.state_dict())[:4] == [
            f"conv1.{n}" for n in ("weight_orig", "bias_orig", "weight_mask", "bias_mask")
        ]
        assert remove(conv1, "weight") is conv1
        assert list(dict(conv1.named_parameters())) == ["weight", "bias_orig"]
        assert list(dict(conv1.named_buffers())) == ["bias_mask"]
        assert conv1.weight is parameter
        assert torch.equal(parameter, masked)
        remove(conv1, "bias")
        assert list(model.state_dict()) == keys
        assert type(conv1) is nn.Conv2d
        assert not conv1._forward_pre_hooks
        assert not is_pruned(model)

    def test_a_users_own_method(self) -> None:
        model = LeNet()
        EveryOther.apply(model.fc3, "bias")
        assert model.fc3.bias_mask.tolist() == [0, 1] * 5

    def test_global(self, keep_name: bool) -> None:
        model = LeNet()
        everything = torch.cat([module.weight.detach().flatten() for module, _ in model.tensors()])
        global_unstructured(model.tensors(), pruning_method=L1Unstructured, amount=0.2, keep_name=keep_name)
        total = len(everything)
        assert sum(zeros(module.weight) for module, _ in model.tensors()) == round(0.2 * total) == 12294
        threshold = everything.abs().kthvalue(12294).values
        for module, _ in model.tensors():
            assert torch.equal(module.weight != 0, stored(module).abs() > threshold)

    def test_a_forward_and_backward_in_the_pruned_model(self, keep_name: bool) -> None:
        model = LeNet()
        ln_structured(model.conv1, "weight", 0.5, n=2, dim=0, keep_name=keep_name)
        model(torch.randn(2, 1, 32, 32)).sum().backward()
        gradient = stored(model.conv1).grad
        assert torch.equal(gradient.flatten(1).any(dim=1), model.conv1.weight.flatten(1).any(dim=1))


class TestValues:
    def test_identity(self, keep_name: bool) -> None:
        layer = identity(nn.Linear(2, 3), "bias", keep_name=keep_name)
        assert layer.bias_mask.tolist() == [1, 1, 1]
        assert torch.equal(layer.bias, layer.bias_orig)
        assert is_pruned(layer)

    def test_unstructured(self, keep_name: bool) -> None:
        layer = l1_unstructured(linear(ROWS), "weight", 4, keep_name=keep_name)
        assert layer.weight.tolist() == [[3, -4, 0], [0, 1, -6], [2, 0, 0]]
        l1_unstructured(layer, "weight", 0.4)  # of the 5 that are left
        assert layer.weight.tolist() == [[3, -4, 0], [0, 0, -6], [0, 0, 0]]

    def test_unstructured_by_scores(self, keep_name: bool) -> None:
        scores = torch.tensor([[0.0, -1, 9], [9, 9, 9], [9, 9, -0.5]], requires_grad=True)
        layer = l1_unstructured(linear(ROWS), "weight", 3, importance_scores=scores, keep_name=keep_name)
        assert layer.weight.tolist() == [[0, 0, 0.5], [1, 1, -6], [2, torch.tensor(0.1).item(), 0]]

    @pytest.mark.parametrize("dtype", [torch.bool, torch.int32, torch.float64])
    def test_scores_of_any_real_dtype(self, dtype: torch.dtype) -> None:
        scores = torch.tensor([[1, 1, 0], [1, 0, 1], [1, 1, 1]]).to(dtype)
        layer = l1_unstructured(linear(ROWS), "weight", 2, importance_scores=scores)
        assert torch.equal(layer.weight_mask, scores.float())

    @pytest.mark.parametrize(
        ("n", "dim", "channel"),
        [(1, 0, 2), (2, 0, 2), (float("inf"), 0, 2), (float("-inf"), 0, 2), ("fro", 1, 0), (1, 1, 1), (2, -1, 0)],
    )
    def test_ln_structured(self, keep_name: bool, n: float, dim: int, channel: int) -> None:
        layer = ln_structured(linear(ROWS), "weight", 1, n=n, dim=dim, keep_name=keep_name)
        expected = torch.ones(3, 3)
        expected.select(dim, channel).fill_(0)
        assert torch.equal(layer.weight_mask.float(), expected)

    def test_ln_structured_by_scores(self, keep_name: bool) -> None:
        scores = torch.tensor([[1.0, 1, 1], [0.1, 0.1, 0.1], [5, 5, 5]])
        layer = ln_structured(linear(ROWS), "weight", 1, n=2, dim=0, importance_scores=scores, keep_name=keep_name)
        assert layer.weight_mask.sum(dim=1).tolist() == [3, 0, 3]

    def test_random_unstructured(self, keep_name: bool) -> None:
        layer = random_unstructured(nn.Linear(20, 20), "weight", 100, keep_name=keep_name)
        first = layer.weight_mask.clone()
        random_unstructured(layer, "weight", 0.5)
        assert zeros(first) == 100
        assert zeros(layer.weight_mask) == 250
        assert not (layer.weight_mask.bool() & ~first.bool()).any()

    def test_random_structured(self, keep_name: bool) -> None:
        layer = random_structured(nn.Conv2d(4, 6, 3), "weight", 2, dim=1, keep_name=keep_name)
        channels = layer.weight_mask.float().sum(dim=(0, 2, 3))
        assert sorted(channels.tolist()) == [0, 0, 54, 54]

    @pytest.mark.parametrize("function", [random_unstructured, partial(random_structured, dim=0)])
    def test_random_methods_take_a_seed_or_a_generator(self, function: object, keep_name: bool) -> None:
        def mask(seed: int, **kwargs: object) -> list[float]:
            torch.manual_seed(seed)
            layer = function(nn.Linear(9, 40), "weight", 0.5, keep_name=keep_name, **kwargs)
            return layer.weight_mask.tolist()

        assert mask(1) == mask(1) != mask(2)
        generators = [torch.Generator().manual_seed(5) for _ in range(2)]
        assert mask(1, generator=generators[0]) == mask(2, generator=generators[1])

    def test_a_generator_leaves_the_global_state_alone(self) -> None:
        before = torch.get_rng_state()
        layer = nn.Linear(1, 1).requires_grad_(False)
        torch.set_rng_state(before)
        random_unstructured(layer, "weight", 1, generator=torch.Generator().manual_seed(1))
        assert torch.equal(torch.get_rng_state(), before)

    def test_custom_from_mask(self, keep_name: bool) -> None:
        layer = custom_from_mask(nn.Linear(5, 3), "bias", mask=[0, 1, 0], keep_name=keep_name)
        assert layer.bias_mask.tolist() == [0, 1, 0]
        custom_from_mask(layer, "bias", mask=torch.tensor([True, False, True]))
        assert layer.bias.tolist() == [0, 0, 0]

    def test_infinite_and_nan_weights_give_zero_under_the_mask(self, keep_name: bool) -> None:
        layer = custom_from_mask(nn.Linear(3, 1), "weight", [[0, 0, 1]], keep_name=keep_name)
        with torch.no_grad():
            stored(layer).copy_(torch.tensor([[torch.inf, torch.nan, 2.0]]))
        assert layer.weight.tolist() == [[0, 0, 2]]
        layer(torch.ones(1, 3)).sum().backward()
        assert stored(layer).grad.tolist() == [[0, 0, 1]]


class TestGlobal:
    def test_counts_over_two_layers(self, keep_name: bool) -> None:
        net = nn.Sequential(nn.Linear(10, 4), nn.Linear(4, 1))
        pairs = [(net[0], "weight"), (net[1], "weight")]
        global_unstructured(pairs, pruning_method=L1Unstructured, amount=10, keep_name=keep_name)
        assert sum(zeros(module.weight_mask) for module, _ in pairs) == 10
        assert [repr(m) for m in history(net[0])] == ["CustomFromMask(L1Unstructured(amount=10) over 2 tensors)"]

    def test_a_second_round_counts_what_is_left(self, keep_name: bool) -> None:
        net = nn.Sequential(nn.Linear(10, 4), nn.Linear(4, 1))
        pairs = [(net[0], "weight"), (net[1], "weight")]
        for _ in range(2):
            global_unstructured(pairs, pruning_method=RandomUnstructured, amount=0.5, keep_name=keep_name)
        assert sum(zeros(module.weight_mask) for module, _ in pairs) == 33

    def test_scores_for_some_of_the_tensors(self, keep_name: bool) -> None:
        first, second = linear([[1.0, 2.0]]), linear([[1.5, 3.0]])
        scores = {(first, "weight"): torch.tensor([[9.0, 0.1]])}
        pairs = [(first, "weight"), (second, "weight")]
        global_unstructured(pairs, L1Unstructured, importance_scores=scores, amount=2, keep_name=keep_name)
        assert first.weight.tolist() == [[1, 0]]
        assert second.weight.tolist() == [[0, 3]]

    @pytest.mark.parametrize("method", [torch_prune.L1Unstructured, L1Unstructured])
    def test_torchs_methods_give_the_same_as_ours(self, method: type, keep_name: bool) -> None:
        pairs = [(linear(ROWS), "weight"), (linear([[0.2, -7.0]]), "weight")]
        for _ in range(2):
            global_unstructured(pairs, method, amount=3, keep_name=keep_name)
        assert [module.weight.tolist() for module, _ in pairs] == [[[3, -4, 0], [0, 0, -6], [2, 0, 0]], [[0, -7]]]

    def test_a_users_method_sees_what_is_left_as_one_vector(self, keep_name: bool) -> None:
        pairs = [(linear([[1.0, 2.0, 3.0]]), "weight"), (linear([[4.0, 5.0]]), "weight")]
        for _ in range(2):
            global_unstructured(pairs, EveryOther, keep_name=keep_name)
        assert [module.weight.tolist() for module, _ in pairs] == [[[0, 0, 0]], [[4, 0]]]

    def test_a_shared_parameter_counts_once_and_has_one_mask(self, keep_name: bool) -> None:
        first, second, third = linear([[1.0, 4.0]]), linear([[0.0, 0.0]]), linear([[2.0, 3.0]])
        second.weight = first.weight
        l1_unstructured(second, "weight", 1, keep_name=keep_name)
        pairs = [(first, "weight"), (second, "weight"), (third, "weight")]
        global_unstructured(pairs, L1Unstructured, amount=2, keep_name=keep_name)
        assert [module.weight.tolist() for module, _ in pairs] == [[[0, 4]], [[0, 4]], [[0, 0]]]
        assert stored(first) is stored(second)

    def test_wrong_arguments(self, keep_name: bool) -> None:
        net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
        pairs = [(net[0], "weight"), (net[1], "weight")]

        def refused(error: type[Exception], message: str, **changed: object) -> None:
            arguments = {"parameters": pairs, "pruning_method": L1Unstructured, "amount": 3, **changed}
            assert_refused(net, lambda: global_unstructured(keep_name=keep_name, **arguments), error, message)

        refused(TypeError, "LnStructured is 'structured'", pruning_method=LnStructured)
        refused(TypeError, "CustomFromMask is 'global'", pruning_method=CustomFromMask)
        refused(TypeError, "class of pruning methods", pruning_method=L1Unstructured(3))
        refused(TypeError, "got int", parameters=5)
        refused(TypeError, "importance_scores should be a dict", importance_scores=[1])
        refused(ValueError, "(2, 4) of Linear.weight, got (1,)", importance_scores={pairs[1]: torch.ones(1)})
        refused(ValueError, "amount=25 is more than the 24", amount=25)
        refused(TypeError, "unexpected keyword", nonsense=1)
        refused(AttributeError, "Linear.nope", parameters=[*pairs, (net[1], "nope")])

    def test_a_tensor_that_cannot_be_pruned_stops_it_before_the_others_change(self, keep_name: bool) -> None:
        net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
        net[1].register_buffer("weight_mask", torch.ones(1))
        pairs = [(net[0], "weight"), (net[1], "weight")]
        assert_refused(
            net,
            lambda: global_unstructured(pairs, RandomUnstructured, amount=3, keep_name=keep_name),
            ValueError,
            "Linear.weight_mask exists already",
        )


class TestRemoveAndIsPruned:
    def test_remove_keeps_object_slot_and_zeros(self, keep_name: bool) -> None:
        layer = nn.Linear(4, 3)
        parameter = layer.weight
        l1_unstructured(layer, "weight", 5, keep_name=keep_name)
        with torch.no_grad():
            parameter.add_(1)
        expected = parameter.detach() * layer.weight_mask
        remove(layer, "weight")
        assert layer.weight is parameter
        assert torch.equal(parameter, expected)
        assert zeros(parameter) == 5
        assert [name for name, _ in layer.named_parameters()] == ["weight", "bias"]
        assert type(layer) is nn.Linear
        assert set(layer.__dict__) == set(nn.Linear(4, 3).__dict__)

    def test_remove_of_what_is_not_pruned(self, keep_name: bool) -> None:
        layer = l1_unstructured(nn.Linear(4, 3), "weight", 5, keep_name=keep_name)
        assert_refused(layer, lambda: remove(layer, "bias"), ValueError, "Linear.bias is not pruned", "weight")
        assert_refused(layer, lambda: remove(layer, "nope"), ValueError, "Linear.nope is not pruned")

    def test_is_pruned_sees_children_and_outlives_cleared_hooks(self, keep_name: bool) -> None:
        net = nn.Sequential(nn.Sequential(nn.Linear(4, 3)))
        assert not is_pruned(net)
        l1_unstructured(net[0][0], "weight", 5, keep_name=keep_name)
        assert is_pruned(net)
        assert torch_prune.is_pruned(net)
        net[0][0]._forward_pre_hooks.clear()
        assert is_pruned(net)
        remove(net[0][0], "weight")
        assert not is_pruned(net)

    def test_torchs_remove_works_on_ours(self, keep_name: bool) -> None:
        layer = nn.Linear(4, 3)
        parameter = layer.weight
        for _ in range(2):
            l1_unstructured(layer, "weight", 3, keep_name=keep_name)
        torch_prune.remove(layer, "weight")
        assert layer.weight is parameter
        assert zeros(parameter) == 6
        assert not is_pruned(layer)
        assert type(layer) is nn.Linear

    def test_torchs_pruning_is_seen_and_not_mixed_with_ours(self, keep_name: bool) -> None:
        layer = torch_prune.l1_unstructured(nn.Linear(4, 3), "weight", 3)
        assert is_pruned(layer)
        ours = partial(l1_unstructured, layer, "weight", 3, keep_name=keep_name)
        assert_refused(layer, ours, ValueError, "torch.nn.utils.prune.remove")
        l1_unstructured(torch_prune.remove(layer, "weight"), "weight", 3, keep_name=keep_name)
        assert zeros(layer.weight) == 3
