"""What the Trainer of a level does besides training: keep the mask, mark the rewind point, watch the validation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from lightning_prune.fit.erasing import erase
from lightning_prune.fit.rewind import Rewind
from lightning_prune.fit.run import PruningRun
from lightning_prune.lottery.masks import Masking, State
from lightning_prune.trainer.averages import averaged_models
from lightning_prune.trainer.limits import limits_of


class HeldMask(Callback):
    """Keeps masked weights at zero while a network is trained, and leaves a plain one.

    Args:
        masking: What is selected.
        state: The masks; ``None``: nothing is masked.
        shuffled: Whether their entries change places within each tensor.
        seed: Seed of the pruning.

    Attributes:
        kept: The masks that it kept, once training started.
    """

    def __init__(self, masking: Masking, state: State | None, shuffled: bool, seed: int) -> None:
        self.masking = masking
        self.state = state
        self.shuffled = shuffled
        self.seed = seed
        self.kept: State = {}
        self._run: PruningRun | None = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Imposes the masks on weights and optimizer states that are all there by now."""
        self._run = run = self.masking.run(pl_module, self.seed)
        run.start()
        if self.state is not None:
            run.load_state_dict(self.masking.shuffled(run, self.state) if self.shuffled else self.state)
        erase(run.targets, trainer.optimizers, averaged_models(trainer.callbacks))  # type: ignore[attr-defined]
        self.kept = run.state_dict()

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Leaves a plain network with zeros."""
        self._close()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Leaves a plain network with zeros."""
        self._close()

    def _close(self) -> None:
        if self._run is not None:
            self._run.close()
            self._run = None


class StartFrom(Callback):
    """Starts training with given weights.

    Args:
        weights: State dict of the network.
        rates: Learning rates of the parameter groups of each optimizer, kept throughout instead of the schedulers'.
    """

    def __init__(self, weights: Mapping[str, Tensor], rates: Sequence[Sequence[float]] | None = None) -> None:
        self.weights = weights
        self.rates = rates

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Sets weights and learning rates, after what a checkpoint says."""
        pl_module.load_state_dict(self.weights, strict=pl_module.strict_loading)
        if self.rates is None:
            return
        trainer.strategy.lr_scheduler_configs = []
        for optimizer, rates in zip(trainer.optimizers, self.rates, strict=True):
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate


class RewindPoint(Callback):
    """Writes a Trainer's checkpoint when training is at the point to rewind to.

    Resuming from it takes weights, buffers, optimizers, schedulers and progress back.

    Args:
        rewind: The point.
        path: The file.
    """

    def __init__(self, rewind: Rewind, path: Path) -> None:
        self.rewind = rewind
        self.path = path
        self.written = False

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Refuses a point that training cannot reach."""
        limits = limits_of(trainer, trainer.max_epochs)
        at, limit = (self.rewind.epoch, limits.epochs) if self.rewind.step is None else (self.rewind.step, limits.steps)
        if at is not None and limit is not None and at >= limit:
            unit = "steps" if self.rewind.epoch is None else "epochs"
            raise ValueError(f"{self.rewind} is never reached: training ends after {limit} {unit}")
        self._write_when_reached(trainer)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """All schedulers are up to date here, those that follow a validation too."""
        self._write_when_reached(trainer)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Says when training ended before the point, as early stopping can make it."""
        if not self.written:
            raise ValueError(f"{self.rewind} was not reached: training ended at step {trainer.global_step}")

    def _write_when_reached(self, trainer: Trainer) -> None:
        if not self.written and self.rewind.reached(trainer.current_epoch, trainer.global_step):
            trainer.save_checkpoint(self.path)
            self.written = True


class LowestLoss(Callback):
    """Notes the step of the lowest validation loss.

    Args:
        monitor: Name of the loss, ``None`` for nothing.

    Attributes:
        step: ``global_step`` of the validation with the lowest loss, ``None`` before the first validation.
    """

    def __init__(self, monitor: str | None) -> None:
        self.monitor = monitor
        self.step: int | None = None
        self._lowest = math.inf

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Compares; of equal losses the first one counts."""
        if trainer.sanity_checking or self.monitor is None:
            return
        metrics = trainer.callback_metrics
        if self.monitor not in metrics:
            raise ValueError(
                f"monitor={self.monitor!r} is not logged by validation; logged are "
                f"{', '.join(metrics) or 'no metrics'}: name one of them, or give monitor=None to do without the "
                "early-stopping step"
            )
        if float(metrics[self.monitor]) < self._lowest:
            self._lowest, self.step = float(metrics[self.monitor]), trainer.global_step
