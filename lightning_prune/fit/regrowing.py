"""Regrowth during a fit: the smallest weights are dropped, and as many masked ones begin anew at 0.

An update happens between the backward of a batch and its step: then the gradients of all weights are there, averaged
over accumulated batches and ranks, so it costs no pass through the model. Then the gradient is masked by the new masks,
and the step is made, in which weights that came back move for the first time.

What a weight that came back begins with is what one has that was never trained: value and momentum 0. Only second
moments (of Adam, RMSprop, Adagrad) get the mean of those weights of the tensor that stayed, on every device, since
optimizers divide by their roots: after 0 the first step would be several times as large as a usual one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from lightning_prune.checkpoint import pack, unpack
from lightning_prune.fit.erasing import begin_anew, erase
from lightning_prune.fit.limits import Limits
from lightning_prune.fit.regrowth import Regrowth
from lightning_prune.fit.run import PruningRun
from lightning_prune.fit.training import Training
from lightning_prune.prune.kernels.signed import signed_keep_masks
from lightning_prune.prune.kernels.smallest import keep_masks
from lightning_prune.schedules.plan import Clock
from lightning_prune.schedules.regrow import Regrow
from lightning_prune.targets.target import Target


def moved_mask(
    weight: Tensor,
    alive: Tensor,
    scores: Tensor,
    count: int,
    *,
    strict: bool = True,
    signed: bool = False,
    name: str = "weight",
) -> Tensor:
    """The mask after the smallest weights were dropped and as many masked ones came back.

    Of equal weights the first ones are dropped, of equal scores the last ones come back.

    Args:
        weight: A tensor.
        alive: Its boolean mask (True = kept).
        scores: Of its shape; those with the largest come back.
        count: How many weights move; at most as many as are left, and with ``strict`` as are masked.
        strict: Whether those that are dropped now cannot come back now.
        signed: Whether scores are ranked with their signs instead of their magnitude.
        name: For messages.

    Returns:
        A boolean mask with as many zeros as before.

    Raises:
        ValueError: If a weight that is left, or a score of a masked one, is NaN.

    Example:
        >>> weight, alive = torch.tensor([3.0, 1.0, 0.0, 0.0]), torch.tensor([True, True, False, False])
        >>> moved_mask(weight, alive, torch.tensor([9.0, 9.0, 1.0, 2.0]), 1)
        tensor([ True, False, False,  True])
        >>> moved_mask(weight, alive, torch.tensor([9.0, 9.0, 1.0, 2.0]), 1, strict=False)
        tensor([ True,  True, False, False])
    """
    mask = keep_masks([weight], count, alive=[alive], names=[f"'{name}'"])[0]
    masked = ~(alive if strict else mask)
    rank = signed_keep_masks if signed else keep_masks
    stay = int(masked.count_nonzero()) - count
    return mask.logical_or_(rank([scores], stay, alive=[masked], names=[f"scores of '{name}'"])[0])


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
        """Whether weights move at the step that comes next.

        Args:
            training: The moment before the batch.
        """
        now = training.time(self._clock)
        trained = [t for t in self._run.targets if t.parameter.requires_grad]
        return any(self._due(target, now) is not None for target in trained)

    def see(self, targets: Sequence[Target], training: Training) -> None:
        """Moves the weights of tensors for which it is time.

        Args:
            targets: Tensors with the gradients of all their weights.
            training: The moment before the step.
        """
        now = training.time(self._clock)
        times = {target: self._due(target, now) for target in targets}
        due = {target: time for target, time in times.items() if time is not None}
        if due:
            self._update(due, training)
            self._done.update({target.name: now for target in due})

    @property
    def _clock(self) -> Clock:
        return "epoch" if self._regrow.unit == "epoch" else "step"

    def _due(self, target: Target, now: int) -> int | None:
        """The time of the update that has come for a tensor; intervals count from when it is there."""
        return self._regrow.latest(self._done.setdefault(target.name, now), now)

    def _update(self, due: Mapping[Target, int], training: Training) -> None:
        before = {target: mask for target in due if (mask := target.alive) is not None}
        key = f"regrow {max(due.values())} {next(iter(due)).name}"
        after = self._run.move(lambda: {t: self._mask(t, mask, due[t]) for t, mask in before.items()}, key)
        erase(list(after), training.optimizers, training.averages())
        for target, mask in after.items():
            grown = mask & ~before[target]
            begin_anew(target, grown, training.optimizers)
            self._moved[target.name] = int(grown.count_nonzero())
            self._ever[target.name] = self._ever.get(target.name, before[target]) | mask
        if max(due.values()) > self._time:
            self._updates, self._time = self._updates + 1, max(due.values())
        self._run.regrowth = self._told()

    def _mask(self, target: Target, alive: Tensor, time: int) -> Tensor:
        weight, gradient = target.parameter.detach(), target.parameter.grad
        assert gradient is not None
        dense = gradient.detach() if gradient.layout is torch.strided else gradient.detach().to_dense()
        scores = self._regrow.scores(weight, dense)
        if scores.shape != weight.shape:
            raise ValueError(
                f"{type(self._regrow).__name__}.scores gave shape {tuple(scores.shape)} for '{target.name}' of shape "
                f"{tuple(weight.shape)}: one score for each weight is needed"
            )
        strict, masked = self._regrow.strict, target.zeros
        count = round(self._regrow.share(time) * (weight.numel() - masked))
        count = min(count, masked) if strict else count
        return moved_mask(weight, alive, scores, count, strict=strict, signed=self._regrow.signed, name=target.name)

    def _told(self) -> Regrowth:
        run, sizes = self._run, {name: int(mask.count_nonzero()) for name, mask in self._ever.items()}
        ever = sum(sizes.get(t.name, t.parameter.numel() - t.zeros) for t in run.targets)
        return Regrowth(self._updates, self._time, sum(self._moved.values()), run.total - run.zeros, ever, run.total)

    def state_dict(self) -> dict[str, Any]:
        """All that resuming needs, as tensors and plain types."""
        return {
            "done": dict(self._done),
            "moved": dict(self._moved),
            "updates": self._updates,
            "time": self._time,
            "ever": {name: {"bits": pack(mask), "shape": list(mask.shape)} for name, mask in self._ever.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Puts the position back.

        Args:
            state: What :meth:`state_dict` gave.
        """
        self._done, self._moved = dict(state["done"]), dict(state["moved"])
        self._updates, self._time = state["updates"], state["time"]
        devices = {t.name: t.parameter.device for t in self._run.targets}
        ever = {name: saved for name, saved in state["ever"].items() if name in devices}
        self._ever = {name: unpack(s["bits"], s["shape"]).to(devices[name]) for name, s in ever.items()}
        if self._updates:
            self._run.regrowth = self._told()
