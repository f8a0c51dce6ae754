"""Checksums of masks and hashes, in one process."""

from __future__ import annotations

import pytest
import torch

from lightning_prune.distributed import checksum, mean_over_ranks, require_same, require_same_masks
from lightning_prune.prune.kernels.hashing import hashed, mix, stream


@pytest.mark.parametrize("shape", [(1,), (5, 3), (8, 8), (7, 11, 3)])
def test_any_other_entry_changes_the_checksum(shape: tuple[int, ...]) -> None:
    mask = torch.rand(shape, generator=torch.Generator().manual_seed(0)) < 0.5
    sums = {checksum(mask)}
    for place in range(mask.numel()):
        other = mask.clone()
        other.view(-1)[place] ^= True
        sums.add(checksum(other))
    assert len(sums) == mask.numel() + 1


def test_other_places_change_the_checksum() -> None:
    """All 1,225 masks of 50 entries that drop two, and two places that swap what they hold."""
    sums = set()
    for i in range(50):
        for j in range(i):
            mask = torch.ones(50, dtype=torch.bool)
            mask[[i, j]] = False
            sums.add(checksum(mask))
    assert len(sums) == 1225


def test_the_checksum_is_that_of_the_entries_in_order() -> None:
    mask = torch.rand(2, 3, 4, 5) < 0.5
    assert checksum(mask) == checksum(mask.to(memory_format=torch.channels_last))
    assert checksum(mask) == checksum(mask.flatten())
    assert checksum(torch.zeros(8, dtype=torch.bool)) != checksum(torch.zeros(16, dtype=torch.bool))
    assert -(2**63) <= checksum(mask) < 2**63


@pytest.mark.parametrize("start", range(9))
def test_the_checksum_of_a_view_at_an_offset(start: int) -> None:
    """Rows 7 to 13 of (14, 23) begin at byte 161; a rank of two may hold them as such a view."""
    mask = torch.rand(14, 23, generator=torch.Generator().manual_seed(1)) < 0.5
    assert checksum(mask[start:]) == checksum(mask[start:].clone())
    assert checksum(mask.view(-1)[start:]) == checksum(mask.view(-1)[start:].clone())
    assert checksum(mask[:, start:]) == checksum(mask[:, start:].clone())


def test_the_checksum_does_not_depend_on_pieces() -> None:
    """More entries than are read at once."""
    mask = torch.ones((1 << 20) + 9, dtype=torch.bool)
    whole = checksum(mask)
    mask[-1] = False
    assert checksum(mask) != whole
    mask[-1], mask[1 << 20] = True, False
    assert checksum(mask) != whole


def test_mixing_is_one_to_one_and_hashes_are_known() -> None:
    assert len(set(mix(torch.arange(-5000, 5000)).tolist())) == 10_000
    assert mix(torch.tensor([1])).item() == 6238072747940578789  # splitmix64's finalizer of 1
    assert stream("weight") == stream("weight") != stream("bias")
    numbers = hashed(torch.arange(10_000), 3)
    assert 0 <= int(numbers.min()) < int(numbers.max()) < 2**31
    assert abs(float(numbers.double().mean()) / 2**30 - 1) < 0.02


def test_one_process_has_nothing_to_compare() -> None:
    score = torch.ones(2)
    assert mean_over_ranks([score])[0] is score
    require_same_masks({"weight": torch.ones(2, dtype=torch.bool), "other": None})
    require_same(["a"], "a list")
