"""What is read besides ``where(mask, parameter, 0)``: of own methods, soft and learned masks, and assigning hooks."""

import copy

import pytest
import torch
import torch.nn.utils.prune as torch_prune
from torch import Tensor, nn

from lightning_prune.prune import BasePruningMethod, custom_from_mask, identity, l1_unstructured, pruned_tensors, remove
from tests.prune.modules import linear, stored, zeros


class Soft(BasePruningMethod):
    """Learnable masks: the sigmoid of scores that the module holds."""

    PRUNING_TYPE = "unstructured"

    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        return default_mask.clone()

    def apply_mask(self, module: nn.Module) -> Tensor:
        return module.weight_orig * torch.sigmoid(module.scores)


class Noting(BasePruningMethod):
    """Says when it is removed."""

    PRUNING_TYPE = "unstructured"

    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        return default_mask.clone()

    def remove(self, module: nn.Module) -> None:
        super().remove(module)
        module.removed = True


def with_scores() -> nn.Linear:
    layer = linear([[2.0, 4.0]])
    layer.scores = nn.Parameter(torch.zeros(1, 2))
    return layer


class TestOwnMethods:
    def test_apply_mask_is_what_is_read_with_its_gradients(self, keep_name: bool) -> None:
        layer = with_scores()
        Soft.apply(layer, "weight", keep_name=keep_name)
        assert layer.weight.tolist() == [[1, 2]]
        layer(torch.ones(1, 2)).sum().backward()
        assert layer.scores.grad.tolist() == [[0.5, 1]]
        assert stored(layer).grad.tolist() == [[0.5, 0.5]]

    def test_remove_keeps_what_was_read(self, keep_name: bool) -> None:
        layer = with_scores()
        parameter = layer.weight
        Soft.apply(layer, "weight", keep_name=keep_name)
        assert remove(layer, "weight").weight is parameter
        assert parameter.tolist() == [[1, 2]]
        assert type(layer) is nn.Linear

    def test_copies_read_with_their_own_scores(self, keep_name: bool) -> None:
        layer = with_scores()
        Soft.apply(layer, "weight", keep_name=keep_name)
        copied = copy.deepcopy(layer)
        with torch.no_grad():
            copied.scores.fill_(100)
        assert [copied.weight.tolist(), layer.weight.tolist()] == [[[2, 4]], [[1, 2]]]

    def test_a_second_method_makes_a_container_that_reads_as_torchs_does(self, keep_name: bool) -> None:
        layer = with_scores()
        Soft.apply(layer, "weight", keep_name=keep_name)
        l1_unstructured(layer, "weight", 1)
        assert layer.weight.tolist() == [[0, 4]]

    def test_remove_of_a_method_is_called(self, keep_name: bool) -> None:
        layer = linear([[2.0, 4.0]])
        Noting.apply(layer, "weight", keep_name=keep_name)
        assert remove(layer, "weight").removed is True
        assert not layer._forward_pre_hooks


class TestSoftMasks:
    @pytest.mark.parametrize("value", [-1.0, 0.5, 3.0])
    def test_a_loaded_or_assigned_mask_is_a_factor_as_with_torch(self, value: float) -> None:
        loaded, assigned = (identity(linear([[2.0, 4.0]]), "weight") for _ in range(2))
        mask = torch.tensor([[value, 0.0]])
        loaded.load_state_dict({**loaded.state_dict(), "weight_mask": mask})
        assigned.weight_mask = mask
        for layer in (loaded, assigned):
            assert layer.weight.tolist() == [[2 * value, 0]]
            assert pruned_tensors(layer)["weight"].tolist() == [[True, False]]
            assert remove(layer, "weight").weight.tolist() == [[2 * value, 0]]

    def test_a_mask_of_0_and_1_is_a_mask_again(self) -> None:
        layer = identity(linear([[torch.inf, 4.0]]), "weight")
        layer.weight_mask = torch.tensor([[0.5, 0.5]])
        layer.weight_mask = torch.tensor([[0.0, 1.0]])
        assert layer.weight.tolist() == [[0, 4]]

    def test_a_learned_mask_gets_gradients(self) -> None:
        layer = custom_from_mask(linear([[2.0, 4.0]]), "weight", [[0, 1]])
        layer.weight_mask.requires_grad_()
        layer(torch.ones(1, 2)).sum().backward()
        assert layer.weight_mask.grad.tolist() == [[2, 4]]
        with torch.no_grad():
            layer.weight_mask.mul_(0.5)
        assert layer.weight.tolist() == [[0, 2]]
        assert remove(layer, "weight").weight.tolist() == [[0, 2]]


class TestHooksThatAssign:
    def test_the_tensor_counts_for_the_call_and_is_made_anew_in_the_next(self, keep_name: bool) -> None:
        ours, torchs = linear([[1.0, 2.0]]), linear([[1.0, 2.0]])
        l1_unstructured(ours, "weight", 1, keep_name=keep_name)
        torch_prune.l1_unstructured(torchs, "weight", 1)
        for layer in (ours, torchs):
            nn.init.zeros_(layer.bias)
            layer.register_forward_pre_hook(lambda module, _: setattr(module, "weight", module.weight * 10))
            assert [layer(torch.ones(1, 2)).item() for _ in range(3)] == [20, 20, 20]
        assert ours.weight.tolist() == [[0, 2]]
        assert zeros(copy.deepcopy(ours).weight) == 1
        assert remove(ours, "weight").weight.tolist() == [[0, 2]]

    def test_outside_of_a_call_a_tensor_is_refused(self, keep_name: bool) -> None:
        layer = l1_unstructured(linear([[1.0, 2.0]]), "weight", 1, keep_name=keep_name)
        with pytest.raises(TypeError, match=r"Assign an nn\.Parameter"):
            layer.weight = layer.weight * 10
