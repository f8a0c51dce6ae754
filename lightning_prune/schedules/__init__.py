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
from lightning_prune.schedules.regrow import SET, Regrow, RigL

__all__ = [
    "SET",
    "Constant",
    "Cosine",
    "Cubic",
    "Exponential",
    "FromFunction",
    "Linear",
    "OneCycle",
    "OneShot",
    "Polynomial",
    "Regrow",
    "RigL",
    "Schedule",
    "Steps",
]
