"""The method classes: what each of them leaves, alone and after others, and the errors of all."""

import pytest
import torch
import torch.nn.utils.prune as torch_prune
from torch import Tensor, nn

from lightning_prune.prune import (
    BasePruningMethod,
    CustomFromMask,
    Identity,
    L1Unstructured,
    LnStructured,
    RandomStructured,
    RandomUnstructured,
)
from lightning_prune.prune.attribute import Layout
from lightning_prune.prune.base import apply_method
from tests.prune.modules import EveryOther, assert_refused, history, linear, stored, zeros

ROWS = [[3.0, -4.0], [1.0, 1.0], [2.0, 0.5]]
ONES = torch.ones(3, 2)


def mask_of(method: BasePruningMethod, default_mask: Tensor = ONES) -> list[list[float]]:
    return method.compute_mask(torch.tensor(ROWS), default_mask).tolist()


class TestComputeMask:
    def test_identity(self) -> None:
        before = torch.tensor([[1.0, 0], [0, 1], [1, 1]])
        mask = Identity().compute_mask(torch.tensor(ROWS), before)
        assert torch.equal(mask, before)
        assert mask is not before

    def test_unstructured(self) -> None:
        assert mask_of(L1Unstructured(2)) == [[1, 1], [0, 1], [1, 0]]
        assert mask_of(L1Unstructured(1), torch.tensor([[1.0, 0], [0, 0], [1, 0]])) == [[1, 0], [0, 0], [0, 0]]

    def test_ln_structured(self) -> None:
        assert mask_of(LnStructured(1, n=2, dim=0)) == [[1, 1], [0, 0], [1, 1]]
        assert mask_of(LnStructured(1, n=1)) == [[1, 0], [1, 0], [1, 0]]
        assert mask_of(LnStructured(0.5, n=2, dim=0), torch.tensor([[0.0, 0], [1, 1], [1, 0]])) == [
            [0, 0],
            [0, 0],
            [1, 0],
        ]

    def test_the_norm_leaves_out_what_is_masked(self) -> None:
        assert mask_of(LnStructured(1, n=2, dim=0), torch.tensor([[1.0, 0], [1, 1], [0, 1]])) == [
            [1, 0],
            [1, 1],
            [0, 0],
        ]

    def test_nuclear_norm_of_convolution_kernels(self) -> None:
        weight = torch.zeros(2, 2, 2, 1)
        weight[0, :, :, 0] = torch.eye(2)  # nuclear norm 2, Frobenius norm sqrt(2)
        weight[1, 0, 0, 0] = 1.5
        by = {
            n: LnStructured(1, n=n, dim=0).compute_mask(weight, torch.ones_like(weight)).sum((1, 2, 3))
            for n in ("fro", "nuc")
        }
        assert by["fro"].tolist() == [0, 4]
        assert by["nuc"].tolist() == [4, 0]

    def test_random_methods_never_revive(self) -> None:
        before = torch.tensor([[0.0, 1], [0, 1], [0, 1]])
        assert mask_of(RandomUnstructured(1.0), before) == [[0, 0]] * 3
        assert sum(map(sum, mask_of(RandomUnstructured(1), before))) == 2
        assert sum(map(sum, mask_of(RandomStructured(1, dim=0), before))) == 2
        assert mask_of(RandomStructured(1), before) == [[0, 0]] * 3

    def test_custom(self) -> None:
        method = CustomFromMask([[1, 0], [1, 1], [0, 1]])
        assert mask_of(method, torch.tensor([[1.0, 1], [0, 1], [1, 1]])) == [[1, 0], [0, 1], [0, 1]]

    def test_channels_that_are_gone_as_a_whole_are_not_ranked(self) -> None:
        before = torch.tensor([[0.0, 0], [1, 1], [1, 1]])
        rows = torch.tensor([[torch.nan, 9], [3, 3], [2, 0.5]])
        assert LnStructured(1, n=2, dim=0).compute_mask(rows, before).tolist() == [[0, 0], [1, 1], [0, 0]]

    def test_scores_of_ones_own_see_zeros_where_channels_are_gone(self) -> None:
        class FarFromTheMean(LnStructured):
            def channel_scores(self, t: Tensor) -> Tensor:
                return (t - t.mean(0)).norm(dim=1)

        rows = torch.tensor([[9.0, 9], [1, 1], [5, 5]])
        assert FarFromTheMean(1, n=2, dim=0).compute_mask(rows, torch.ones(3, 2)).tolist() == [[1, 1], [1, 1], [0, 0]]
        before = torch.tensor([[0.0, 0], [1, 1], [1, 1]])
        assert FarFromTheMean(1, n=2, dim=0).compute_mask(rows, before).tolist() == [[0, 0], [0, 0], [1, 1]]

    def test_channels_without_entries_are_not_there_to_prune(self) -> None:
        with pytest.raises(ValueError, match="more than the 0 units"):
            LnStructured(1, n=2, dim=0).prune(torch.ones(3, 0))

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bool, torch.int64, torch.bfloat16])
    def test_the_mask_has_the_dtype_of_the_mask_before(self, dtype: torch.dtype) -> None:
        for method in (Identity(), L1Unstructured(1), RandomUnstructured(1), LnStructured(1, 2), RandomStructured(1)):
            assert method.compute_mask(torch.tensor(ROWS), ONES.to(dtype)).dtype is dtype

    def test_no_method_changes_what_it_is_given(self) -> None:
        tensor, mask = torch.tensor(ROWS), ONES.clone()
        for method in (Identity(), L1Unstructured(1), RandomUnstructured(1), LnStructured(1, 2), CustomFromMask(ONES)):
            method.compute_mask(tensor, mask)
        assert tensor.tolist() == ROWS
        assert torch.equal(mask, ONES)


