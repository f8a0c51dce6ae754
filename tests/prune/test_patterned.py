"""N of each M, and blocks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from lightning_prune import prune
from lightning_prune.prune import LnBlocks, NMStructured


def test_exactly_n_of_m_by_magnitude() -> None:
    layer = nn.Linear(16, 6)
    prune.n_m_structured(layer, "weight", n=2, m=4)
    groups, kept = layer.weight_orig.detach().abs().view(-1, 4), layer.weight_mask.view(-1, 4).bool()
    assert kept.sum(1).tolist() == [2] * 24
    for group, mask in zip(groups, kept, strict=True):
        assert float(group[mask].min()) >= float(group[~mask].max())


@pytest.mark.parametrize(("dim", "n", "m"), [(0, 1, 2), (1, 3, 4), (2, 1, 3), (-1, 2, 3)])
def test_groups_along_any_dimension(dim: int, n: int, m: int) -> None:
    conv = nn.Conv2d(4, 8, 3)
    prune.n_m_structured(conv, "weight", n, m, dim)
    assert bool((conv.weight_mask.movedim(dim, -1).reshape(-1, m).sum(1) == n).all())


def test_stepwise_all_groups_lose_one_first() -> None:
    layer = nn.Linear(16, 6)
    for amount, left in ((24, [3] * 24), (12, None), (12, [2] * 24)):
        prune.n_m_structured(layer, "weight", amount=amount)
        counts = layer.weight_mask.view(-1, 4).sum(1)
        assert left is None or counts.tolist() == left
        assert set(counts.tolist()) <= {2, 3}
    with pytest.raises(ValueError, match="asks for 1 entries, but 2 of each 4 stay: 0 may go"):
        prune.n_m_structured(layer, "weight", amount=1)


def test_masked_entries_count_as_gone() -> None:
    layer = nn.Linear(8, 1)
    prune.custom_from_mask(layer, "weight", torch.tensor([[0, 0, 0, 1, 1, 1, 1, 1]]))
    prune.n_m_structured(layer, "weight")
    assert layer.weight_mask.view(2, 4).sum(1).tolist() == [1, 2]


def test_scores_with_signs() -> None:
    scores = torch.tensor([[-5.0, 1.0, 2.0, -0.5]])
    layers = [nn.Linear(4, 1) for _ in range(4)]
    prune.l1_unstructured(layers[0], "weight", 2, scores, signed=True)
    prune.l1_unstructured(layers[1], "weight", 2, scores)
    prune.n_m_structured(layers[2], "weight", importance_scores=scores, signed=True)
    prune.ln_structured(layers[3], "weight", 2, n="sum", dim=1, importance_scores=scores)
    masks = [layer.weight_mask.tolist() for layer in layers]
    assert masks == [[[0, 1, 1, 0]], [[1, 0, 1, 0]], [[0, 1, 1, 0]], [[0, 1, 1, 0]]]


@pytest.mark.parametrize("block", [(4, 1), (1, 4), (2, 3), (8, 12)])
def test_blocks_of_smallest_norm_go(block: Any) -> None:
    layer = nn.Linear(12, 8)
    prune.ln_blocks(layer, "weight", 0.5, block)
    (r, c), parts = block, (8 // block[0], block[0], 12 // block[1], block[1])
    norms = layer.weight_orig.detach().view(parts).norm(dim=(1, 3)).flatten()
    kept = layer.weight_mask.view(parts).sum((1, 3)).flatten()
    assert set(kept.tolist()) <= {0.0, float(r * c)}
    gone = round(len(norms) / 2)
    assert sorted((kept == 0).nonzero().flatten().tolist()) == sorted(norms.argsort()[:gone].tolist())


def test_blocks_of_kernels_and_of_matrices() -> None:
    conv = prune.ln_blocks(nn.Conv2d(4, 8, 3), "weight", 0.5, (8, 1, 3, 3))
    assert sorted(conv.weight_mask.sum((0, 2, 3)).tolist()) == [0, 0, 72, 72]
    flat = prune.ln_blocks(nn.Conv2d(4, 8, 3), "weight", 18, (4, 2))
    assert int((flat.weight_mask.view(2, 4, 18, 2).sum((1, 3)) == 0).sum()) == 18


def test_a_second_round_takes_the_smallest_of_the_blocks_that_are_left() -> None:
    layer = nn.Linear(6, 4)  # the norms of its 2 x 2 blocks rise
    with torch.no_grad():
        layer.weight.copy_(torch.arange(24.0).view(4, 6) + 1)
    for kept in ([0, 0, 1, 1, 1, 1], [0, 0, 0, 0, 1, 1]):
        prune.ln_blocks(layer, "weight", 2, block=(2, 2))
        blocks = layer.weight_mask.view(2, 2, 3, 2)
        assert blocks.sum((1, 3)).flatten().tolist() == [4 * k for k in kept]


def test_blocks_of_many_tensors_in_one_ranking() -> None:
    small, large = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
    large.weight.data = small.weight.data * 10 + 10
    prune.global_unstructured([(small, "weight"), (large, "weight")], LnBlocks, amount=4, block=(4, 1))
    assert [int((m.weight_mask == 0).sum()) for m in (small, large)] == [16, 0]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda m: prune.n_m_structured(m, "weight", 2, 5), ValueError, "no multiple of m=5"),
        (lambda m: prune.n_m_structured(m, "weight", 4, 4), ValueError, "0 < n < m, got n=4, m=4"),
        (lambda m: prune.n_m_structured(m, "weight", 2, 4, 2), IndexError, "dim=2 does not exist"),
        (lambda m: prune.ln_blocks(m, "weight", 0.5, (5, 1)), ValueError, "does not divide into blocks of"),
        (lambda m: prune.ln_blocks(m, "weight", 0.5, (0, 1)), ValueError, "block should be the sizes"),
    ],
)
def test_what_is_refused_changes_nothing(call: Any, error: type[Exception], message: str) -> None:
    layer = nn.Linear(8, 4)
    with pytest.raises(error, match=message):
        call(layer)
    assert not prune.is_pruned(layer)


def test_methods_are_shown_and_compared_by_their_arguments() -> None:
    assert repr(NMStructured(1, 2)) == "NMStructured(n=1, m=2, dim=1)"
    assert NMStructured() == NMStructured() != NMStructured(signed=True)
    assert repr(LnBlocks(0.5, [4, 1])) == "LnBlocks(amount=0.5, block=(4, 1), n=2)"
