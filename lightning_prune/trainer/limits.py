"""How long a fit of a Trainer can last."""

from __future__ import annotations

import math

from lightning.pytorch import Trainer

from lightning_prune.fit.limits import Limits
from lightning_prune.trainer.lightning import callbacks_of, is_accumulation_scheduler


def limits_of(trainer: Trainer, epochs: int | None) -> Limits:
    """The limits of a fit whose data are loaded.

    Args:
        trainer: The Trainer, when training starts.
        epochs: Its ``max_epochs`` before other callbacks added epochs of their own; ``None`` or -1 = no limit.

    Returns:
        Its limits. Steps follow from epochs where the number of batches is known, and the other way round; with
        manual optimization and changing accumulation only ``max_steps`` is a known number of steps.
    """
    most = None if epochs is None or epochs < 0 else epochs
    steps = None if trainer.max_steps is None or trainer.max_steps < 0 else trainer.max_steps
    per_epoch = _steps_per_epoch(trainer)
    if per_epoch is None:
        return Limits(most, steps)
    reached = [n for n in (most, None if steps is None else math.ceil(steps / per_epoch)) if n is not None]
    taken = [n for n in (steps, None if most is None else most * per_epoch) if n is not None]
    return Limits(min(reached, default=None), min(taken, default=None))


def steps_left(trainer: Trainer) -> int | None:
    """Optimizer steps that are left of the epoch that runs, with the one that comes next.

    Args:
        trainer: The Trainer that fits.

    Returns:
        ``None`` where that is not known, as with manual optimization or data without a length.
    """
    batches = trainer.num_training_batches
    if math.isinf(batches) or not trainer.lightning_module.automatic_optimization:
        return None
    return math.ceil((batches - max(trainer.fit_loop.epoch_loop.batch_idx, 0)) / trainer.accumulate_grad_batches)


def _steps_per_epoch(trainer: Trainer) -> int | None:
    batches, accumulated = trainer.num_training_batches, _accumulated(trainer)
    known = not math.isinf(batches) and batches > 0 and trainer.lightning_module.automatic_optimization
    return math.ceil(batches / accumulated) if known and accumulated else None


def _accumulated(trainer: Trainer) -> int | None:
    """Batches for each step; ``None`` if that changes. A callback for it sets the Trainer's number later than this."""
    plans = [c.scheduling for c in callbacks_of(trainer) if is_accumulation_scheduler(c)]
    factors = {factor for plan in plans for factor in plan.values()} or {trainer.accumulate_grad_batches}
    return factors.pop() if len(factors) == 1 else None
