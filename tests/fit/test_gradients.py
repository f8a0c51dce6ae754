"""Gradients that are shown to those who watch: dense, accumulated, and before events that wait for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import Callback
from torch import Tensor, nn

from lightning_prune import OneShot, PruningCallback
from lightning_prune.fit.pruning import Pruning
from tests.models import Net, net, trainer, zeros


class Looking:
    """Wants the gradients of some steps, and keeps them."""

    def __init__(self, *steps: int) -> None:
        self.steps = steps
        self.seen: dict[int, dict[str, Tensor]] = {}

    def wants(self, training: Any) -> bool:
        return training.step in self.steps

    def see(self, targets: Any, training: Any) -> None:
        self.seen.setdefault(training.step, {}).update({t.name: t.parameter.grad.clone() for t in targets})


class Attach(Callback):
    """Gives the pruning a watcher, and notes the masks and gradients with which each step is made."""

    def __init__(self, pruning: PruningCallback, watcher: Looking, waits: bool = False) -> None:
        self.pruning, self.watcher, self.waits = pruning, watcher, waits
        self.masked: list[int] = []
        self.under: list[float] = []

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self.pruning._session.watchers.append(self.watcher)
        self.pruning._session.waits = self.waits

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        masks = self.pruning.masks
        self.masked.append(sum(int((~mask).sum()) for mask in masks.values()))
        gradients = {name: pl_module.get_parameter(name).grad for name in masks}
        self.under.append(sum(float(gradients[name][~mask].abs().sum()) for name, mask in masks.items()))


@pytest.mark.parametrize("accumulated", [1, 2])
def test_gradients_of_masked_weights_are_shown_and_then_masked(tmp_path: Path, accumulated: int) -> None:
    looking = Looking(1, 2)
    pruning = PruningCallback(schedule=OneShot(0.5), verbose=False)
    attach = Attach(pruning, looking)
    fit = trainer(tmp_path, pruning, attach, epochs=2, accumulate_grad_batches=accumulated)
    model = net()
    fit.fit(model)
    assert sorted(looking.seen) == [1, 2]
    for gradients in looking.seen.values():
        assert all(float(gradients[name][~mask].abs().sum()) > 0 for name, mask in pruning.masks.items())
    assert attach.under == [0.0] * (8 // accumulated)
    assert zeros(model) == 88


def test_accumulated_gradients_are_those_of_a_dense_network(tmp_path: Path) -> None:
    class Frozen(Net):
        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.0)

    class Dense(Callback):
        def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
            grads.append(pl_module.first.weight.grad.clone())

    grads: list[Tensor] = []
    looking = Looking(1)
    pruning = PruningCallback(schedule=OneShot(0.5), verbose=False)
    torch.manual_seed(0)
    model = Frozen()
    trainer(tmp_path, pruning, Attach(pruning, looking), epochs=1, accumulate_grad_batches=2).fit(model)
    torch.manual_seed(0)
    twin = Frozen()
    twin.load_state_dict(model.state_dict() | {k: v for k, v in twin.state_dict().items() if k.startswith("norm")})
    trainer(tmp_path, Dense(), epochs=1, accumulate_grad_batches=2).fit(twin)
    assert torch.allclose(looking.seen[1]["first.weight"], grads[1], atol=1e-6)


def test_events_that_wait_happen_between_backward_and_step(tmp_path: Path) -> None:
    pruning = PruningCallback(amount=0.5, epochs=[1], verbose=False)
    attach = Attach(pruning, Looking(), waits=True)
    model = net()
    trainer(tmp_path, pruning, attach, epochs=2).fit(model)  # the note is taken after the event, as listed
    assert attach.masked == [0] * 4 + [88] * 4
    assert attach.under == [0.0] * 8
    assert zeros(model) == 88


def test_own_loops_show_gradients_too() -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    looking = Looking(1)
    with Pruning(model, optimizer, schedule=OneShot(0.5), verbose=False) as pruning:
        pruning._session.watchers.append(looking)
        pruning.start_epoch(0)
        for _ in range(3):
            pruning.start_step()
            optimizer.zero_grad()
            model(torch.ones(1, 4)).sum().backward()
            optimizer.step()
            assert zeros(model) == 4
    assert torch.equal(looking.seen[1]["weight"], torch.ones(2, 4))
