"""Which tensors have zeros in an N:M pattern."""

from __future__ import annotations

import torch
from torch import Tensor

from lightning_prune.prune.kernels.arrays import as_bool

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
    counts = as_bool(value).movedim(dim, -1).view(torch.uint8)  # of entries that are not 0, in groups of 1, 2, 4, ...
    found = []
    for m in _SIZES:
        if counts.shape[-1] % 2:
            break
        counts = counts[..., 0::2] + counts[..., 1::2]
        n = int(counts.max())
        if 0 < n < m and 2 * int((counts == n).count_nonzero()) > counts.numel():
            found.append((n, m))
    return min(found, key=lambda pair: (pair[0] / pair[1], pair[1]), default=None)
