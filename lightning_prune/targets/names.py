"""Names of tensors: those that a pattern means (exact ones, those of a layer, globs), and many of them in few words."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase


def matching(pattern: str, names: Iterable[str]) -> list[str]:
    """The names that a pattern means; a name that is written out is meant even if it reads as a glob.

    Args:
        pattern: The name of a tensor, the name of a module (all in it), or a glob.
        names: Full names of tensors.

    Example:
        >>> matching("conv[3x3].weight", ["conv[3x3].weight", "conv3.weight"])
        ['conv[3x3].weight']
        >>> matching("conv[3x3].weight", ["conv3.weight"]), matching("a", ["a.weight", "ab.weight"])
        (['conv3.weight'], ['a.weight'])
    """
    names = list(names)
    written = [name for name in names if name == pattern or name.startswith(f"{pattern}.")]
    return written or [name for name in names if fnmatchcase(name, pattern)]


def near(pattern: str, names: Iterable[str]) -> list[str]:
    """Up to three names that may have been meant."""
    return difflib.get_close_matches(pattern, list(names), n=3, cutoff=0.4)


def listing(names: Sequence[str], limit: int = 8) -> str:
    """The first names, and how many more there are.

    Example:
        >>> listing(["a", "b", "c"], limit=2)
        'a, b and 1 more'
    """
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more


def folded(names: Sequence[str]) -> list[str]:
    """Names in which those that differ by numbers alone are one glob, with how many they are.

    Example:
        >>> folded(["stem.weight", "layers.0.weight", "layers.1.weight", "head.0.weight"])
        ['stem.weight', 'layers.*.weight (2)', 'head.0.weight']
    """
    alike: dict[str, list[str]] = {}
    for name in names:
        alike.setdefault(re.sub(r"(?<![^.])\d+(?![^.])", "*", name), []).append(name)
    return [found[0] if len(found) == 1 else f"{glob} ({len(found)})" for glob, found in alike.items()]


def shortened(name: str, width: int) -> str:
    """A long name without its middle.

    Example:
        >>> shortened("model.encoder.layers.11.attention.weight", 20)
        'model.enco…on.weight'
    """
    half = (width - 1) // 2
    return name if len(name) <= width else f"{name[: width - 1 - half]}…{name[-half:]}".replace("\n", " ")
