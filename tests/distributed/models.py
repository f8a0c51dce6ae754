"""A model, data and fits that are the same for one process and for several."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lightning as L
import torch
import torch.distributed as dist
from lightning.pytorch.callbacks import Callback
from torch import Tensor, nn
from torch.utils.data import DataLoader, DistributedSampler

from lightning_prune.targets.select import Target
from tests.models import random_data, trainer

GLOBAL_BATCH = 12
Fitted = dict[str, Any]


class Mlp(L.LightningModule):
    """Linear(8, 17), Linear(17, 6), Linear(6, 3); 17 rows do not divide by 2 or 3. 136 + 102 + 18 = 256 weights."""

    def __init__(self, ranks: int = 1, adam: bool = False, unused: bool = False, width: int = 17) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(8, width)
        self.second = nn.Linear(width, 6)
        self.last = nn.Linear(6, 3)
        if unused:
            self.idle = nn.Linear(4, 4)
        self.ranks = ranks
        self.make = functools.partial(torch.optim.Adam, lr=0.02) if adam else functools.partial(torch.optim.SGD, lr=0.1)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.last(torch.tanh(self.second(torch.tanh(self.first(x)))))
        return scores

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return nn.functional.cross_entropy(self(batch[0]), batch[1])

    def configure_optimizers(self) -> Any:
        return self.make(self.parameters())

    def train_dataloader(self) -> DataLoader[Any]:
        data = random_data(48)  # its own sampler, since Lightning's shuffles
        sampler: DistributedSampler[Any] = DistributedSampler(data, self.ranks, self.global_rank, shuffle=False)
        return DataLoader(data, batch_size=GLOBAL_BATCH // self.ranks, sampler=sampler)


def calibrated(model: Any) -> Tensor:
    """A loss of the user's choice, for criteria that run the model."""
    inputs, labels = random_data(24)[:]
    return nn.functional.cross_entropy(model(inputs), labels)


def inverse(targets: Sequence[Target]) -> list[Tensor]:
    """A criterion of the user's own: the largest weights go first."""
    return [1 / t.parameter.detach().abs().clamp_min(1e-9) for t in targets]


class Sent(Callback):
    """Bytes that this rank writes in each training step, to other ranks and elsewhere."""

    def __init__(self) -> None:
        self.seen: list[int] = []
        self._before = 0

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self._before = self._written()

    def on_train_batch_end(self, *args: Any) -> None:
        self.seen.append(self._written() - self._before)

    def _written(self) -> int:
        dist.barrier()
        lines = Path("/proc/self/io").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("wchar"))


def fit(
    folder: Path, model: L.LightningModule, *callbacks: Any, ranks: int = 1, ckpt_path: Any = None, **kwargs: Any
) -> Fitted:
    """Fits, by default for four epochs of four steps; gives the parameters and where they are zero."""
    settings: dict[str, Any] = {"strategy": "ddp"} if ranks > 1 else {}
    t = trainer(folder, *callbacks, **{"epochs": 4, "devices": ranks, **settings, **kwargs})
    t.fit(model, ckpt_path=ckpt_path)
    return values(model)


def values(model: nn.Module) -> Fitted:
    """All parameters by name, and the names and classes that a plain model has."""
    return {
        "parameters": {name: p.detach().clone() for name, p in model.named_parameters()},
        "classes": [type(module).__name__ for module in model.modules()],
        "plain": not any(hasattr(module, "_masked_base") for module in model.modules()),
    }


def weights(fitted: Fitted) -> dict[str, Tensor]:
    """The matrices only."""
    return {name: p for name, p in fitted["parameters"].items() if p.dim() > 1}


def dead(fitted: Fitted) -> int:
    """Zeros in all matrices."""
    return sum(int((p == 0).sum()) for p in weights(fitted).values())


def largest_difference(a: Fitted, b: Fitted) -> float:
    """Over all parameters."""
    assert a["parameters"].keys() == b["parameters"].keys()
    return max(float((a["parameters"][name] - b["parameters"][name]).abs().max()) for name in a["parameters"])
