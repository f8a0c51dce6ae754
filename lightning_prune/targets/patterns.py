"""Patterns that choose parameters: what they are, and how they are called."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor, nn

Pattern = (
    str | re.Pattern[str] | type[nn.Module] | nn.Module | tuple[nn.Module, str] | Callable[[str, nn.Parameter], bool]
)
# str and list[str] are in the others already; LightningCLI saves names as they were given if they come first.
Patterns = str | list[str] | Pattern | Iterable[Pattern] | None


def as_patterns(patterns: Any) -> list[Pattern]:
    """A list of patterns from one pattern, an iterable of them or ``None``."""
    if patterns is None:
        return []
    if isinstance(patterns, (str, type, nn.Module, Tensor)) or is_pair(patterns) or not isinstance(patterns, Iterable):
        patterns = [patterns]
    return [tuple(pattern) if is_pair(pattern) else pattern for pattern in patterns]


def is_pair(value: Any) -> bool:
    """Whether it is a pair of a module and a name, which in a list has to be one of the module's tensors."""
    if not isinstance(value, (tuple, list)) or len(value) != 2 or not isinstance(value[0], nn.Module):
        return False
    return isinstance(value[1], str) and (isinstance(value, tuple) or hasattr(value[0], value[1]))


def show(pattern: Pattern) -> str:
    """A pattern in words that are the same in every process."""
    if isinstance(pattern, re.Pattern):
        return f"re.compile({pattern.pattern!r})"
    if is_pair(pattern):
        return f"({type(pattern[0]).__name__}, {pattern[1]!r})"  # type: ignore[index]
    if isinstance(pattern, str):
        return repr(pattern)
    if isinstance(pattern, functools.partial):
        return _with_words(show(pattern.func), [*pattern.args, *pattern.keywords.values()])
    name = str(getattr(pattern, "__qualname__", type(pattern).__qualname__))
    code: Any = getattr(pattern, "__code__", None)
    words = [*code.co_names, *code.co_consts] if code is not None and name.endswith("<lambda>") else []
    cells = getattr(pattern, "__closure__", None) or ()
    return _with_words(name, [*words, *(cell.cell_contents for cell in cells)])


def _with_words(name: str, values: Iterable[object]) -> str:
    """A function's name and the plain values it uses, so that two functions of one name can differ."""
    words = [str(value) for value in values if isinstance(value, (str, int, float))]
    return f"{name}({', '.join(words)})" if words else name


def describe_patterns(patterns: Patterns) -> str:
    """Patterns in words that are the same in every process and every order, for messages and checkpoint keys."""
    return ", ".join(sorted({show(pattern) for pattern in as_patterns(patterns)})) or "default"