class TestPrune:
    def test_values(self) -> None:
        assert L1Unstructured(2).prune(torch.tensor([3.0, -1.0, 2.0, 0.5])).tolist() == [3, 0, 2, 0]

    def test_mask_and_scores(self) -> None:
        tensor = torch.tensor([3.0, -1.0, 2.0, torch.inf])
        pruned = L1Unstructured(1).prune(
            tensor, default_mask=torch.tensor([1.0, 1, 1, 0]), importance_scores=torch.tensor([0.1, 5, 5, 0])
        )
        assert pruned.tolist() == [0, -1, 2, 0]

    def test_scores_of_a_wrong_shape(self) -> None:
        with pytest.raises(
            ValueError, match=r"importance_scores should have the shape \(3,\) of the tensor, got \(2,\)"
        ):
            L1Unstructured(1).prune(torch.ones(3), importance_scores=torch.ones(2))


class TestApply:
    def test_returns_what_is_registered(self, keep_name: bool) -> None:
        layer = linear(ROWS)
        first = L1Unstructured.apply(layer, "weight", amount=1, keep_name=keep_name)
        assert list(layer._forward_pre_hooks.values()) == [first]
        assert isinstance(first, torch_prune.BasePruningMethod)
        second = LnStructured.apply(layer, "weight", 1, 2, dim=0)
        assert list(layer._forward_pre_hooks.values()) == [second]
        assert history(layer)[0] is first

    def test_apply_mask_has_the_current_value_and_a_gradient(self, keep_name: bool) -> None:
        layer = linear(ROWS)
        method = L1Unstructured.apply(layer, "weight", amount=2, keep_name=keep_name)
        with torch.no_grad():
            stored(layer).mul_(2)
        value = method.apply_mask(layer)
        assert value.tolist() == [[6, -8], [0, 2], [4, 0]]
        value.sum().backward()
        assert stored(layer).grad.tolist() == [[1, 1], [0, 1], [1, 0]]

    def test_remove(self, keep_name: bool) -> None:
        layer = linear(ROWS)
        parameter = layer.weight
        method = L1Unstructured.apply(layer, "weight", amount=2, keep_name=keep_name)
        method.remove(layer)
        assert layer.weight is parameter
        assert parameter.tolist() == [[3, -4], [0, 1], [2, 0]]
        for call in (method.remove, method.apply_mask):
            with pytest.raises(ValueError, match=r"Linear.weight is not pruned"):
                call(layer)

    def test_a_method_that_was_never_applied(self) -> None:
        layer = linear(ROWS)
        for call in (L1Unstructured(1).remove, L1Unstructured(1).apply_mask):
            assert_refused(layer, lambda call=call: call(layer), ValueError, "L1Unstructured was not applied")


