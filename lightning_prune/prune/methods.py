"""The pruning methods of ``torch.nn.utils.prune``: what each of them leaves of a tensor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from lightning_prune.prune.amounts import canonical_amount, compute_nparams_to_prune, validate_pruning_amount
from lightning_prune.prune.base import BasePruningMethod
from lightning_prune.prune.checks import require_binary, require_channels, require_shape
from lightning_prune.prune.kernels.norms import channel_norms
from lightning_prune.prune.kernels.random import random_keep_masks
from lightning_prune.prune.kernels.smallest import keep_masks

F = TypeVar("F", bound=Callable[..., Any])


def _ranks_alive(compute_mask: F) -> F:
    """Says that a ``compute_mask`` leaves the masked entries out itself, so that nothing has to be cut out for it."""
    compute_mask.ranks_alive = True  # type: ignore[attr-defined]
    return compute_mask


class Identity(BasePruningMethod):
    """Prunes nothing; installs the parametrization with a mask of ones."""

    PRUNING_TYPE = "unstructured"

    @_ranks_alive
    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        """The mask as it is."""
        return default_mask.clone()


class RankedUnstructured(BasePruningMethod):
    """Drops a number of single entries, over one tensor or over many ranked together.

    Args:
        amount: Fraction in [0, 1] of the entries still unpruned, or a count.
    """

    PRUNING_TYPE = "unstructured"

    def __init__(self, amount: int | float) -> None:
        self.amount = canonical_amount(amount)

    def keep(
        self, scores: Sequence[Tensor], alive: Sequence[Tensor | None], names: Sequence[str] | None = None
    ) -> list[Tensor]:
        """Boolean masks of all tensors after dropping ``amount`` of all alive entries together.

        Args:
            scores: Importance scores, one tensor per weight tensor.
            alive: Boolean masks so far, ``None`` = nothing pruned.
            names: Names of the tensors for messages.

        Returns:
            One boolean mask per tensor, True = kept.

        Raises:
            ValueError: If a count is more than what is left, or a score is NaN.
        """
        left = sum(s.numel() if a is None else int(a.count_nonzero()) for s, a in zip(scores, alive, strict=True))
        validate_pruning_amount(self.amount, left)
        return self._drop(scores, compute_nparams_to_prune(self.amount, left), alive, names)

    def _drop(
        self,
        scores: Sequence[Tensor],
        count: int,
        alive: Sequence[Tensor | None],
        names: Sequence[str] | None,
    ) -> list[Tensor]:
        raise NotImplementedError

    @_ranks_alive
    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        """The mask of one tensor, in the dtype of ``default_mask``."""
        keep = self.keep([t], [default_mask != 0], ["scores"])[0]
        return keep.to(default_mask.dtype)


class L1Unstructured(RankedUnstructured):
    """Drops the entries of smallest absolute value (modulus, for complex tensors).

    Among equal ones those at lower positions (row-major) go first, as a stable sort would have it.

    Args:
        amount: Fraction in [0, 1] of the entries still unpruned, or a count.
    """

    def _drop(
        self,
        scores: Sequence[Tensor],
        count: int,
        alive: Sequence[Tensor | None],
        names: Sequence[str] | None,
    ) -> list[Tensor]:
        return keep_masks(scores, count, alive=alive, names=names)


class RandomUnstructured(RankedUnstructured):
    """Drops entries at random, each with the same probability.

    Args:
        amount: Fraction in [0, 1] of the entries still unpruned, or a count.
        generator: Source of randomness; torch's global one by default.
    """

    def __init__(self, amount: int | float, generator: torch.Generator | None = None) -> None:
        super().__init__(amount)
        self._generator = generator

    def _drop(
        self,
        scores: Sequence[Tensor],
        count: int,
        alive: Sequence[Tensor | None],
        names: Sequence[str] | None,
    ) -> list[Tensor]:
        return random_keep_masks(scores, count, alive=alive, generator=self._generator)


class RankedStructured(BasePruningMethod):
    """Drops a number of whole channels along a dimension.

    Args:
        amount: Fraction in [0, 1] of the channels that still have an unpruned entry, or a count of channels.
        dim: Dimension that counts the channels; negative ones count from the end.
    """

    PRUNING_TYPE = "structured"

    def __init__(self, amount: int | float, dim: int = -1) -> None:
        self.amount = canonical_amount(amount)
        self.dim = dim

    def channel_scores(self, t: Tensor) -> Tensor:
        """Importance score of each channel of ``t``: one value each, 1-d of length ``t.shape[dim]``."""
        raise NotImplementedError

    @_ranks_alive
    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        """The mask of one tensor, in the dtype of ``default_mask``."""
        dim = require_channels(t, self.dim)
        kept = default_mask != 0
        others = [d for d in range(t.dim()) if d != dim]
        alive = kept.any(dim=others) if others else kept
        left = int(alive.count_nonzero())
        validate_pruning_amount(self.amount, left)
        count = compute_nparams_to_prune(self.amount, left)
        scores = self.channel_scores(torch.where(kept, t, 0))
        channels = keep_masks([scores], count, alive=[alive], names=["channel scores"])[0]
        shape = [-1 if d == dim else 1 for d in range(t.dim())]
        return (kept & channels.view(shape)).to(default_mask.dtype)


class LnStructured(RankedStructured):
    """Drops the channels of smallest Ln norm.

    Args:
        amount: Fraction in [0, 1] of the channels that still have an unpruned entry, or a count of channels.
        n: Norm: a positive number, ``inf``, ``-inf``, ``"fro"`` or ``"nuc"``.
        dim: Dimension that counts the channels, the last by default. Output channels are dim 0 of Linear and
            Conv layers and dim 1 of ConvTranspose layers.
    """

    def __init__(self, amount: int | float, n: int | float | str, dim: int = -1) -> None:
        super().__init__(amount, dim)
        self.n = n

    def channel_scores(self, t: Tensor) -> Tensor:
        """The Ln norm of each channel."""
        return channel_norms(t, self.n, self.dim)


class RandomStructured(RankedStructured):
    """Drops channels at random, each with the same probability.

    Args:
        amount: Fraction in [0, 1] of the channels that still have an unpruned entry, or a count of channels.
        dim: Dimension that counts the channels, the last by default.
        generator: Source of randomness; torch's global one by default.
    """

    def __init__(self, amount: int | float, dim: int = -1, generator: torch.Generator | None = None) -> None:
        super().__init__(amount, dim)
        self._generator = generator

    def channel_scores(self, t: Tensor) -> Tensor:
        """A uniform random number for each channel."""
        device = t.device if self._generator is None else self._generator.device
        return torch.rand(t.shape[self.dim], generator=self._generator, device=device).to(t.device)


class CustomFromMask(BasePruningMethod):
    """Drops what a given mask drops.

    Args:
        mask: 0 and 1 (or bool), shape of the tensor, 1 = kept; moved to the tensor's device.
        origin: What the mask came from, shown in the history.
    """

    PRUNING_TYPE = "global"

    def __init__(self, mask: Tensor | Sequence[Any] | None, origin: str | None = None) -> None:
        self.mask = None if mask is None else torch.as_tensor(mask)
        self.origin = origin
        if self.mask is not None:
            require_binary(self.mask, "a custom mask")

    def __repr__(self) -> str:
        """Where the mask came from."""
        return f"CustomFromMask({self.origin or ''})"

    @_ranks_alive
    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        """Both masks together, in the dtype of ``default_mask``."""
        if self.mask is None:
            raise ValueError("CustomFromMask holds no mask (None was given, or it is the record of a past pruning)")
        require_shape(self.mask, t, "mask", "the tensor")
        return ((default_mask != 0) & (self.mask != 0).to(default_mask.device)).to(default_mask.dtype)
