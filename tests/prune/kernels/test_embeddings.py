"""Embeddings with sparse gradients and with rows of bounded norm, pruned by the engine."""

import pytest
import torch
from torch import nn

from lightning_prune.prune import custom_from_mask, remove

MASK = torch.tensor([[1, 0], [0, 1], [1, 1]])
INDICES = torch.tensor([[1, 2, 2]])


@pytest.mark.parametrize("keep_name", [False, True])
@pytest.mark.parametrize("make", [nn.Embedding, lambda *a, **k: nn.EmbeddingBag(*a, mode="sum", **k)])
class TestEmbeddings:
    def test_sparse_gradients_are_the_dense_ones_and_train(self, keep_name: bool, make: type) -> None:
        torch.manual_seed(0)
        sparse, dense = make(3, 2, sparse=True), make(3, 2)
        dense.load_state_dict(sparse.state_dict())
        for layer in (sparse, dense):
            custom_from_mask(layer, "weight", MASK, keep_name=keep_name)
            layer(INDICES).square().sum().backward()
        gradients = [next(layer.parameters()).grad for layer in (sparse, dense)]
        assert gradients[0].is_sparse
        torch.testing.assert_close(gradients[0].to_dense(), gradients[1])
        assert not gradients[1][MASK == 0].any()
        before = sparse.weight.detach().clone()
        torch.optim.SparseAdam(list(sparse.parameters()), lr=0.1).step()
        changed = sparse.weight != before
        assert changed.tolist() == [[False, False], [False, True], [True, True]]

    def test_the_bound_of_the_norm_holds_in_the_parameter(self, keep_name: bool, make: type) -> None:
        layer = make(3, 2, max_norm=1.0)
        layer.weight = nn.Parameter(torch.tensor([[3.0, 4.0], [3.0, 4.0], [3.0, 4.0]]))
        custom_from_mask(layer, "weight", MASK, keep_name=keep_name)
        layer(INDICES)
        expected = torch.tensor([[3.0, 0.0], [0.0, 1.0], [0.6, 0.8]])
        torch.testing.assert_close(layer.weight, expected)
        torch.testing.assert_close(remove(layer, "weight").weight, expected)
