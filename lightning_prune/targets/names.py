"""Names of tensors that a pattern means: exact ones, those of a layer, globs."""

from __future__ import annotations

import difflib
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
