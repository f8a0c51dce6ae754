"""The masked value of a tensor."""

from __future__ import annotations

import torch
from torch import Tensor


def masked(parameter: Tensor, mask: Tensor | None) -> Tensor:
    """``where(mask, parameter, 0)``: differentiable, and 0 under the mask even for inf and NaN."""
    assert mask is not None
    keep = mask if mask.dtype is torch.bool else mask != 0
    return torch.where(keep, parameter, 0)
