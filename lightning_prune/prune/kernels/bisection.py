"""Halving integers between two ends until the one is found up to which a given number of entries lie."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple


class Bracket(NamedTuple):
    """Two ends: fewer entries than are looked for lie up to `low`, as many or more up to `high`."""

    low: int
    high: int
    upto_low: int
    upto_high: int


def narrow(
    bracket: Bracket, count: int, upto: Callable[[int], int], pivots: Sequence[int] = (), limit: int = -1
) -> Bracket:
    """Narrows a bracket until nothing is between its ends, or at most `limit` entries are.

    Args:
        bracket: What is known.
        count: The number of entries that is looked for.
        upto: How many entries are at most a given integer.
        pivots: Integers to try first, from the last one on, as far as they are between the ends.
        limit: Entries above `low` and up to `high` that need not be told apart. By default all are.

    Returns:
        The narrow bracket.

    Example:
        >>> entries = [1, 3, 3, 7]
        >>> narrow(Bracket(0, 8, 0, 4), 2, lambda pivot: sum(entry <= pivot for entry in entries))
        Bracket(low=2, high=3, upto_low=1, upto_high=3)
    """
    low, high, upto_low, upto_high = bracket
    left = list(pivots)
    while high - low > 1 and upto_high - upto_low > limit:
        left = [pivot for pivot in left if low < pivot < high] or [(low + high) // 2]
        pivot = left.pop()
        found = upto(pivot)
        if count <= found:
            high, upto_high = pivot, found
        else:
            low, upto_low = pivot, found
    return Bracket(low, high, upto_low, upto_high)
