"""Which tensors have zeros in an N:M pattern."""

from __future__ import annotations

import torch
from torch import Tensor

_SIZES = (2, 4, 8, 16)


def pattern_of(value: Tensor, dim: int = 1) -> tuple[int, int] | None:
    """The N:M pattern of the zeros: each ``m`` entries in a row hold at most ``n`` others, and most just so many.

    Args:
        value: The tensor.
        dim: Dimension along which groups lie: that of the inputs of a layer.

    Returns:
        ``(n, m)`` with the most zeros, of several ones that with the smallest ``m``, out of 2, 4, 8 and 16; ``None``
        if there is none.

    Example:
        >>> pattern_of(torch.tensor([[1.0, 0.0, 0.0, 2.0], [0.0, 0.0, 3.0, 4.0]]))
        (2, 4)
    """
    if value.dim() < 2 or value.numel() == 0:
        return None
    rows = (value != 0).movedim(dim, -1)
    found = [(n, m) for m in _SIZES if rows.shape[-1] % m == 0 and (n := _most(rows, m)) is not None]
    return min(found, key=lambda pair: (pair[0] / pair[1], pair[1]), default=None)


def _most(rows: Tensor, m: int) -> int | None:
    """The number that most groups of ``m`` hold, if it is one from 1 to ``m - 1`` and none holds more."""
    counts = torch.bincount(rows.reshape(-1, m).sum(dim=1), minlength=m + 1).tolist()
    n = max(number for number, groups in enumerate(counts) if groups)
    return n if 0 < n < m and 2 * counts[n] > sum(counts) else None
