"""Weights by the size of what they are multiplied with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from lightning_prune.prune.sharded.tensors import is_sharded
from lightning_prune.pruner.criteria.base import Criterion, Watches, require_count
from lightning_prune.targets.select import Target
from lightning_prune.targets.unfit import refuse_unfit

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


@dataclass(frozen=True)
class Activation(Criterion):
    """``|w|`` times the norm of the input it is multiplied with (WANDA, Sun et al. 2023).

    The norm is that of an input feature over all samples and positions of the batches; of a convolution that of its
    input channel. With ``scope="row"`` weights of one output are compared, as in the paper. For Linear and Conv layers.
    Costs one number for each input feature, and one pass over the inputs of the layers for each batch.

    Args:
        batches: Batches (of an optimizer step) that are watched for an event.

    Example:
        >>> Activation().score(torch.tensor([[1.0, -2.0]]), torch.tensor([[3.0, 1.0]]))
        tensor([[3., 2.]])
    """

    batches: int = 8

    watches: ClassVar[Watches] = "inputs"

    def __post_init__(self) -> None:
        require_count(self, "batches", self.batches)

    @property
    def window(self) -> int:
        """Batches that are watched."""
        return self.batches

    def score(self, weight: Tensor, seen: Tensor) -> Tensor:
        """The weight's magnitude times the root of the inputs' sum of squares."""
        return weight.abs() * seen

    def check(self, targets: Sequence[Target]) -> None:
        """Raises ValueError if a tensor is not the weight of a Linear or Conv layer."""
        refuse_unfit(targets, _require_known_inputs)


def _require_known_inputs(target: Target) -> None:
    module, name = target.owners[0]
    if not (isinstance(module, (nn.Linear, *_CONVOLUTIONS)) and name == "weight"):
        raise ValueError(
            f"'{target.name}' belongs to {type(module).__name__}: Activation knows the inputs of weights of "
            "Linear and Conv layers only; exclude it"
        )
    if is_sharded(target.parameter):
        raise ValueError(f"'{target.name}' is sharded: Activation needs whole tensors; use 'ddp'")


def weight_of(module: nn.Module) -> Tensor:
    """The weight of a layer."""
    weight = module.weight
    assert isinstance(weight, Tensor)
    return weight


def squares(module: nn.Module, x: Tensor) -> Tensor:
    """The sum of squares of each input feature or channel, in at least float32.

    Args:
        module: A Linear or Conv layer.
        x: Its input.

    Example:
        >>> squares(nn.Linear(2, 1), torch.tensor([[1.0, 2.0], [3.0, 0.0]]))
        tensor([10.,  4.])
    """
    spatial = 0 if isinstance(module, nn.Linear) else weight_of(module).dim() - 2
    wide = x.detach().to(torch.promote_types(x.dtype, torch.float32)).square()
    feature = wide.dim() - 1 - spatial
    return wide.sum([d for d in range(wide.dim()) if d != feature])


def spread(module: nn.Module, sums: Tensor, like: Tensor) -> Tensor:
    """The norm of the input of each weight.

    Args:
        module: A Linear or Conv layer.
        sums: Sum of squares of each input feature.
        like: The weight.

    Returns:
        A tensor of the shape of the weight.

    Example:
        >>> spread(nn.Linear(2, 1), torch.tensor([9.0, 1.0]), torch.empty(1, 2))
        tensor([[3., 1.]])
    """
    norms = sums.sqrt().to(like.dtype)
    tail = [1] * (like.dim() - 2)
    if isinstance(module, nn.Linear):
        return norms.expand_as(like)
    groups = int(module.groups)  # type: ignore[arg-type]
    if isinstance(module, (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)):
        return norms.view(-1, 1, *tail).expand_as(like)
    rows = norms.view(groups, -1).repeat_interleave(like.shape[0] // groups, dim=0)
    return rows.view(*rows.shape, *tail).expand_as(like)


def watch(targets: Sequence[Target], seen: Callable[[Target, Tensor], None]) -> list[Any]:
    """Hands over the sum of squares of the inputs of each target at each forward while training.

    Args:
        targets: Weights of Linear and Conv layers.
        seen: Called with a target and its sums; for each of its layers if it is shared.

    Returns:
        Handles, to be removed.
    """
    return [module.register_forward_pre_hook(_Inputs(t, seen)) for t in targets for module, _ in t.owners]


class _Inputs:
    """The hook; copies and pickles of a layer see nothing."""

    def __init__(self, target: Target, seen: Callable[[Target, Tensor], None]) -> None:
        self._target, self._seen = target, seen

    def __call__(self, module: nn.Module, inputs: Any) -> None:
        if module.training:
            self._seen(self._target, squares(module, inputs[0]))

    def __reduce__(self) -> tuple[Callable[[], Any], tuple[()]]:
        return _blind, ()


def _blind() -> Callable[[nn.Module, Any], None]:
    return _see_nothing


def _see_nothing(module: nn.Module, inputs: Any) -> None:
    """The hook of a copy."""
