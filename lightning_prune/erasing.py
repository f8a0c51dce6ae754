"""Erasing at a pruning event: zeros in the parameter, its gradient, its optimizer state and its averages.

From then on the masked entries have zero gradient, so entrywise optimizers leave them at zero: nothing drifts,
nothing decays into denormals, and norms of weights and updates are those of the sparse model.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from lightning.pytorch.callbacks import StochasticWeightAveraging, WeightAveraging
from torch import Tensor, nn
from torch.optim import LBFGS, Optimizer
from torch.optim.swa_utils import AveragedModel

from lightning_prune.targets import Target


@torch.no_grad()
def erase(targets: Sequence[Target], optimizers: Iterable[Optimizer], copies: Iterable[nn.Module] = ()) -> None:
    """Writes zeros under the masks of all targets.

    Args:
        targets: Pruned tensors.
        optimizers: All optimizers of the run. State tensors of the parameter's shape (momentum, Adam's moments)
            are erased too; L-BFGS, whose state mixes all entries, starts its memory afresh.
        copies: Other modules that hold the same parameters by the same names, such as averaged models.
    """
    dead = {id(t.parameter): ~alive for t in targets if (alive := t.alive) is not None}
    for target in targets:
        if id(target.parameter) in dead:
            _fill(dead[id(target.parameter)], target.parameter, target.parameter.grad)
    for optimizer in optimizers:
        _erase_state(optimizer, dead)
    for copy in copies:
        _erase_copy(copy, {t.name: dead[id(t.parameter)] for t in targets if id(t.parameter) in dead})


def averaged_models(callbacks: Iterable[object]) -> list[nn.Module]:
    """The averages of the model that callbacks keep, by Lightning's callbacks or torch's ``AveragedModel``.

    Other models that a callback holds, such as a teacher, are no averages.
    """
    found: list[nn.Module] = []
    for callback in callbacks:
        held = [value for value in vars(callback).values() if isinstance(value, nn.Module)]
        averaging = isinstance(callback, (StochasticWeightAveraging, WeightAveraging))
        found += [value for value in held if averaging or isinstance(value, AveragedModel)]
    return found


def _fill(dead: Tensor, *tensors: Tensor | None) -> None:
    for tensor in tensors:
        if tensor is not None:
            tensor.masked_fill_(dead.to(tensor.device), 0)


def _erase_state(optimizer: Optimizer, dead: dict[int, Tensor]) -> None:
    held = [p for group in optimizer.param_groups for p in group["params"] if id(p) in dead]
    if isinstance(optimizer, LBFGS) and held:
        optimizer.state.clear()
    for parameter in held:
        for value in optimizer.state.get(parameter, {}).values():
            if isinstance(value, Tensor) and value.shape == parameter.shape:
                _fill(dead[id(parameter)], value)


def _erase_copy(copy: nn.Module, dead: dict[str, Tensor]) -> None:
    parameters = {name.removeprefix("module."): p for name, p in copy.named_parameters()}
    for name, mask in dead.items():
        if name in parameters and parameters[name].shape == mask.shape:
            _fill(mask, parameters[name])
