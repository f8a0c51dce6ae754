"""Criteria by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from lightning_prune.pruner.criteria.activation import Activation
from lightning_prune.pruner.criteria.base import Criterion, Function, Magnitude
from lightning_prune.pruner.criteria.gradients import SNIP, Fisher, Movement, Taylor
from lightning_prune.pruner.criteria.synflow import SynFlow
from lightning_prune.targets.select import Target

CriterionLike = str | Criterion | Callable[[Sequence[Target]], Sequence[Tensor]]

_NAMED: dict[str, type[Criterion]] = {
    "magnitude": Magnitude,
    "taylor": Taylor,
    "snip": SNIP,
    "fisher": Fisher,
    "synflow": SynFlow,
    "movement": Movement,
    "activation": Activation,
}


def as_criterion(criterion: CriterionLike) -> Criterion:
    """A criterion, given as one, by its name, or as a function of the targets.

    Args:
        criterion: A :class:`Criterion`, ``"magnitude"``, ``"taylor"``, ``"snip"``, ``"fisher"``, ``"synflow"``,
            ``"movement"``, ``"activation"``, or ``f(targets) -> scores``.

    Raises:
        ValueError: If the name is unknown.
        TypeError: If it is none of these.

    Example:
        >>> as_criterion("taylor")
        Taylor(batches=8, order='mean')
    """
    if isinstance(criterion, Criterion):
        return criterion
    if isinstance(criterion, str):
        if criterion == "grasp":
            raise ValueError("criterion='grasp' needs data: give GraSP(loss=a function of the model)")
        if criterion not in _NAMED:
            raise ValueError(f"criterion={criterion!r} is unknown; known are {', '.join(_NAMED)}, GraSP(loss=...)")
        return _NAMED[criterion]()
    if callable(criterion) and not isinstance(criterion, type):
        return Function(criterion)
    raise TypeError(
        f"criterion should be a name, a Criterion such as Taylor(batches=8) or a function of targets, got {criterion!r}"
    )
