"""What is pruned as one: single weights, whole channels, blocks, or weights that compete within groups."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from lightning_prune.prune.kernels.grouped import Grouping
from lightning_prune.prune.patterned import blocks_along, living_blocks, require_groups
from lightning_prune.prune.sharded.channels import channel_sums
from lightning_prune.prune.sharded.tensors import dead_entries, whole
from lightning_prune.targets.select import Target


@dataclass(frozen=True)
class Granularity:
    """The units of a tensor that go as one, and how many of them may.

    A unit of a tensor has the same number of weights as its others; an event counts whole units.
    """

    def check(self, target: Target) -> None:
        """Refuses a tensor that has no such units.

        Args:
            target: The tensor.

        Raises:
            ValueError: If its shape does not fit; names it.
            IndexError: If it has no dimension that is asked for.
        """
        self.units(target)

    def dim(self, target: Target) -> int | None:
        """The dimension, from the front, that methods are told; ``None`` if they are told none."""
        return None

    def units(self, target: Target) -> int:
        """Number of units of a tensor."""
        raise NotImplementedError

    def dead(self, target: Target, alive: Tensor | None) -> int:
        """Number of units of which nothing is left.

        Args:
            target: The tensor.
            alive: Boolean mask, ``None`` = nothing pruned.
        """
        raise NotImplementedError

    def limit(self, target: Target) -> int:
        """The most units of a tensor that may ever go."""
        return self.units(target)

    def size(self, target: Target) -> int:
        """Weights in one unit of a tensor."""
        return max(target.parameter.numel() // max(self.units(target), 1), 1)

    def slack(self, targets: Sequence[Target]) -> int:
        """How many weights rounding to whole units can miss a target by, at most."""
        return sum(self.size(t) for t in targets)


@dataclass(frozen=True)
class Weights(Granularity):
    """Single weights."""

    def units(self, target: Target) -> int:
        """Number of weights."""
        return target.parameter.numel()

    def dead(self, target: Target, alive: Tensor | None) -> int:
        """Number of masked weights."""
        return dead_entries(alive)

    def slack(self, targets: Sequence[Target]) -> int:
        """One: numbers of weights are exact."""
        return 1


@dataclass(frozen=True)
class Grouped(Weights):
    """Single weights that compete within groups: all groups lose one before any loses another."""

    def grouping(self, target: Target) -> Grouping:
        """How the entries of a tensor form groups."""
        raise NotImplementedError

    def check(self, target: Target) -> None:
        """Refuses shapes that do not divide into groups."""
        self.grouping(target)


@dataclass(frozen=True)
class Rows(Grouped):
    """Single weights, equally many of each output."""

    def grouping(self, target: Target) -> Grouping:
        """All weights of an output are a group."""
        _require_matrix(target, "rows")
        dim, shape = target.channel_dim("out"), target.parameter.shape
        return Grouping(dim, 0, max(shape.numel() // max(shape[dim], 1), 1))


@dataclass(frozen=True)
class NM(Grouped):
    """Single weights, at most ``m - n`` of each ``m`` in a row.

    Attributes:
        n: Weights that stay of each group.
        m: Weights of a group.
        along: Dimension along which groups lie: a number, ``"in"`` or ``"out"``.
    """

    n: int
    m: int
    along: int | str = "in"

    def grouping(self, target: Target) -> Grouping:
        """``m`` entries in a row are a group."""
        if isinstance(self.along, str):
            _require_matrix(target, "rows of inputs")
        dim = target.channel_dim(self.along)
        try:
            return Grouping(require_groups(tuple(target.parameter.shape), self.m, dim), -1, self.m)
        except ValueError as error:
            raise ValueError(
                f"'{target.name}' cannot be pruned to {self.n}:{self.m}: {error}; exclude it, or give another dim"
            ) from error

    @property
    def most(self) -> float:
        """The highest share of zeros."""
        return 1 - self.n / self.m

    def limit(self, target: Target) -> int:
        """All but ``n`` of each ``m``."""
        return target.parameter.numel() // self.m * (self.m - self.n)


@dataclass(frozen=True)
class Channels(Granularity):
    """Whole channels.

    Attributes:
        along: The dimension that counts them: a number, ``"out"`` or ``"in"``.
    """

    along: int | str = "out"

    def dim(self, target: Target) -> int:
        """The dimension that counts the channels."""
        _require_matrix(target, "channels")
        return target.channel_dim(self.along)

    def units(self, target: Target) -> int:
        """Number of channels."""
        return target.parameter.shape[self.dim(target)]

    def dead(self, target: Target, alive: Tensor | None) -> int:
        """Number of channels without an unpruned entry."""
        dim = self.dim(target)
        return 0 if alive is None else int((channel_sums(alive, dim) == 0).count_nonzero())


@dataclass(frozen=True)
class Blocks(Granularity):
    """Whole blocks.

    Attributes:
        block: Size of a block; two numbers count along rows and columns of the tensor as a matrix.
    """

    block: tuple[int, ...]

    def check(self, target: Target) -> None:
        """Refuses shapes that are no multiple of the block."""
        try:
            self.units(target)
        except ValueError as error:
            raise ValueError(f"'{target.name}' cannot be pruned: {error}; exclude it") from error

    def units(self, target: Target) -> int:
        """Number of blocks."""
        return math.prod(blocks_along(tuple(target.parameter.shape), self.block))

    def dead(self, target: Target, alive: Tensor | None) -> int:
        """Number of blocks without an unpruned entry."""
        if alive is None:
            return 0
        blocks = living_blocks(target.parameter, whole(alive), self.block)
        return blocks.numel() - int(blocks.count_nonzero())


def _require_matrix(target: Target, units: str) -> None:
    shape = tuple(target.parameter.shape)
    if len(shape) < 2:
        raise ValueError(
            f"'{target.name}' of shape {shape} has no {units}: exclude it, or prune it with an unstructured method"
        )
