"""What shrinking a network has removed, as a value that prints."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lightning_prune.metrics.flops import effective_flops
from lightning_prune.pruner.calling import call


@dataclass(frozen=True)
class Size:
    """The size of a network.

    Attributes:
        parameters: Entries of all parameters.
        multiply_adds: Of matrix products, convolutions and attention, in one call with the example inputs.
        file_bytes: Of the tensors in its state dict.
    """

    parameters: int
    multiply_adds: int
    file_bytes: int


@dataclass(frozen=True)
class ShrinkReport:
    """What was removed; prints as a table.

    Attributes:
        channels: Channels before and after of each group of coupled layers, by the name of its first layer.
        before: Size of the network that was given.
        after: Size of the smaller one.
        left_out: Layers whose channels cannot be cut, with the reason.
        difference: Largest difference of outputs, relative to the largest output.

    Example:
        >>> before, after = Size(900, 5_000, 3_600), Size(300, 1_000, 1_200)
        >>> print(ShrinkReport({"conv1": (8, 4)}, before, after, (), 3e-8))
                       before  after
        conv1               8      4
        parameters        900    300  3.0 times fewer
        multiply-adds   5,000  1,000  5.0 times fewer
        bytes in file   3,600  1,200  3.0 times fewer
        outputs differ by 3.0e-08 of the largest
    """

    channels: dict[str, tuple[int, int]]
    before: Size
    after: Size
    left_out: tuple[str, ...]
    difference: float

    @property
    def removed(self) -> int:
        """Channels removed, over all groups."""
        return sum(before - after for before, after in self.channels.values())

    def __str__(self) -> str:
        """One line for each group, then the sizes."""
        lines = [("", "before", "after", ""), *((n, f"{a:,}", f"{b:,}", "") for n, (a, b) in self.channels.items())]
        lines += list(self._sizes())
        widths = [max(len(line[i]) for line in lines) for i in range(3)]
        text = [f"{a:<{widths[0]}}  {b:>{widths[1]}}  {c:>{widths[2]}}  {d}".rstrip() for a, b, c, d in lines]
        text.append(f"outputs differ by {self.difference:.1e} of the largest")
        return "\n".join([*text, *(f"not cut: {line}" for line in self.left_out)])

    def _sizes(self) -> Iterator[tuple[str, str, str, str]]:
        words = {"parameters": "parameters", "multiply_adds": "multiply-adds", "file_bytes": "bytes in file"}
        for field, word in words.items():
            one, two = getattr(self.before, field), getattr(self.after, field)
            yield word, f"{one:,}", f"{two:,}", f"{one / max(two, 1):.1f} times fewer"


def size_of(model: nn.Module, inputs: Any) -> Size:
    """Parameters, multiply-adds and bytes of a plain model.

    Args:
        model: A model without pruning.
        inputs: What it is called with, as for :func:`lightning_prune.export.shrink`.

    Example:
        >>> size_of(nn.Linear(4, 2), torch.ones(3, 4))
        Size(parameters=10, multiply_adds=24, file_bytes=40)
    """
    parameters = sum(p.numel() for p in model.parameters())
    operations = effective_flops(_Called(model), (inputs,)).dense // 2
    return Size(parameters, operations, sum(t.numel() * t.element_size() for t in distinct(model).values()))


def distinct(model: nn.Module) -> dict[str, Tensor]:
    """The tensors of a state dict, each once, under its first name."""
    seen: set[tuple[int, int, torch.Size]] = set()
    found = {}
    for name, value in model.state_dict().items():
        place = (value.data_ptr(), value.storage_offset(), value.shape)
        if isinstance(value, Tensor) and (place not in seen or value.numel() == 0):
            seen.add(place)
            found[name] = value
    return found


class _Called(nn.Module):
    """A model that takes all its inputs as one value."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: Any) -> Any:
        return call(self.model, inputs)
