"""Parameters that other modules hold too: masking them in one place shows in the others when it is made permanent."""

from __future__ import annotations

import gc
import math
import sys
import time
import warnings
import weakref
from collections.abc import Iterator, Mapping, Sequence

from torch import nn

from lightning_prune.prune import attribute
from lightning_prune.prune.checks import describe
from lightning_prune.prune.warning import PruningWarning

Pair = tuple[nn.Module, str]


def warn_of_twins(owners: Mapping[int, Sequence[Pair]]) -> None:
    """Warns of modules that hold a parameter as well and will not be masked with it.

    Args:
        owners: The (module, name) pairs that are pruned together, by the identity of their parameter.
    """
    for pairs in owners.values():
        if any(attribute.layout_of(*pair) is not None for pair in pairs):
            continue  # said when it was pruned first
        others = [pair for pair in _holders(pairs) if not any(pair[0] is module for module, _ in pairs)]
        others = [(m, slot) for m, slot in others if attribute.layout_of(m, slot.removesuffix("_orig")) is None]
        if others:
            where = describe(*pairs[0])
            warnings.warn(
                f"{where} is the parameter of {', '.join(describe(*pair) for pair in others)} too: only {where} is "
                "masked now, and remove() will write the zeros for all of them; prune them together with "
                "global_unstructured to give them one mask",
                category=PruningWarning,
                stacklevel=5,
            )


def _holders(pairs: Sequence[Pair]) -> Iterator[Pair]:
    """All (module, name) pairs that hold the parameter of these; it does not know them."""
    module, name = pairs[0]
    if sys.getrefcount(module._parameters[name]) <= 1 + len(pairs):  # the slots of the owners, and the argument here
        return
    parameter = module._parameters[name]
    for other in _modules(module):
        yield from ((other, slot) for slot, value in other._parameters.items() if value is parameter)


_FRESH = 1.0  # seconds: to ask all objects takes 0.2, and a model is pruned tensor by tensor
_known: weakref.WeakSet[nn.Module] = weakref.WeakSet()
_looked = -math.inf


def _modules(one: nn.Module) -> list[nn.Module]:
    """All modules that live, as of now or of a moment ago when ``one`` was there already."""
    global _looked
    if one not in _known or time.monotonic() - _looked > _FRESH:
        _known.clear()
        for found in gc.get_objects():
            if issubclass(type(found), nn.Module) and "_parameters" in found.__dict__:
                _known.add(found)
        _looked = time.monotonic()
    return list(_known)
