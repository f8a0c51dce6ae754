"""What a criterion is: a frozen value that says what has to be watched, and how scores are made of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor, nn

from lightning_prune.targets.select import Target

Watches = Literal["nothing", "gradients", "dense gradients", "inputs", "model"]


@dataclass(frozen=True)
class Criterion:
    """How important each weight is: events drop the least important ones. A frozen value; it keeps nothing it sees.

    Attributes:
        watches: ``"nothing"``; ``"gradients"``, zero where weights are masked; ``"dense gradients"``, also there;
            ``"inputs"`` of the layers; or ``"model"``, which the criterion runs itself.
        signed: Whether scores are ranked with their signs, negative ones first, instead of by their magnitudes.
        norm: How scores of a channel or block become one: the order of their norm, ``"sum"``, or ``None`` for that of
            the method.
        forgets: Whether what was seen is dropped after each event; otherwise it piles up from the start of the fit.
    """

    watches: ClassVar[Watches] = "nothing"
    signed: ClassVar[bool] = False
    norm: ClassVar[int | float | str | None] = 1
    forgets: ClassVar[bool] = True

    @property
    def needs(self) -> Watches:
        """What this value watches, if its arguments change what its class does."""
        return self.watches

    @property
    def window(self) -> int:
        """Batches that are watched for an event, the last one at the event itself."""
        return 1

    @property
    def steps(self) -> int:
        """Rounds of an event, with new scores for each."""
        return 1

    def check(self, targets: Sequence[Target]) -> None:
        """Raises ValueError, before anything is pruned, for tensors that cannot be scored.

        Args:
            targets: All tensors that are pruned together.
        """

    def term(self, weight: Tensor, gradient: Tensor) -> Tensor:
        """What is averaged over the batches that are watched; the gradient by default.

        Args:
            weight: The tensor at that batch.
            gradient: Its gradient, same shape.
        """
        return gradient

    def score(self, weight: Tensor, seen: Tensor) -> Tensor:
        """The importance of each entry.

        Args:
            weight: The tensor at the event.
            seen: The mean of the terms, same shape; their sum where they are never forgotten.
        """
        raise NotImplementedError(f"{type(self).__name__} has no score()")

    def run(self, model: nn.Module, targets: Sequence[Target], alive: Sequence[Tensor | None]) -> list[Tensor]:
        """Scores of all targets, of criteria that watch ``"model"``; has to leave no trace in it.

        Args:
            model: The model.
            targets: The tensors.
            alive: Masks of what is left, also such as are not imposed yet.
        """
        raise NotImplementedError(f"{type(self).__name__} has no run()")


@dataclass(frozen=True)
class GradientCriterion(Criterion):
    """Base of criteria from gradients: those of the last batches before and at an event, averaged over ranks.

    Args:
        batches: Optimizer steps whose gradients are watched for an event.

    Example:
        >>> class Saliency(GradientCriterion):
        ...     def score(self, weight, seen):
        ...         return (weight * seen).abs()
        >>> Saliency(batches=4)
        Saliency(batches=4)
    """

    batches: int = 1

    watches: ClassVar[Watches] = "gradients"

    def __post_init__(self) -> None:
        require_count(self, "batches", self.batches)

    @property
    def window(self) -> int:
        """Batches that are watched."""
        return self.batches


def require_count(criterion: Criterion, name: str, value: object) -> None:
    """Raises ValueError unless a field is a whole number from 1 on."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{type(criterion).__name__}: {name} should be a whole number from 1 on, got {value!r}")


@dataclass(frozen=True)
class Magnitude(Criterion):
    """The absolute value of a weight (Han et al. 2015). Costs nothing between events.

    Example:
        >>> import torch
        >>> Magnitude().score(torch.tensor([-2.0, 1.0]), torch.empty(2))
        tensor([2., 1.])
    """

    norm: ClassVar[int | float | str | None] = None

    def score(self, weight: Tensor, seen: Tensor) -> Tensor:
        """The absolute value."""
        return weight.abs()


@dataclass(frozen=True)
class Function(Criterion):
    """A function of one's own that scores the tensors of an event.

    Args:
        function: Called at each event with the targets (name, module, parameter, mask); returns one tensor of scores
            of the parameter's shape for each. The smallest magnitudes go first.
    """

    function: Callable[[Sequence[Target]], Sequence[Tensor]] = lambda targets: [t.parameter for t in targets]

    norm: ClassVar[int | float | str | None] = None

    def __repr__(self) -> str:
        """The name of the function: the same in every process."""
        return f"Function({getattr(self.function, '__qualname__', type(self.function).__qualname__)})"
