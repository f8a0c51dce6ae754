"""Warnings of the package that a test brings about on purpose; all others fail the test that meets them."""

from __future__ import annotations

import pytest


def _expected(message: str) -> pytest.MarkDecorator:
    return pytest.mark.filterwarnings(f"default:{message}:lightning_prune.prune.warning.PruningWarning")


ENDED_EARLY = _expected("the fit ended")
FEW_SELECTED = _expected("only .* weights")
MOVED = _expected("training moved masked weights")
LAST_STAYS = _expected("amount=.* asks for more than goes")
NOTHING_LEFT = _expected("nothing was left to prune")
DEAD = _expected(".* is dead")
CUT_OFF = _expected(".* is cut off")
TWIN = _expected(".* is the parameter of")
