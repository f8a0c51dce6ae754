"""Tensors that do not fit: one error that names all of them, so that nobody excludes them one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from lightning_prune.targets.names import listing
from lightning_prune.targets.target import Target


def refuse_unfit(targets: Iterable[Target], check: Callable[[Target], object]) -> None:
    """Checks every tensor, and raises one error for all that are refused.

    Args:
        targets: The tensors.
        check: Raises ValueError, TypeError or IndexError, naming the tensor, for one that does not fit.

    Raises:
        ValueError: Or another of these: what is wrong with the first, and the names of all others.

    Example:
        >>> from torch import nn
        >>> from lightning_prune.targets.target import all_targets
        >>> def check(target):
        ...     if target.parameter.dim() < 2:
        ...         raise ValueError(f"'{target.name}' is a vector")
        >>> refuse_unfit(all_targets(nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8))), check)
        Traceback (most recent call last):
        ValueError: '0.bias' is a vector; refused too: '1.weight', '1.bias'; exclude=['0.bias', ...
    """
    unfit: dict[str, Exception] = {}
    for target in targets:
        try:
            check(target)
        except (ValueError, TypeError, IndexError) as error:
            unfit[target.name] = error
    if not unfit:
        return
    first, *others = unfit.values()
    if not others or type(first) not in (ValueError, TypeError, IndexError):
        raise first
    names = listing([f"'{name}'" for name in [*unfit][1:]])
    raise type(first)(f"{first}; refused too: {names}; exclude={[*unfit]} leaves all of them out") from first
