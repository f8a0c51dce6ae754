"""Methods written for torch.nn.utils.prune find its helpers after the import is replaced."""

import pytest
import torch
from torch import Tensor

import lightning_prune.prune as prune
from tests.prune.modules import linear


class SmallestNorm(prune.BasePruningMethod):
    """A structured method in the manner of torch's own."""

    PRUNING_TYPE = "structured"

    def __init__(self, amount: float, dim: int) -> None:
        prune._validate_pruning_amount_init(amount)
        self.amount, self.dim = amount, dim

    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        prune._validate_structured_pruning(t)
        prune._validate_pruning_dim(t, self.dim)
        count = prune._compute_nparams_toprune(self.amount, t.shape[self.dim])
        prune._validate_pruning_amount(count, t.shape[self.dim])
        lowest = prune._compute_norm(t, 2, self.dim).topk(count, largest=False).indices
        return default_mask.index_fill(self.dim, lowest, 0)


def test_a_method_that_is_made_of_them_prunes(keep_name: bool) -> None:
    layer = linear([[1.0, 1.0], [3.0, 3.0], [2.0, 2.0], [4.0, 4.0]])
    SmallestNorm.apply(layer, "weight", 0.25, 0, keep_name=keep_name)
    SmallestNorm.apply(layer, "weight", 1, 0)
    assert layer.weight.tolist() == [[0, 0], [3, 3], [0, 0], [4, 4]]


def test_they_refuse_what_torchs_refuse() -> None:
    for amount, error in [("few", TypeError), (1.1, ValueError), (20.0, ValueError), (-10, ValueError)]:
        with pytest.raises(error):
            prune._validate_pruning_amount_init(amount)
    with pytest.raises(ValueError, match="20 is more than the 19"):
        prune._validate_pruning_amount(20, 19)
    with pytest.raises(ValueError, match="two dimensions"):
        prune._validate_structured_pruning(torch.ones(3))
    with pytest.raises(IndexError, match="dim=2 does not exist"):
        prune._validate_pruning_dim(torch.ones(3, 2), 2)


def test_they_count_as_torchs_do() -> None:
    counts = [prune._compute_nparams_toprune(amount, size) for amount, size in [(0, 15), (1, 15), (1.0, 15), (0.4, 17)]]
    assert counts == [0, 1, 15, 7]
    assert prune._compute_norm(torch.tensor([[3.0, 4.0], [0.0, 2.0]]), 2, 0).tolist() == [5, 2]
    prune._validate_pruning_amount(0.3, 0)


def test_a_containers_mask_has_the_dtype_of_the_tensor() -> None:
    container = prune.PruningContainer(prune.L1Unstructured(1))
    for dtype in (torch.float32, torch.float16, torch.float64):
        mask = container.compute_mask(torch.tensor([1.0, 2.0], dtype=dtype), torch.tensor([1, 1]))
        assert mask.dtype is dtype
        assert mask.tolist() == [0, 1]
