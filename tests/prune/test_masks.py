"""What a method is shown: gradients, and no padding."""

import pytest
import torch
from torch import Tensor, nn

from lightning_prune.prune import (
    BasePruningMethod,
    L1Unstructured,
    LnStructured,
    custom_from_mask,
    global_unstructured,
    l1_unstructured,
    ln_structured,
    random_unstructured,
)
from tests.prune.modules import linear, zeros


class SmallestGradient(BasePruningMethod):
    """Drops the entry of smallest gradient."""

    PRUNING_TYPE = "unstructured"

    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        mask = default_mask.clone()
        mask.view(-1)[t.grad.abs().argmin()] = 0
        return mask


class Downwards(LnStructured):
    """Drops the channels of largest norm."""

    def channel_scores(self, t: Tensor) -> Tensor:
        return -super().channel_scores(t)


def test_a_method_sees_the_gradient_in_every_round(keep_name: bool) -> None:
    layer = linear([[1.0, 2.0, 3.0]])
    layer.weight.grad = torch.tensor([[3.0, -0.5, 1.0]])
    SmallestGradient.apply(layer, "weight", keep_name=keep_name)
    assert layer.weight.tolist() == [[1, 0, 3]]
    SmallestGradient.apply(layer, "weight")
    assert layer.weight.tolist() == [[1, 0, 0]]


def test_negative_channel_scores_rank_below_positive_ones(keep_name: bool) -> None:
    layer = linear([[1.0, 1.0], [5.0, 5.0], [3.0, 3.0]])
    Downwards.apply(layer, "weight", amount=1, n=2, dim=0, keep_name=keep_name)
    assert layer.weight.tolist() == [[1, 1], [0, 0], [3, 3]]


@pytest.mark.parametrize("cls", [nn.Embedding, nn.EmbeddingBag])
class TestPadding:
    def test_the_padding_row_takes_no_place(self, keep_name: bool, cls: type) -> None:
        for prune in (l1_unstructured, random_unstructured):
            layer = prune(cls(6, 4, padding_idx=0), "weight", 0.5, keep_name=keep_name)
            assert layer.weight_mask[0].tolist() == [1, 1, 1, 1]
            assert zeros(layer.weight_mask) == 10
            prune(layer, "weight", 1.0)
            assert layer.weight_mask.sum(dim=1).tolist() == [4, 0, 0, 0, 0, 0]

    def test_nor_does_it_among_channels_and_other_tensors(self, keep_name: bool, cls: type) -> None:
        layer = ln_structured(cls(6, 4, padding_idx=-1), "weight", 2, n=2, dim=0, keep_name=keep_name)
        assert sorted(layer.weight_mask[:5].sum(dim=1).tolist()) == [0, 0, 4, 4, 4]
        assert layer.weight_mask[5].sum() == 4
        layer, other = cls(6, 4, padding_idx=0), linear([[0.0]])
        global_unstructured([(layer, "weight"), (other, "weight")], L1Unstructured, amount=21, keep_name=keep_name)
        assert [zeros(layer.weight_mask), layer.weight_mask[0].sum(), zeros(other.weight_mask)] == [20, 4, 1]

    def test_a_mask_that_is_given_counts_for_all_rows(self, keep_name: bool, cls: type) -> None:
        layer = custom_from_mask(cls(2, 2, padding_idx=0), "weight", [[0, 1], [1, 0]], keep_name=keep_name)
        assert layer.weight_mask.tolist() == [[0, 1], [1, 0]]
        l1_unstructured(layer, "weight", 1)
        assert layer.weight_mask.tolist() == [[0, 1], [0, 0]]
