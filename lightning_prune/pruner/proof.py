"""The proof that channels can be cut: a model with some of them masked, and one with the same ones cut, agree."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from lightning_prune.pruner.calling import difference, outputs
from lightning_prune.pruner.cutting import apply_cuts, cuts_without
from lightning_prune.pruner.groups import ChannelGroup, Groups, LeftOut

# A wrong cut of half of the channels changes far more; sums in another order change far less.
_TOLERANCE = 1e-4


def prove(model: nn.Module, inputs: Any, candidates: Groups) -> Groups:
    """The groups of which channels can be cut without changing any output.

    Half of the channels of each group are tried, all groups together first, and one by one if that fails.

    Args:
        model: A model in evaluation mode without pruning; it stays as it is.
        inputs: What it is called with.
        candidates: Groups that may be right.

    Returns:
        The right ones; the others are left out, with the reason.
    """
    groups = list(candidates.groups)
    if not groups or _objection(model, inputs, groups) is None:
        return candidates
    found = {group.name: _objection(model, inputs, [group]) for group in groups}
    left = [LeftOut(name, objection) for name, objection in found.items() if objection is not None]
    proved = [group for group in groups if found[group.name] is None]
    together = _objection(model, inputs, proved) if proved else None
    if together is not None:
        left += [LeftOut(group.name, f"together with others: {together}") for group in proved]
        proved = []
    return replace(candidates, groups=tuple(proved), left_out=(*candidates.left_out, *left))


def _objection(model: nn.Module, inputs: Any, groups: Sequence[ChannelGroup]) -> str | None:
    """Why half of the channels of some groups cannot be cut, ``None`` if they can."""
    dead = [[channel % 2 == 1 for channel in range(group.channels)] for group in groups]
    masked, cut = copy.deepcopy(model), copy.deepcopy(model)
    zero_out(masked, groups, dead)
    zero_out(cut, groups, dead)
    apply_cuts(cut, cuts_without(groups, dead, cut))
    try:
        after = outputs(cut, inputs)
    except Exception as error:
        return f"the forward fails without some of them: {type(error).__name__}: {str(error).splitlines()[0]}"
    apart = difference(outputs(masked, inputs), after)
    if apart > _TOLERANCE:
        return (
            "outputs have another shape without some of them"
            if apart == float("inf")
            else (f"outputs change by {apart:.1e} of the largest when masked ones are cut")
        )
    return None


def zero_out(model: nn.Module, groups: Sequence[ChannelGroup], dead: Sequence[Sequence[bool]]) -> None:
    """Sets all parameters of dead channels to zero, in place.

    Args:
        model: A model without pruning.
        groups: Coupled channels.
        dead: One bool for each channel of each group.
    """
    parameters: dict[str, Tensor] = dict(model.named_parameters())
    with torch.no_grad():
        for group, flags in zip(groups, dead, strict=True):
            for part in group.masked:
                tensor = parameters[part.name]
                where = torch.tensor(part.positions(flags), dtype=torch.long, device=tensor.device)
                tensor.index_fill_(part.dim, where, 0)
