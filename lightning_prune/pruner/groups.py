"""Coupled channels as plain values: what belongs to a channel, how it is scored, which ones go, and what that zeroes.

A channel of a group is everything that makes it (rows of kernels, biases, weights of norms and depthwise kernels behind
them) and everything that reads it. If all of that is zero, it can be cut out without changing any output, whatever lies
between, as long as that treats channels apart.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from lightning_prune.prune.kernels import norms

Role = Literal["write", "norm", "read", "state", "size"]
_SCORED: tuple[Role, ...] = ("write", "norm", "read")


@dataclass(frozen=True)
class Slice:
    """The part of one tensor that belongs to the channels of a group.

    Attributes:
        name: Full name of the tensor; of an attribute that counts channels (``"conv1.out_channels"``) if the role is
            ``"size"``.
        dim: The dimension in which the channels lie, from the front.
        index: Positions in that dimension.
        channel: The channel of the group that each position belongs to.
        role: ``"write"``: makes channels (kernels, biases, bare parameters). ``"norm"``: weights of norms and PReLU.
            ``"read"``: columns for these channels. ``"state"``: running statistics, cut but never masked.
            ``"size"``: a number of channels, kept by a layer as an attribute.
        behind: Of a ``"write"``: the norm that is alone in reading the layer, if there is one.
    """

    name: str
    dim: int
    index: tuple[int, ...]
    channel: tuple[int, ...]
    role: Role
    behind: str | None = None

    @property
    def layer(self) -> str:
        """Full name of the module that holds the tensor.

        >>> Slice("block.conv.weight", 0, (0,), (0,), "write").layer
        'block.conv'
        """
        return self.name.rpartition(".")[0]

    def positions(self, dead: Sequence[bool]) -> list[int]:
        """The positions that belong to dead channels.

        >>> Slice("fc.weight", 1, (0, 1, 2, 3), (0, 0, 1, 1), "read").positions([False, True])
        [2, 3]
        """
        return [i for i, channel in zip(self.index, self.channel, strict=True) if dead[channel]]

    def number(self, channels: Sequence[int]) -> int:
        """How many positions belong to some channels.

        >>> Slice("fc.weight", 1, (0, 1, 2, 3), (0, 0, 1, 1), "read").number([1])
        2
        """
        alike, sizes = self._sizes
        return alike * len(channels) if alike else sum(sizes[channel] for channel in channels)

    @functools.cached_property
    def _sizes(self) -> tuple[int, Counter[int]]:
        """How many positions each channel has: one number if all have as many, else 0, and one for each."""
        sizes = Counter(self.channel)
        return (max(sizes.values()) if len(set(sizes.values())) == 1 else 0), sizes


@dataclass(frozen=True)
class ChannelGroup:
    """Channels of several layers that can only go together.

    Attributes:
        name: The layer that makes them; of several the first one of the model.
        channels: How many there are.
        slices: All that belongs to them.
    """

    name: str
    channels: int
    slices: tuple[Slice, ...]

    def of(self, *roles: Role) -> Iterator[Slice]:
        """The slices with one of these roles."""
        return (s for s in self.slices if s.role in roles)

    @property
    def masked(self) -> tuple[Slice, ...]:
        """The slices that are masked with a channel: those of parameters."""
        return tuple(self.of(*_SCORED))


@dataclass(frozen=True)
class LeftOut:
    """Channels that cannot be cut without changing the outputs.

    Attributes:
        name: The layer that makes them.
        reason: Why they stay.
    """

    name: str
    reason: str

    def __str__(self) -> str:
        """Layer and reason."""
        return f"{self.name}: {self.reason}"


@dataclass(frozen=True)
class Groups:
    """The coupled channels of a model; prints as one line each.

    Attributes:
        groups: Those that can be cut, in the model's order.
        left_out: Those that cannot, and why.

    Example:
        >>> rows, columns = Slice("0.weight", 0, (0, 1), (0, 1), "write"), Slice("2.weight", 1, (0, 1), (0, 1), "read")
        >>> print(Groups((ChannelGroup("0", 2, (rows, columns)),), (LeftOut("2", "outputs of the network"),)))
        0: 2 channels, in 0.weight, 2.weight
        2: left alone, outputs of the network
    """

    groups: tuple[ChannelGroup, ...]
    left_out: tuple[LeftOut, ...] = ()

    def __str__(self) -> str:
        """One line for each group, then one for each that is left alone."""
        found = [f"{g.name}: {g.channels} channels, in {', '.join(s.name for s in g.masked)}" for g in self.groups]
        return "\n".join([*found, *(f"{left.name}: left alone, {left.reason}" for left in self.left_out)])

    def masked_dims(self) -> dict[str, set[int]]:
        """The dimensions in which channels lie, by the name of each parameter of a group, in the groups' order."""
        dims: dict[str, set[int]] = {}
        for part in (s for group in self.groups for s in group.masked):
            dims.setdefault(part.name, set()).add(part.dim)
        return dims


