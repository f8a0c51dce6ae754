"""Which channels of a mask are left, and masks of whole channels, in every memory format."""

import pytest
import torch
from torch import Tensor

from lightning_prune.prune.kernels.channels import around, counts, living, spread

MASKS = {
    "rows": torch.rand(7, 5, generator=torch.Generator().manual_seed(0)) < 0.3,
    "kernels": torch.rand(4, 6, 3, 2, generator=torch.Generator().manual_seed(1)) < 0.2,
    "channels last": (torch.rand(4, 6, 3, 3, generator=torch.Generator().manual_seed(2)) < 0.2).contiguous(
        memory_format=torch.channels_last
    ),
    "transposed": (torch.rand(5, 7, generator=torch.Generator().manual_seed(3)) < 0.3).T,
    "every other": (torch.rand(6, 8, generator=torch.Generator().manual_seed(4)) < 0.3)[:, ::2],
    "no entries": torch.ones(3, 0, dtype=torch.bool),
    "all": torch.ones(3, 4, dtype=torch.bool),
}


@pytest.mark.parametrize("name", MASKS)
def test_living_channels(name: str) -> None:
    mask = MASKS[name]
    for dim in range(mask.dim()):
        others = [d for d in range(mask.dim()) if d != dim]
        left = living(mask, dim)
        assert left.any.tolist() == mask.any(dim=others).tolist()
        assert left.all.tolist() == torch.stack([part.all() for part in mask.unbind(dim)] or [mask]).flatten().tolist()


@pytest.mark.parametrize("name", MASKS)
def test_counts(name: str) -> None:
    for dim in range(MASKS[name].dim()):
        found = counts(MASKS[name], dim)
        assert found.dtype is torch.int64
        assert found.tolist() == [int(part.sum()) for part in MASKS[name].unbind(dim)]


def test_counts_above_a_byte() -> None:
    mask = torch.ones(600, 2, 700, dtype=torch.bool)
    assert counts(mask, 0).tolist() == [1400] * 600
    assert counts(mask, 1).tolist() == [420_000] * 2
    assert counts(mask, 2).tolist() == [1200] * 700


def test_whole_channels_are_told_from_others() -> None:
    rows = torch.tensor([[True, True], [False, False]])
    assert living(rows, 0).whole
    assert not living(rows, 1).whole


@pytest.mark.parametrize("name", MASKS)
def test_spread(name: str) -> None:
    like = MASKS[name]
    for dim in range(like.dim()):
        channels = torch.arange(like.shape[dim]) % 2 == 0
        mask = spread(channels, dim, like)
        assert mask.stride() == torch.empty_like(like).stride()
        assert [bool(part.all()) for part in mask.unbind(dim) if part.numel()] == channels.tolist()[
            : len(mask.flatten())
        ]
        assert not any(bool(part.any()) for part, keep in zip(mask.unbind(dim), channels, strict=True) if not keep)


def ranges(t: Tensor, dim: int) -> list[list[float]]:
    return [sorted(part.flatten().tolist()) for part in t.unbind(dim)]


def test_around_holds_the_entries_of_each_channel() -> None:
    t = torch.arange(24.0).view(2, 3, 4)
    for dim in range(3):
        assert ranges(around(t, dim), 1) == ranges(t, dim)
    assert around(t.permute(2, 0, 1), 0).shape == (6, 4, 1)
