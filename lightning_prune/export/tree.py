"""Plain values as JSON and back, exactly: what a checkpoint holds beside its tensors."""

from __future__ import annotations

import math
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from lightning_prune.checkpoint import METADATA, with_versions

_PAIRS: dict[str, Callable[[list[tuple[Any, Any]]], Any]] = {
    "dict": dict,
    "OrderedDict": OrderedDict,
    "Counter": lambda pairs: Counter(dict(pairs)),
    "defaultdict": dict,
}
_ITEMS: dict[str, Callable[[list[Any]], Any]] = {
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
    "deque": deque,
    "Size": torch.Size,
}
_TYPES: dict[type, str] = {
    **{dict: "dict", OrderedDict: "OrderedDict", Counter: "Counter", defaultdict: "defaultdict"},
    **{tuple: "tuple", set: "set", frozenset: "frozenset", deque: "deque", torch.Size: "Size"},
}


class NotPlainError(ValueError):
    """A value is neither a tensor nor a plain value."""


def encode(value: Any, tensor: Callable[[str, Tensor], int], path: str = "") -> Any:
    """A JSON value for plain values with tensors in them.

    Plain are None, booleans, integers, floats, complex numbers, strings, bytes, dtypes, devices, and lists, tuples,
    sets, deques, sizes, dicts, ordered dicts and counters of plain values. A ``defaultdict`` becomes a dict.

    Args:
        value: The value.
        tensor: Called with the path of each tensor and the tensor; gives its number.
        path: Where the value is, for messages.

    Raises:
        NotPlainError: If a value is of another type.

    Example:
        >>> encode((1, {"a": float("inf")}), lambda path, tensor: 0)
        ['tuple', [1, ['dict', [['a', ['float', 'inf']]]]]]
    """
    kind = type(value)
    if isinstance(value, Tensor):
        return _encode_quantized(value, tensor, path) if _is_bytes(value) else ["tensor", tensor(path, value)]
    if value is None or kind in (bool, int, str) or (kind is float and math.isfinite(value)):
        return value
    if kind is list:
        return ["list", [encode(item, tensor, _below(path, i)) for i, item in enumerate(value)]]
    if _TYPES.get(kind) in _PAIRS:
        versions = getattr(value, METADATA, None)
        if versions:
            return ["state_dict", [encode(dict(value), tensor, path), encode(dict(versions), tensor, path)]]
        return [_TYPES[kind], [[encode(k, tensor, path), encode(v, tensor, _below(path, k))] for k, v in value.items()]]
    if kind in _TYPES:
        return [_TYPES[kind], [encode(item, tensor, _below(path, i)) for i, item in enumerate(value)]]
    return _encode_word(value, path)


def decode(node: Any, tensors: Callable[[int], Tensor]) -> Any:
    """The value that :func:`encode` made JSON of.

    Args:
        node: The JSON value.
        tensors: Gives the tensor of a number.

    Raises:
        ValueError: If it is not such a value.

    Example:
        >>> decode(["tuple", [1, ["float", "inf"]]], lambda number: torch.zeros(()))
        (1, inf)
    """
    if not isinstance(node, list):
        return node
    kind, content = node
    if kind == "tensor":
        return tensors(content)
    if kind == "quantized":
        return _quantized(tensors(content[0]), *content[1:])
    if kind == "list":
        return [decode(item, tensors) for item in content]
    if kind == "state_dict":
        return with_versions(*(decode(item, tensors) for item in content))
    if kind in _PAIRS:
        return _PAIRS[kind]([(decode(k, tensors), decode(v, tensors)) for k, v in content])
    if kind in _ITEMS:
        return _ITEMS[kind]([decode(item, tensors) for item in content])
    return _decode_word(kind, content)


def describe(value: Any) -> str:
    """What was found, in words.

    Example:
        >>> describe({"epoch": 3})
        "a mapping with 'epoch'"
    """
    if not isinstance(value, Mapping):
        return f"a {type(value).__name__}"
    more = f" and {len(value) - 8} more" if len(value) > 8 else ""
    return f"a mapping with {', '.join(map(repr, list(value)[:8])) or 'nothing in it'}{more}"


def _is_bytes(value: Tensor) -> bool:
    """Whether a tensor is quantized to bytes with one scale, as those of ``quantize_dynamic`` are."""
    if not value.is_quantized or value.dtype not in (torch.qint8, torch.quint8):
        return False
    return value.qscheme() == torch.per_tensor_affine and value.layout == torch.strided


def _encode_quantized(value: Tensor, tensor: Callable[[str, Tensor], int], path: str) -> Any:
    numbers, scale, zero = value.int_repr(), float(value.q_scale()), int(value.q_zero_point())
    if not torch.equal(_quantized(numbers, scale.hex(), zero).int_repr(), numbers):
        return ["tensor", tensor(path, value)]  # a scale so extreme that the same does not come back: refused there
    return ["quantized", [tensor(path, numbers), scale.hex(), zero]]


def _quantized(numbers: Tensor, scale: str, zero: int) -> Tensor:
    dtype = torch.qint8 if numbers.dtype == torch.int8 else torch.quint8
    step = float.fromhex(scale)
    return torch.quantize_per_tensor((numbers.float() - zero) * step, step, zero, dtype)


def _below(path: str, key: Any) -> str:
    return f"{path}.{key}" if path else str(key)


def _encode_word(value: Any, path: str) -> list[Any]:
    if type(value) is float:
        return ["float", repr(value)]
    if type(value) is complex:
        return ["complex", [value.real.hex(), value.imag.hex()]]
    if type(value) is bytes:
        return ["bytes", value.hex()]
    if isinstance(value, torch.dtype):
        return ["dtype", str(value).removeprefix("torch.")]
    if isinstance(value, torch.device):
        return ["device", str(value)]
    raise NotPlainError(
        f"'{path}' is a {type(value).__module__}.{type(value).__qualname__}; only tensors and plain values (numbers, "
        "strings, lists, dicts, ...) can be written, since anything else would run code when it is read"
    )


def _decode_word(kind: Any, content: Any) -> Any:
    if kind == "float":
        return float(content)
    if kind == "complex":
        return complex(*map(float.fromhex, content))
    if kind == "bytes":
        return bytes.fromhex(content)
    if kind == "dtype" and isinstance(getattr(torch, content, None), torch.dtype):
        return getattr(torch, content)
    if kind == "device":
        return torch.device(content)
    raise ValueError(f"{kind!r} is no type of a plain value")
