"""What an update of regrowth moved in a tensor: found once, for all who want to know."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from lightning_prune.prune.kernels.arrays import Array, as_array, positions, put
from lightning_prune.prune.sharded.masks import both
from lightning_prune.prune.sharded.tensors import holders_of, local, split_like


@dataclass(frozen=True)
class Moved:
    """The masks of a tensor around an update, split like it.

    Attributes:
        before: Boolean mask before the update (True = kept).
        after: The one after it, with as many zeros.

    Example:
        >>> moved = Moved(torch.tensor([True, True, False, False]), torch.tensor([True, False, False, True]))
        >>> moved.places.tolist(), moved.number, moved.stayed.tolist()
        ([1, 3], 1, [True, False, False, False])
    """

    before: Tensor
    after: Tensor

    @cached_property
    def places(self) -> Array:
        """The entries of this rank's part that were dropped or came back: indices in row-major order."""
        return positions(as_array(torch.logical_xor(local(self.before), local(self.after))))

    @cached_property
    def stayed(self) -> Tensor:
        """Mask of the entries that were kept before and are now."""
        return both(self.before, self.after)

    @cached_property
    def number(self) -> int:
        """How many were dropped, and as many came back, over all ranks; every rank has to ask for it."""
        changed = torch.tensor(len(self.places), device=local(self.after).device)
        return int(holders_of(self.after).total(changed)) // 2

    def ever(self, known: Tensor | None) -> Tensor:
        """The mask of all entries that were ever kept.

        Args:
            known: The one from before this update, which is written into; ``None`` at the first.
        """
        kept = local(self.before).clone() if known is None else local(known)
        put(kept, self.places, True)  # those that were dropped were kept before
        torch.autograd.graph.increment_version(kept)
        return split_like(kept, self.after)
