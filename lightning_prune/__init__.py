"""Pruning for PyTorch Lightning: masks, schedules and rewinding in a Trainer."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lightning_prune.callback import PruningCallback
    from lightning_prune.fit.pruning import Pruning
    from lightning_prune.fit.rewind import Reinit, Rewind
    from lightning_prune.fit.run import PruningEvent
    from lightning_prune.lottery import LotteryResults, LotteryRow, LotteryTicket
    from lightning_prune.prune.warning import PruningWarning
    from lightning_prune.pruner.budgets import Budget
    from lightning_prune.pruner.criteria import (
        SNIP,
        Activation,
        Criterion,
        Fisher,
        GradientCriterion,
        GraSP,
        Magnitude,
        Movement,
        SynFlow,
        Taylor,
    )
    from lightning_prune.report import history, plots
    from lightning_prune.schedules import (
        SET,
        Constant,
        Cosine,
        Cubic,
        Exponential,
        FromFunction,
        Linear,
        OneCycle,
        OneShot,
        Polynomial,
        Regrow,
        RigL,
        Schedule,
        Steps,
    )
    from lightning_prune.schedules.plan import Demand
    from lightning_prune.trainer.logs import Log

_HOMES = {
    "lightning_prune.callback": ("PruningCallback",),
    "lightning_prune.fit.pruning": ("Pruning",),
    "lightning_prune.fit.rewind": ("Reinit", "Rewind"),
    "lightning_prune.fit.run": ("PruningEvent",),
    "lightning_prune.lottery": ("LotteryResults", "LotteryRow", "LotteryTicket"),
    "lightning_prune.prune.warning": ("PruningWarning",),
    "lightning_prune.pruner.budgets": ("Budget",),
    "lightning_prune.pruner.criteria": (
        *("SNIP", "Activation", "Criterion", "Fisher", "GraSP"),
        *("GradientCriterion", "Magnitude", "Movement", "SynFlow", "Taylor"),
    ),
    "lightning_prune.schedules": (
        *("Constant", "Cosine", "Cubic", "Exponential", "FromFunction", "Linear"),
        *("OneCycle", "OneShot", "Polynomial", "Schedule", "Steps"),
        *("SET", "Regrow", "RigL"),
    ),
    "lightning_prune.schedules.plan": ("Demand",),
    "lightning_prune.trainer.logs": ("Log",),
}
_PLACES = {name: home for home, names in _HOMES.items() for name in names}
_ROOMS = {"history": "lightning_prune.report.history", "plots": "lightning_prune.report.plots"}

__all__ = [
    "SET",
    "SNIP",
    "Activation",
    "Budget",
    "Constant",
    "Cosine",
    "Criterion",
    "Cubic",
    "Demand",
    "Exponential",
    "Fisher",
    "FromFunction",
    "GraSP",
    "GradientCriterion",
    "Linear",
    "Log",
    "LotteryResults",
    "LotteryRow",
    "LotteryTicket",
    "Magnitude",
    "Movement",
    "OneCycle",
    "OneShot",
    "Polynomial",
    "Pruning",
    "PruningCallback",
    "PruningEvent",
    "PruningWarning",
    "Regrow",
    "Reinit",
    "Rewind",
    "RigL",
    "Schedule",
    "Steps",
    "SynFlow",
    "Taylor",
    "history",
    "plots",
]


__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Imports a public name when it is first used, so that the engine alone does without Lightning."""
    if name in _PLACES:
        value = getattr(importlib.import_module(_PLACES[name]), name)
    elif name in _ROOMS:
        value = importlib.import_module(_ROOMS[name])
    else:
        raise AttributeError(f"module 'lightning_prune' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """All public names."""
    return sorted({*globals(), *__all__})
