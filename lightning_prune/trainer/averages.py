"""Averages of the model that other callbacks keep."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn
from torch.optim.swa_utils import AveragedModel

from lightning_prune.trainer.lightning import is_a


def averaged_models(callbacks: Iterable[object]) -> list[nn.Module]:
    """The averages of the model that callbacks keep, by Lightning's callbacks or torch's ``AveragedModel``.

    Other models that a callback holds, such as a teacher, are no averages.

    Args:
        callbacks: All callbacks of a Trainer.

    Example:
        >>> from types import SimpleNamespace
        >>> average = AveragedModel(nn.Linear(2, 2))
        >>> averaged_models([SimpleNamespace(ema=average, teacher=nn.Linear(2, 2))]) == [average]
        True
    """
    found: list[nn.Module] = []
    for callback in callbacks:
        held = [value for value in vars(callback).values() if isinstance(value, nn.Module)]
        averaging = is_a(callback, "callbacks.StochasticWeightAveraging", "callbacks.WeightAveraging")
        found += [value for value in held if averaging or isinstance(value, AveragedModel)]
    return found
