"""Pruning for PyTorch Lightning: masks, schedules and rewinding in a Trainer."""

from lightning_prune.callback import PruningCallback
from lightning_prune.lottery import LotteryResults, LotteryRow, LotteryTicket
from lightning_prune.plan import Demand
from lightning_prune.rewind import Reinit, Rewind
from lightning_prune.run import PruningEvent
from lightning_prune.schedules import (
    Constant,
    Cosine,
    Cubic,
    Exponential,
    FromFunction,
    Linear,
    OneCycle,
    OneShot,
    Polynomial,
    Schedule,
    Steps,
)

__all__ = [
    "Constant",
    "Cosine",
    "Cubic",
    "Demand",
    "Exponential",
    "FromFunction",
    "Linear",
    "LotteryResults",
    "LotteryRow",
    "LotteryTicket",
    "OneCycle",
    "OneShot",
    "Polynomial",
    "PruningCallback",
    "PruningEvent",
    "Reinit",
    "Rewind",
    "Schedule",
    "Steps",
]