def channel_matrix(group: ChannelGroup, tensors: Mapping[str, Tensor]) -> Tensor:
    """All parameters of the channels of a group: one row each, shape (channels, entries of the largest channel).

    Channels with fewer entries than others are filled up with zeros.

    Args:
        group: The group.
        tensors: Its parameters by full name.

    Example:
        >>> makes, reads = Slice("a", 0, (0, 1), (0, 1), "write"), Slice("b", 1, (0, 1), (0, 1), "read")
        >>> group = ChannelGroup("a", 2, (makes, reads))
        >>> channel_matrix(group, {"a": torch.tensor([[1.0, 2.0], [3.0, 4.0]]), "b": torch.tensor([[5.0, 6.0]])})
        tensor([[1., 2., 5.],
                [3., 4., 6.]])
    """
    return torch.cat([_rows(part, tensors[part.name].detach(), group.channels) for part in group.masked], dim=1)


def channel_norms(group: ChannelGroup, tensors: Mapping[str, Tensor], n: float = 2.0) -> Tensor:
    """The Ln norms of the rows of :func:`channel_matrix`, without making it: ``(sum |w| ** n) ** (1 / n)``.

    Example:
        >>> makes, reads = Slice("a", 0, (0, 1), (0, 1), "write"), Slice("b", 1, (0, 1), (0, 1), "read")
        >>> tensors = {"a": torch.tensor([[3.0], [0.0]]), "b": torch.tensor([[4.0, 2.0]])}
        >>> channel_norms(ChannelGroup("a", 2, (makes, reads)), tensors)
        tensor([5., 2.])
    """
    first = tensors[group.masked[0].name]
    sums = torch.zeros(group.channels, dtype=torch.promote_types(first.abs().dtype, torch.float32), device=first.device)
    for part in group.masked:
        tensor = tensors[part.name].detach()
        lengths = norms.channel_norms(tensor, n, part.dim) if tensor.dim() > 1 else tensor.abs()
        index = torch.tensor(part.index, device=first.device), torch.tensor(part.channel, device=first.device)
        sums.index_add_(0, index[1], lengths.to(sums)[index[0]] ** n)
    return sums ** (1 / n)


def _rows(part: Slice, tensor: Tensor, channels: int) -> Tensor:
    """The entries of each channel in one tensor as rows."""
    rows = tensor.movedim(part.dim, 0)[list(part.index)].reshape(len(part.index), -1)
    order = sorted(range(len(part.channel)), key=lambda i: part.channel[i])
    counts = [0] * channels
    for channel in part.channel:
        counts[channel] += 1
    if len(set(counts)) == 1:
        return rows[order].reshape(channels, -1)
    filled = rows.new_zeros(channels, max(counts), rows.shape[1])
    place = [0] * channels
    for i in order:
        channel = part.channel[i]
        filled[channel, place[channel]] = rows[i]
        place[channel] += 1
    return filled.flatten(1)


