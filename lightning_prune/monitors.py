"""Monitored scores: those of different sparsities do not compete, and a file is ranked by a score of its own weights.

Lightning's ``ModelCheckpoint`` and ``EarlyStopping`` compare the scores of a whole run. While a model is pruned that
favours early, less sparse epochs; :func:`restart` makes them compare only what came after the last rise of sparsity.
``ModelCheckpoint`` can also rank a file by the score of an earlier validation, when it saves between two of them;
:class:`FreshScores` makes such a save wait for the next validation.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from torch import Tensor


def restart(callbacks: Iterable[Callback]) -> list[str]:
    """Lets scores from now on win over all earlier ones.

    Files of earlier scores stay the best until there is a new score, and are replaced first. Patience counts anew.
    The callbacks save what is changed here in their own states, so it holds after a resume.

    Args:
        callbacks: All callbacks of a Trainer; those that compare scores are changed.

    Returns:
        What was restarted, in words.
    """
    restarted = []
    for callback in callbacks:
        if isinstance(callback, ModelCheckpoint) and callback.monitor is not None:
            worst = torch.tensor(torch.inf if callback.mode == "min" else -torch.inf)
            callback.best_k_models = dict.fromkeys(callback.best_k_models, worst)
            callback.kth_value = worst
            restarted.append(f"ModelCheckpoint({callback.monitor})")
        elif isinstance(callback, EarlyStopping):
            callback.best_score = torch.tensor(torch.inf if callback.mode == "min" else -torch.inf)
            callback.wait_count = 0
            restarted.append(f"EarlyStopping({callback.monitor})")
    return restarted


class FreshScores:
    """Keeps ``ModelCheckpoint`` from ranking weights by the validation of other weights.

    A score is one of other weights as soon as a batch of training began after its validation: that may have moved
    weights, running statistics and, by an event before it, zeros. A save by such a score is put off to the next
    validation; ``save_last`` still writes its file at once. After an event ``EarlyStopping`` waits for the next score.
    """

    def __init__(self) -> None:
        self._before: dict[str, Tensor] = {}
        self._validated: set[str] = set()
        self._fresh = False
        self._held: dict[ModelCheckpoint, tuple[int, float | None]] = {}
        self._moved: dict[ModelCheckpoint, bool | None] = {}
        self._last_at: dict[ModelCheckpoint, int] = {}
        self._waiting: list[EarlyStopping] = []

    def on_validation_start(self, trainer: Trainer) -> None:
        """Notes which scores there were."""
        self.release()
        self._go_on()
        self._before = dict(trainer.callback_metrics)

    def on_validation_end(self, trainer: Trainer) -> None:
        """Notes which scores the validation made, and lets saves that waited for it happen."""
        metrics = trainer.callback_metrics
        self._validated |= {name for name, value in metrics.items() if value is not self._before.get(name)}
        self._before, self._fresh = {}, True
        for callback in _checkpoints(trainer):
            if callback._defer_save_until_validation:
                self._save_after_validation(callback, trainer)

    def on_train_batch_start(self) -> None:
        """From here on the scores are those of earlier weights."""
        self.release()
        self._fresh = False

    def on_train_batch_end(self, trainer: Trainer) -> None:
        """Puts saves by steps and by time off if their score is of earlier weights."""
        for callback in self._stale(trainer):
            every, saved_at = callback._every_n_train_steps, callback._last_global_step_saved
            if every > 0 and trainer.global_step % every == 0 and saved_at != trainer.global_step:
                self._save_last(callback, trainer)
                callback._defer_save_until_validation = True
            self._held[callback] = saved_at, callback._last_time_checked
            callback._last_global_step_saved = trainer.global_step

    def on_train_epoch_end(self, trainer: Trainer) -> None:
        """Moves saves at the end of the training epoch to the end of validations, if their scores differ."""
        for callback in self._stale(trainer):
            if self._save_after_validation(callback, trainer):
                self._save_last(callback, trainer)

    def on_sparser(self, trainer: Trainer) -> None:
        """Lets ``EarlyStopping`` wait for a score of the sparser weights."""
        for callback in trainer.callbacks:  # type: ignore[attr-defined]
            validated = isinstance(callback, EarlyStopping) and callback.monitor in self._validated
            if validated and callback._check_on_train_epoch_end:
                callback._check_on_train_epoch_end = False
                self._waiting.append(callback)

    def release(self) -> None:
        """Called once ``ModelCheckpoint`` has had its turn, and before anything else can save."""
        for callback, (saved_at, looked_at) in self._held.items():
            callback._last_global_step_saved = saved_at
            if callback._last_time_checked != looked_at:  # its time interval was over, and it was kept from saving
                callback._defer_save_until_validation = True
        self._held = {}

    def close(self) -> None:
        """Leaves all callbacks as their user set them up."""
        self.release()
        self._go_on()
        for callback, setting in self._moved.items():
            callback._save_on_train_epoch_end = setting
        self._moved, self._last_at = {}, {}

    def _go_on(self) -> None:
        for callback in self._waiting:
            callback._check_on_train_epoch_end = True
        self._waiting = []

    def _stale(self, trainer: Trainer) -> list[ModelCheckpoint]:
        """The callbacks whose score is one of a validation of earlier weights."""
        return [c for c in _checkpoints(trainer) if c.monitor in self._validated and not self._fresh]

    def _save_after_validation(self, callback: ModelCheckpoint, trainer: Trainer) -> bool:
        """Whether it saved at the end of training epochs; from now on it saves at the end of validations."""
        if not callback._should_save_on_train_epoch_end(trainer):
            return False
        self._moved.setdefault(callback, callback._save_on_train_epoch_end)
        callback._save_on_train_epoch_end = False
        return True

    def _save_last(self, callback: ModelCheckpoint, trainer: Trainer) -> None:
        done = self._last_at.get(callback) == trainer.global_step
        if callback.save_last and not done and not callback._should_skip_saving_checkpoint(trainer):
            saved_at = callback._last_global_step_saved
            callback._save_last_checkpoint(trainer, callback._monitor_candidates(trainer))
            callback._last_global_step_saved = saved_at
            self._last_at[callback] = trainer.global_step


def _checkpoints(trainer: Trainer) -> list[ModelCheckpoint]:
    return [c for c in trainer.checkpoint_callbacks if isinstance(c, ModelCheckpoint)]
