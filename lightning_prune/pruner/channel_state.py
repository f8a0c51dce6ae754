"""Coupled channels at an event: their scores, which ones are dead, and how many zeros more of them would give."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from lightning_prune.pruner.candidates import Candidate
from lightning_prune.pruner.groups import (
    ChannelGroup,
    channel_matrix,
    channel_norms,
    dead_channels,
    masks_without,
    zeros_after,
)
from lightning_prune.targets.select import Target


class ChannelState:
    """The groups of an event, with the tensors, scores and masks they have now."""

    def __init__(
        self, groups: Sequence[ChannelGroup], candidates: Sequence[Candidate], by_weights: bool = True
    ) -> None:
        kernels = [c for c in candidates if c.target.parameter.dim() > 1]
        self.groups = groups
        self.targets = [c.target for c in candidates]
        self._tensors: dict[str, Tensor] = {c.name: c.target.parameter for c in candidates}
        self._masks: dict[str, Tensor | None] = {c.name: c.alive for c in candidates}
        self._scores = {c.name: c.scores if by_weights else c.living_scores for c in candidates}
        self._shapes = shapes_of([c.target for c in kernels])
        self.total = sum(c.numel for c in kernels)
        self.dead = [dead_channels(group, self._masks) for group in groups]
        self.zeros_now = sum(c.zeros for c in kernels)
        self._orders = [_dead_first(flags) for flags in self.dead]
        # zeros that are no whole channels, such as those that were there before the fit
        self._others = False
        self._others = self.zeros_now != self.zeros([sum(flags) for flags in self.dead])

    def matrix(self, place: int) -> Tensor:
        """The scores of all channels of a group as rows."""
        return channel_matrix(self.groups[place], self._scores)

    def norms(self, place: int, n: float) -> Tensor:
        """The Ln norm of the scores of each channel of a group, over all its parameters; dead channels are zero."""
        return channel_norms(self.groups[place], self._scores, n)

    def alive(self, place: int) -> Tensor:
        """Which channels of a group are left."""
        name = self.groups[place].masked[0].name
        return ~torch.tensor(self.dead[place], device=self._tensors[name].device)

    def zeros(self, counts: Sequence[int], known: Mapping[int, Sequence[int | None]] | None = None) -> int:
        """Masked weights of matrices and kernels with so many dead channels in each group.

        Args:
            counts: Dead channels of each group.
            known: Which ones died besides those that are dead now, where that is known.
        """
        dead = [self._dying(i, count, (known or {}).get(i, ())) for i, count in enumerate(counts)]
        if not self._others:
            return zeros_after(self.groups, dead, self._shapes)
        flags = [_flags(channels, group) for channels, group in zip(dead, self.groups, strict=True)]
        masks = masks_without(self.groups, flags, self._masks, self._tensors)
        kept = [masks[name] for name in self._shapes]
        return sum(mask.numel() - int(mask.count_nonzero()) for mask in kept if mask is not None)

    def _dying(self, place: int, count: int, known: Sequence[int | None]) -> Sequence[int]:
        """So many channels of a group, those first that are dead now, then those that are known to die."""
        order = self._orders[place]
        named = [channel for channel in known if channel is not None]
        if not named:
            return order[:count]
        first = [*order[: sum(self.dead[place])], *named]
        seen = set(first)
        return [*first, *(channel for channel in order if channel not in seen)][:count]

    def masks_after(self, dead: Sequence[Sequence[bool]]) -> list[Tensor | None]:
        """The masks of all targets with these channels dead."""
        new = [[f and not was for f, was in zip(a, b, strict=True)] for a, b in zip(dead, self.dead, strict=True)]
        masks = masks_without(self.groups, new, self._masks, self._tensors)
        return [masks[t.name] for t in self.targets]


def shapes_of(targets: Sequence[Target]) -> dict[str, tuple[int, ...]]:
    """Their shapes by name."""
    return {t.name: tuple(t.parameter.shape) for t in targets}


def _dead_first(flags: Sequence[bool]) -> list[int]:
    """All channels, those that are dead first."""
    return sorted(range(len(flags)), key=lambda channel: not flags[channel])


def _flags(channels: Sequence[int], group: ChannelGroup) -> list[bool]:
    """One bool for each channel of a group."""
    chosen = set(channels)
    return [channel in chosen for channel in range(group.channels)]
