"""What a ranking takes: amounts, ties, dimensions and masks that are given."""

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
import torch
import torch._dynamo
import torch.nn.functional as F
from torch import Tensor, nn

from lightning_prune.prune import (
    L1Unstructured,
    custom_from_mask,
    global_unstructured,
    l1_unstructured,
    ln_structured,
    random_structured,
    random_unstructured,
    sparsity,
)
from tests.prune.modules import assert_refused, linear, zeros


def test_one_ranking_over_dtypes(keep_name: bool) -> None:
    narrow, wide = linear([[1.0, 5.0, 0.25]]).bfloat16(), linear([[2.0, 0.5, 6.0, 0.125]])
    global_unstructured([(narrow, "weight"), (wide, "weight")], L1Unstructured, amount=4, keep_name=keep_name)
    assert narrow.weight.tolist() == [[0, 5, 0]]
    assert wide.weight.tolist() == [[2, 0, 6, 0]]
    assert narrow.weight.dtype is torch.bfloat16


def test_a_fraction_is_of_what_is_left(keep_name: bool) -> None:
    layer = nn.Linear(16, 16, bias=False)
    reached = [sparsity(l1_unstructured(layer, "weight", 0.5, keep_name=keep_name)) for _ in range(3)]
    assert reached == [0.5, 0.75, 0.875]
    assert "0.5, 0.75 and 0.875" in l1_unstructured.__doc__


def test_ties_go_in_row_major_order(keep_name: bool) -> None:
    layer = l1_unstructured(linear([[2.0] * 3] * 4), "weight", 0.5, keep_name=keep_name)
    assert layer.weight.tolist() == [[0] * 3] * 2 + [[2] * 3] * 2


def test_global_ties_go_by_tensor(keep_name: bool) -> None:
    pairs = [(linear([[-1.0, 1.0]]), "weight"), (linear([[1.0, -1.0]]), "weight")]
    global_unstructured(pairs, L1Unstructured, amount=3, keep_name=keep_name)
    assert [module.weight.tolist() for module, _ in pairs] == [[[0, 0]], [[0, -1]]]


@pytest.mark.parametrize(
    ("amount", "count"),
    [
        (0, 0),
        (1, 1),
        (0.0, 0),
        (1.0, 8),
        (np.float32(0.5), 4),
        (np.int64(3), 3),
        (torch.tensor(0.25), 2),
        (np.array(3), 3),
    ],
)
def test_amounts(keep_name: bool, amount: float, count: int) -> None:
    for function in (l1_unstructured, random_unstructured):
        assert zeros(function(nn.Linear(4, 2), "weight", amount, keep_name=keep_name).weight) == count


@pytest.mark.parametrize(
    ("amount", "error", "message"),
    [
        (True, TypeError, "got True of type bool"),
        (float("nan"), ValueError, "in [0.0, 1.0], got nan"),
        (-1, ValueError, "should be >= 0, got -1"),
        (-0.5, ValueError, "in [0.0, 1.0], got -0.5"),
        (1.5, ValueError, "in [0.0, 1.0], got 1.5"),
    ],
)
def test_refused_amounts(keep_name: bool, amount: float, error: type[Exception], message: str) -> None:
    layer = nn.Linear(4, 2)
    calls: list[Callable[[], object]] = [
        lambda: l1_unstructured(layer, "weight", amount, keep_name=keep_name),
        lambda: random_unstructured(layer, "weight", amount, keep_name=keep_name),
        lambda: ln_structured(layer, "weight", amount, n=2, dim=0, keep_name=keep_name),
        lambda: random_structured(layer, "weight", amount, dim=0, keep_name=keep_name),
        lambda: global_unstructured([(layer, "weight")], L1Unstructured, amount=amount, keep_name=keep_name),
    ]
    for call in calls:
        assert_refused(layer, call, error, message)


