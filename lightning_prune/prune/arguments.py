"""Arguments that are refused as soon as they are given, with what would be right."""

from __future__ import annotations

from typing import TypeVar

T = TypeVar("T")


def one_of(name: str, given: T, known: tuple[T, ...]) -> T:
    """The argument, if it is one of the known values.

    Raises:
        ValueError: If it is another.

    Example:
        >>> one_of("frozen", "skip", ("skip", "join"))
        'skip'
    """
    if given not in known or (isinstance(given, bool) and type(known[0]) is not bool):
        raise ValueError(f"{name} should be {' or '.join(map(repr, known))}, got {given!r}")
    return given


def instance_of(name: str, given: T, kinds: tuple[type, ...], example: str) -> T:
    """The argument, if it is ``None`` or of one of the kinds.

    Raises:
        TypeError: If it is something else.

    Example:
        >>> instance_of("seed", "x", (int,), "42")
        Traceback (most recent call last):
        TypeError: seed should be a value such as 42, got 'x' of type str
    """
    if given is not None and (not isinstance(given, kinds) or isinstance(given, bool)):
        raise TypeError(f"{name} should be a value such as {example}, got {given!r} of type {type(given).__name__}")
    return given
