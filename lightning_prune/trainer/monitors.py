"""Monitored scores: those of different sparsities do not compete, and a file is ranked by a score of its own weights.

Lightning's ``ModelCheckpoint`` and ``EarlyStopping`` compare the scores of a whole run. While a model is pruned that
favours early, less sparse epochs; :func:`restart` makes them compare only what came after the last rise of sparsity.
``ModelCheckpoint`` can also rank a file by the score of an earlier validation, when it saves between two of them;
:class:`FreshScores` makes such a save wait for the next validation.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
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
    """Keeps ``ModelCheckpoint`` from ranking weights by the score of other weights.

    A score of a validation is one of other weights as soon as a batch was trained or pruned after it. A save by such a
    score waits for the next validation; ``save_last`` still writes its file at once. After an event neither
    ``ModelCheckpoint`` nor ``EarlyStopping`` looks at a score from before it.

    One is made for each fit. While it runs, the methods by which these callbacks save and look are wrapped, so that all
    happens when Lightning calls them: after all other callbacks, whose states are in the file.
    """

    def __init__(self) -> None:
        self._before: dict[str, Tensor] = {}
        self._validated: set[str] = set()
        self._fresh = self._begun = self._mixed = False
        self._at_event: dict[str, Tensor] = {}
        self._pending: set[ModelCheckpoint] = set()
        self._at_each: set[ModelCheckpoint] = set()
        self._wrapped: list[tuple[Callback, str]] = []

    def start(self, trainer: Trainer) -> None:
        """Wraps the callbacks that compare scores.

        Args:
            trainer: The Trainer whose fit begins.
        """
        for callback in trainer.callbacks:  # type: ignore[attr-defined]
            if isinstance(callback, ModelCheckpoint) and callback.monitor is not None:
                self._wrap(callback, "_save_topk_checkpoint", self._save)
                self._wrap(callback, "on_validation_end", self._save_what_waited)
            elif isinstance(callback, EarlyStopping):
                self._wrap(callback, "_run_early_stopping_check", self._look)

    def close(self) -> None:
        """Leaves all callbacks as they were."""
        for callback, name in self._wrapped:
            vars(callback).pop(name, None)
        self._wrapped = []
        self._pending.clear()
        self._at_each.clear()

    def on_validation_start(self, trainer: Trainer) -> None:
        """Notes which scores there were."""
        self._before = dict(trainer.callback_metrics)

    def on_validation_end(self, trainer: Trainer) -> None:
        """Notes which scores the validation made."""
        metrics = trainer.callback_metrics
        self._validated |= {name for name, value in metrics.items() if value is not self._before.get(name)}
        self._before, self._fresh = {}, True

    def on_train_epoch_start(self) -> None:
        """Notes that averages over an epoch begin anew."""
        self._begun = False

    def on_train_batch_end(self) -> None:
        """Notes that the weights are no longer those of the last validation."""
        self._fresh, self._begun = False, True

    def on_event(self, trainer: Trainer, sparser: bool) -> None:
        """Notes that weights were pruned.

        Args:
            trainer: The Trainer that fits.
            sparser: Whether scores from before must not compete with those from now on.
        """
        self._fresh = False
        if sparser:
            self._at_event, self._mixed = dict(trainer.callback_metrics), self._begun

    def on_train_epoch_end(self, trainer: Trainer) -> None:
        """Counts averages over an epoch in which an event fell as scores from before it."""
        if self._mixed:
            averages = {name: v for name, v in trainer.callback_metrics.items() if name not in self._validated}
            self._at_event |= averages
            self._mixed = False

    def _wrap(self, callback: Callback, name: str, around: Callable[..., None]) -> None:
        setattr(callback, name, functools.partial(around, callback, getattr(callback, name)))
        self._wrapped.append((callback, name))

    def _save(
        self, callback: ModelCheckpoint, save: Callable[..., None], trainer: Trainer, scores: dict[str, Tensor]
    ) -> None:
        outdated = callback.monitor in self._validated and not self._fresh
        if not outdated and not self._is_from_before(callback, trainer):
            self._pending.discard(callback)
            save(trainer, scores)
            return
        self._pending.add(callback)
        if callback._every_n_epochs == 1:  # validations do not fall on the ends of epochs: none of them is left out
            self._at_each.add(callback)
        if callback.save_last:
            callback._last_global_step_saved = trainer.global_step  # only then it goes on to ``save_last``

    def _save_what_waited(
        self, callback: ModelCheckpoint, go_on: Callable[..., None], trainer: Trainer, pl_module: LightningModule
    ) -> None:
        waited = callback in self._pending | self._at_each
        if waited and self._fresh and trainer.state.fn == "fit" and not trainer.sanity_checking:
            scores = callback._monitor_candidates(trainer)
            callback._save_topk_checkpoint(trainer, scores)
            if callback not in self._pending:
                callback._save_last_checkpoint(trainer, scores)
                callback._defer_save_until_validation = False
        go_on(trainer, pl_module)

    def _look(self, callback: EarlyStopping, look: Callable[..., None], trainer: Trainer) -> None:
        if not self._is_from_before(callback, trainer):
            look(trainer)

    def _is_from_before(self, callback: ModelCheckpoint | EarlyStopping, trainer: Trainer) -> bool:
        """Whether a score is one that there was at the last event."""
        name = str(callback.monitor)
        now, then = trainer.callback_metrics.get(name), self._at_event.get(name)
        return now is not None and then is not None and now.data_ptr() == then.data_ptr()
