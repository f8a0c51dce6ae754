"""Criteria: how important each weight is."""

from lightning_prune.pruner.criteria.activation import Activation
from lightning_prune.pruner.criteria.base import Criterion, Function, GradientCriterion, Magnitude
from lightning_prune.pruner.criteria.gradients import SNIP, Fisher, Movement, Taylor
from lightning_prune.pruner.criteria.grasp import GraSP
from lightning_prune.pruner.criteria.named import as_criterion
from lightning_prune.pruner.criteria.synflow import SynFlow

__all__ = [
    "SNIP",
    "Activation",
    "Criterion",
    "Fisher",
    "Function",
    "GraSP",
    "GradientCriterion",
    "Magnitude",
    "Movement",
    "SynFlow",
    "Taylor",
    "as_criterion",
]
