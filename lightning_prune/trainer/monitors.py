"""Monitored scores: those of different sparsities do not compete.

Lightning's ``ModelCheckpoint`` and ``EarlyStopping`` and torch's ``ReduceLROnPlateau`` compare the scores of a whole
run. While a model is pruned that favours early, less sparse epochs. So when an event makes the model sparser,
:class:`FreshScores` ends the competition and starts a new one:

- what was best is the best no more: files of earlier scores rank last, patience and bad epochs count anew;
- ``trainer.callback_metrics`` holds, in place of each score that is monitored, a value worse than it, until a
  validation (or the end of an epoch, for averages over its batches) has written a new one. A file that is saved in
  between is one of the new sparsity; it ranks behind all that are saved by a score, and nobody stops by it.

All of it goes through public attributes, so subclasses that override methods of these callbacks keep working; when they
save, and what, stays their own affair.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from torch import Tensor
from torch.optim.lr_scheduler import ReduceLROnPlateau

from lightning_prune.trainer.lightning import callbacks_of, is_checkpoint, is_early_stopping, plateaus_of

_BAD = 999_999.0
_POSITIONS = ("epoch", "step")  # where a fit is; never scores of other weights


@dataclass(frozen=True)
class Monitor:
    """Something that compares scores.

    Attributes:
        name: What it is, in words.
        key: The score's key in ``trainer.callback_metrics``.
        mode: ``"min"``: the lowest score is the best; ``"max"``: the highest.
        forget: Makes any finite score better than all before it.
        limit: A score worse than this one ends the fit; ``None`` = none does.
        files: Its files and their scores are those of this callback; ``None`` = it saves none.
    """

    name: str
    key: str
    mode: str
    forget: Callable[[], None]
    limit: float | None = None
    files: ModelCheckpoint | None = None

    def unknown(self, score: Tensor) -> Tensor:
        """What stands in for a score that there is not yet: a bad value that ends nothing, of few digits in file names.

        That is 999999 or -999999, or the worst finite value where the score before is as bad as that.

        Args:
            score: The score before; gives shape, dtype and device.

        Example:
            >>> monitor = Monitor("EarlyStopping(loss)", "loss", "min", lambda: None)
            >>> monitor.unknown(torch.tensor(0.5)), monitor.unknown(torch.tensor(0.5, dtype=torch.float16))
            (tensor(999999.), tensor(65504., dtype=torch.float16))
        """
        score = score.detach() if score.is_floating_point() else score.detach().float()
        most = torch.finfo(score.dtype).max
        if most > _BAD and bool((score.abs() < _BAD).all()):
            most = _BAD
        if self.limit is not None and abs(self.limit) < most:
            limit = torch.full_like(score, self.limit)
            return torch.nextafter(limit, torch.full_like(score, -most if self.mode == "min" else most))
        return torch.full_like(score, most if self.mode == "min" else -most)


def monitors_of(trainer: Trainer) -> list[Monitor]:
    """All that compares scores in a fit: checkpoints, early stopping and learning-rate schedulers.

    Args:
        trainer: The Trainer, when its optimizers are set up.
    """
    found = []
    for callback in callbacks_of(trainer):
        if is_checkpoint(callback) and callback.monitor is not None:
            found.append(_of_checkpoint(callback, callback.monitor))
        elif is_early_stopping(callback):
            found.append(_of_early_stopping(callback))
    return found + [_of_plateau(key, scheduler) for key, scheduler in plateaus_of(trainer)]


def _of_checkpoint(callback: ModelCheckpoint, key: str) -> Monitor:
    def forget() -> None:
        callback.best_k_models = dict.fromkeys(callback.best_k_models, _infinity(callback.mode))
        callback.kth_value = _infinity(callback.mode)

    return Monitor(f"ModelCheckpoint({key})", key, callback.mode, forget, files=callback)


def _of_early_stopping(callback: EarlyStopping) -> Monitor:
    def forget() -> None:
        callback.best_score, callback.wait_count = _infinity(callback.mode), 0

    key = callback.monitor
    return Monitor(f"EarlyStopping({key})", key, callback.mode, forget, limit=callback.divergence_threshold)


def _of_plateau(key: str, scheduler: ReduceLROnPlateau) -> Monitor:
    def forget() -> None:
        scheduler.best, scheduler.num_bad_epochs = scheduler.mode_worse, 0

    return Monitor(f"ReduceLROnPlateau({key})", key, scheduler.mode, forget)


def _infinity(mode: str) -> Tensor:
    return torch.tensor(torch.inf if mode == "min" else -torch.inf)


class FreshScores:
    """Takes scores of less sparse weights out of competition, for all callbacks of a Trainer.

    One of the pruning callbacks of a Trainer has it at work. Its hooks call, in this order of a fit:

    ======================== ================================================
    ``on_train_start``       :meth:`start`
    ``on_train_epoch_start`` :meth:`epoch_start`, before events
    after an event           :meth:`restart`, if the model got sparser
    ``on_train_batch_end``   :meth:`batch_end`
    ``on_validation_start``  :meth:`validation_start`, but for sanity checks
    ``on_validation_end``    :meth:`validation_end`, but for sanity checks
    ``on_train_epoch_end``   :meth:`epoch_end`
    ``on_train_end``         :meth:`close`, as ``on_exception`` does
    ======================== ================================================

    ``ModelCheckpoint`` gives its state to its own files, so what is changed there holds after a resume.
    """

    def __init__(self) -> None:
        self._real: dict[str, dict[str, Tensor]] = {}
        self._reset()

    def _reset(self) -> None:
        self._unknown: dict[str, Tensor] = {}
        self._before: dict[str, Tensor] = {}
        self._validated: set[str] = set()
        self._averages: set[str] = set()
        self._kept: set[str] = set(_POSITIONS)
        self._begun = self._mixed = False

    def state_dict(self) -> dict[str, dict[str, Tensor]]:
        """Scores of files that are out of competition, by the callbacks that saved them and the paths."""
        return {key: dict(scores) for key, scores in self._real.items()}

    def load_state_dict(self, state: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Takes the scores of :meth:`state_dict`."""
        self._real = {key: dict(scores) for key, scores in state.items()}

    def start(self, trainer: Trainer) -> None:
        """Begins a fit: scores that an earlier one took out of competition stay out.

        Args:
            trainer: The Trainer whose fit begins.
        """
        self._reset()
        for callback, real in self._with_all_files(trainer):
            out = dict.fromkeys(callback.best_k_models.keys() & real.keys(), _infinity(callback.mode))
            callback.best_k_models = {**callback.best_k_models, **out}

    def close(self, trainer: Trainer) -> None:
        """Ends a fit: files of which none is ever deleted (``save_top_k=-1``) get their scores back.

        Args:
            trainer: The Trainer whose fit ends.
        """
        self._reset()
        for callback, real in self._with_all_files(trainer):
            back = {path: score for path, score in real.items() if path in callback.best_k_models}
            callback.best_k_models = {**callback.best_k_models, **back}

    def restart(self, trainer: Trainer, keep: Collection[str] = ()) -> list[str]:
        """Lets scores from now on win over all earlier ones, after an event that made the model sparser.

        Args:
            trainer: The Trainer that fits.
            keep: Keys that hold what is true of the pruned weights, such as ``"sparsity"``.

        Returns:
            What was restarted, in words.
        """
        monitors = monitors_of(trainer)
        self._kept = {*_POSITIONS, *keep}
        self._forget(trainer, monitors, {m.key for m in monitors} - self._kept)
        self._mixed = self._begun
        return [monitor.name for monitor in monitors]

    def epoch_start(self, trainer: Trainer) -> None:
        """Takes averages over an epoch in which an event fell as scores from before it.

        Args:
            trainer: The Trainer that fits.
        """
        mixed, self._mixed, self._begun = self._mixed, False, False
        if mixed:
            monitors = [m for m in monitors_of(trainer) if m.key in self._averages - self._kept]
            self._forget(trainer, monitors, {m.key for m in monitors})

    def batch_end(self, trainer: Trainer) -> None:
        """Lets patience not count by scores that there are not yet; the weights are no longer those of before.

        Args:
            trainer: The Trainer that fits.
        """
        self._begun = True
        if self._unknown:
            self._rank_last(trainer)
            for monitor in monitors_of(trainer) if self._unknown else ():
                if monitor.files is None and monitor.key in self._unknown:
                    monitor.forget()

    def validation_start(self, trainer: Trainer) -> None:
        """Notes which scores there were.

        Args:
            trainer: The Trainer that fits.
        """
        self._before = dict(trainer.callback_metrics)

    def validation_end(self, trainer: Trainer) -> None:
        """Notes which scores the validation made; files that were saved without one rank behind them.

        Args:
            trainer: The Trainer that fits.
        """
        metrics = trainer.callback_metrics
        self._validated |= {name for name, value in metrics.items() if value is not self._before.get(name)}
        self._before = {}
        self._rank_last(trainer)

    def epoch_end(self, trainer: Trainer) -> None:
        """As :meth:`validation_end`, for averages over the epoch.

        Args:
            trainer: The Trainer that fits.
        """
        if self._unknown or self._mixed:
            metrics = trainer.callback_metrics
            self._averages = set(metrics) - self._validated - self._unknown_still(metrics)
            self._rank_last(trainer)

    def _forget(self, trainer: Trainer, monitors: Iterable[Monitor], keys: Collection[str]) -> None:
        metrics = trainer.callback_metrics
        for monitor in monitors:
            self._set_aside(monitor)
            monitor.forget()
            score = metrics.get(monitor.key)
            if monitor.key in keys and score is not None and not self._is_unknown(monitor.key, score):
                self._unknown[monitor.key] = metrics[monitor.key] = monitor.unknown(torch.as_tensor(score))

    def _set_aside(self, monitor: Monitor) -> None:
        """Notes the scores of files that none deletes, to give them back."""
        if monitor.files is not None and monitor.files.save_top_k == -1:
            real = self._real.setdefault(monitor.files.state_key, {})
            unknown = self._unknown.get(monitor.key)
            scores = monitor.files.best_k_models.items()
            real.update({path: s for path, s in scores if torch.isfinite(s) and not _same(s, unknown)})

    def _rank_last(self, trainer: Trainer) -> None:
        """Lets files that were saved without a score rank behind those of the score that there is now."""
        now = trainer.callback_metrics
        known = {key: self._unknown.pop(key) for key in self._unknown.keys() - self._unknown_still(now)}
        for monitor in monitors_of(trainer) if known else ():
            if monitor.files is not None and monitor.key in known:
                files, stood_in = monitor.files.best_k_models, known[monitor.key]
                last = {path: _infinity(monitor.mode) for path, score in files.items() if _same(score, stood_in)}
                monitor.files.best_k_models = {**files, **last}

    def _unknown_still(self, metrics: dict[str, Tensor]) -> set[str]:
        return {key for key in self._unknown if self._is_unknown(key, metrics.get(key))}

    def _is_unknown(self, key: str, score: Tensor | None) -> bool:
        return score is not None and score is self._unknown.get(key)

    def _with_all_files(self, trainer: Trainer) -> list[tuple[ModelCheckpoint, dict[str, Tensor]]]:
        callbacks = [c for c in callbacks_of(trainer) if is_checkpoint(c) and c.save_top_k == -1]
        return [(c, self._real.get(c.state_key, {})) for c in callbacks if is_checkpoint(c)]


def _same(score: Tensor, other: Tensor | None) -> bool:
    return other is not None and bool(torch.all(score.to(other.device) == other))
