"""Regrowth during a fit: the smallest weights are dropped, and as many masked ones begin anew at 0.

An update happens between the backward of a batch and its step: then the gradients of all weights are there, averaged
over accumulated batches and ranks, so it costs no pass through the model. Then the gradient is masked by the new masks,
and the step is made, in which weights that came back move for the first time.

What a weight that came back begins with is what one has that was never trained: value and momentum 0. Only second
moments (of Adam, RMSprop, Adagrad) get the mean of those weights of the tensor that stayed, on every device, since
optimizers divide by their roots: after 0 the first step would be several times as large as a usual one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from lightning_prune.checkpoint import pack_whole, unpack
from lightning_prune.fit.erasing import begin_anew
from lightning_prune.fit.limits import Limits
from lightning_prune.fit.means import Means
from lightning_prune.fit.moved import Moved
from lightning_prune.fit.regrowth import Regrowth
from lightning_prune.fit.run import PruningRun
from lightning_prune.fit.training import Training
from lightning_prune.prune.sharded.masks import moved_mask
from lightning_prune.prune.sharded.tensors import cut, dead_entries, local, split_like
from lightning_prune.schedules.plan import Clock
from lightning_prune.schedules.regrow import Regrow
from lightning_prune.targets.target import Target


class Regrowing:
    """Moves weights at the updates of a value: a :class:`~lightning_prune.fit.gradients.Watcher`.

    Args:
        run: The masks.
        regrow: When how much of them moves.
    """

    def __init__(self, run: PruningRun, regrow: Regrow) -> None:
        self._run = run
        self._regrow = regrow
        self._done: dict[str, int] = {}
        self._moved: dict[str, int] = {}
        self._ever: dict[str, Tensor] = {}
        self._updates = 0
        self._time = 0
        self._open = False
        self._means = Means()

    def bind(self, limits: Limits) -> None:
        """Counts fractions of the run in steps.

        Args:
            limits: How long the run lasts.

        Raises:
            ValueError: If that is not known, but needed.
        """
        total = limits.of("step")
        if self._regrow.unit == "fraction" and total is None:
            raise ValueError(
                f"{self._regrow} counts in fractions of the run, but how many steps this one has is not known: set "
                'max_steps, or give until= in steps or epochs with unit="step" or "epoch"'
            )
        self._regrow = self._regrow if total is None else self._regrow.in_steps(max(total, 1))

    def wants(self, training: Training) -> bool:
        """Whether the gradients of the step that comes next are needed.

        Args:
            training: The moment before the batch.
        """
        now = training.time(self._clock)
        trained = [t for t in self._run.targets if t.parameter.requires_grad]
        self._open = self._soon(training)
        return self._open or any(self._due(target, now) is not None for target in trained)

    def see(self, targets: Sequence[Target], training: Training) -> None:
        """Moves the weights of tensors for which it is time.

        Args:
            targets: Tensors with the gradients of all their weights.
            training: The moment before the step.
        """
        now = training.time(self._clock)
        times = {target: self._due(target, now) for target in targets}
        due = {target: time for target, time in times.items() if time is not None}
        for target in targets if self._regrow.window > 1 else ():
            if self._open or target in due:
                self._means.add(target.name, _gradient(target))
        if due:
            self._update(due, training)
            self._done.update({target.name: now for target in due})
            self._means.forget(target.name for target in due)

    @property
    def _clock(self) -> Clock:
        return "epoch" if self._regrow.unit == "epoch" else "step"

    def _due(self, target: Target, now: int) -> int | None:
        """The time of the update that has come for a tensor; intervals count from when it is there."""
        return self._regrow.latest(self._done.setdefault(target.name, now), now)

    def _soon(self, training: Training) -> bool:
        """Whether an update follows whose window the next step is in; of epochs in the first step of the next one."""
        ahead, now = self._regrow.window - 1, training.time(self._clock)
        if self._clock == "step":
            return self._regrow.latest(now, now + ahead) is not None
        near = training.left is not None and training.left <= ahead
        return near and self._regrow.latest(now, now + 1) is not None

    def _update(self, due: Mapping[Target, int], training: Training) -> None:
        before = {target: mask for target in due if (mask := target.alive) is not None}
        key = f"regrow {max(due.values())} {next(iter(due)).name}"
        after = self._run.move(lambda: {t: self._mask(t, mask, due[t]) for t, mask in before.items()}, key)
        moved = {target: Moved(before[target], mask) for target, mask in after.items()}
        begin_anew(moved, training.optimizers, training.averages())
        for target, move in moved.items():
            self._moved[target.name] = move.number
            self._ever[target.name] = move.ever(self._ever.get(target.name))
        if max(due.values()) > self._time:
            self._updates, self._time = self._updates + 1, max(due.values())
        self._run.regrowth = self._told()

    def _mask(self, target: Target, alive: Tensor, time: int) -> Tensor:
        weight, regrow = target.parameter.detach(), self._regrow
        gradient = self._means.of(target.name) if regrow.window > 1 else _gradient(target)
        scores = regrow.scores(local(weight), gradient)
        if scores is not None and scores.shape != gradient.shape:
            raise ValueError(
                f"{type(regrow).__name__}.scores gave shape {tuple(scores.shape)} for '{target.name}' of shape "
                f"{tuple(gradient.shape)}: one score for each weight is needed"
            )
        masked = target.zeros
        count = round(regrow.share(time) * (weight.numel() - masked))
        count = min(count, masked) if regrow.strict else count
        given = None if scores is None else split_like(scores, weight)
        return moved_mask(weight, alive, given, count, strict=regrow.strict, signed=regrow.signed, name=target.name)

    def _told(self) -> Regrowth:
        run, sizes = self._run, {name: mask.numel() - dead_entries(mask) for name, mask in self._ever.items()}
        ever = sum(sizes.get(t.name, t.parameter.numel() - t.zeros) for t in run.targets)
        left, moved = run.total - run.zeros, sum(self._moved.values())
        return Regrowth(self._updates, self._time, moved, left, ever, run.total, self._clock)

    def state_dict(self) -> dict[str, Any]:
        """All that resuming needs, as tensors and plain types; every rank has to call it for split tensors."""
        return self.state_later()()

    def state_later(self) -> Callable[[], dict[str, Any]]:
        """What gives the :meth:`state_dict` of now, when all ranks are there."""
        position = {
            "done": dict(self._done),
            "moved": dict(self._moved),
            "updates": self._updates,
            "time": self._time,
        }
        ever, means = dict(self._ever), self._means.state_later({t.name: t.parameter for t in self._run.targets})
        return lambda: {
            **position,
            "ever": {name: {"bits": pack_whole(mask), "shape": list(mask.shape)} for name, mask in ever.items()},
            **means(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Puts the position back.

        Args:
            state: What :meth:`state_dict` gave.
        """
        self._done, self._moved = dict(state["done"]), dict(state["moved"])
        self._updates, self._time = state["updates"], state["time"]
        parameters = {t.name: t.parameter.detach() for t in self._run.targets}
        ever = {name: saved for name, saved in state["ever"].items() if name in parameters}
        self._ever = {
            name: cut(unpack(saved["bits"], saved["shape"]).to(parameters[name].device), parameters[name])
            for name, saved in ever.items()
        }
        self._means.load_state_dict(state, parameters)
        if self._updates:
            self._run.regrowth = self._told()


def _gradient(target: Target) -> Tensor:
    """What this rank holds of the gradient of a tensor, without gradient of its own, dense."""
    gradient = target.parameter.grad
    assert gradient is not None
    part = local(gradient.detach())
    return part if part.layout is torch.strided else part.to_dense()
