"""Several callbacks prune parts of one model, and some of them go back."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import Callback
from torch import Tensor

from lightning_prune import PruningCallback, Reinit, Rewind
from tests.expected import FEW_SELECTED
from tests.models import Net, net, trainer, zeros

pytestmark = FEW_SELECTED

SGD = functools.partial(torch.optim.SGD, lr=0.05, momentum=0.9, weight_decay=0.01)
POINTS = [Rewind(epoch=0), Reinit(3)]


class Forward(Callback):
    """Zeros of a tensor that forwards see."""

    def __init__(self) -> None:
        self.zeros: list[int] = []

    def on_before_backward(self, trainer: Any, pl_module: Any, loss: Tensor) -> None:
        self.zeros.append(zeros(pl_module, "last.weight"))


def part(name: str, epoch: int, **kwargs: Any) -> PruningCallback:
    """Prunes half of a layer at the start of an epoch."""
    return PruningCallback(amount=0.5, parameters=name, epochs=[epoch], verbose=False, **kwargs)


def fitted(root: Path, *callbacks: Callback) -> tuple[Net, dict[str, Any]]:
    """The model and the momentum after three epochs of four batches."""
    torch.manual_seed(0)
    model = net(optimizer=SGD)
    fit = trainer(root, *callbacks, epochs=3)
    fit.fit(model)
    return model, fit.optimizers[0].state_dict()["state"]


def assert_same(one: Any, other: Any) -> None:
    torch.testing.assert_close(one, other, rtol=0, atol=0)


@pytest.mark.parametrize("rewind", POINTS, ids=str)
def test_going_back_leaves_the_zeros_of_others(tmp_path: Path, rewind: Rewind | Reinit) -> None:
    ends = []
    for enforce in ("read", "in_place"):
        seen = Forward()
        first = part("first", 2, rewind=rewind, enforce=enforce)
        model, momentum = fitted(tmp_path, first, part("last", 1, enforce=enforce), seen)
        assert seen.zeros == [0] * 4 + [24] * 8
        ends.append((dict(model.state_dict()), momentum))
    assert_same(*ends)


@pytest.mark.parametrize("rewind", POINTS, ids=str)
@pytest.mark.parametrize("order", [1, -1])
def test_all_rank_trained_weights_before_any_goes_back(tmp_path: Path, rewind: Rewind | Reinit, order: int) -> None:
    alone, _ = fitted(tmp_path, part("last", 2, rewind=rewind))
    both = [part("first", 2, rewind=rewind), part("last", 2, rewind=rewind)]
    pair, _ = fitted(tmp_path, *both[::order])
    assert zeros(pair, "first.weight") == 64
    assert torch.equal(pair.last.weight != 0, alone.last.weight != 0)


def test_each_is_told_of_its_own_events_after_going_back(tmp_path: Path) -> None:
    told: list[tuple[str, int, bool]] = []

    class Told(PruningCallback):
        def on_pruned(self, trainer: Any, pl_module: Any, event: Any) -> None:
            (name,) = event.tensors
            back = torch.equal(pl_module.first.bias, start.first.bias)
            told.append((name, event.zeros, back))

    torch.manual_seed(0)
    start = net()
    options: dict[str, Any] = {"epochs": [2], "rewind": Rewind(epoch=0), "verbose": False}
    fitted(tmp_path, *(Told(amount=0.5, parameters=name, **options) for name in ("first", "last")))
    assert told == [("first.weight", 64, True), ("last.weight", 24, True)]
