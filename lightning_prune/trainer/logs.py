"""Sparsity in Lightning's loggers, in ``trainer.callback_metrics`` and in the progress bar."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from lightning.pytorch import LightningModule, Trainer

from lightning_prune.fit.run import PruningRun, sparsity_of
from lightning_prune.schedules.plan import Plan

Running = Sequence[tuple[PruningRun, Plan]]
"""What prunes a model: the runs of all its callbacks, with their plans."""


class SparsityLog:
    """Logs ``sparsity`` and, where a plan says one, ``sparsity/target``.

    Loggers get them at the end of each epoch and, of plans in steps, at the step of each event, once for each step.
    ``trainer.callback_metrics`` and the progress bar have them from the first batch after an event on, so a file that
    ``ModelCheckpoint`` names by ``{sparsity}`` says how sparse it is.

    Args:
        tensors: Also one key for each tensor, ``sparsity/<name>``.
        prefix: What all keys begin with.
        prog_bar: Also in the progress bar (the whole sparsity, not that of tensors).
    """

    def __init__(self, tensors: bool = False, prefix: str = "", prog_bar: bool = False) -> None:
        self.tensors, self.prefix, self.prog_bar = tensors, prefix, prog_bar
        self._events: int | None = None
        self._written: int | None = None

    def start(self) -> None:
        """Forgets an earlier fit."""
        self._events = self._written = None

    def batch_end(self, trainer: Trainer, running: Running) -> None:
        """Tells what changed by events before this batch.

        Args:
            trainer: The Trainer that fits.
            running: All that prunes the model.
        """
        events = sum(run.events for run, _ in running)
        if events == self._events:
            return
        self._events = events
        values = self.values(running)
        # Lightning would take them over only at the end of the epoch, after files were named by them.
        trainer.callback_metrics.update({key: torch.tensor(value) for key, value in values.items()})
        if self.prog_bar:
            trainer.progress_bar_metrics[self._key] = values[self._key]
        if any(plan.unit == "step" for _, plan in running):
            self._write(trainer, values)

    def epoch_end(self, trainer: Trainer, pl_module: LightningModule, running: Running) -> None:
        """Logs the values of an epoch, if they were not logged by an event at its last step.

        Args:
            trainer: The Trainer that fits.
            pl_module: The model.
            running: All that prunes the model.
        """
        if self._written == _step(trainer) - 1:  # the loop already counts the epoch's last batch
            return
        for key, value in self.values(running).items():
            prog_bar = self.prog_bar and key == self._key
            pl_module.log(key, value, logger=bool(trainer.loggers), prog_bar=prog_bar, sync_dist=True)

    def values(self, running: Running) -> dict[str, float]:
        """All values by their keys; several runs are taken together.

        Args:
            running: All that prunes the model.
        """
        runs = [run for run, _ in running]
        values = {self._key: sparsity_of(runs)}
        wanted = [(target(run, plan), run.total) for run, plan in running]
        if all(share is not None for share, _ in wanted):
            whole = max(1, sum(total for _, total in wanted))
            values[f"{self._key}/target"] = sum((share or 0.0) * total for share, total in wanted) / whole
        if self.tensors:
            values.update({f"{self._key}/{t.name}": t.zeros / t.parameter.numel() for run in runs for t in run.targets})
        return values

    @property
    def _key(self) -> str:
        return f"{self.prefix}sparsity"

    def _write(self, trainer: Trainer, values: dict[str, float]) -> None:
        self._written = _step(trainer)
        if trainer.is_global_zero:
            for logger in trainer.loggers:
                logger.log_metrics({**values, "epoch": trainer.current_epoch}, step=self._written)
                logger.save()


def target(run: PruningRun, plan: Plan) -> float | None:
    """The share of zeros that the latest event was to reach; ``None`` if the plan is one of amounts.

    Args:
        run: Where the plan stands.
        plan: The plan.
    """
    if plan.final is None:
        return None
    done = -1 if run.done is None else run.done
    demands = plan.due(-1, done if plan.last is None else min(done, plan.last))
    return demands[-1].sparsity if demands else 0.0


def _step(trainer: Trainer) -> int:
    """The step at which Lightning logs what belongs to the present batch."""
    return trainer.fit_loop.epoch_loop._batches_that_stepped
