"""The product in pieces is that of the whole tensors, to the bit."""

from __future__ import annotations

import pytest
import torch

from lightning_prune.pruner.criteria import products
from lightning_prune.pruner.criteria.products import magnitude_of_product


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("shape", [(), (1,), (7,), (3, 5), (2, 3, 4)])
def test_as_of_whole_tensors(shape: tuple[int, ...], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "_PIECE", 4)
    weight, gradient = torch.randn(shape, dtype=dtype), torch.randn(shape, dtype=dtype)
    before = weight.clone(), gradient.clone()
    assert torch.equal(magnitude_of_product(weight, gradient), (weight * gradient).abs())
    assert torch.equal(weight, before[0])
    assert torch.equal(gradient, before[1])


def test_tensors_in_other_orders_of_memory_and_of_two_dtypes() -> None:
    weight, gradient = torch.randn(4, 6), torch.randn(6, 4)
    for other in (gradient.T, gradient.T.double()):
        assert torch.equal(magnitude_of_product(weight, other), (weight * other).abs())
