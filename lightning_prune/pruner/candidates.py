"""What an event sees of a tensor: the scores that its entries are ranked by, and which of them are left."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lightning_prune.prune.checks import require_shape
from lightning_prune.prune.sharded.tensors import dead_entries
from lightning_prune.targets.select import Target


@dataclass(frozen=True, eq=False)
class Candidate:
    """A tensor whose entries may go.

    Attributes:
        target: The parameter.
        scores: Importance of its entries, of its shape; on a sharded parameter split like it.
        alive: Boolean mask of the entries that are left, ``None`` = all.
    """

    target: Target
    scores: Tensor
    alive: Tensor | None

    @property
    def name(self) -> str:
        """Full name of the parameter."""
        return self.target.name

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the parameter."""
        return tuple(self.target.parameter.shape)

    @property
    def numel(self) -> int:
        """Number of its entries."""
        return self.target.parameter.numel()

    @property
    def zeros(self) -> int:
        """Number of entries that are masked."""
        return dead_entries(self.alive)

    @property
    def living_scores(self) -> Tensor:
        """The scores, zero where entries are masked."""
        return self.scores if self.alive is None else torch.where(self.alive, self.scores, 0)

    def scored(self, scores: Tensor) -> Candidate:
        """The same with other scores."""
        return replace(self, scores=scores)


def candidates_of(
    targets: Sequence[Target], scores: Sequence[Tensor] | None = None, alive: Sequence[Tensor | None] | None = None
) -> list[Candidate]:
    """The candidates of an event.

    Args:
        targets: The tensors.
        scores: Importance of their entries, one tensor of its shape for each; the parameters by default.
        alive: Masks to start from, ``None`` in it = nothing pruned; those that the tensors have by default.

    Raises:
        ValueError: If scores have another shape than their tensor, or numbers differ.
        TypeError: If scores are no tensors.
    """
    ranked = [t.parameter.detach() for t in targets] if scores is None else list(scores)
    masks = [t.alive for t in targets] if alive is None else list(alive)
    if not len(ranked) == len(masks) == len(targets):
        raise ValueError(f"{len(ranked)} scores and {len(masks)} masks are given for {len(targets)} tensors")
    for target, score in zip(targets, ranked, strict=True):
        require_shape(score, target.parameter, "scores", f"'{target.name}'")
    return [Candidate(t, s.detach(), mask) for t, s, mask in zip(targets, ranked, masks, strict=True)]
