"""Averages of the model that other callbacks keep."""

from __future__ import annotations

from collections.abc import Iterable

from lightning.pytorch.callbacks import StochasticWeightAveraging, WeightAveraging
from torch import nn
from torch.optim.swa_utils import AveragedModel


def averaged_models(callbacks: Iterable[object]) -> list[nn.Module]:
    """The averages of the model that callbacks keep, by Lightning's callbacks or torch's ``AveragedModel``.

    Other models that a callback holds, such as a teacher, are no averages.
    """
    found: list[nn.Module] = []
    for callback in callbacks:
        held = [value for value in vars(callback).values() if isinstance(value, nn.Module)]
        averaging = isinstance(callback, (StochasticWeightAveraging, WeightAveraging))
        found += [value for value in held if averaging or isinstance(value, AveragedModel)]
    return found
