"""A smaller network out of one with dead channels, with the same outputs."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, TypeVar

from torch import nn

from lightning_prune.export.shrink_dead import alternatives, removable
from lightning_prune.export.shrink_report import ShrinkReport, size_of
from lightning_prune.prune.whole_model import remove_all
from lightning_prune.pruner.calling import difference, example_inputs_of, mapped, outputs
from lightning_prune.pruner.cutting import Cut, apply_cuts, cuts_without, followed_by, length_of
from lightning_prune.pruner.dependency import find_groups
from lightning_prune.pruner.groups import ChannelGroup, Groups

M = TypeVar("M", bound=nn.Module)


def shrink(model: M, example_inputs: Any = None, *, tolerance: float = 1e-5) -> tuple[M, ShrinkReport]:
    """A smaller copy of a network without its dead channels.

    Zeros are enough, whoever made them. A channel goes if all layers that read it have zero weights for it, or if it is
    zero when it arrives there, for every input; with it go all rows, biases, weights and statistics of norms, depthwise
    kernels and columns that belong to it. Which ones these are is traced with torch-pruning's dependency graph and
    proved by trial cuts. What cannot be cut exactly stays.

    Args:
        model: Any module, dense, pruned or with its pruning made permanent; it stays as it is.
        example_inputs: What it is called with: a tensor, a tuple or list of arguments, or a mapping of them by name;
            a LightningModule's ``example_input_array`` by default.
        tolerance: Largest difference of outputs, relative to the largest one, on these and random inputs of the same
            shapes, in evaluation mode.

    Returns:
        The smaller network, in the mode of the model, and what was removed. :func:`lightning_prune.export.save` writes
        it to a file.

    Raises:
        ModuleNotFoundError: If torch-pruning is not installed (extra ``shrink``).
        ValueError: If there are no inputs, the model cannot be traced or its forward depends on data, or outputs differ
            by more than the tolerance.

    Example:
        >>> import torch
        >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        >>> with torch.no_grad():
        ...     _ = net[2].weight[:, 3:].zero_()  # nobody reads the last five channels
        >>> small, report = shrink(net, torch.ones(1, 4))
        >>> small[0], report.channels
        (Linear(in_features=4, out_features=3, bias=True), {'0': (8, 3)})
    """
    inputs = example_inputs_of(model, example_inputs)
    plain = remove_all(copy.deepcopy(model)).eval()
    tried = list(alternatives(inputs, mapped))
    small, first, found = copy.deepcopy(plain), None, None
    cuts: tuple[Cut, ...] = kept_channels_of(plain)
    while found is None or _cut_once(small, found, tried, tolerance, cuts):
        cuts = kept_channels_of(small)
        found = find_groups(small, inputs)
        first = first or found
    assert first is not None
    apart = max(difference(outputs(plain, example), outputs(small, example)) for example in tried)
    channels = {group.name: (group.channels, _channels_in(small, group)) for group in first.groups}
    left = tuple(str(group) for group in first.left_out)
    report = ShrinkReport(channels, size_of(plain, inputs), size_of(small, inputs), left, apart)
    return small.train(model.training), report


def _channels_in(small: nn.Module, group: ChannelGroup) -> int:
    made = next(group.of("write"))
    return length_of(small, made.name, made.dim)


def kept_channels_of(model: nn.Module) -> tuple[Cut, ...]:
    """What was cut from a network by :func:`shrink` or :func:`lightning_prune.export.load`; nothing from others."""
    cuts: tuple[Cut, ...] = getattr(model, "kept_channels", ())
    return cuts


def remember(model: nn.Module, cuts: Sequence[Cut]) -> None:
    """Notes on a network what was cut from it, for :func:`lightning_prune.export.save`."""
    model.kept_channels = tuple(cuts)  # type: ignore[assignment]


def _cut_once(small: nn.Module, found: Groups, tried: Sequence[Any], tolerance: float, before: Sequence[Cut]) -> bool:
    """Cuts what can go now, in place; whether there was any."""
    dead = removable(small, found.groups, tried)
    if not any(any(flags) for flags in dead):
        return False
    _require_same_outputs(small, found.groups, dead, tried, tolerance)
    cuts = cuts_without(found.groups, dead, small)
    apply_cuts(small, cuts)
    remember(small, followed_by(before, cuts))
    return True


def _require_same_outputs(
    model: nn.Module, groups: Sequence[ChannelGroup], dead: Sequence[Sequence[bool]], tried: Sequence[Any], most: float
) -> None:
    """Raises ValueError, with the layer that is to blame, if outputs change by more than the tolerance."""
    apart = _difference(model, groups, dead, tried)
    if apart <= most:
        return
    alone = {g.name: _difference(model, [g], [flags], tried) for g, flags in zip(groups, dead, strict=True)}
    worst = max(alone, key=lambda name: alone[name])
    raise ValueError(
        f"without the dead channels outputs differ by {apart:.1e} of the largest one, more than tolerance={most:g}; "
        f"most of it ({alone[worst]:.1e}) comes from the channels of '{worst}'"
    )


def _difference(
    model: nn.Module, groups: Sequence[ChannelGroup], dead: Sequence[Sequence[bool]], tried: Sequence[Any]
) -> float:
    cut = copy.deepcopy(model)
    apply_cuts(cut, cuts_without(groups, dead, cut))
    return max(difference(outputs(model, example), outputs(cut, example)) for example in tried)
