"""Settings as plain values, which files can hold and which are compared by what they mean, not by how they print."""

from __future__ import annotations

import dataclasses
import enum
import functools
import hashlib
import re
import types
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor, nn

Plain = None | bool | int | float | str | list[Any] | dict[str, Any]


def plain_value(value: object) -> Plain:
    """What a setting is, in types that any file can hold; the same in every process.

    Numbers, texts and ``None`` are themselves; sequences become lists, mappings and objects dictionaries with the
    name of their class under ``"is"``. Functions are named, and told apart by their code and what they close over.

    Args:
        value: Any setting.

    Example:
        >>> from lightning_prune import Linear
        >>> plain_value(Linear(final=0.5, end=4))["final"], plain_value((1, "a"))
        (0.5, [1, 'a'])
    """
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, enum.Enum):
        return str(value.value)
    if isinstance(value, (int, float)):
        return type(value).__mro__[-2](value) if type(value) not in (int, float) else value
    if isinstance(value, Tensor):
        return {"is": "tensor", "shape": list(value.shape), "bytes": _digest(value)}
    if hasattr(value, "item") and not isinstance(value, type):
        return plain_value(value.item())
    if isinstance(value, Mapping):
        return {str(key): plain_value(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, range)):
        return [plain_value(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted((plain_value(item) for item in value), key=repr)
    return _object(value)


def _object(value: Any) -> Plain:
    if isinstance(value, re.Pattern):
        return {"is": "regular expression", "pattern": value.pattern, "flags": value.flags}
    if isinstance(value, functools.partial):
        arguments = {"args": plain_value(value.args), **_plain_items(value.keywords)}
        return {"is": "partial", "of": plain_value(value.func), **arguments}
    if isinstance(value, type):
        return _name(value)
    if isinstance(value, types.MethodType):
        return {"is": _name(value), "of": plain_value(value.__self__)}
    if isinstance(value, types.FunctionType):
        return _function(value)
    if callable(value) and not hasattr(value, "__dict__"):
        return _name(value)
    if isinstance(value, nn.Module):
        return {"is": _name(type(value))}
    if dataclasses.is_dataclass(value):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return {"is": _name(type(value)), **_plain_items(fields)}
    public = {key: item for key, item in getattr(value, "__dict__", {}).items() if not key.startswith("_")}
    return {"is": _name(type(value)), **_plain_items(public)}


def _plain_items(items: Mapping[str, Any]) -> dict[str, Plain]:
    return {key: plain_value(item) for key, item in items.items()}


def _function(function: types.FunctionType) -> Plain:
    """A name tells functions of a module apart; lambdas and inner functions also differ by code and cells."""
    if "<" not in function.__qualname__:
        return _name(function)
    cells = [cell.cell_contents for cell in function.__closure__ or ()]
    return {
        "is": _name(function),
        "code": hashlib.sha256(function.__code__.co_code + repr(_constants(function.__code__)).encode()).hexdigest(),
        "names": list(function.__code__.co_names),
        "closes over": [plain_value(cell) for cell in cells],
        "defaults": plain_value(function.__defaults__),
    }


def _constants(code: types.CodeType) -> list[Any]:
    return [constant.co_code if isinstance(constant, types.CodeType) else constant for constant in code.co_consts]


def _name(value: Any) -> str:
    """By the last name alone: a class that moves to another module is the same."""
    return str(getattr(value, "__qualname__", type(value).__qualname__))


def _digest(tensor: Tensor) -> str:
    return hashlib.sha256(repr(tensor.detach().cpu().tolist()).encode()).hexdigest()


def differences(theirs: Plain, mine: Plain, of: str = "") -> Iterator[tuple[str, Plain, Plain]]:
    """Where two plain values differ: the place, their value and mine.

    Example:
        >>> list(differences({"amount": 0.2, "scope": "local"}, {"amount": 0.3, "scope": "local"}))
        [('amount', 0.2, 0.3)]
    """
    if isinstance(theirs, dict) and isinstance(mine, dict) and theirs.get("is") == mine.get("is"):
        for key in [*theirs, *(key for key in mine if key not in theirs)]:
            yield from differences(theirs.get(key), mine.get(key), f"{of}.{key}" if of else key)
    elif theirs != mine:
        yield of, theirs, mine


def short(value: Plain) -> str:
    """A plain value for a message."""
    if isinstance(value, dict) and "is" in value:
        arguments = ", ".join(f"{key}={short(item)}" for key, item in value.items() if key != "is")
        return f"{value['is']}({arguments})"
    return repr(value)
