"""Pruning methods whose zeros form patterns: n of each m, equally many in each row, and blocks."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from lightning_prune.prune.amounts import compute_nparams_to_prune, validate_pruning_amount
from lightning_prune.prune.kernels.grouped import Grouping, grouped_keep_masks, room_of
from lightning_prune.prune.kernels.norms import order_of
from lightning_prune.prune.kernels.signed import signed_keep_masks
from lightning_prune.prune.methods import RankedUnstructured
from lightning_prune.prune.sharded.masks import on_whole_tensors


class NMStructured(RankedUnstructured):
    """Keeps at least ``n`` of each ``m`` entries in a row, those of largest magnitude.

    All groups lose one entry before any loses a second, so 4:4 becomes 3:4 and 2:4 as the amount grows, and an
    ``amount`` of ``None`` gives exactly ``n`` of each ``m``.

    Args:
        n: Entries that are left of each group.
        m: Entries of a group: consecutive ones along ``dim``.
        dim: Dimension along which groups lie; 1, the input dimension of Linear and Conv layers, by default.
        amount: Fraction in [0, 1] of the entries still unpruned, or a count; all that ``n`` of ``m`` allow by default.
        signed: Rank by scores with their signs instead of by magnitudes.

    Example:
        >>> NMStructured(1, 2).prune(torch.tensor([[3.0, -1.0, 2.0, 4.0]]))
        tensor([[3., 0., 0., 4.]])
    """

    def __init__(
        self, n: int = 2, m: int = 4, dim: int = 1, amount: int | float | None = None, signed: bool = False
    ) -> None:
        super().__init__(0 if amount is None else amount)
        if any(isinstance(x, bool) or not isinstance(x, int) for x in (n, m)) or not 0 < n < m:
            raise ValueError(f"n of m entries are kept with 0 < n < m, got n={n!r}, m={m!r}")
        self.n, self.m, self.dim = n, m, dim
        if amount is None:
            del self.amount
        if signed:
            self.signed = True

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
            ValueError: If a dimension is no multiple of ``m``, more is asked for than may go, or a score is NaN.
            IndexError: If a tensor has no dimension ``dim``.
        """
        return on_whole_tensors(lambda s, a: self._keep_whole(s, a, names), scores, alive)

    def _keep_whole(
        self, scores: Sequence[Tensor], alive: Sequence[Tensor | None], names: Sequence[str] | None
    ) -> list[Tensor]:
        groupings = [self._grouping(s) for s in scores]
        room = sum(room_of(a, s, g, self.n) for s, a, g in zip(scores, alive, groupings, strict=True))
        count = self._count(scores, alive, room)
        return grouped_keep_masks(scores, count, groupings, alive=alive, names=names, signed=self.signed)

    def _count(self, scores: Sequence[Tensor], alive: Sequence[Tensor | None], room: int) -> int:
        if not hasattr(self, "amount"):
            return room
        left = sum(s.numel() if a is None else int(a.count_nonzero()) for s, a in zip(scores, alive, strict=True))
        count = compute_nparams_to_prune(self.amount, left)
        if count > room:
            raise ValueError(
                f"amount={self.amount} asks for {count} entries, but {self.n} of each {self.m} stay: {room} may go"
            )
        return count

    def _grouping(self, t: Tensor) -> Grouping:
        dim = require_groups(tuple(t.shape), self.m, self.dim)
        return Grouping(dim, -1, self.m)


def require_groups(shape: tuple[int, ...], m: int, dim: int) -> int:
    """The dimension from the front along which a tensor divides into groups of ``m``.

    Args:
        shape: Shape of the tensor.
        m: Entries of a group.
        dim: The dimension.

    Raises:
        IndexError: If there is no such dimension.
        ValueError: If its size is no multiple of ``m``.
    """
    if not -len(shape) <= dim < len(shape):
        raise IndexError(f"dim={dim} does not exist in a tensor of shape {shape}")
    if shape[dim] % m:
        raise ValueError(f"{shape[dim]} entries along dim={dim} of shape {shape} are no multiple of m={m}")
    return dim % len(shape)


