"""Strategies under which masks would not hold are refused before anything happens."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from lightning.pytorch.strategies import DDPStrategy, DeepSpeedStrategy, FSDPStrategy, ModelParallelStrategy

from lightning_prune import PruningCallback
from lightning_prune.trainer.refusals import require_strategy
from tests.distributed.models import Mlp

SHARDED = r"ModelParallelStrategy with torch\.distributed\.fsdp\.fully_shard in configure_model"


@pytest.mark.parametrize(
    ("strategy", "message"),
    [
        (FSDPStrategy(), rf"under FSDPStrategy, .*: use {SHARDED}, or 'ddp'"),
        (object.__new__(DeepSpeedStrategy), rf"under DeepSpeedStrategy, .*: use 'ddp', or {SHARDED}"),
    ],
)
def test_refused(strategy: Any, message: str) -> None:
    callback, model = PruningCallback(), Mlp()
    with pytest.raises(ValueError, match=message):
        callback.setup(SimpleNamespace(strategy=strategy), model, "fit")  # type: ignore[arg-type]
    assert callback.run is None


def test_accepted() -> None:
    require_strategy(DDPStrategy())
    require_strategy(ModelParallelStrategy())
