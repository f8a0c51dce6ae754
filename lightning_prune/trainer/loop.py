"""A moment of a Trainer's fit, as far as pruning has to know it."""

from __future__ import annotations

from lightning.pytorch import LightningModule, Trainer

from lightning_prune.fit.limits import Limits
from lightning_prune.fit.training import Training
from lightning_prune.trainer.averages import averaged_models
from lightning_prune.trainer.limits import steps_left


def training_of(trainer: Trainer, pl_module: LightningModule, limits: Limits | None = None) -> Training:
    """The moment that a Trainer is at.

    Args:
        trainer: The Trainer that fits.
        pl_module: The model.
        limits: How long it can last, where that matters.
    """
    return Training(
        pl_module,
        trainer.optimizers,
        [config.scheduler for config in trainer.lr_scheduler_configs],
        trainer.current_epoch,
        trainer.global_step,
        lambda: averaged_models(trainer.callbacks),  # type: ignore[attr-defined]
        steps_left(trainer),
        limits or Limits(),
    )
