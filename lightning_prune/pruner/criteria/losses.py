"""Gradients of a loss that a criterion computes itself, on data of the user's choice."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from lightning_prune.prune.sharded.tensors import is_sharded
from lightning_prune.targets.select import Target

Loss = Callable[[Any], Tensor]
"""Called with the model, gives a scalar."""


def refuse_sharded(criterion: str, targets: Sequence[Target]) -> None:
    """Raises ValueError if a tensor is split over ranks, whose model a criterion cannot run by itself."""
    split = next((t.name for t in targets if is_sharded(t.parameter)), None)
    if split is not None:
        raise ValueError(f"'{split}' is split over ranks, where {criterion} does not work: use 'ddp'")


@contextmanager
def wanting_gradients(parameters: Sequence[nn.Parameter]) -> Iterator[None]:
    """Within it all parameters require gradients, also those that are frozen."""
    before = [p.requires_grad for p in parameters]
    for p in parameters:
        p.requires_grad_(True)
    try:
        yield
    finally:
        for p, wanted in zip(parameters, before, strict=True):
            p.requires_grad_(wanted)


def gradients_of(value: Tensor, targets: Sequence[Target], criterion: str, create_graph: bool = False) -> list[Tensor]:
    """The gradients of a loss with regard to all targets.

    Args:
        value: The loss.
        targets: The tensors.
        criterion: Who asks, for messages.
        create_graph: Whether the gradients are differentiated in turn.

    Raises:
        ValueError: If the loss is no scalar, or a target takes no part in it.
    """
    if not isinstance(value, Tensor) or value.numel() != 1:
        got = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"{value!r}"
        raise ValueError(f"{criterion}: loss(model) should give a scalar tensor, got {got}")
    parameters = [t.parameter for t in targets]
    found = torch.autograd.grad(value, parameters, create_graph=create_graph, allow_unused=True)
    unused = [f"'{t.name}'" for g, t in zip(found, targets, strict=True) if g is None]
    if unused:
        raise ValueError(f"{criterion}: {', '.join(unused)} takes no part in the loss; exclude it")
    return [g for g in found if g is not None]