def test_structured_after_unstructured_and_back(keep_name: bool) -> None:
    def rounds(order: str) -> tuple[list[int], list[Tensor]]:
        layer, counts, masks = nn.Linear(8, 8), [], []
        for kind in order:
            if kind == "u":
                l1_unstructured(layer, "weight", 0.25, keep_name=keep_name)
            else:
                ln_structured(layer, "weight", 0.25, n=2, dim=0, keep_name=keep_name)
            counts.append(zeros(layer.weight))
            masks.append(layer.weight_mask.clone().bool())
        return counts, masks

    for order, first in (("usu", 16), ("sus", 16)):
        counts, masks = rounds(order)
        assert counts[0] == first
        assert all(not (later & ~earlier).any() for earlier, later in pairwise(masks))
    counts, masks = rounds("susu")
    assert counts[:2] == [16, 16 + 12]  # a quarter of 64, then a quarter of the 48 left
    assert int((~masks[2].any(dim=1)).sum()) == 2 + round(0.25 * 6)  # channels that still had an entry: 6
    assert counts[3] == counts[2] + round(0.25 * (64 - counts[2]))


@pytest.mark.parametrize("function", [ln_structured, random_structured])
def test_dimensions(keep_name: bool, function: Callable) -> None:
    extra = {"n": 1} if function is ln_structured else {}
    for dim in range(4):
        conv = function(nn.Conv2d(3, 4, (2, 5)), "weight", amount=1, dim=dim - 4, keep_name=keep_name, **extra)
        others = [d for d in range(4) if d != dim]
        assert int((~conv.weight_mask.bool().any(dim=others)).sum()) == 1
    conv = nn.Conv2d(3, 4, (2, 5))
    for dim in (-5, 4, 7):
        call = lambda d=dim: function(conv, "weight", amount=1, dim=d, keep_name=keep_name, **extra)  # noqa: E731
        assert_refused(conv, call, IndexError, f"dim={dim}", "(4, 3, 2, 5)")


def test_a_users_method_with_a_dim_that_does_not_exist(keep_name: bool) -> None:
    layer = custom_from_mask(linear([[1.0, 2.0]]), "weight", [[1, 1]], keep_name=keep_name)
    body = {"PRUNING_TYPE": "structured", "dim": 7, "compute_mask": lambda self, t, default_mask: default_mask}
    method = type("Mine", (L1Unstructured,), body)
    assert_refused(layer, lambda: method.apply(layer, "weight", 1), IndexError, "dim=7", "(1, 2)")
    assert F.linear(torch.ones(1, 2), layer.weight).tolist() == [[3]]


def test_structured_on_a_bias(keep_name: bool) -> None:
    layer = nn.Linear(4, 4)
    for call in (
        lambda: ln_structured(layer, "bias", 0.5, n=2, dim=0, keep_name=keep_name),
        lambda: random_structured(layer, "bias", 0.5, dim=0, keep_name=keep_name),
    ):
        assert_refused(layer, call, ValueError, "Linear.bias", "at least two dimensions", "with an unstructured method")


def test_custom_masks(keep_name: bool) -> None:
    layer = nn.Linear(2, 2)
    for mask, message in [
        (torch.tensor([[1.0, 0.5], [1, 1]]), "only 0 and 1, got 1 other values such as 0.5"),
        (torch.tensor([[1, 2], [2, 1]]), "only 0 and 1, got 2 other values such as 2"),
        (torch.tensor([[1, torch.nan], [0, 1]]), "only 0 and 1"),
        (torch.ones(2), "(2, 2) of the tensor, got (2,)"),
        (torch.ones(1, 2), "(2, 2) of the tensor, got (1, 2)"),
    ]:
        call = lambda m=mask: custom_from_mask(layer, "weight", m, keep_name=keep_name)  # noqa: E731
        assert_refused(layer, call, ValueError, "Linear.weight", message)


def test_a_fraction_of_a_small_tensor(keep_name: bool) -> None:
    layer = nn.Linear(4, 1)
    for _ in range(10):
        l1_unstructured(layer, "weight", 0.1, keep_name=keep_name)
    assert zeros(layer.weight) == 0
    assert "10 % of 4 entries is 0, in every round" in " ".join(l1_unstructured.__doc__.split())
