"""What the callback says: the selection, an end before the plan's, an event without effect."""

from __future__ import annotations

from torch import nn

from lightning_prune.plan import Plan
from lightning_prune.run import PruningEvent, PruningRun


def introduction(run: PruningRun, model: nn.Module, how: str) -> str:
    """How much of a model is selected, and how it will be pruned."""
    weights = sum(p.numel() for p in model.parameters())
    waiting = f", {len(run.frozen)} frozen ones join when they are trained" if run.join and run.frozen else ""
    return f"pruning {len(run.targets)} tensors, {run.total} of {weights} weights{waiting}, by {how}"


def unfinished(run: PruningRun, plan: Plan) -> str | None:
    """What was reached and what was planned, or ``None`` if the plan was carried out."""
    last, done = plan.last, run.done
    planned = "" if plan.final is None else f" of {plan.final:.4f} planned"
    if last is not None and (done is None or done < last):
        return (
            f"the fit ended at {plan.unit} {done}, before the last pruning event at {plan.unit} {last}: reached is a "
            f"sparsity of {run.sparsity:.4f}{planned}"
        )
    if plan.final is not None and plan.final * run.total - run.zeros > run.units:
        return f"the plan was carried out, but reached is a sparsity of {run.sparsity:.4f}{planned}"
    return None


def without_effect(event: PruningEvent, unit: str) -> str | None:
    """That an event which was to prune an amount found nothing to prune, or ``None``."""
    amount = event.demand.amount
    if event.sparser or not amount:
        return None
    return (
        f"nothing was left to prune at {unit} {event.demand.time}: {event.zeros} of {event.total} weights are masked, "
        f"and amount={amount} of what is left rounds to nothing or would take the last of each tensor "
        "(max_sparsity=1.0 lets all of it go)"
    )
