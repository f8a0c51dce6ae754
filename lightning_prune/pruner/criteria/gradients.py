"""Criteria of weights and their gradients, which training makes anyway."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor, nn

from lightning_prune.distributed import mean_over_ranks, together
from lightning_prune.prune.arguments import one_of
from lightning_prune.pruner.criteria.base import Criterion, GradientCriterion, Watches
from lightning_prune.pruner.criteria.guard import no_trace
from lightning_prune.pruner.criteria.losses import Loss, gradients_of, refuse_sharded, wanting_gradients
from lightning_prune.pruner.criteria.products import magnitude_of_product
from lightning_prune.targets.select import Target


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
        """The gradient, or the magnitude of its product with the weight, which is the same for one batch."""
        return magnitude_of_product(weight, gradient) if self._each else gradient

    def score(self, weight: Tensor, seen: Tensor) -> Tensor:
        """The magnitude of weight times gradient."""
        return seen if self._each else magnitude_of_product(weight, seen)

    @property
    def _each(self) -> bool:
        return self.order == "each" or self.batches == 1


@dataclass(frozen=True)
class SNIP(GradientCriterion):
    """``|w g|`` of the loss over some batches, for one event before training (Lee et al. 2019).

    The paper divides by the sum of all scores, which changes no ranking. Of channels the scores are added up.
    Costs one tensor of the weight's size while batches are watched, and one pass over it for each of them; with
    ``loss`` one forward and backward at the event.

    Args:
        batches: Batches of training that are watched for an event.
        loss: Instead of gradients of training those of this function: called with the model, it gives the scalar loss
            on data of your choice, such as 25 samples of each class. It is differentiated at the event, and leaves no
            trace in the model; over ranks the gradients are averaged.

    Example:
        >>> import torch
        >>> SNIP(batches=2).score(torch.tensor([2.0, -1.0]), torch.tensor([0.5, 3.0]))
        tensor([1., 3.])
    """

    loss: Loss | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.loss is not None and not callable(self.loss):
            raise TypeError(f"SNIP: loss should be a function of the model that gives a scalar, got {self.loss!r}")
        if self.loss is not None and self.batches != 1:
            raise ValueError(
                f"SNIP: batches={self.batches} counts batches of training, which loss= replaces: leave one out"
            )

    def __repr__(self) -> str:
        """The class and its arguments: the same in every process."""
        if self.loss is None:
            return f"SNIP(batches={self.batches})"
        return f"SNIP(loss={getattr(self.loss, '__qualname__', type(self.loss).__qualname__)})"

    @property
    def needs(self) -> Watches:
        """Gradients of training, or the model."""
        return self.watches if self.loss is None else "model"

    def check(self, targets: Sequence[Target]) -> None:
        """Raises ValueError if a tensor is sharded and the loss is that of a function."""
        if self.loss is not None:
            refuse_sharded("SNIP(loss=...)", targets)

    def term(self, weight: Tensor, gradient: Tensor) -> Tensor:
        """The gradient, or of one batch the magnitude of its product with the weight."""
        return magnitude_of_product(weight, gradient) if self.batches == 1 else gradient

    def score(self, weight: Tensor, seen: Tensor) -> Tensor:
        """The magnitude of weight times gradient."""
        return seen if self.batches == 1 else magnitude_of_product(weight, seen)

    def run(self, model: nn.Module, targets: Sequence[Target], alive: Sequence[Tensor | None]) -> list[Tensor]:
        """Scores of all targets from one run of the model, which leaves no trace.

        Raises:
            ValueError: If a target does not take part in the loss, or that is no scalar.
        """
        assert self.loss is not None
        parameters = [t.parameter for t in targets]
        with no_trace(model), wanting_gradients(parameters):
            with together():
                gradients = gradients_of(self.loss(model), targets, "SNIP")
            gradients = mean_over_ranks(gradients)
        return [magnitude_of_product(p.detach(), g) for p, g in zip(parameters, gradients, strict=True)]


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
