"""Sparsity in Lightning's loggers, in ``trainer.callback_metrics`` and in the progress bar."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor

from lightning_prune.fit.run import PruningRun, sparsity_of
from lightning_prune.prune.arguments import instance_of, one_of
from lightning_prune.prune.warning import PruningWarning
from lightning_prune.schedules.plan import Plan

Running = Sequence[tuple[PruningRun, Plan]]
"""What prunes a model: the runs of all its callbacks, with their plans."""


@dataclass(frozen=True)
class Log:
    """What of a model's sparsity is logged, as ``log=`` of :class:`~lightning_prune.PruningCallback`.

    Attributes:
        tensors: Besides the whole sparsity that of each tensor, ``sparsity/<name>``.
        prefix: What all keys begin with.
        prog_bar: Show the whole sparsity in the progress bar.

    Raises:
        TypeError: If a value is of another type.

    Example:
        >>> Log(tensors=True, prefix="prune/")
        Log(tensors=True, prefix='prune/', prog_bar=False)
    """

    tensors: bool = False
    prefix: str = ""
    prog_bar: bool = False

    def __post_init__(self) -> None:
        one_of("Log.tensors", self.tensors, (False, True))
        one_of("Log.prog_bar", self.prog_bar, (False, True))
        instance_of("Log.prefix", self.prefix, (str,), "'prune/'")


def as_log(log: bool | Log) -> Log | None:
    """The value that an argument ``log=`` stands for.

    Args:
        log: ``True`` = ``Log()``, ``False`` = nothing is logged, or a value.

    Returns:
        ``None`` if nothing is logged.

    Raises:
        TypeError: If it is something else.

    Example:
        >>> as_log(True), as_log(False)
        (Log(tensors=False, prefix='', prog_bar=False), None)
    """
    if isinstance(log, bool):
        return Log() if log else None
    if not isinstance(log, Log):
        raise TypeError(f"log must be True, False or a Log such as Log(tensors=True), got {log!r}")
    return log


class SparsityLog:
    """Logs ``sparsity`` and, where a plan says one, ``sparsity/target``; of regrowth its churn and the share explored.

    Loggers get them at the end of each epoch and, of plans in steps, at the step of each event, once for each step;
    likewise at updates of regrowth.
    ``trainer.callback_metrics`` and the progress bar have them from the first batch after an event on, so a file that
    ``ModelCheckpoint`` names by ``{sparsity}`` says how sparse it is. A key that something else logs stays what that
    made of it: ours is left out from then on.

    Of the callbacks that prune a model the first one's hooks call :meth:`start` in ``on_train_start``,
    :meth:`batch_end` in ``on_train_batch_end`` and :meth:`epoch_end` in ``on_train_epoch_end``.

    Args:
        log: What is logged; ``None`` = nothing.
    """

    def __init__(self, log: Log | None = Log()) -> None:
        self.log = log
        self._forget()

    def _forget(self, steps: int = 0) -> None:
        self._changes: tuple[int, int] | None = None
        self._written: int | None = None
        self._ours: dict[str, Tensor] = {}
        self._theirs: set[str] = set()
        self._steps, self._at = steps, steps

    @property
    def keys(self) -> set[str]:
        """The keys that are logged here so far."""
        return set(self._ours)

    def start(self, trainer: Trainer) -> None:
        """Forgets an earlier fit.

        Args:
            trainer: The Trainer whose fit begins.
        """
        self._forget(trainer.global_step)

    def batch_end(self, trainer: Trainer, running: Running) -> None:
        """Tells what changed by events before this batch.

        Args:
            trainer: The Trainer that fits.
            running: All that prunes the model.
        """
        self._at = self._step(trainer)
        self._steps = trainer.global_step
        regrown = [run.regrowth for run, _ in running if run.regrowth is not None]
        changes = sum(run.events for run, _ in running), sum(r.updates for r in regrown)
        if self.log is None or changes == self._changes:
            return
        (events, updates), self._changes = self._changes or (None, 0), changes
        values = self._show(trainer, self.log, running)
        units = [plan.unit for _, plan in running if changes[0] != events]
        units += [r.unit for r in regrown if changes[1] != updates]
        if "step" in units:
            self._write(trainer, values)

    def epoch_end(self, trainer: Trainer, running: Running) -> None:
        """Logs the values of an epoch, if they were not logged by an event at its last step.

        Args:
            trainer: The Trainer that fits.
            running: All that prunes the model.
        """
        if self.log is not None and self._written != self._at:
            self._write(trainer, self._show(trainer, self.log, running))

    def _show(self, trainer: Trainer, log: Log, running: Running) -> dict[str, float]:
        """Puts the values where callbacks and the progress bar look; returns those whose keys are ours."""
        metrics, whole = trainer.callback_metrics, f"{log.prefix}sparsity"
        values = values_of(log, running)
        self._step_aside({key for key in values if key in metrics and metrics[key] is not self._ours.get(key)})
        values = {key: value for key, value in values.items() if key not in self._theirs}
        # ``LightningModule.log`` would take them over only at the end of the epoch, after files were named by them.
        self._ours = {key: torch.tensor(value) for key, value in values.items()}
        metrics.update(self._ours)
        if log.prog_bar and whole in values:
            trainer.progress_bar_metrics[whole] = values[whole]
        return values

    def _step_aside(self, keys: set[str]) -> None:
        if keys - self._theirs:
            rank_zero_warn(
                f"{', '.join(sorted(keys - self._theirs))} is logged by something else too, so not by pruning: "
                "log=Log(prefix='prune/') gives it a key of its own",
                category=PruningWarning,
            )
            self._theirs |= keys

    def _write(self, trainer: Trainer, values: dict[str, float]) -> None:
        self._written = self._at
        if trainer.loggers:
            trainer.logged_metrics.update(self._ours)
        if values and trainer.is_global_zero:
            for logger in trainer.loggers:
                logger.log_metrics({**values, "epoch": trainer.current_epoch}, step=self._at)
                logger.save()

    def _step(self, trainer: Trainer) -> int:
        """The step at which Lightning logs what belongs to this batch: how many batches before it made steps."""
        by_hand = not trainer.lightning_module.automatic_optimization
        return trainer.fit_loop.total_batch_idx if by_hand else self._steps


def values_of(log: Log, running: Running) -> dict[str, float]:
    """All values by their keys; several runs are taken together.

    Args:
        log: Which ones.
        running: All that prunes the model.
    """
    runs, key = [run for run, _ in running], f"{log.prefix}sparsity"
    values = {key: sparsity_of(runs)}
    wanted = [(target(run, plan), run.total) for run, plan in running]
    if all(share is not None for share, _ in wanted):
        whole = max(1, sum(total for _, total in wanted))
        values[f"{key}/target"] = sum((share or 0.0) * total for share, total in wanted) / whole
    if log.tensors:
        values.update({f"{key}/{t.name}": t.zeros / t.parameter.numel() for run in runs for t in run.targets})
    regrown = [run.regrowth for run in runs if run.regrowth is not None]
    if regrown:
        values[f"{log.prefix}regrow/churn"] = sum(r.moved for r in regrown) / max(1, sum(r.left for r in regrown))
        values[f"{log.prefix}regrow/explored"] = sum(r.ever for r in regrown) / max(1, sum(r.total for r in regrown))
    return values


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
