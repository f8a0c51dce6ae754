"""Running a model beside its training without leaving a trace."""

from __future__ import annotations

import copy
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

_PLAIN = (int, float, bool, str, type(None))


@contextmanager
def no_trace(model: nn.Module, training: bool | None = None) -> Iterator[None]:
    """Runs a block and gives the model and all generators the state back that they had.

    Afterwards gradients, buffers (objects and values), train and eval modes of all modules, states of torchmetrics, and
    the random states of torch (all devices), NumPy and Python are bit by bit as before. Autocast is off within it, and
    what ``self.log`` and ``self.log_dict`` of a LightningModule are told is dropped.

    Args:
        model: The model.
        training: Put all modules into train or eval mode for the block; as they are by default.

    Example:
        >>> norm = nn.BatchNorm1d(2)
        >>> with no_trace(norm):
        ...     _ = norm(torch.ones(4, 2)), torch.rand(1)
        >>> norm.running_mean, int(norm.num_batches_tracked)
        (tensor([0., 0.]), 0)
    """
    modes = [(module, module.training) for module in model.modules()]
    buffers = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]
    slots = [(module, dict(module._buffers)) for module in model.modules()]
    gradients = [(parameter, parameter.grad) for parameter in model.parameters()]
    metrics = [(module, _plain_state(module)) for module in model.modules() if _is_metric(module)]
    kinds = sorted({p.device.type for p in model.parameters()} | {"cpu"})
    try:
        with own_randomness(), _mute(model), _without_autocast(kinds), torch.enable_grad():
            for parameter, _ in gradients:
                parameter.grad = None
            if training is not None:
                model.train(training)
            yield
    finally:
        for parameter, gradient in gradients:
            parameter.grad = gradient
        for module, mode in modes:
            module.training = mode
        for module, found in slots:
            module._buffers.update(found)
        with torch.no_grad():
            for buffer, value in buffers:
                buffer.copy_(value)
        for module, state in metrics:
            vars(module).update(state)


def _is_metric(module: nn.Module) -> bool:
    torchmetrics = sys.modules.get("torchmetrics")
    return torchmetrics is not None and isinstance(module, torchmetrics.Metric)


def _plain_state(module: nn.Module) -> dict[str, Any]:
    """What a metric has counted: its numbers, tensors and lists of them."""
    found = {}
    for key, value in vars(module).items():
        many = isinstance(value, list) and all(isinstance(item, (Tensor, *_PLAIN)) for item in value)
        if many or isinstance(value, (Tensor, *_PLAIN)):
            found[key] = value.detach().clone() if isinstance(value, Tensor) else copy.copy(value)
    return found


@contextmanager
def own_randomness() -> Iterator[None]:
    """Gives the random states of torch, NumPy and Python back after a block."""
    numpy_state, python_state = np.random.get_state(), random.getstate()
    devices = range(torch.cuda.device_count()) if torch.cuda.is_available() else ()
    try:
        with torch.random.fork_rng(devices=devices):
            yield
    finally:
        np.random.set_state(numpy_state)
        random.setstate(python_state)


@contextmanager
def _mute(model: nn.Module) -> Iterator[None]:
    """Lets a LightningModule log nothing."""
    names = [name for name in ("log", "log_dict") if callable(getattr(model, name, None))]
    before = {name: vars(model)[name] for name in names if name in vars(model)}
    for name in names:
        vars(model)[name] = _nothing
    try:
        yield
    finally:
        for name in names:
            del vars(model)[name]
        vars(model).update(before)


def _nothing(*_: Any, **__: Any) -> None:
    """Takes what is logged."""


@contextmanager
def _without_autocast(kinds: list[str]) -> Iterator[None]:
    if not kinds:
        yield
        return
    with torch.autocast(kinds[0], enabled=False), _without_autocast(kinds[1:]):
        yield
