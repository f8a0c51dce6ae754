"""Which channels of a network may go: nobody reads them, or they are zero when they arrive, for every input."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from lightning_prune.pruner.calling import outputs
from lightning_prune.pruner.groups import ChannelGroup, Slice


def removable(model: nn.Module, groups: Sequence[ChannelGroup], inputs: Sequence[Any]) -> list[list[bool]]:
    """Which channels can go without changing an output.

    For each layer that reads a channel, either its weights for it are zero, or what arrives is: then all that makes the
    channel has to be independent of the input (zero kernels, or a zero scale of the norm right behind them), and the
    value that arrives is measured. One channel of each group stays.

    Args:
        model: A model without pruning, in evaluation mode.
        groups: Its coupled channels.
        inputs: A few inputs.

    Returns:
        One bool for each channel of each group: True = can go.
    """
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    silent = _silent(model, [s for group in groups for s in group.of("read")], inputs)
    return [_of_group(group, tensors, silent) for group in groups]


def _of_group(group: ChannelGroup, tensors: dict[str, Tensor], silent: dict[str, Tensor]) -> list[bool]:
    constant = torch.ones(group.channels, dtype=torch.bool)
    for part in group.of("write"):
        if tensors[part.name].dim() > 1:
            constant &= _zero(part, tensors, group.channels) | _zero_scale_behind(part, group, tensors)
    gone = torch.ones(group.channels, dtype=torch.bool)
    for part in group.of("read"):
        quiet = _each(part, silent[part.layer], group.channels)
        gone &= _zero(part, tensors, group.channels) | (constant & quiet)
    if bool(gone.all()):
        gone[0] = False
    flags: list[bool] = gone.tolist()
    return flags


def _zero_scale_behind(part: Slice, group: ChannelGroup, tensors: dict[str, Tensor]) -> Tensor:
    scales = [s for s in group.of("norm") if part.behind is not None and s.name == f"{part.behind}.weight"]
    return _zero(scales[0], tensors, group.channels) if scales else torch.zeros(group.channels, dtype=torch.bool)


def _zero(part: Slice, tensors: dict[str, Tensor], channels: int) -> Tensor:
    """Which channels have only zeros in a tensor."""
    tensor = tensors[part.name].detach()
    others = [d for d in range(tensor.dim()) if d != part.dim]
    zero = (tensor == 0).all(dim=others) if others else tensor == 0
    return _each(part, zero, channels)


def _each(part: Slice, positions: Tensor, channels: int) -> Tensor:
    """Whether a flag of positions in a dimension holds for all that belong to a channel."""
    flags = torch.ones(channels, dtype=torch.bool)
    missing = ~positions[list(part.index)].cpu()
    flags[torch.tensor(part.channel)[missing]] = False
    return flags


def _silent(model: nn.Module, reading: Sequence[Slice], inputs: Sequence[Any]) -> dict[str, Tensor]:
    """Which input channels of layers were zero in all calls, by the name of the layer."""
    silent: dict[str, Tensor] = {}
    with ExitStack() as stack:
        for name, layer in {s.layer: model.get_submodule(s.layer) for s in reading}.items():
            stack.callback(layer.register_forward_pre_hook(_listener(silent, name)).remove)
        for example in inputs:
            outputs(model, example)
    never = [(s.layer, max(s.index) + 1) for s in reading if s.layer not in silent]  # read in another way than by call
    return {**silent, **{layer: torch.zeros(length, dtype=torch.bool) for layer, length in never}}


def _listener(silent: dict[str, Tensor], name: str) -> Any:
    def listen(layer: nn.Module, arguments: tuple[Any, ...]) -> None:
        dim = arguments[0].dim() - 1 if isinstance(layer, nn.Linear) else arguments[0].dim() - _rank(layer) + 1
        others = [d for d in range(arguments[0].dim()) if d != dim]
        zero = (arguments[0] == 0).all(dim=others) if others else arguments[0] == 0
        silent[name] = zero & silent.get(name, zero)

    return listen


def _rank(layer: nn.Module) -> int:
    """Dimensions of a batch that a convolution takes."""
    return int(layer.weight.dim())  # type: ignore[operator]


def like(value: Tensor) -> Tensor:
    """Random values of the spread of a tensor; integers and bools as they are."""
    if not value.is_floating_point():
        return value
    spread = float(value.std()) if value.numel() > 1 else 0.0
    return torch.randn_like(value) * (spread or 1.0)


def alternatives(inputs: Any, map_tensors: Any, count: int = 2) -> Iterator[Any]:
    """The inputs themselves, and random ones like them, seeded."""
    yield inputs
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for _ in range(count):
            yield map_tensors(inputs, like)
