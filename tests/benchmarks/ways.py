"""Four ways to train a model of which nine tenths of the weights are zero: dense, torch's, and both of ours."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.utils import prune as torch_prune
from torch.optim import Optimizer

from lightning_prune.fit.enforcing import Enforcement
from lightning_prune.fit.erasing import erase
from lightning_prune.fit.run import PruningRun
from lightning_prune.prune.attribute import Layout
from lightning_prune.pruner.budgets import Budget
from lightning_prune.pruner.method import make_recipe
from lightning_prune.pruner.pruner import Pruner
from lightning_prune.schedules.plan import Demand
from lightning_prune.targets.select import select
from tests.benchmarks.models import Workload

AMOUNT = 0.9
OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=1e-4, momentum=0.9),
    "Adam": lambda parameters: torch.optim.Adam(parameters, lr=1e-5),
}


class Way:
    """A dense model and its optimizer, trained in plain torch.

    All ways take two dense steps before they prune, as in a fit, so that there is a state to erase. torch's leaves it.
    """

    def __init__(self, workload: Workload, optimizer: str = "SGD", accumulation: int = 1) -> None:
        torch.manual_seed(0)
        self.model, self.batch = workload.make(), workload.batch()
        self.optimizer = OPTIMIZERS[optimizer](self.model.parameters())
        self.accumulation = accumulation
        for _ in range(2):
            Way.step(self)
        self.prune()

    def prune(self) -> None:
        """Makes nine tenths of the weights zero."""

    def backward(self) -> None:
        self.model(self.batch).square().mean().backward()

    def step(self) -> None:
        """One step of the optimizer."""
        self.optimizer.zero_grad()
        for _ in range(self.accumulation):
            self.backward()
        self.optimizer.step()

    def remove(self) -> None:
        """Makes the pruning permanent."""

    def state(self) -> dict[str, object]:
        """What a checkpoint holds."""
        return {"state_dict": self.model.state_dict()}

    def load(self, state: dict[str, dict[str, Tensor]]) -> None:
        self.model.load_state_dict(state["state_dict"])


class Dense(Way):
    """Not pruned."""


class Torch(Way):
    """``torch.nn.utils.prune``."""

    def prune(self) -> None:
        self.pairs = [target.owners[0] for target in select(self.model)]
        for module, name in self.pairs:
            mask = torch.rand_like(module.get_parameter(name)) >= AMOUNT
            torch_prune.custom_from_mask(module, name, mask)  # type: ignore[no-untyped-call]

    def remove(self) -> None:
        for module, name in self.pairs:
            torch_prune.remove(module, name)  # type: ignore[no-untyped-call]


class Read(Way):
    """The callback layout: masked when read."""

    layout = Layout.KEPT

    def prune(self) -> None:
        pruner = Pruner(make_recipe("random_unstructured", 2, "out", None), Budget())
        self.run = PruningRun(select(self.model), pruner, 0, self.layout)
        self.run.prune(Demand(0, amount=AMOUNT))
        erase(self.run.targets, [self.optimizer])
        self.enforcement = Enforcement(self.run)
        self.enforcement.start([self.optimizer])

    def backward(self) -> None:
        super().backward()
        if hasattr(self, "enforcement"):
            self.enforcement.after_backward()

    def remove(self) -> None:
        self.enforcement.stop()
        self.run.close()

    def state(self) -> dict[str, object]:
        return {**super().state(), "pruning": self.run.state_dict()}

    def load(self, state: dict[str, dict[str, Tensor]]) -> None:
        super().load(state)
        self.run.load_state_dict(state["pruning"])


class InPlace(Read):
    """The callback layout with zeros in the parameters."""

    layout = Layout.PLAIN


WAYS: dict[str, type[Way]] = {"dense": Dense, "torch": Torch, "ours, read": Read, "ours, in place": InPlace}
