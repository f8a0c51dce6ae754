"""Strategies under which masks would not hold are refused before anything happens."""

from __future__ import annotations

import importlib
from types import SimpleNamespace
from typing import Any

import pytest
from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy

from lightning_prune import PruningCallback
from lightning_prune.trainer.refusals import require_strategy
from tests.distributed.models import Mlp

PACKAGES = ("lightning.pytorch", "pytorch_lightning")
LINES = """
        mesh = self.device_mesh["data_parallel"]
        for layer in self.children():
            fully_shard(layer, mesh=mesh)
        fully_shard(self, mesh=mesh)"""


def made(package: str, name: str) -> Any:
    """A strategy of either package; DeepSpeed need not be installed."""
    kind = getattr(importlib.import_module(f"{package}.strategies"), name)
    return object.__new__(kind)


@pytest.mark.parametrize("package", PACKAGES)
@pytest.mark.parametrize("name", ["FSDPStrategy", "DeepSpeedStrategy"])
def test_refused(package: str, name: str) -> None:
    callback, model = PruningCallback(), Mlp()
    trainer: Any = SimpleNamespace(strategy=made(package, name), callbacks=[callback])
    with pytest.raises(ValueError, match=f"pruning does not work under {name}, which .* fully_shard") as refused:
        callback.setup(trainer, model, "fit")
    assert str(refused.value).endswith(LINES)
    assert callback.masks == {}


def test_accepted() -> None:
    require_strategy(DDPStrategy())
    require_strategy(ModelParallelStrategy())
