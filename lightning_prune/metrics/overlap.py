"""Metrics that compare masks with each other."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lightning_prune.metrics.base import PruningMetric
from lightning_prune.metrics.functional import Agreement, Masks, compare_masks


class _Comparing(PruningMetric):
    """Adds up how pairs of masks agree; ``compute`` is over all pairs since the last ``reset``."""

    plot_upper_bound = 1.0
    intersection: Tensor
    union: Tensor
    entries: Tensor
    expected_intersection: Tensor
    expected_union: Tensor

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        for name, zero in Agreement(0, 0, 0, 0.0, 0.0)._asdict().items():
            self.add_state(name, torch.tensor(zero), dist_reduce_fx="sum")

    def update(self, first: Masks, second: Masks) -> None:
        """Compares two sets of masks.

        Args:
            first: A model, or masks by name such as :func:`lightning_prune.metrics.masks_of` gives them.
            second: Another one of the same tensors.

        Raises:
            ValueError: If names or shapes differ.
        """
        for name, value in compare_masks(first, second)._asdict().items():
            setattr(self, name, getattr(self, name) + value)


class MaskOverlap(_Comparing):
    """Intersection over union of what two rounds keep; see :func:`lightning_prune.metrics.mask_overlap`.

    Args:
        adjusted: Put it on the scale from what chance would give (0) to equal masks (1).
        kwargs: Arguments of ``torchmetrics.Metric``.

    Example:
        >>> import torch
        >>> first, second = {"w": torch.tensor([1, 1, 1, 0])}, {"w": torch.tensor([1, 1, 0, 1])}
        >>> MaskOverlap()(first, second)
        tensor(0.5000)
        >>> MaskOverlap(adjusted=True)(first, second)  # by chance 0.6
        tensor(-0.2500)
    """

    higher_is_better = None

    def __init__(self, adjusted: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.adjusted = adjusted

    def compute(self) -> Tensor:
        """A scalar: in [0, 1], or at most 1 if adjusted; 1 if nothing is kept on either side."""
        overlap = _ratio(self.intersection, self.union)
        if not self.adjusted:
            return overlap
        chance = _ratio(self.expected_intersection, self.expected_union)
        return (overlap - chance) / (1 - chance) if chance < 1 else torch.ones_like(chance)


class MaskChurn(_Comparing):
    """Share of mask entries that changed between two rounds; see :func:`lightning_prune.metrics.mask_churn`.

    Args:
        kwargs: Arguments of ``torchmetrics.Metric``.

    Example:
        >>> import torch
        >>> MaskChurn()({"w": torch.tensor([1, 1, 0, 0])}, {"w": torch.tensor([1, 0, 1, 0])})
        tensor(0.5000)
    """

    plot_lower_bound = 0.0

    def compute(self) -> Tensor:
        """A scalar in [0, 1]."""
        return (self.union - self.intersection) / self.entries.clamp(min=1)


def _ratio(intersection: Tensor, union: Tensor) -> Tensor:
    return intersection / union if union else torch.ones((), device=union.device)
