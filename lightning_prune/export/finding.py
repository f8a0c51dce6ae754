"""The state dict in a file, found by what it holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from lightning_prune.export.tree import describe

_USUAL = ("state_dict", "model_state_dict", "model", "module", "net", "network", "params", "weights")
_DEPTH = 8

Keys = tuple[str, ...]


@dataclass(frozen=True)
class Found:
    """A state dict in what a file holds.

    Attributes:
        state: Values by name.
        keys: The keys that lead to it; none if the file is a state dict.
        others: Those that lead to others with the same names, such as averaged weights.
    """

    state: Mapping[str, Any]
    keys: Keys = ()
    others: tuple[Keys, ...] = ()


def find_state_dict(contents: Any) -> Found:
    """The state dict in what a file holds.

    A state dict is a mapping from names to tensors, without mappings of tensors in it; optimizer states are none. Of
    several the one under a usual key is taken (``"state_dict"``, ``"model_state_dict"``, ``"model"``, ...), else the
    outermost, else the largest.

    Args:
        contents: What was read.

    Raises:
        ValueError: If there is none; the message has the keys that are there.

    Example:
        >>> import torch
        >>> found = find_state_dict({"net": {"fc.weight": torch.ones(2, 2)}, "loss": torch.ones(()), "epoch": 3})
        >>> found.keys, list(found.state)
        (('net',), ['fc.weight'])
    """
    candidates = list(state_dicts(contents))
    if not candidates and _holds_weights(contents):
        return Found(contents)
    if not candidates:
        raise ValueError(f"holds no state dict (tensors by name, at any depth); found was {describe(contents)}")
    keys, state = min(candidates, key=lambda pair: _rank(*pair))
    return Found(state, keys, tuple(k for k, other in candidates if k != keys and _alike(state, other)))


def state_dicts(contents: Any, keys: Keys = ()) -> Iterator[tuple[Keys, Mapping[str, Any]]]:
    """All state dicts in what a file holds, with the keys that lead to them.

    Args:
        contents: What was read.
        keys: Those that led there.
    """
    if not isinstance(contents, Mapping) or len(keys) > _DEPTH or {"param_groups", "state"} <= contents.keys():
        return
    if _is_state_dict(contents):
        yield keys, contents
        return
    for key, value in contents.items():
        yield from state_dicts(value, (*keys, str(key)))


def _is_state_dict(found: Mapping[Any, Any]) -> bool:
    return (
        all(isinstance(key, str) for key in found)
        and any(isinstance(value, Tensor) for value in found.values())
        and not any(isinstance(value, Mapping) and not key.endswith("_extra_state") for key, value in found.items())
    )


def _holds_weights(contents: Any) -> bool:
    """Whether it is a state dict with other things in it, as long as one tensor is more than a number."""
    return isinstance(contents, Mapping) and any(
        isinstance(key, str) and isinstance(value, Tensor) and value.dim() > 0 for key, value in contents.items()
    )


def _rank(keys: Keys, state: Mapping[str, Any]) -> tuple[int, int, int]:
    usual = min((_USUAL.index(key) for key in keys if key in _USUAL), default=len(_USUAL))
    return usual, len(keys), -sum(value.numel() for value in state.values() if isinstance(value, Tensor))


def _alike(one: Mapping[str, Any], two: Mapping[str, Any]) -> bool:
    return 2 * len(one.keys() & two.keys()) >= len(one)