class EveryOtherColumn(torch_prune.BasePruningMethod):
    """Written for torch: relies on the shape that torch gives it the first time."""

    PRUNING_TYPE = "unstructured"

    def __init__(self, step: int, scratch: Tensor | None = None) -> None:
        self.step, self.scratch = step, scratch

    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        mask = default_mask.clone()
        mask[..., :: self.step] = 0
        return mask


class TestMethodsOfTorch:
    def test_torchs_own_classes_prune_as_ours(self, keep_name: bool) -> None:
        layout = Layout.KEPT if keep_name else Layout.DOCUMENTED
        pairs = [
            (torch_prune.L1Unstructured(2), L1Unstructured(2)),
            (torch_prune.LnStructured(1, 2, 0), LnStructured(1, 2, 0)),
            (torch_prune.L1Unstructured(0.5), L1Unstructured(0.5)),
            (
                torch_prune.CustomFromMask(torch.tensor([[1.0, 1], [1, 1], [1, 0]])),
                CustomFromMask([[1, 1], [1, 1], [1, 0]]),
            ),
        ]
        theirs, ours = (linear([[3.0, -4.0], [1.0, 1.5], [2.0, 0.5]]) for _ in range(2))  # no ties
        for their_method, our_method in pairs:
            apply_method(their_method, theirs, "weight", None, layout)
            apply_method(our_method, ours, "weight", None, layout)
            assert torch.equal(theirs.weight_mask, ours.weight_mask)
        assert len(history(theirs)) == 4

    def test_the_first_time_a_method_sees_the_tensor_in_its_shape(self, keep_name: bool) -> None:
        layer = linear(ROWS)
        apply_method(EveryOtherColumn(2), layer, "weight", None, Layout.KEPT if keep_name else Layout.DOCUMENTED)
        assert layer.weight.tolist() == [[0, -4], [0, 1], [0, 0.5]]
        apply_method(EveryOtherColumn(3), layer, "weight", None, Layout.KEPT)
        assert layer.weight.tolist() == [[0, 0], [0, 1], [0, 0.5]]

    def test_the_history_keeps_no_tensors(self) -> None:
        layer, big = linear(ROWS), torch.ones(1000)
        method = EveryOtherColumn(2, scratch=big)
        apply_method(method, layer, "weight", None, Layout.DOCUMENTED)
        (record,) = history(layer)
        assert (record.step, record.scratch) == (2, None)
        assert method.scratch is big


class Wrong(BasePruningMethod):
    PRUNING_TYPE = "global"

    def __init__(self, result: object) -> None:
        self.result = result

    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        t.zero_()
        default_mask.zero_()
        if isinstance(self.result, Exception):
            raise self.result
        return self.result


class NoType(EveryOther):
    PRUNING_TYPE = "filters"


