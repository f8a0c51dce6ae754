"""How much to prune: fractions and counts."""

from __future__ import annotations

import math
import numbers
from typing import Any


def canonical_amount(amount: Any) -> int | float:
    """A plain ``int`` (a count) or ``float`` (a fraction) from any real scalar.

    Args:
        amount: A Python, numpy or 0-dim tensor scalar. Whole-number types are counts, the others fractions.

    Returns:
        The same amount as ``int`` or ``float``.

    Raises:
        TypeError: If it is a bool or not a real number.
        ValueError: If it is NaN, negative, or a fraction above 1.

    Example:
        >>> import torch
        >>> canonical_amount(torch.tensor(0.5)), canonical_amount(3)
        (0.5, 3)
    """
    value = amount.item() if getattr(amount, "ndim", None) == 0 else amount
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(
            f"amount should be a fraction (float in [0, 1]) or a count (int >= 0), got {amount!r} "
            f"of type {type(amount).__name__}"
        )
    if isinstance(value, numbers.Integral):
        count = int(value)
        if count < 0:
            raise ValueError(f"amount as a count should be >= 0, got {count}")
        return count
    fraction = float(value)
    if math.isnan(fraction) or not 0.0 <= fraction <= 1.0:
        raise ValueError(f"amount as a fraction should be in [0.0, 1.0], got {fraction}")
    return fraction


def validate_pruning_amount(amount: int | float, tensor_size: int) -> None:
    """Checks that a count is not more than there is to prune.

    Args:
        amount: Fraction in [0, 1] or count.
        tensor_size: Number of units (weights or channels) that are still unpruned.

    Raises:
        TypeError: If ``amount`` is not a number.
        ValueError: If it is out of range, or a count above ``tensor_size``.

    Example:
        >>> validate_pruning_amount(1000, tensor_size=16)
        Traceback (most recent call last):
        ValueError: amount=1000 is more than the 16 units that are left to prune
    """
    value = canonical_amount(amount)
    if isinstance(value, int) and value > tensor_size:
        raise ValueError(f"amount={value} is more than the {tensor_size} units that are left to prune")


def compute_nparams_to_prune(amount: int | float, tensor_size: int) -> int:
    """Number of units to prune: a count as it is, a fraction times the size, rounded half to even.

    Small tensors can round to nothing: 10 % of 4 weights is 0.4, so 0 weights, in every round.

    Args:
        amount: Fraction in [0, 1] or count.
        tensor_size: Number of units that are still unpruned.

    Returns:
        ``amount`` if it is a count, else ``round(amount * tensor_size)``.

    Raises:
        TypeError: If ``amount`` is not a number.
        ValueError: If it is negative, NaN or a fraction above 1.

    Example:
        >>> compute_nparams_to_prune(0.5, 10), compute_nparams_to_prune(3, 10), compute_nparams_to_prune(0.1, 4)
        (5, 3, 0)
    """
    value = canonical_amount(amount)
    return value if isinstance(value, int) else round(value * tensor_size)
