"""Erasing at a pruning event: zeros in the parameter, its gradient, its optimizer state and its averages.

From then on the masked entries have zero gradient, so entrywise optimizers leave them at zero: nothing drifts,
nothing decays into denormals, and norms of weights and updates are those of the sparse model.

Second moments on CPUs get a positive number instead. Optimizers divide by their roots, and root and quotient are slow
for zeros and slower for denormals: of a million weights of which 90 % are masked, a step of Adam took 2.0 times as long
as a dense one with zeros there, 6.6 times with denormals, and 1.0 times with positive numbers (RMSprop and Adagrad
2.6, 9.7 and 1.0; one thread, torch 2.13; ``fused=True`` 1.0, 1.8 and 1.0). Since the first moment is 0, so is the
update, whatever is written. It is the mean of the tensor's second moments, so that a weight that is trained again later
starts with steps of a usual size. It decays: from 1e-8 with a beta of 0.95 it is a denormal after 1,300 steps, which is
why :class:`~lightning_prune.fit.enforcing.Enforcement` writes it again now and then.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn
from torch.optim import LBFGS, Adagrad, Optimizer

from lightning_prune.fit.moved import Moved
from lightning_prune.prune.kernels.arrays import put
from lightning_prune.prune.kernels.masking import sum_where, write_zeros
from lightning_prune.prune.sharded.tensors import dead_entries, holders_of, is_sharded, local
from lightning_prune.targets.select import Target

_SECOND_MOMENTS = ("exp_avg_sq", "max_exp_avg_sq", "square_avg")


@torch.no_grad()
def erase(targets: Sequence[Target], optimizers: Iterable[Optimizer], copies: Iterable[nn.Module] = ()) -> None:
    """Writes zeros under the masks of all targets.

    Args:
        targets: Pruned tensors.
        optimizers: All optimizers of the run. State tensors of the parameter's shape (momentum, Adam's moments)
            are erased too, second moments on CPUs as said above; L-BFGS, whose state mixes all entries, starts its
            memory afresh.
        copies: Other modules that hold the same parameters by the same names, such as averaged models.
    """
    pruned = {target: mask for target in targets if (mask := target.alive) is not None}
    for target, mask in pruned.items():
        _erase(mask, target.parameter, target.parameter.grad)
    for optimizer in optimizers:
        _erase_state(optimizer, pruned)
        fill_second_moments(optimizer, pruned)
    for copy in copies:
        held = _by_name(copy)
        for target, mask in pruned.items():
            _erase(mask, held.get(target.name))


@torch.no_grad()
def fill_second_moments(optimizer: Optimizer, targets: Iterable[Target], every: int = 1) -> None:
    """Writes the mean of a tensor's second moments under its mask, for tensors on CPUs.

    Args:
        optimizer: An optimizer that counts steps in its state, such as torch's Adam, RMSprop and Adagrad; others are
            left alone.
        targets: Pruned tensors; those that it does not hold are left alone.
        every: Only at the first of so many steps.
    """
    for target in targets:
        state: Mapping[str, Any] = optimizer.state.get(target.parameter, {})
        counted = "step" in state and target.parameter.is_cpu and int(state["step"]) % every == 1 % every
        if counted and (mask := target.alive) is not None:
            for moments in _second_moments(optimizer, target):
                write_zeros(local(moments), local(mask))
                _fill(moments, mask, float(local(moments).mean()))


@torch.no_grad()
def begin_anew(moved: Mapping[Target, Moved], optimizers: Iterable[Optimizer], copies: Iterable[nn.Module]) -> None:
    """Lets the weights of some tensors that were masked or came back begin as ones that were never trained.

    They become 0, and so do all states that optimizers have of them, but second moments, which become the mean of the
    weights that stayed. They are few, so they are written one by one; what is neither stays as it is.

    Args:
        moved: What moved in each tensor.
        optimizers: All optimizers of the run; L-BFGS starts its memory afresh.
        copies: Other modules that hold the same parameters by the same names, such as averaged models.
    """
    averages, stepping = [_by_name(copy) for copy in copies], [*optimizers]
    for optimizer in stepping:
        _forget_directions(optimizer, moved)
    for target, move in moved.items():
        means = {id(m): _mean_where(m, move.stayed) for o in stepping for m in _second_moments(o, target)}
        states = [state for o in stepping for state in o.state.get(target.parameter, {}).values()]
        for tensor in (target.parameter, *(held.get(target.name) for held in averages), *states):
            _restart(tensor, move, means.get(id(tensor), 0.0))


def _restart(tensor: object, move: Moved, value: float) -> None:
    """Writes a number where entries moved into what has one for each; of few bits, zeros in all that did not stay."""
    if _is_of_few_bits(tensor):
        _erase(move.stayed, tensor)
    elif _is_written(tensor) and tensor.shape == move.after.shape:
        put(local(tensor.detach()), move.places, value if 0 < value < math.inf else 0.0)
        torch.autograd.graph.increment_version(tensor)


def _second_moments(optimizer: Optimizer, target: Target) -> list[Tensor]:
    """The second moments of a tensor, one number for each weight, that can be written into."""
    state = optimizer.state.get(target.parameter, {})
    keys = (*_SECOND_MOMENTS, "sum") if isinstance(optimizer, Adagrad) else _SECOND_MOMENTS
    found = [moments for key in keys if _is_written(moments := state.get(key))]
    return [m for m in found if m.shape == target.parameter.shape and not m.is_complex()]


def _mean_where(values: Tensor, mask: Tensor) -> float:
    """The mean of the numbers where a mask is True, over all ranks."""
    total = sum_where(local(values), local(mask))
    return float(holders_of(values).total(total)) / max(mask.numel() - dead_entries(mask), 1)


def _fill(moments: Tensor, mask: Tensor, value: float) -> None:
    """Writes a number where a mask is False and there are zeros, if it is a positive one."""
    values = local(moments)
    if 0 < value < math.inf:
        values.add_(~local(mask).to(values.device), alpha=value)


def _by_name(copy: nn.Module) -> dict[str, nn.Parameter]:
    return {name.removeprefix("module."): parameter for name, parameter in copy.named_parameters()}


def _erase(alive: Tensor, *tensors: object) -> None:
    """Writes zeros into the tensors that have an entry for each weight."""
    for tensor in tensors:
        if _is_written(tensor) and tensor.shape == alive.shape:
            write_zeros(local(tensor.detach()), local(alive).to(tensor.device))
        elif _is_of_few_bits(tensor) and tensor.shape == alive.shape:
            tensor.copy_(torch.where(alive, tensor.dequantize(), 0))


def _is_written(tensor: object) -> TypeGuard[Tensor]:
    """Whether zeros can be written into a tensor entry by entry."""
    return isinstance(tensor, Tensor) and (type(tensor) in (Tensor, nn.Parameter) or is_sharded(tensor))


def _is_of_few_bits(tensor: object) -> TypeGuard[Tensor]:
    """Whether it is of a type of its own that is written and read as a whole, such as torchao's states of 8 and 4 bits.

    What cannot be read is left alone: gradients under the mask are zero, so what is in there decays.
    """
    return isinstance(tensor, Tensor) and type(tensor).dequantize is not Tensor.dequantize


def _erase_state(optimizer: Optimizer, alive: Mapping[Target, Tensor]) -> None:
    _forget_directions(optimizer, alive)
    for target, mask in alive.items():
        _erase(mask, *optimizer.state.get(target.parameter, {}).values())


def _forget_directions(optimizer: Optimizer, targets: Iterable[Target]) -> None:
    """Starts the memory of L-BFGS afresh, in which all entries of all its parameters are mixed."""
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    if isinstance(optimizer, LBFGS) and any(id(target.parameter) in held for target in targets):
        optimizer.state.clear()
