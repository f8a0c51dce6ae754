"""Calling a model with example inputs: what they are, what comes out, and whether values decide what is computed."""

from __future__ import annotations

import os
import traceback
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

_TORCH = os.path.dirname(torch.__file__) + os.sep
_ROUNDING = 1e-4  # a module may take another of its ways the second time, such as torch's fused encoder layers
_DECIDING = (Tensor.__bool__, Tensor.item, Tensor.tolist, Tensor.__int__, Tensor.__float__, Tensor.__index__)


def example_inputs_of(model: nn.Module, given: Any = None) -> Any:
    """The inputs that a model is tried with: those given, or a LightningModule's ``example_input_array``.

    Args:
        model: Any module.
        given: A tensor, a tuple or list of arguments, or a mapping of arguments by name.

    Returns:
        The same with all tensors on the model's device.

    Raises:
        ValueError: If there are none.
    """
    inputs = getattr(model, "example_input_array", None) if given is None else given
    if inputs is None:
        raise ValueError(
            "coupled channels are found by calling the model: give example_inputs= (a tensor, a tuple of arguments or "
            "a dict of them by name), or set example_input_array in the LightningModule"
        )
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    return mapped(inputs, lambda tensor: tensor.detach().to(device))


def call(model: nn.Module, inputs: Any) -> Any:
    """``model(*inputs)``, by name if they are a mapping, and with a tensor alone as the only argument."""
    if isinstance(inputs, Mapping):
        return model(**inputs)
    return model(*inputs) if isinstance(inputs, (tuple, list)) else model(inputs)


def mapped(value: Any, change: Any) -> Any:
    """Inputs with all tensors changed by a function.

    >>> mapped({"x": torch.ones(2), "n": 3}, lambda tensor: tensor + 1)
    {'x': tensor([2., 2.]), 'n': 3}
    """
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, Mapping):
        return {key: mapped(item, change) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return tuple(mapped(item, change) for item in value)
    return value


def tensors_in(value: Any) -> list[Tensor]:
    """All tensors of an output: of tuples, lists, mappings and dataclasses, in their order.

    >>> tensors_in({"a": torch.ones(1), "b": [torch.zeros(1), None]})
    [tensor([1.]), tensor([0.])]
    """
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, Mapping):
        return [tensor for item in value.values() for tensor in tensors_in(item)]
    if isinstance(value, (tuple, list)):
        return [tensor for item in value for tensor in tensors_in(item)]
    if is_dataclass(value) and not isinstance(value, type):
        return [tensor for field in fields(value) for tensor in tensors_in(getattr(value, field.name))]
    return []


def outputs(model: nn.Module, inputs: Any) -> list[Tensor]:
    """What comes out of a model, as tensors without gradients."""
    with torch.no_grad():
        return tensors_in(call(model, inputs))


def difference(one: list[Tensor], other: list[Tensor]) -> float:
    """The largest difference between two outputs, relative to the largest value of each tensor.

    Returns:
        ``max |a - b| / max |a|`` over all tensors; infinite if their number or shapes differ, or if one is not finite
        where the other is.

    >>> difference([torch.tensor([1.0, 4.0])], [torch.tensor([1.0, 5.0])])
    0.25
    """
    if len(one) != len(other) or any(a.shape != b.shape for a, b in zip(one, other, strict=True)):
        return float("inf")
    return max((_relative(a, b) for a, b in zip(one, other, strict=True) if a.numel()), default=0.0)


def _relative(one: Tensor, other: Tensor) -> float:
    a, b = one.detach().double(), other.detach().double()
    apart = torch.where(a == b, 0.0, (a - b).abs())  # equal infinities are no difference
    apart = torch.where(a.isnan() & b.isnan(), 0.0, apart).max()
    largest = a[a.isfinite()].abs().max() if bool(a.isfinite().any()) else a.new_tensor(0.0)
    value = float(apart / largest) if float(largest) > 0 else float(apart)
    return float("inf") if value != value else value


class _Watching(TorchFunctionMode):
    """Notes where values of tensors become Python's numbers, outside of torch itself."""

    def __init__(self) -> None:
        super().__init__()
        self.places: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _DECIDING:
            frame = traceback.extract_stack()[-2]
            if not frame.filename.startswith(_TORCH):
                self.places.append(f"{os.path.basename(frame.filename)}:{frame.lineno}")
        return func(*args, **(kwargs or {}))


def require_callable(model: nn.Module, inputs: Any) -> None:
    """Refuses a model whose structure cannot be told from one call.

    Args:
        model: A model in evaluation mode.
        inputs: What it is called with.

    Raises:
        ValueError: If the call fails, gives no tensor, gives something else the second time, or if the forward
            decides by the values of tensors.
    """
    watching = _Watching()
    try:
        with watching:
            first = outputs(model, inputs)
        again = outputs(model, inputs)
    except Exception as error:
        raise ValueError(
            f"{type(model).__name__} cannot be called with the example inputs: {type(error).__name__}: {error}"
        ) from error
    if watching.places:
        raise ValueError(
            f"the forward of {type(model).__name__} depends on data: at {watching.places[0]} it reads the value of a "
            "tensor, so one call does not show all that other inputs would pass through"
        )
    if not first:
        raise ValueError(f"the forward of {type(model).__name__} returns no tensor, so that nothing can be traced")
    if difference(first, again) > _ROUNDING:
        raise ValueError(
            f"two calls of {type(model).__name__} with the same inputs give different outputs in evaluation mode, so "
            "that it cannot be proved that cutting channels changes nothing"
        )
