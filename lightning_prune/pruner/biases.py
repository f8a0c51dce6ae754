"""Biases that go with the dead output channels of their layers, so that those give zeros and no constants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

from torch import Tensor, nn

from lightning_prune.prune.checks import require_maskable
from lightning_prune.prune.sharded.channels import nonzero_channels
from lightning_prune.prune.sharded.tensors import cut, dead_entries
from lightning_prune.pruner.granularity import Granularity
from lightning_prune.targets.biases import biases_beside, biases_for
from lightning_prune.targets.target import Target, all_targets


def biases_of(model: nn.Module, targets: Sequence[Target], units: Granularity) -> list[Target]:
    """The biases of the channels that are pruned, of those layers that hold theirs alone.

    Args:
        model: The model.
        targets: What is pruned.
        units: What is pruned of it as one.

    Returns:
        No biases that are targets themselves, shared with other layers, or computed by a parametrization.

    Example:
        >>> from lightning_prune.pruner.granularity import Channels
        >>> net = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
        >>> [bias.name for bias in biases_of(net, all_targets(net)[:1], Channels())]
        ['0.bias']
    """
    slots = {place for t in targets if (dim := units.dim(t)) is not None for place in _places(t, dim)}
    taken = {id(t.parameter) for t in targets}
    found = [t for t in all_targets(model) if id(t.parameter) not in taken and _is_alone_in(t, slots)]
    return [bias for bias in found if _can_be_masked(bias)]


def mask_of_bias(bias: Target, masks: Mapping[Target, Tensor | None], units: Granularity) -> Tensor | None:
    """The mask of a bias (True = kept) that goes with masks of weights; its own one, if no channel died since.

    Args:
        bias: The bias.
        masks: Of the weights; ``None`` in it = nothing pruned.
        units: What is pruned of them as one.
    """
    module, name = bias.owners[0]
    for target, mask in masks.items():
        dim = None if mask is None else units.dim(target)
        if mask is None or dim is None or (id(module), name) not in _places(target, dim):
            continue
        alive = biases_for(nonzero_channels(mask, dim), module).to(bias.parameter.device)
        return _narrowed(bias, cut(alive, bias.parameter.detach()))
    return bias.alive


def _narrowed(bias: Target, alive: Tensor) -> Tensor | None:
    before = bias.alive
    after = alive if before is None else alive & before
    return before if dead_entries(after) == bias.zeros else after


def _places(target: Target, dim: int) -> set[tuple[int, str]]:
    return {(id(module), name) for module, name in biases_beside(target, dim)}


def _is_alone_in(target: Target, slots: Set[tuple[int, str]]) -> bool:
    return [(id(module), name) in slots for module, name in target.owners] == [True]


def _can_be_masked(bias: Target) -> bool:
    try:
        for module, name in bias.owners:
            require_maskable(module, name)
    except (TypeError, ValueError):
        return False
    return True
