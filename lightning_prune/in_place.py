"""Keeping the zeros of pruned parameters in place while they are trained, where reading does not mask them.

Gradients are masked after each backward, before they are clipped or reduced to norms, and weights after each step of an
optimizer, which decay, momentum or noise may have moved. Hooks on tensors would do for plain parameters, but those of
``fully_shard`` never call them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from lightning_prune.prune.masking import write_zeros
from lightning_prune.prune.sharding import local
from lightning_prune.run import PruningRun


class ZeroKeeper:
    """Keeps the zeros of a run in layout ``IN_PLACE``.

    Args:
        run: The run.
    """

    def __init__(self, run: PruningRun) -> None:
        self._run = run
        self._handles: list[Any] = []

    def start(self, optimizers: Iterable[Optimizer]) -> None:
        """Follows the steps of all optimizers."""
        self.stop()
        self._handles = [optimizer.register_step_post_hook(self._after_step) for optimizer in optimizers]

    def after_backward(self) -> None:
        """Masks the gradients; also those that are inf or NaN."""
        for target in self._run.targets:
            _mask(target.parameter.grad, target.alive)

    def stop(self) -> None:
        """Follows no optimizer any more."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        stepped = {id(p) for group in optimizer.param_groups for p in group["params"]}
        for target in self._run.targets:
            if id(target.parameter) in stepped:
                _mask(target.parameter.detach(), target.alive)


def _mask(tensor: Tensor | None, alive: Tensor | None) -> None:
    if tensor is not None and alive is not None:
        write_zeros(local(tensor), local(alive))
