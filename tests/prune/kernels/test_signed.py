"""Selection with signs equals a stable sort."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lightning_prune.prune.kernels.signed import signed_keep_masks
from lightning_prune.prune.sharded.masks import signed_masks


def by_sorting(scores: list[Tensor], count: int, alive: list[Tensor]) -> list[Tensor]:
    flat, living = torch.cat([s.flatten() for s in scores]), torch.cat([a.flatten() for a in alive])
    order = [i for i in flat.sort(stable=True).indices.tolist() if living[i]]
    living[order[:count]] = False
    parts = living.split([s.numel() for s in scores])
    return [part.view(s.shape) for part, s in zip(parts, scores, strict=True)]


def mixed(dtype: torch.dtype, seed: int = 0) -> list[Tensor]:
    """Both signs, ties, zeros of both signs and numbers below the smallest normal one."""
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.randint(-4, 5, (7, 11), generator=generator).to(dtype)
    tiny = torch.tensor([1e-40, -1e-40, 0.0, -0.0, -1e-45, 1e-45], dtype=dtype)
    return [coarse, tiny, torch.randn(13, generator=generator).to(dtype)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("masked", [False, True])
def test_every_count_is_that_of_a_stable_sort(dtype: torch.dtype, masked: bool) -> None:
    scores = mixed(dtype)
    generator = torch.Generator().manual_seed(1)
    alive = [torch.rand(s.shape, generator=generator) > 0.3 * masked for s in scores]
    for count in range(sum(int(a.sum()) for a in alive) + 1):
        found = signed_keep_masks(scores, count, alive=alive if masked else None)
        wanted = by_sorting(scores, count, alive)
        assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_split_tensors_are_ranked_alike(dtype: torch.dtype) -> None:
    scores = mixed(dtype)
    for count in range(sum(s.numel() for s in scores) + 1):
        found = signed_masks(scores, count, [None] * 3)
        wanted = signed_keep_masks(scores, count)
        assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))


def test_what_cannot_be_ranked_is_refused() -> None:
    with pytest.raises(ValueError, match="second: 1 of 2 entries are NaN"):
        signed_keep_masks([torch.ones(2), torch.tensor([torch.nan, -1.0])], 1, names=["first", "second"])
    with pytest.raises(ValueError, match="complex scores have no order"):
        signed_keep_masks([torch.ones(2, dtype=torch.complex64)], 1)
    with pytest.raises(ValueError, match="cannot drop 3"):
        signed_keep_masks([torch.ones(2)], 3)
