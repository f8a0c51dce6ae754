"""Cutting channels out of a model: smaller tensors, and smaller numbers where layers keep them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lightning_prune.pruner.groups import ChannelGroup


@dataclass(frozen=True)
class Cut:
    """What is left of one dimension, wherever it is that long.

    Attributes:
        size: Its length before.
        kept: The positions that stay, in rising order.
        places: (full name, dimension) of all tensors, and of the attributes that hold the length, dimension 0.

    Example:
        >>> net = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
        >>> apply_cuts(net, [Cut(3, (0, 2), (("0.weight", 0), ("0.bias", 0), ("0.out_features", 0)))])
        >>> net[0]
        Linear(in_features=2, out_features=2, bias=True)
    """

    size: int
    kept: tuple[int, ...]
    places: tuple[tuple[str, int], ...]


def cuts_without(groups: Sequence[ChannelGroup], dead: Sequence[Sequence[bool]], model: nn.Module) -> tuple[Cut, ...]:
    """The cuts that take dead channels out of a model.

    Args:
        groups: Coupled channels.
        dead: One bool for each channel of each group.
        model: The model, for the lengths of dimensions.
    """
    gone: dict[tuple[str, int], set[int]] = {}
    for group, flags in zip(groups, dead, strict=True):
        for part in group.slices if any(flags) else ():
            gone.setdefault((part.name, part.dim), set()).update(part.positions(flags))
    lengths = {place: length_of(model, *place) for place in gone}
    kept = {place: tuple(i for i in range(lengths[place]) if i not in gone[place]) for place in gone}
    return merged((lengths[place], kept[place], place) for place in gone)


def merged(cuts: Iterable[tuple[int, tuple[int, ...], tuple[str, int]]]) -> tuple[Cut, ...]:
    """Cuts with the places of equal ones together."""
    places: dict[tuple[int, tuple[int, ...]], list[tuple[str, int]]] = {}
    for size, kept, place in cuts:
        places.setdefault((size, kept), []).append(place)
    return tuple(Cut(size, kept, tuple(where)) for (size, kept), where in places.items())


def followed_by(first: Sequence[Cut], second: Sequence[Cut]) -> tuple[Cut, ...]:
    """One set of cuts that does what two do one after the other.

    >>> followed_by([Cut(4, (0, 1, 3), (("a", 0),))], [Cut(3, (0, 2), (("a", 0),))])
    (Cut(size=4, kept=(0, 3), places=(('a', 0),)),)
    """
    one, two = _by_place(first), _by_place(second)
    joint = []
    for place in [*one, *(p for p in two if p not in one)]:
        size, kept = one.get(place, (two[place][0], tuple(range(two[place][0]))) if place in two else (0, ()))
        later = two[place][1] if place in two else tuple(range(len(kept)))
        joint.append((size, tuple(kept[i] for i in later), place))
    return merged(joint)


def _by_place(cuts: Sequence[Cut]) -> dict[tuple[str, int], tuple[int, tuple[int, ...]]]:
    return {place: (cut.size, cut.kept) for cut in cuts for place in cut.places}


def apply_cuts(model: nn.Module, cuts: Sequence[Cut]) -> None:
    """Makes tensors and numbers of a model smaller, in place; parameters become new objects.

    Args:
        model: A model of the size before.
        cuts: What stays.

    Raises:
        ValueError: If the model has no such tensor, or one of another length; nothing is changed then.
    """
    for cut in cuts:
        for name, dim in cut.places:
            _require_length(model, name, dim, cut.size)
    for cut in cuts:
        for name, dim in cut.places:
            _cut(model, name, dim, cut.kept)


def length_of(model: nn.Module, name: str, dim: int) -> int:
    """The length of a dimension of a tensor, or the number that an attribute holds."""
    module, attribute = _place(model, name)
    value = getattr(module, attribute)
    return value if isinstance(value, int) else int(value.shape[dim])


def _require_length(model: nn.Module, name: str, dim: int, size: int) -> None:
    try:
        found = length_of(model, name, dim)
    except (AttributeError, IndexError):
        raise ValueError(f"the model has no '{name}' with a dimension {dim}, of which channels were cut") from None
    if found != size:
        raise ValueError(f"'{name}' has {found} channels in dimension {dim}; channels of {size} were cut")


def _cut(model: nn.Module, name: str, dim: int, kept: Sequence[int]) -> None:
    module, attribute = _place(model, name)
    value = getattr(module, attribute)
    if isinstance(value, int):
        setattr(module, attribute, len(kept))
        return
    part = _selected(value.detach(), dim, kept)
    if isinstance(value, nn.Parameter):
        gradient = value.grad
        part = nn.Parameter(part, requires_grad=value.requires_grad)
        part.grad = None if gradient is None else _selected(gradient, dim, kept)
    setattr(module, attribute, part)


def _selected(tensor: Tensor, dim: int, kept: Sequence[int]) -> Tensor:
    return tensor.index_select(dim, torch.tensor(kept, dtype=torch.long, device=tensor.device))


def _place(model: nn.Module, name: str) -> tuple[nn.Module, str]:
    layer, _, attribute = name.rpartition(".")
    return model.get_submodule(layer), attribute
