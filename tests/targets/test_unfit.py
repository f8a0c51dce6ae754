"""Errors that name every tensor that does not fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from torch import nn

from lightning_prune import PruningCallback
from tests.models import Net, trainer


@pytest.mark.parametrize(
    ("arguments", "unfit"),
    [
        ({"method": "n_m", "method_kwargs": {"n": 2, "m": 4}}, ["last.1.weight", "last.2.weight"]),
        (
            {"method": "ln_blocks", "method_kwargs": {"block": [4, 4]}},
            ["last.0.weight", "last.1.weight", "last.2.weight"],
        ),
        (
            {"method": "ln_structured", "parameters": ["*.weight", "last.0.bias", "last.2.bias"]},
            ["last.0.bias", "last.2.bias"],
        ),
        ({"method": "ln_structured", "dim": 2}, ["first.weight", "last.0.weight", "last.1.weight", "last.2.weight"]),
    ],
)
def test_all_tensors_that_do_not_fit_are_named_and_can_be_excluded(
    arguments: dict[str, Any], unfit: list[str], tmp_path: Path
) -> None:
    model = Net()
    model.last = nn.Sequential(nn.Linear(16, 6), nn.Linear(6, 6), nn.Linear(6, 3))
    with pytest.raises((ValueError, IndexError)) as raised:
        trainer(tmp_path, PruningCallback(verbose=False, **arguments)).fit(model)
    assert f"exclude={unfit}" in str(raised.value)
