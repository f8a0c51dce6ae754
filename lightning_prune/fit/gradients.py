"""Gradients for those who watch: criteria that score by them, and regrowth that looks where weights are masked."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

import torch
import torch.distributed as dist

from lightning_prune.distributed import collective_device, several_ranks
from lightning_prune.fit.training import Training
from lightning_prune.prune.sharded.tensors import is_sharded, local
from lightning_prune.targets.target import Target


class Watcher(Protocol):
    """Somebody who wants to see the gradients of some optimizer steps.

    They are those that the step will use: of all accumulated batches, averaged over ranks, unscaled, not clipped, and
    not masked, so that weights under a mask have theirs.
    """

    def wants(self, training: Training) -> bool:
        """Whether to show the gradients of the optimizer step that comes next; asked before each batch.

        So it is asked several times for a step whose gradients are accumulated, and has to give the same answer.

        Args:
            training: The moment before the batch.
        """
        ...

    def see(self, targets: Sequence[Target], training: Training) -> None:
        """Shown the gradients, in ``target.parameter.grad``, right before they are masked.

        Args:
            targets: Tensors that the step moves, those with a gradient.
            training: The moment before the step.
        """
        ...


def all_finite(targets: Sequence[Target]) -> bool:
    """Whether no gradient is inf or NaN, on any rank; a step with such ones is skipped by loss scaling.

    Args:
        targets: Tensors with gradients. Every rank has to call it for tensors that are split over ranks.
    """
    finite = all(_is_finite(t) for t in targets)
    if several_ranks() and any(is_sharded(t.parameter) for t in targets):
        told = torch.tensor([int(finite)], device=collective_device())
        dist.all_reduce(told, dist.ReduceOp.MIN)
        return bool(told.item())
    return finite


def _is_finite(target: Target) -> bool:
    gradient = target.parameter.grad
    if gradient is None:
        return True
    part = local(gradient.detach())
    values = part if part.layout is torch.strided else part.coalesce().values()
    if math.isfinite(float(values.sum())):
        return True  # nothing that is inf or NaN adds up to a number
    return bool(values.isfinite().all())
