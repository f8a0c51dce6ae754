"""Criteria of weights and their gradients, which training makes anyway."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from lightning_prune.prune.arguments import one_of
from lightning_prune.pruner.criteria.base import Criterion, GradientCriterion, Watches


@dataclass(frozen=True)
class Taylor(GradientCriterion):
    """``|w g|``, to first order the change of the loss if the weight were zero (Molchanov et al. 2017, 2019).

    Of channels the scores' sum of squares is compared (Molchanov et al. 2019, eq. 8), by its root.
    Costs one tensor of the weight's size while batches are watched, and one pass over it for each of them.

    Args:
        batches: Batches that are watched for an event.
        order: ``"mean"``: ``|w|`` times the magnitude of the mean gradient; ``"each"``: the mean of ``|w g|``.

    Example:
        >>> import torch
        >>> Taylor().score(torch.tensor([2.0, -1.0]), torch.tensor([0.5, 3.0]))
        tensor([1., 3.])
    """

    batches: int = 8
    order: Literal["mean", "each"] = "mean"

    norm: ClassVar[int | float | str | None] = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("order", self.order, ("mean", "each"))

    def term(self, weight: Tensor, gradient: Tensor) -> Tensor:
        """The gradient, or its product with the weight."""
        return gradient if self.order == "mean" else (weight * gradient).abs_()

    def score(self, weight: Tensor, seen: Tensor) -> Tensor:
        """The magnitude of weight times gradient."""
        return (weight * seen).abs_() if self.order == "mean" else seen


@dataclass(frozen=True)
class SNIP(GradientCriterion):
    """``|w g|`` of the loss over some batches, for one event before training (Lee et al. 2019).

    The paper divides by the sum of all scores, which changes no ranking. Of channels the scores are added up.
    Costs one tensor of the weight's size while batches are watched, and one pass over it for each of them.

    Args:
        batches: Batches that are watched for an event.

    Example:
        >>> import torch
        >>> SNIP().score(torch.tensor([2.0, -1.0]), torch.tensor([0.5, 3.0]))
        tensor([1., 3.])
    """

    def score(self, weight: Tensor, seen: Tensor) -> Tensor:
        """The magnitude of weight times gradient."""
        return (weight * seen).abs_()


@dataclass(frozen=True)
class Fisher(GradientCriterion):
    """``w^2 mean(g^2) / 2``: the change of the loss by the diagonal of the Fisher information (Theis et al. 2018).

    The paper's mean is over samples, this one over batches. Of channels the scores are added up.
    Costs one tensor of the weight's size while batches are watched, and one pass over it for each of them.

    Args:
        batches: Batches that are watched for an event.

    Example:
        >>> import torch
        >>> fisher = Fisher()
        >>> fisher.score(torch.tensor([2.0]), fisher.term(torch.tensor([2.0]), torch.tensor([3.0])))
        tensor([18.])
    """

    batches: int = 8

    def term(self, weight: Tensor, gradient: Tensor) -> Tensor:
        """The square of the gradient."""
        return gradient.square()

    def score(self, weight: Tensor, seen: Tensor) -> Tensor:
        """The change of the loss."""
        return weight.square().mul_(seen).div_(2)


@dataclass(frozen=True)
class Movement(Criterion):
    """``-sum of w g`` since the fit began, with its sign: weights that move to zero go first (Sanh et al. 2020).

    Gradients of masked weights count too, so zeros are kept in place. Masked weights are zero and do not come back; the
    paper keeps their values. Of channels the scores are added up.
    Costs one tensor of the weight's size and one pass over it for each batch.

    Example:
        >>> import torch
        >>> Movement().term(torch.tensor([2.0, -1.0]), torch.tensor([0.5, 3.0]))
        tensor([-1.,  3.])
    """

    watches: ClassVar[Watches] = "dense gradients"
    signed: ClassVar[bool] = True
    norm: ClassVar[int | float | str | None] = "sum"
    forgets: ClassVar[bool] = False

    def term(self, weight: Tensor, gradient: Tensor) -> Tensor:
        """How far a step moves the weight away from zero, times its size."""
        return -weight * gradient

    def score(self, weight: Tensor, seen: Tensor) -> Tensor:
        """What has been added up."""
        return seen
