"""The biases that layers add to the output channels of their weights."""

from __future__ import annotations

from torch import Tensor, nn

from lightning_prune.prune.sharded.channels import nonzero_channels
from lightning_prune.targets.layouts import output_dim
from lightning_prune.targets.target import Target

_BIASES = {"weight": "bias", "in_proj_weight": "in_proj_bias"}


def biases_beside(target: Target, dim: int) -> list[tuple[nn.Module, str]]:
    """Where the layers of a weight hold the biases of its channels along a dimension: one entry for each channel.

    Transposed convolutions with groups have an entry for each channel of each group.

    Args:
        target: The weight.
        dim: The dimension that counts the channels, from the front.

    Example:
        >>> from lightning_prune.targets.target import all_targets
        >>> weight, bias = all_targets(nn.Linear(3, 2))
        >>> biases_beside(weight, 0), biases_beside(weight, 1), biases_beside(bias, 0)
        ([(Linear(in_features=3, out_features=2, bias=True), 'bias')], [], [])
    """
    shape = tuple(target.parameter.shape)
    found = []
    for module, slot in target.owners:
        name = _BIASES.get(slot)
        bias = None if name is None or output_dim(module, shape) not in (dim, None) else getattr(module, name, None)
        if name and isinstance(bias, Tensor) and tuple(bias.shape) == (_repeats(module) * shape[dim],):
            found.append((module, name))
    return found


def biases_for(channels: Tensor, module: nn.Module) -> Tensor:
    """One bool for each entry of a layer's bias out of one for each channel of its weight.

    Example:
        >>> import torch
        >>> biases_for(torch.tensor([True, False]), nn.ConvTranspose1d(2, 4, 1, groups=2))
        tensor([ True, False,  True, False])
    """
    return channels.repeat(_repeats(module))


def living_channels(target: Target, value: Tensor, dim: int) -> Tensor:
    """One bool for each output channel: whether its weights, or its bias, are anything but zeros.

    Args:
        target: The weight.
        value: What is read of it.
        dim: The dimension that counts the channels, from the front.

    Example:
        >>> import torch
        >>> from lightning_prune.targets.target import all_targets
        >>> net = nn.Linear(2, 3)
        >>> with torch.no_grad():
        ...     _ = net.weight[1:].zero_(), net.bias.copy_(torch.tensor([1.0, 1.0, 0.0]))
        >>> living_channels(all_targets(net)[0], net.weight, dim=0)
        tensor([ True,  True, False])
    """
    living = nonzero_channels(value, dim)
    for module, name in biases_beside(target, dim):
        nonzero = nonzero_channels(getattr(module, name).detach(), 0).view(-1, len(living)).any(dim=0)
        living = living | nonzero.to(living.device)
    return living


def _repeats(module: nn.Module) -> int:
    """How many outputs share a channel of a weight that has its inputs first."""
    groups = getattr(module, "groups", 1)
    return groups if isinstance(module, nn.modules.conv._ConvTransposeNd) and isinstance(groups, int) else 1
