"""Keeping what is pruned at zero between events, in the layout that leaves modules as they are.

There the forward reads the parameter itself. Its gradient is masked where it arises, so before anybody clips it, takes
its norm or sends it to other ranks; zeros are written again after each step, which decay, momentum or noise may have
moved; and writes by others in between are told by the version that torch counts for each tensor, an integer comparison,
and mended before the next forward. Of ``fully_shard`` hooks on tensors are never called, so its gradients are masked
after the backward, and before the step at the latest.

Whoever wants gradients of masked weights too (criteria, regrowth) *watches*: then nothing is masked before
:meth:`Enforcement.gradients_are_ready`.

In both layouts the second moments of masked weights are kept from decaying into denormals on CPUs; see
:mod:`lightning_prune.fit.erasing`.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from lightning_prune.fit.erasing import fill_second_moments
from lightning_prune.fit.run import PruningRun
from lightning_prune.prune.attribute import Layout
from lightning_prune.prune.kernels.masking import ZeroWriter, write_zeros
from lightning_prune.prune.sharded.tensors import is_sharded, local
from lightning_prune.targets.select import Target

_EVERY = 100  # steps after which second moments are written again: 1e-8 is a normal number still with a beta of 0.5


@dataclass
class _Followed:
    """A parameter whose gradients and writes are followed."""

    parameter: nn.Parameter
    written: tuple[int, int] | None = None
    handle: Any = None
    writer: ZeroWriter = field(default_factory=ZeroWriter)

    @property
    def now(self) -> tuple[int, int]:
        """Changes whenever the parameter is written into, or given other memory."""
        return self.parameter._version, self.parameter.data_ptr()

    def write_zeros(self, tensor: Tensor, mask: Tensor) -> None:
        """Writes zeros into the parameter or its gradient."""
        if is_sharded(tensor):
            write_zeros(local(tensor), local(mask))
        else:
            self.writer(tensor, mask)


class Enforcement:
    """Keeps the zeros of a run while it trains.

    Args:
        run: The run; its layout says how.
        ready: Called with an optimizer when its gradients are there, unmasked while somebody watches, before each of
            its steps without a closure; :meth:`gradients_are_ready` by default.

    Attributes:
        watching: Whether gradients stay unmasked until they are ready.

    Example:
        >>> from lightning_prune.pruner.budgets import Budget
        >>> from lightning_prune.pruner.pruner import Pruner
        >>> from lightning_prune.schedules.plan import Demand
        >>> from lightning_prune.pruner.method import make_recipe
        >>> from lightning_prune.targets.select import select
        >>> model = torch.nn.Linear(4, 2)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> pruner = Pruner(make_recipe("l1_unstructured", 2, "out", None), Budget("local", {}, None))
        >>> run = PruningRun(select(model), pruner, 0, Layout.PLAIN)
        >>> _ = run.prune(Demand(0, amount=3))
        >>> enforcement = Enforcement(run)
        >>> enforcement.start([optimizer])
        >>> enforcement.write_zeros()
        >>> model(torch.ones(1, 4)).sum().backward()
        >>> int((model.weight.grad == 0).sum()), int((model.weight == 0).sum()), type(model)
        (3, 3, <class 'torch.nn.modules.linear.Linear'>)
        >>> enforcement.stop()
    """

    def __init__(self, run: PruningRun, ready: Callable[[Optimizer], None] | None = None) -> None:
        self._run = run
        self._plain = run.layout is Layout.PLAIN
        self._ready = ready
        self._handles: list[Any] = []
        self._followed: dict[Target, _Followed] = {}
        self._others = False
        self.watching = False

    def start(self, optimizers: Iterable[object]) -> None:
        """Follows the parameters and the steps of all optimizers from now on.

        Args:
            optimizers: All optimizers of the fit. After steps of kinds that are not torch's nothing can be done at
                once; :meth:`batch_end` writes their zeros.
        """
        self.stop()
        given = list(optimizers)
        for optimizer in (o for o in given if isinstance(o, Optimizer)):
            self._handles.append(optimizer.register_step_post_hook(self._after_step))
            if self._plain:
                self._handles.append(optimizer.register_step_pre_hook(self._before_step))
        self._others = not all(isinstance(o, Optimizer) for o in given)
        self.follow()

    def follow(self) -> None:
        """Follows the parameters that the targets have now."""
        for target in self._run.targets if self._plain else ():
            self._follow(target)
        if len(self._followed) > len(self._run.targets):
            for target in self._followed.keys() - set(self._run.targets):
                _let_go(self._followed.pop(target))

    def _follow(self, target: Target) -> _Followed:
        parameter, followed = target.parameter, self._followed.get(target)
        if followed is None or followed.parameter is not parameter:
            if followed is not None:
                _let_go(followed)
            followed = self._followed[target] = _Followed(parameter)
        if followed.handle is None and parameter.requires_grad and not is_sharded(parameter):
            hook = _MaskGradient(weakref.ref(self), weakref.ref(target))
            followed.handle = parameter.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]
        return followed

    def mend(self) -> None:
        """Writes the zeros of parameters that somebody else wrote into since they were written last."""
        if not self._plain:
            return
        self.follow()
        for target, followed in self._followed.items():
            if followed.written != followed.now:
                self._write(target)

    def write_zeros(self) -> None:
        """Writes the zeros of all parameters, for example over what a checkpoint has under its masks."""
        if self._plain:
            self.follow()
            for target in self._run.targets:
                self._write(target)

    def after_backward(self) -> None:
        """Masks the gradients that no hook has masked; 0 under the mask also where they are inf or NaN."""
        if self._run.sharded and not self.watching:
            self._mask_gradients(self._run.targets)

    def gradients_are_ready(self, optimizer: Optimizer | None = None) -> None:
        """Masks the gradients that were left as they are for those who watch.

        Args:
            optimizer: Only those of its parameters; of all by default.
        """
        if self._plain and (self.watching or self._run.sharded):
            self._mask_gradients(self._run.targets if optimizer is None else self.held_by(optimizer))

    def batch_end(self) -> None:
        """Writes the zeros after steps of optimizers whose steps cannot be followed."""
        if self._others:
            self.mend()

    def held_by(self, optimizer: Optimizer) -> list[Target]:
        """The targets that an optimizer moves."""
        held = {id(p) for group in optimizer.param_groups for p in group["params"]}
        return [target for target in self._run.targets if id(target.parameter) in held]

    def stop(self) -> None:
        """Follows nothing any more."""
        for handle in self._handles:
            handle.remove()
        for followed in self._followed.values():
            _let_go(followed)
        self._handles, self._followed = [], {}

    def mask_gradient(self, target: Target) -> None:
        """Masks the gradient of a target unless somebody watches; called when it was accumulated."""
        if not self.watching:
            self._mask_gradients([target])

    def _mask_gradients(self, targets: Sequence[Target]) -> None:
        for target in targets:
            parameter, mask = target.parameter, target.alive
            gradient = parameter.grad
            if gradient is None or mask is None:
                continue
            if gradient.layout is torch.strided:
                self._follow(target).write_zeros(gradient.detach(), mask)
            else:
                parameter.grad = _masked_rows(gradient, mask)

    def _before_step(self, optimizer: Optimizer, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        closure = args[1] if len(args) > 1 else kwargs.get("closure")  # torch gives the optimizer itself first
        if closure is None:
            (self._ready or self.gradients_are_ready)(optimizer)

    def _after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        stepped = self.held_by(optimizer)
        for target in stepped if self._plain else ():
            self._write(target)
        fill_second_moments(optimizer, stepped, every=_EVERY)

    def _write(self, target: Target) -> None:
        mask, followed = target.alive, self._follow(target)
        if mask is not None and mask.shape == followed.parameter.shape:
            followed.write_zeros(followed.parameter.detach(), mask)
        followed.written = followed.now


def _let_go(followed: _Followed) -> None:
    if followed.handle is not None:
        followed.handle.remove()


class _MaskGradient:
    """Called by torch when the gradient of a parameter was accumulated; keeps neither fit nor model alive."""

    def __init__(self, enforcement: weakref.ref[Enforcement], target: weakref.ref[Target]) -> None:
        self._enforcement, self._target = enforcement, target

    def __call__(self, parameter: Tensor) -> None:
        enforcement, target = self._enforcement(), self._target()
        if enforcement is not None and target is not None:
            enforcement.mask_gradient(target)


def _masked_rows(gradient: Tensor, mask: Tensor) -> Tensor:
    """A sparse gradient of an embedding with zeros under the mask."""
    summed = gradient.coalesce()
    rows = summed.indices()[0]
    values = torch.where(mask[rows], summed.values(), 0)
    return torch.sparse_coo_tensor(summed.indices(), values, gradient.shape, is_coalesced=True)
