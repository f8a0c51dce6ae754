"""When and how much: schedules as values, and plans made of them."""

from lightning_prune.schedules.base import Schedule
from lightning_prune.schedules.curves import (
    Constant,
    Cosine,
    Cubic,
    Exponential,
    FromFunction,
    Linear,
    OneCycle,
    OneShot,
    Polynomial,
    Steps,
)

__all__ = [
    "Constant",
    "Cosine",
    "Cubic",
    "Exponential",
    "FromFunction",
    "Linear",
    "OneCycle",
    "OneShot",
    "Polynomial",
    "Schedule",
    "Steps",
]
