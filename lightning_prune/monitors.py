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

    A save by a stale score is put off to the next validation; ``save_last`` still writes its file at once.
    """

    def __init__(self) -> None:
        self._before: dict[str, Tensor] = {}
        self._validated: set[str] = set()
        self._validated_at: int | None = None
        self._held: dict[ModelCheckpoint, int] = {}
        self._moved: dict[ModelCheckpoint, bool | None] = {}

    def on_validation_start(self, trainer: Trainer) -> None:
        """Notes which scores there were."""
        self.release()
        self._before = dict(trainer.callback_metrics)

    def on_validation_end(self, trainer: Trainer) -> None:
        """Notes which scores the validation made, and for which weights."""
        metrics = trainer.callback_metrics
        self._validated |= {name for name, value in metrics.items() if value is not self._before.get(name)}
        self._validated_at = trainer.global_step
        self._before = {}

    def on_train_batch_end(self, trainer: Trainer) -> None:
        """Puts the saves of ``every_n_train_steps`` off if their score is of earlier weights."""
        for callback in self._stale(trainer):
            every, saved_at = callback._every_n_train_steps, callback._last_global_step_saved
            if every > 0 and trainer.global_step % every == 0 and saved_at != trainer.global_step:
                self._save_last(callback, trainer)
                callback._defer_save_until_validation = True
            self._held[callback] = saved_at
            callback._last_global_step_saved = trainer.global_step

    def on_train_epoch_end(self, trainer: Trainer) -> None:
        """Moves saves at the end of the training epoch to the end of validations, if their scores differ."""
        for callback in self._stale(trainer):
            if callback._should_save_on_train_epoch_end(trainer):
                self._moved.setdefault(callback, callback._save_on_train_epoch_end)
                callback._save_on_train_epoch_end = False
                self._save_last(callback, trainer)

    def release(self) -> None:
        """Called once ``ModelCheckpoint`` has had its turn, and before anything else can save."""
        for callback, saved_at in self._held.items():
            callback._last_global_step_saved = saved_at
        self._held = {}

    def close(self) -> None:
        """Leaves all callbacks as their user set them up."""
        self.release()
        for callback, setting in self._moved.items():
            callback._save_on_train_epoch_end = setting
        self._moved = {}

    def _stale(self, trainer: Trainer) -> list[ModelCheckpoint]:
        """The callbacks whose score is one of a validation of earlier weights."""
        if self._validated_at in (None, trainer.global_step):
            return []
        callbacks = [c for c in trainer.checkpoint_callbacks if isinstance(c, ModelCheckpoint)]
        return [c for c in callbacks if c.monitor in self._validated]

    def _save_last(self, callback: ModelCheckpoint, trainer: Trainer) -> None:
        if callback.save_last and not callback._should_skip_saving_checkpoint(trainer):
            saved_at = callback._last_global_step_saved
            callback._save_last_checkpoint(trainer, callback._monitor_candidates(trainer))
            callback._last_global_step_saved = saved_at
