"""The pruning methods of ``torch.nn.utils.prune``: what each of them leaves of a tensor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lightning_prune.prune.amounts import canonical_amount, compute_nparams_to_prune, validate_pruning_amount
from lightning_prune.prune.base import BasePruningMethod
from lightning_prune.prune.checks import require_binary, require_channels, require_shape
from lightning_prune.prune.kernels.arrays import as_bool, as_numbers, empty_like
from lightning_prune.prune.kernels.channels import Living, living, spread
from lightning_prune.prune.kernels.masking import kept
from lightning_prune.prune.kernels.norms import channel_norms
from lightning_prune.prune.kernels.random import random_keep_masks
from lightning_prune.prune.kernels.signed import signed_keep_masks
from lightning_prune.prune.kernels.smallest import keep_masks
from lightning_prune.prune.sharded.channels import channel_sums, sharded_channel_norms
from lightning_prune.prune.sharded.masks import magnitude_masks, random_masks, signed_masks
from lightning_prune.prune.sharded.ranks import from_rank_0
from lightning_prune.prune.sharded.tensors import cut, dead_entries, is_sharded, local, whole


class NativeMethod(BasePruningMethod):
    """A method that is shown the whole tensor and what is left of it, and makes a boolean mask of its own.

    So nothing has to be cut out for it, and no mask in another dtype is made for it.
    """

    def keep_mask(self, t: Tensor, alive: Tensor | None) -> Tensor:
        """The boolean mask after this method, never True where ``alive`` is not.

        Args:
            t: Importance scores, any shape.
            alive: Boolean mask so far, ``None`` = nothing pruned.

        Returns:
            A new boolean mask, True = kept.
        """
        raise NotImplementedError

    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        """The mask of one tensor, in the dtype of ``default_mask``."""
        return as_numbers(self.keep_mask(t, as_bool(default_mask)), default_mask.dtype)

    compute_mask.of_keep_mask = True  # type: ignore[attr-defined]


class Identity(NativeMethod):
    """Prunes nothing; installs the parametrization with a mask of ones."""

    PRUNING_TYPE = "unstructured"
    needs_values = False

    def keep_mask(self, t: Tensor, alive: Tensor | None) -> Tensor:
        """The mask as it is."""
        return empty_like(t, torch.bool).fill_(True) if alive is None else alive.clone()


class RankedUnstructured(NativeMethod):
    """Drops a number of single entries, over one tensor or over many ranked together.

    Args:
        amount: Fraction in [0, 1] of the entries still unpruned, or a count.

    Attributes:
        signed: Whether scores are ranked with their signs, negative ones first, instead of by their magnitudes.
    """

    PRUNING_TYPE = "unstructured"
    signed: bool = False

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
        left = sum(score.numel() - dead_entries(mask) for score, mask in zip(scores, alive, strict=True))
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

    def keep_mask(self, t: Tensor, alive: Tensor | None) -> Tensor:
        """The boolean mask of one tensor after dropping ``amount`` of its alive entries."""
        return self.keep([t], [alive], ["scores"])[0]


class L1Unstructured(RankedUnstructured):
    """Drops the entries of smallest absolute value (modulus, for complex tensors).

    Among equal ones those at lower positions (row-major) go first, as a stable sort would have it.

    Args:
        amount: Fraction in [0, 1] of the entries still unpruned, or a count.
        signed: Drop the smallest with their signs instead, negative ones first: for importance scores that have signs.
    """

    def __init__(self, amount: int | float, signed: bool = False) -> None:
        super().__init__(amount)
        if signed:  # only then, so that the method is shown and compared as one without
            self.signed = True

    def _drop(
        self,
        scores: Sequence[Tensor],
        count: int,
        alive: Sequence[Tensor | None],
        names: Sequence[str] | None,
    ) -> list[Tensor]:
        if any(map(is_sharded, scores)):
            return (signed_masks if self.signed else magnitude_masks)(scores, count, alive, names)
        return (signed_keep_masks if self.signed else keep_masks)(scores, count, alive=alive, names=names)


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
        if any(map(is_sharded, scores)):
            return random_masks(scores, count, alive, self._generator)
        return random_keep_masks(scores, count, alive=alive, generator=self._generator)


class RankedStructured(NativeMethod):
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
        """Importance score of each channel of ``t``: one value each, 1-d of length ``t.shape[dim]``.

        Channels with the smallest scores go first, negative ones before others.
        """
        raise NotImplementedError

    def keep_mask(self, t: Tensor, alive: Tensor | None) -> Tensor:
        """The boolean mask of one tensor after dropping ``amount`` of its alive channels."""
        dim = require_channels(t, self.dim)
        if is_sharded(t):
            return self._keep_slice(t, alive, dim)
        left = _left(t, alive, dim)
        number = t.shape[dim] if left is None else int(left.any.count_nonzero())
        validate_pruning_amount(self.amount, number)
        count = compute_nparams_to_prune(self.amount, number)
        whole = left is None or left.whole
        scores = self.living_scores(t, alive, whole)
        channels = signed_keep_masks([scores], count, alive=[left and left.any], names=["channel scores"])[0]
        mask = spread(channels, dim, t)
        return mask if whole or alive is None else mask.logical_and_(alive)

    def _keep_slice(self, t: Tensor, alive: Tensor | None, dim: int) -> Tensor:
        """The same of a tensor that is split over ranks."""
        left = None if alive is None else channel_sums(alive, dim) > 0
        number = t.shape[dim] if left is None else int(left.count_nonzero())
        validate_pruning_amount(self.amount, number)
        scores = scores_of_channels(self, t if alive is None else torch.where(alive, t, 0))
        count = compute_nparams_to_prune(self.amount, number)
        channels = signed_keep_masks([scores], count, alive=[left], names=["channel scores"])[0]
        shape = [-1 if d == dim else 1 for d in range(t.dim())]
        mask = cut(channels.view(shape).expand(t.shape), t)
        return mask if alive is None else alive & mask

    def living_scores(self, t: Tensor, alive: Tensor | None, whole: bool = False) -> Tensor:
        """The scores of what is left of the channels of ``t``.

        Args:
            t: The tensor.
            alive: Boolean mask of what is left, ``None`` = all.
            whole: Whether each channel is left as a whole or not at all; then what is gone may have any score.
        """
        return self.channel_scores(t if alive is None else kept(t, alive))


def _left(t: Tensor, alive: Tensor | None, dim: int) -> Living | None:
    """What is left of each channel, ``None`` = all of it; nothing of those without entries."""
    if alive is None and t.numel():
        return None
    return living(torch.ones_like(t, dtype=torch.bool) if alive is None else alive, dim)


class LnStructured(RankedStructured):
    """Drops the channels of smallest Ln norm.

    Args:
        amount: Fraction in [0, 1] of the channels that still have an unpruned entry, or a count of channels.
        n: Norm: a positive number, ``inf``, ``-inf``, ``"fro"`` or ``"nuc"``; or ``"sum"``, the plain sum, for scores
            that have signs.
        dim: Dimension that counts the channels, the last by default. Output channels are dim 0 of Linear and
            Conv layers and dim 1 of ConvTranspose layers.
    """

    def __init__(self, amount: int | float, n: int | float | str, dim: int = -1) -> None:
        super().__init__(amount, dim)
        self.n = n

    def channel_scores(self, t: Tensor) -> Tensor:
        """The Ln norm of each channel, or its sum."""
        if self.n == "sum":
            dim = require_channels(t, self.dim)
            return t.sum([d for d in range(t.dim()) if d != dim])
        return channel_norms(t, self.n, self.dim)

    def living_scores(self, t: Tensor, alive: Tensor | None, whole: bool = False) -> Tensor:
        """The scores of what is left of the channels of ``t``."""
        if type(self).channel_scores is not LnStructured.channel_scores or self.n == "sum":
            return super().living_scores(t, alive, whole)
        return channel_norms(t, self.n, self.dim, None if whole else alive)


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

    def living_scores(self, t: Tensor, alive: Tensor | None, whole: bool = False) -> Tensor:
        """The scores of what is left of the channels of ``t``."""
        if type(self).channel_scores is not RandomStructured.channel_scores:
            return super().living_scores(t, alive, whole)
        return self.channel_scores(t)  # of which only the shape counts


def scores_of_channels(method: RankedStructured, t: Tensor) -> Tensor:
    """What :meth:`RankedStructured.channel_scores` gives of a tensor, which may be split over ranks.

    Args:
        method: A method; one with scores of its own is shown all of the tensor.
        t: The tensor; every rank has to call it for a split one.

    Returns:
        A plain tensor, one value for each channel, the same on every rank.
    """
    if not is_sharded(t):
        return method.channel_scores(t)
    native = type(method).channel_scores
    if native is RandomStructured.channel_scores:  # reads the shape only
        return from_rank_0(method.channel_scores(t))
    norms = None
    if isinstance(method, LnStructured) and native is LnStructured.channel_scores and method.n != "sum":
        norms = sharded_channel_norms(local(t), t, method.n, method.dim % t.dim())
    return method.channel_scores(whole(t)) if norms is None else norms


class CustomFromMask(NativeMethod):
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

    def keep_mask(self, t: Tensor, alive: Tensor | None) -> Tensor:
        """Both masks together."""
        if self.mask is None:
            raise ValueError("CustomFromMask holds no mask (None was given, or it is the record of a past pruning)")
        require_shape(self.mask, t, "mask", "the tensor")
        if is_sharded(t):
            mask = cut(as_bool(self.mask), t)
            return mask if alive is None else alive & mask
        mask = as_bool(self.mask)
        if alive is None:
            return empty_like(t, torch.bool).copy_(mask)
        return alive & mask.to(alive.device)