class LnBlocks(RankedUnstructured):
    """Drops whole blocks of smallest Ln norm.

    Args:
        amount: Fraction in [0, 1] of the blocks that still have an unpruned entry, or a count of blocks.
        block: Size of a block. Two numbers count along the rows and columns of the tensor as a matrix (its first
            dimension by all others); as many as the tensor has dimensions count along these.
        n: Norm: a positive number, ``inf``, ``-inf``, or ``"sum"`` for the plain sum of scores with signs.

    Example:
        >>> LnBlocks(1, block=(1, 2)).prune(torch.tensor([[3.0, 1.0, 2.0, 2.0]]))
        tensor([[3., 1., 0., 0.]])
    """

    def __init__(self, amount: int | float, block: Sequence[int] = (4, 1), n: int | float | str = 2) -> None:
        super().__init__(amount)
        if n == "nuc" or (n != "sum" and not order_of(n)):
            raise ValueError(f"n={n!r} is no norm of a block: give a positive number, inf, -inf, 'fro' or 'sum'")
        self.block, self.n = _checked_block(block), n

    def keep(
        self, scores: Sequence[Tensor], alive: Sequence[Tensor | None], names: Sequence[str] | None = None
    ) -> list[Tensor]:
        """Boolean masks of all tensors after dropping ``amount`` of all living blocks together.

        Args:
            scores: Importance scores, one tensor per weight tensor.
            alive: Boolean masks so far, ``None`` = nothing pruned.
            names: Names of the tensors for messages.

        Returns:
            One boolean mask per tensor, True = kept.

        Raises:
            ValueError: If a shape is no multiple of the block, a count is more than what is left, or a score is NaN.
        """
        return on_whole_tensors(lambda s, a: self._keep_whole(s, a, names), scores, alive)

    def _keep_whole(
        self, scores: Sequence[Tensor], alive: Sequence[Tensor | None], names: Sequence[str] | None
    ) -> list[Tensor]:
        living = [living_blocks(s, a, self.block) for s, a in zip(scores, alive, strict=True)]
        left = sum(int(blocks.count_nonzero()) for blocks in living)
        validate_pruning_amount(self.amount, left)
        count = compute_nparams_to_prune(self.amount, left)
        kept = [s if a is None else torch.where(a, s, 0) for s, a in zip(scores, alive, strict=True)]
        norms = [block_norms(s, self.block, self.n) for s in kept]
        chosen = signed_keep_masks(norms, count, alive=living, names=names)
        full = [spread(keep, s, self.block) for keep, s in zip(chosen, scores, strict=True)]
        return [mask if a is None else mask & a for mask, a in zip(full, alive, strict=True)]


def _checked_block(block: Sequence[int]) -> tuple[int, ...]:
    sizes = tuple(block) if isinstance(block, Sequence) and not isinstance(block, str) else ()
    if len(sizes) < 2 or not all(isinstance(size, int) and size > 0 for size in sizes):
        raise ValueError(
            f"block should be the sizes of a block along two or more dimensions, such as (4, 1), got {block!r}"
        )
    return sizes


def blocks_along(shape: tuple[int, ...], block: tuple[int, ...]) -> tuple[int, ...]:
    """Number of blocks along each dimension, of the tensor or of its matrix.

    Args:
        shape: Shape of the tensor.
        block: Size of a block.

    Raises:
        ValueError: If the shape is no multiple of the block.

    Example:
        >>> blocks_along((8, 4, 3, 3), (4, 1))
        (2, 36)
    """
    sizes = (shape[0], math.prod(shape[1:])) if len(block) == 2 and len(shape) > 2 else shape
    if len(sizes) != len(block) or any(size % part for size, part in zip(sizes, block, strict=True)):
        raise ValueError(f"a tensor of shape {shape} does not divide into blocks of {block}")
    return tuple(size // part for size, part in zip(sizes, block, strict=True))


def block_norms(t: Tensor, block: tuple[int, ...], n: int | float | str) -> Tensor:
    """The norm of each block, in the shape of :func:`blocks_along`.

    Args:
        t: The tensor.
        block: Size of a block.
        n: Norm, or ``"sum"``.

    Example:
        >>> block_norms(torch.tensor([[3.0, 0.0], [4.0, 1.0]]), (2, 1), 2)
        tensor([[5., 1.]])
    """
    parts = _parted(t, block)
    inner = list(range(1, parts.dim(), 2))
    if n == "sum":
        return parts.sum(inner)
    wide = parts if parts.dtype in (torch.float64, torch.complex128) else parts.abs().float()
    norms: Tensor = torch.linalg.vector_norm(wide, 2 if n == "fro" else n, dim=inner)
    return norms


def living_blocks(t: Tensor, alive: Tensor | None, block: tuple[int, ...]) -> Tensor:
    """Which blocks have an unpruned entry, in the shape of :func:`blocks_along`."""
    if alive is None:
        return torch.ones(blocks_along(tuple(t.shape), block), dtype=torch.bool, device=t.device)
    parts = _parted(alive, block)
    return parts.sum(list(range(1, parts.dim(), 2))) > 0


def spread(blocks: Tensor, like: Tensor, block: tuple[int, ...]) -> Tensor:
    """A boolean tensor of the shape and memory format of ``like`` in which each block has one value."""
    shape = [size for number in blocks.shape for size in (number, 1)]
    sizes = [size for pair in zip(blocks.shape, block, strict=True) for size in pair]
    full = blocks.view(shape).expand(sizes).reshape(like.shape)
    return torch.empty_like(like, dtype=torch.bool).copy_(full)


def _parted(t: Tensor, block: tuple[int, ...]) -> Tensor:
    """Dimensions alternate: blocks along a dimension, entries of a block along it."""
    numbers = blocks_along(tuple(t.shape), block)
    return t.reshape([size for pair in zip(numbers, block, strict=True) for size in pair])