@pytest.mark.parametrize("rounds", [0, 1, 2])
class TestRefused:
    @pytest.fixture
    def layer(self, rounds: int, keep_name: bool) -> nn.Linear:
        layer = linear(ROWS)
        for _ in range(rounds):
            L1Unstructured.apply(layer, "weight", 1, keep_name=keep_name)
        return layer

    @pytest.mark.parametrize(
        ("method", "arguments", "error", "message"),
        [
            (
                L1Unstructured,
                {"amount": 1.5},
                ValueError,
                "Linear.weight: amount as a fraction should be in [0.0, 1.0]",
            ),
            (L1Unstructured, {"amount": 7}, ValueError, "units that are left to prune"),
            (L1Unstructured, {"amount": None}, TypeError, "got None of type NoneType"),
            (
                L1Unstructured,
                {"amount": 1, "importance_scores": torch.ones(3)},
                ValueError,
                "(3, 2) of Linear.weight, got (3,)",
            ),
            (L1Unstructured, {"amount": 1, "importance_scores": [1.0]}, TypeError, "should be a tensor"),
            (L1Unstructured, {"amount": 1, "importance_scores": ONES * torch.nan}, ValueError, "are NaN"),
            (L1Unstructured, {}, TypeError, "missing 1 required positional argument"),
            (RandomUnstructured, {"amount": -1}, ValueError, "got -1"),
            (RandomUnstructured, {"amount": 7}, ValueError, "units that are left to prune"),
            (RandomStructured, {"amount": 4, "dim": 0}, ValueError, "amount=4 is more than the 3 units"),
            (RandomStructured, {"amount": 1, "dim": 2}, IndexError, "dim=2 does not exist in a tensor of shape (3, 2)"),
            (RandomStructured, {"amount": 1, "dim": None}, TypeError, "Linear.weight"),
            (LnStructured, {"amount": 1, "n": 2, "dim": -3}, IndexError, "dim=-3 does not exist"),
            (LnStructured, {"amount": 1, "n": 0, "dim": 0}, ValueError, "n=0 is"),
            (LnStructured, {"amount": 1, "n": "l2", "dim": 0}, ValueError, "n='l2' is"),
            (CustomFromMask, {"mask": None}, ValueError, "holds no mask"),
            (CustomFromMask, {"mask": torch.ones(2, 3)}, ValueError, "mask should have the shape (3, 2)"),
            (CustomFromMask, {"mask": ONES * 2}, ValueError, "only 0 and 1, got 6 other values such as 2"),
            (Wrong, {"result": torch.ones(2)}, ValueError, "the mask of Wrong should have the shape (3, 2)"),
            (Wrong, {"result": ONES * 0.5}, ValueError, "the mask of Wrong should hold only 0 and 1"),
            (Wrong, {"result": None}, TypeError, "the mask of Wrong should be a tensor"),
            (Wrong, {"result": KeyError("mine")}, KeyError, "mine"),
            (Wrong, {"result": ValueError("mine")}, ValueError, "Linear.weight: mine"),
            (
                NoType,
                {},
                ValueError,
                "NoType.PRUNING_TYPE should be 'unstructured', 'structured' or 'global', got 'filters'",
            ),
        ],
    )
    def test_a_refused_method_changes_nothing(
        self, layer: nn.Linear, keep_name: bool, method: type, arguments: dict, error: type[Exception], message: str
    ) -> None:
        call = lambda: method.apply(layer, "weight", keep_name=keep_name, **arguments)  # noqa: E731
        assert_refused(layer, call, error, message)

    @pytest.mark.parametrize(
        ("name", "error", "message"),
        [
            ("nope", AttributeError, "Linear.nope does not exist"),
            ("in_features", TypeError, "Linear.in_features is not a parameter but a int"),
            ("", AttributeError, "parameters of this module"),
            (0, TypeError, "the name of a parameter of Linear is wanted, got 0"),
            ("bias", ValueError, "structured pruning needs a tensor of at least two dimensions, got shape (3,)"),
        ],
    )
    def test_a_wrong_name(
        self, layer: nn.Linear, name: str, error: type[Exception], message: str, keep_name: bool
    ) -> None:
        assert_refused(layer, lambda: LnStructured.apply(layer, name, 1, 2, 0, keep_name=keep_name), error, message)


def test_what_is_stored_of_a_pruned_tensor_is_not_pruned_itself(keep_name: bool) -> None:
    layer = linear(ROWS)
    L1Unstructured.apply(layer, "weight", 1, keep_name=keep_name)
    assert_refused(layer, lambda: L1Unstructured.apply(layer, "weight_orig", 1), ValueError, "prune 'weight' instead")
    assert_refused(
        layer, lambda: L1Unstructured.apply(layer, "weight_mask", 1), TypeError, "weight_mask is not a parameter"
    )


def test_only_modules_can_be_pruned() -> None:
    with pytest.raises(TypeError, match="a module is wanted to prune 'weight' of, got Parameter"):
        L1Unstructured.apply(linear(ROWS).weight, "weight", 1)


def test_equal_methods_are_equal_with_the_types_of_their_arguments() -> None:
    assert L1Unstructured(1) == L1Unstructured(1)
    assert L1Unstructured(1) != L1Unstructured(1.0)  # one entry; all of them
    assert L1Unstructured(1) != RandomUnstructured(1)
    assert zeros(L1Unstructured(1.0).prune(torch.ones(4))) == 4
