"""The product that most criteria are made of."""

from __future__ import annotations

import torch
from torch import Tensor

_PIECE = 1 << 16  # entries; three pieces of float32 fit into the cache


def magnitude_of_product(weight: Tensor, gradient: Tensor) -> Tensor:
    """``|w g|``, in pieces whose product is still in the cache when its sign is dropped.

    Args:
        weight: A tensor.
        gradient: Of its shape.

    Example:
        >>> magnitude_of_product(torch.tensor([2.0, -1.0]), torch.tensor([0.5, 3.0]))
        tensor([1., 3.])
    """
    alike = weight.dtype is gradient.dtype and weight.is_cpu and gradient.is_cpu
    if not (alike and weight.is_contiguous() and gradient.is_contiguous()):
        return (weight * gradient).abs_()
    scores = torch.empty_like(weight)
    pieces = (torch.split(tensor.view(-1), _PIECE) for tensor in (weight, gradient, scores))
    for w, g, score in zip(*pieces, strict=True):
        torch.mul(w, g, out=score).abs_()
    return scores
