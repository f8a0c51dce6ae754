"""Arguments of methods that contradict each other, refused as soon as they are given."""

from __future__ import annotations

from dataclasses import replace

from lightning_prune.pruner.granularity import NM
from lightning_prune.pruner.method import Recipe
from lightning_prune.schedules.curves import Curve
from lightning_prune.schedules.plan import DEFAULT_SCHEDULE

_TAKEN_BY = {
    "n": "is the norm of 'ln_structured' and 'ln_blocks', and how many of each m 'n_m' keeps",
    "dim": "is that of the channels of 'ln_structured' and 'random_structured', and along which groups of 'n_m' lie",
}


def refuse_untaken(recipe: Recipe, **given: object) -> None:
    """Refuses arguments that a method would not read.

    Args:
        recipe: The method.
        **given: ``n`` and ``dim``, ``None`` = not given.

    Raises:
        ValueError: If one is given that the method does not take.

    Example:
        >>> from lightning_prune.pruner.method import make_recipe
        >>> refuse_untaken(make_recipe("l1_unstructured", 2, None, None), n=1)
        Traceback (most recent call last):
        ValueError: L1Unstructured takes no n=1: n is the norm of 'ln_structured' and 'ln_blocks', and how many ...
    """
    for name, value in given.items():
        if value is not None and not recipe.takes(name):
            raise ValueError(
                f"{recipe.cls.__name__} takes no {name}={value!r}: {name} {_TAKEN_BY[name]}; leave it out, or use "
                "another method"
            )


def refuse_unreachable(recipe: Recipe, final: float | None, amount: int | float | None) -> None:
    """Refuses more zeros than groups of N:M have.

    Args:
        recipe: The method.
        final: Share of zeros at the end of a schedule, ``None`` = none.
        amount: What each event drops, ``None`` = not given.

    Raises:
        ValueError: If the share, or a fraction of all weights at the first event, is above ``1 - n / m``.
    """
    groups = recipe.granularity
    if not isinstance(groups, NM):
        return
    fraction = None if isinstance(amount, int) else amount
    for name, share in (("final", final), ("amount", fraction)):
        if share is not None and share > groups.most + 1e-9:
            raise ValueError(
                f"{name}={share} cannot be reached with {groups.n}:{groups.m}, whose share of zeros is {groups.most:g} "
                f"at most: {_others(groups.m)}; a schedule may pass the ones before on its way"
            )


def default_schedule(recipe: Recipe) -> Curve:
    """What is done if nobody says how much: half of the weights go, or as many as N:M has."""
    groups = recipe.granularity
    if not isinstance(groups, NM):
        return DEFAULT_SCHEDULE
    return replace(DEFAULT_SCHEDULE, final=groups.most)


def _others(m: int) -> str:
    return ", ".join(f"{n}:{m} gives {1 - n / m:g}" for n in range(m - 1, 0, -1))
