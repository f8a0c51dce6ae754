"""Masks after an update of regrowth: those of two stable sorts, however numbers are stored and tie."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from lightning_prune.prune.kernels.moving import moved_mask

SHAPES = {"small": (20, 30), "pieces": (550, 1_000)}  # the second in three pieces
VALUES: dict[str, Any] = {
    "normal": torch.randn,
    "ties": lambda *shape: torch.randint(-3, 4, shape).float(),
    "zeros": torch.zeros,
    "double": lambda *shape: torch.randn(*shape, dtype=torch.float64),
    "half": lambda *shape: torch.randn(*shape).half(),
    "inf": lambda *shape: torch.randn(*shape).masked_fill_(torch.rand(*shape) < 0.1, torch.inf),
    "two": lambda *shape: torch.where(torch.rand(*shape) < 0.5, 1.0, 1.0 + 2**-20),
}


def by_sorting(weight: Tensor, alive: Tensor, scores: Tensor, count: int, strict: bool, signed: bool) -> Tensor:
    new, living = alive.flatten().clone(), alive.flatten().nonzero().flatten()
    new[living[weight.flatten()[living].abs().argsort(stable=True)[:count]]] = False
    masked = (~(alive.flatten() if strict else new)).nonzero().flatten()
    ranked = scores.flatten()[masked] if signed else scores.flatten()[masked].abs()
    new[masked[ranked.argsort(stable=True)[len(masked) - count :]]] = True
    return new.view_as(alive)


@pytest.mark.parametrize("share", [0.1, 0.5])
@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("values", VALUES)
@pytest.mark.parametrize("size", SHAPES)
def test_equals_two_stable_sorts(size: str, values: str, strict: bool, share: float) -> None:
    torch.manual_seed(len(values))
    shape = SHAPES[size]
    alive = torch.rand(shape) < share
    weight, scores = VALUES[values](*shape) * alive, VALUES[values](*shape)
    weight = weight.nan_to_num(0.0)  # inf times 0
    for count in (0, 1, int(0.3 * int(alive.sum())), int(alive.sum())):
        if strict and count > int((~alive).sum()):
            continue
        found = moved_mask(weight, alive, scores, count, strict=strict)
        assert torch.equal(found, by_sorting(weight, alive, scores, count, strict, signed=False))
        assert int(found.sum()) == int(alive.sum())


@pytest.mark.parametrize("signed", [True, False])
def test_of_other_memory_and_with_signs(signed: bool) -> None:
    torch.manual_seed(0)
    alive = torch.rand(600, 500) < 0.2
    weight, scores = torch.randn(600, 500) * alive, torch.randn(500, 600).T
    found = moved_mask(weight, alive, scores, 9_000, signed=signed)
    assert torch.equal(found, by_sorting(weight, alive, scores, 9_000, True, signed))


@pytest.mark.parametrize("size", SHAPES)
def test_random_ones_come_back_in_the_places_of_the_smallest(size: str) -> None:
    torch.manual_seed(0)
    alive = torch.rand(SHAPES[size]) < 0.2
    weight, count = torch.randn(SHAPES[size]) * alive, int(0.05 * alive.numel())
    found = moved_mask(weight, alive, None, count)
    expected = by_sorting(weight, alive, torch.rand(SHAPES[size]), count, True, False)
    assert torch.equal(found & alive, expected & alive)
    assert int(found.sum()) == int(alive.sum())
    again = moved_mask(weight, alive, None, count)
    assert not torch.equal(found, again)


@pytest.mark.parametrize("size", SHAPES)
def test_what_is_not_a_number_is_refused_only_where_it_is_ranked(size: str) -> None:
    torch.manual_seed(0)
    alive = torch.rand(SHAPES[size]) < 0.4
    weight, scores, count = torch.randn(SHAPES[size]) * alive, torch.randn(SHAPES[size]), int(0.1 * alive.numel())
    expected = moved_mask(weight, alive, scores, count)
    assert torch.equal(
        moved_mask(weight, alive, scores.masked_fill(alive, torch.nan), count), expected
    )  # of what is left scores are not asked
    weight[tuple(alive.nonzero()[7])] = torch.nan
    with pytest.raises(ValueError, match=r"'layer': 1 of .* NaN"):
        moved_mask(weight, alive, scores, count, name="layer")
    scores[tuple((~alive).nonzero()[7])] = torch.nan
    with pytest.raises(ValueError, match=r"scores of 'layer': 1 of .* NaN"):
        moved_mask(weight.nan_to_num(9.0), alive, scores, count, name="layer")