def comparable(scores: Tensor, alive: Tensor) -> Tensor:
    """Scores of the channels of one group over their mean, for one ranking over groups (Fang et al. 2023).

    Args:
        scores: One for each channel, shape (channels,).
        alive: Which channels are left, bool; the mean is theirs.

    Example:
        >>> comparable(torch.tensor([1.0, 3.0, 0.0]), torch.tensor([True, True, False]))
        tensor([0.5000, 1.5000, 0.0000], dtype=torch.float64)
    """
    values = scores.double()
    mean = float(values[alive].mean()) if bool(alive.any()) else 0.0
    return values / mean if mean > 0 else values


def dead_channels(group: ChannelGroup, masks: Mapping[str, Tensor | None]) -> list[bool]:
    """Which channels are masked in all their parameters.

    Args:
        group: The group.
        masks: Boolean masks (True = kept) by full name; ``None`` = nothing pruned.
    """
    dead = torch.ones(group.channels, dtype=torch.bool)
    for part in group.masked:
        mask = masks[part.name]
        if mask is None:
            return [False] * group.channels
        others = [d for d in range(mask.dim()) if d != part.dim]
        living = (mask.any(dim=others) if others else mask)[list(part.index)].cpu()
        dead[torch.tensor(part.channel)[living]] = False
    flags: list[bool] = dead.tolist()
    return flags


def masks_without(
    groups: Sequence[ChannelGroup],
    dead: Sequence[Sequence[bool]],
    masks: Mapping[str, Tensor | None],
    like: Mapping[str, Tensor],
) -> dict[str, Tensor | None]:
    """The masks of all parameters of some groups without dead channels.

    Args:
        groups: The groups.
        dead: One bool for each channel of each group.
        masks: Masks so far, by full name; ``None`` = nothing pruned.
        like: The parameters, for shapes, devices and memory formats.

    Returns:
        New masks where something is dead, else the ones so far.

    Example:
        >>> makes, reads = Slice("a", 0, (0, 1), (0, 1), "write"), Slice("b", 1, (0, 1), (0, 1), "read")
        >>> group = ChannelGroup("a", 2, (makes, reads))
        >>> like = {"a": torch.zeros(2, 1), "b": torch.zeros(1, 2)}
        >>> masks_without([group], [[True, False]], {"a": None, "b": None}, like)["b"]
        tensor([[False,  True]])
    """
    after = dict(masks)
    fresh: set[str] = set()
    for group, flags in zip(groups, dead, strict=True):
        for part in group.masked if any(flags) else ():
            if part.name not in fresh:
                fresh.add(part.name)
                before = after[part.name]
                new = torch.ones_like(like[part.name], dtype=torch.bool, requires_grad=False)
                after[part.name] = new if before is None else new.copy_(before)
            mask = after[part.name]
            assert mask is not None
            mask.index_fill_(part.dim, torch.tensor(part.positions(flags), dtype=torch.long, device=mask.device), False)
    return after


def zeros_after(
    groups: Sequence[ChannelGroup], dead: Sequence[Sequence[int]], shapes: Mapping[str, Sequence[int]]
) -> int:
    """Masked weights of matrices and kernels with some dead channels in each group.

    An entry whose row and whose column are dead counts once, so the number is exact, not a sum over groups.

    Args:
        groups: The groups.
        dead: The dead channels of each.
        shapes: Shapes of the parameters that are counted, by full name; others are not counted.
    """
    kept = {name: list(shape) for name, shape in shapes.items()}
    for group, channels in zip(groups, dead, strict=True):
        for part in group.masked if channels else ():
            if part.name in kept:
                kept[part.name][part.dim] -= part.number(channels)
    return sum(math.prod(shapes[name]) - math.prod(left) for name, left in kept.items())


def nearest(steps: int, zeros: Callable[[int], int], target: int) -> int:
    """The number in [0, steps] at which a rising count comes nearest to a target; the smaller one of two.

    >>> nearest(10, lambda step: step * step, 17)
    4
    """
    low, high = 0, steps
    while low < high:
        middle = (low + high) // 2
        if zeros(middle) >= target:
            high = middle
        else:
            low = middle + 1
    if low > 0 and target - zeros(low - 1) <= abs(zeros(low) - target):
        return low - 1
    return low
