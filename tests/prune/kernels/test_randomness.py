"""Random numbers of an event's own: seeded alike, and training draws what it would have drawn."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from lightning_prune.prune.kernels.randomness import seeded


def draws() -> list[float]:
    return [float(torch.rand(())), float(np.random.rand()), random.random(), float(np.random.randn())]


@pytest.mark.parametrize("seed", [0, 7, 2**63 - 1, 2**64 - 1])
def test_the_same_numbers_from_the_same_seed(seed: int) -> None:
    with seeded(seed):
        first = draws()
    with seeded(seed):
        assert draws() == first
    with seeded(seed ^ 1):
        assert all(a != b for a, b in zip(draws(), first, strict=True))


def test_generators_go_on_where_they_were() -> None:
    torch.manual_seed(1)
    np.random.seed(1)
    random.seed(1)
    expected = [draws(), draws()]
    torch.manual_seed(1)
    np.random.seed(1)
    random.seed(1)
    found = [draws()]
    with pytest.raises(ZeroDivisionError), seeded(5):
        draws()[0] / 0
    assert [*found, draws()] == expected
