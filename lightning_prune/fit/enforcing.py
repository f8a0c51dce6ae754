"""Keeping what is pruned at zero between events, where the masked attribute does not: hooks of fits and optimizers.

In layout ``IN_PLACE`` the forward reads the parameter itself. Its gradient is masked after each backward, before it is
clipped or reduced to a norm, and zeros are written again after each step, which decay, momentum, noise or the user may
have moved. Hooks on tensors would see every gradient, but those of ``fully_shard`` never call them.

In both layouts the second moments of masked weights are kept from decaying into denormals on CPUs; see
:mod:`lightning_prune.fit.erasing`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from lightning_prune.fit.erasing import fill_second_moments
from lightning_prune.fit.run import PruningRun
from lightning_prune.prune.attribute import Layout
from lightning_prune.prune.kernels.masking import write_zeros
from lightning_prune.prune.sharded.tensors import local
from lightning_prune.targets.select import Target

_EVERY = 100  # steps after which second moments are written again: 1e-8 is a normal number still with a beta of 0.5


class Enforcement:
    """Keeps the zeros of a run while it trains.

    Args:
        run: The run; its layout says how.

    Example:
        >>> import torch
        >>> from lightning_prune.pruner.budgets import Budget
        >>> from lightning_prune.pruner.pruner import Pruner
        >>> from lightning_prune.schedules.plan import Demand
        >>> from lightning_prune.pruner.method import make_recipe
        >>> from lightning_prune.targets.select import select
        >>> model = torch.nn.Linear(4, 2)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> pruner = Pruner(make_recipe("l1_unstructured", 2, "out", None), Budget("local", {}, None))
        >>> run = PruningRun(select(model), pruner, 0, Layout.IN_PLACE)
        >>> _ = run.prune(Demand(0, amount=3))
        >>> enforcement = Enforcement(run)
        >>> enforcement.start([optimizer])
        >>> enforcement.write_zeros()
        >>> model(torch.ones(1, 4)).sum().backward()
        >>> enforcement.after_backward()
        >>> int((model.weight.grad == 0).sum()), int((model.weight == 0).sum())
        (3, 3)
        >>> enforcement.stop()
    """

    def __init__(self, run: PruningRun) -> None:
        self._run = run
        self._in_place = run.layout is Layout.IN_PLACE
        self._handles: list[Any] = []

    def start(self, optimizers: Iterable[Optimizer]) -> None:
        """Follows the steps of all optimizers from now on.

        Args:
            optimizers: All optimizers of the fit.

        Raises:
            TypeError: If the layout is ``IN_PLACE`` and an optimizer is not one of torch's.
        """
        given = list(optimizers)
        if self._in_place:
            _require_hooks(given)
        self.stop()
        self._handles = [o.register_step_post_hook(self._after_step) for o in given if isinstance(o, Optimizer)]

    def after_backward(self) -> None:
        """Masks the gradients in layout ``IN_PLACE``; 0 under the mask also where they are inf or NaN."""
        if self._in_place:
            for target in self._run.targets:
                self._mask(target, target.parameter.grad)

    def write_zeros(self) -> None:
        """Writes the zeros in layout ``IN_PLACE``, for example over what a checkpoint has under its masks."""
        if self._in_place:
            for target in self._run.targets:
                self._mask(target, target.parameter)

    def stop(self) -> None:
        """Follows no optimizer any more."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        held = {id(p) for group in optimizer.param_groups for p in group["params"]}
        stepped = [target for target in self._run.targets if id(target.parameter) in held]
        for target in stepped if self._in_place else ():
            self._mask(target, target.parameter)
        fill_second_moments(optimizer, stepped, every=_EVERY)

    def _mask(self, target: Target, tensor: Tensor | None) -> None:
        alive = target.alive
        if alive is None or tensor is None:
            return
        if self._run.sharded:
            tensor, alive = local(tensor.detach()), local(alive)
        write_zeros(tensor, alive)


def _require_hooks(optimizers: Iterable[object]) -> None:
    for optimizer in optimizers:
        if not isinstance(optimizer, Optimizer):
            raise TypeError(
                f'enforce="in_place" follows the steps of optimizers, which must be torch.optim.Optimizer, got '
                f'{type(optimizer).__module__}.{type(optimizer).__name__}; enforce="read" works with any'
            )
