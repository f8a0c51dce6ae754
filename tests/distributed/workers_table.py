"""Ways to lay a model out over ranks and ways to prune it, each with each: what one process gives comes out."""

from __future__ import annotations

import itertools
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.strategies import ModelParallelStrategy
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.utils.data import DataLoader, DistributedSampler

from lightning_prune import SET, Budget, Constant, Cubic, PruningCallback, Reinit, Rewind, RigL, Taylor
from tests.distributed import models, workers_sharded
from tests.distributed.launch import RANKS, Check
from tests.distributed.models import GLOBAL_BATCH, Fitted, Mlp
from tests.distributed.workers_sharded import EveryThird, Halved, schedule
from tests.models import random_data, trainer

PRUNINGS: dict[str, dict[str, Any]] = {
    "local": {"scope": "local"},
    "global": {"scope": "global"},
    "random": {"method": "random_unstructured", "scope": "global"},
    "structured": {"method": "ln_structured", "scope": "global"},
    "structured in": {"method": "ln_structured", "scope": "local", "dim": "in"},
    "lamp": {"scope": Budget("global", normalize="lamp")},
    "taylor": {"criterion": Taylor(batches=2), "scope": "global"},
    "own method": {"method": EveryThird, "schedule": None, "epochs": [1]},
    "own scores": {"method": Halved, "scope": "global"},
    "n:m": {
        "method": "n_m",
        "method_kwargs": {"n": 1, "m": 2},
        "dim": "in",
        "schedule": None,
        "amount": 0.5,
        "epochs": [1],
    },
    "rewind": {"schedule": None, "amount": 0.3, "epochs": [1, 2], "scope": "global", "rewind": Rewind(step=3)},
    "rigl": {"schedule": Constant(final=0.6), "scope": "erk", "regrow": RigL(every=3, until=15, unit="step")},
    "rigl, window": {
        "schedule": Constant(final=0.6),
        "regrow": RigL(every=5, until=15, unit="step", window=4, strict=False),
    },
    "set": {"schedule": Constant(final=0.6), "regrow": SET(every=1, until=4, unit="epoch", decay="constant")},
    "rigl, rising": {
        "schedule": Cubic(final=0.7, end=10, every=3, unit="step"),
        "scope": "global",
        "regrow": RigL(every=4, until=15, unit="step"),
    },
    "reinit": {"schedule": None, "amount": 0.3, "epochs": [1, 2], "scope": "global", "rewind": Reinit(seed=5)},
}
RESUMED = ("global", "random", "rewind", "rigl, window")
LAYOUTS: dict[int, tuple[str, ...]] = {
    2: ("ddp", "rows", "partly", "1 x 2"),
    3: ("partly", "1 x 3"),
    4: ("2 x 2", "1 x 4", "copies"),
}
ON_TWO = {"partly": "partly", "1 x 3": "1 x 2"}  # of which three ranks go on
WIDTH = 24  # tensor parallelism wants hidden units that the ranks share evenly; the 3 and 6 others they do not
MAKE: dict[str, Any] = {
    "sgd": partial(torch.optim.SGD, lr=0.1, foreach=False),  # some tensors are DTensors, some are not
    "adamw": partial(torch.optim.AdamW, lr=0.01, weight_decay=0.1, foreach=False),
}


def pruning_of(name: str, **kwargs: Any) -> PruningCallback:
    return PruningCallback(**{"schedule": schedule(), "verbose": False, **PRUNINGS[name], **kwargs})


class Laid(Mlp):
    """The same model; ranks with the same weights get the same batches."""

    copies, copy = RANKS, property(lambda self: self.global_rank)

    def train_dataloader(self) -> DataLoader[Any]:
        data = random_data(48)
        sampler: DistributedSampler[Any] = DistributedSampler(data, self.copies, self.copy, shuffle=False)
        return DataLoader(data, batch_size=GLOBAL_BATCH // self.copies, sampler=sampler)


class Rows(Laid):
    def configure_model(self) -> None:
        for module in (self.first, self.second, self.last, self):
            fully_shard(module, mesh=self.device_mesh["data_parallel"])  # type: ignore[index]


class Copies(Laid):
    """Rows on two ranks, and a copy of them on two more."""

    def configure_model(self) -> None:
        mesh = init_device_mesh("cpu", (2, RANKS // 2), mesh_dim_names=("copies", "rows"))
        for module in (self.first, self.second, self.last, self):
            fully_shard(module, mesh=mesh)


class Partly(Laid):
    """The second layer is whole on every rank, which averages its gradients as DDP does."""

    def configure_model(self) -> None:
        for module in (self.first, self.last):
            fully_shard(module, mesh=self.device_mesh["data_parallel"])  # type: ignore[index]

    def on_after_backward(self) -> None:
        for parameter in self.second.parameters():
            assert parameter.grad is not None
            dist.all_reduce(parameter.grad)
            parameter.grad /= RANKS


class Parallel(Laid):
    """Tensor parallelism by rows and by columns; its parts are split by rows once more if there are more ranks."""

    @property
    def copies(self) -> int:  # type: ignore[override]
        return int(self.device_mesh["data_parallel"].size())  # type: ignore[index]

    @property
    def copy(self) -> int:  # type: ignore[override]
        return int(self.device_mesh["data_parallel"].get_local_rank())  # type: ignore[index]

    def configure_model(self) -> None:
        plan = {"first": ColwiseParallel(), "second": RowwiseParallel()}
        parallelize_module(self, self.device_mesh["tensor_parallel"], plan)  # type: ignore[index]
        if self.copies > 1:
            for module in (self.first, self.second, self.last, self):
                fully_shard(module, mesh=self.device_mesh["data_parallel"])  # type: ignore[index]


def make_model(layout: str, optimizer: str) -> Mlp:
    kind = {"ddp": Laid, "rows": Rows, "partly": Partly, "copies": Copies}.get(layout, Parallel)
    model = kind(RANKS, width=WIDTH)
    model.make = MAKE[optimizer]
    return model


def strategy_of(layout: str) -> Any:
    if layout == "ddp":
        return "ddp"
    sizes = [int(size) for size in layout.split(" x ")] if " x " in layout else [RANKS, 1]
    return ModelParallelStrategy(
        data_parallel_size=sizes[0], tensor_parallel_size=sizes[1], save_distributed_checkpoint=False
    )


def fit(folder: Path, layout: str, optimizer: str, *callbacks: Any, **kwargs: Any) -> Fitted:
    model, ckpt_path = make_model(layout, optimizer), kwargs.pop("ckpt_path", None)
    settings = {"epochs": 4, "devices": RANKS, "strategy": strategy_of(layout), **kwargs}
    trainer(folder, *callbacks, **settings).fit(model, ckpt_path=ckpt_path)
    return workers_sharded.values(model)


def alone(folder: Path, optimizer: str, *callbacks: Any, **kwargs: Any) -> Fitted:
    """The same in one process."""
    model = Mlp(width=WIDTH)
    model.make = MAKE[optimizer]
    return models.fit(folder, model, *callbacks, **kwargs)


def file_of(layout: str, name: str, ranks: int) -> str:
    """The name of the checkpoint after two of four epochs."""
    return f"{layout}-{name}-{ranks}".replace(" ", "")


def half_alone(folder: Path) -> None:
    """Two of four epochs in one process, for launches to go on with."""
    for name in RESUMED:
        keep = ModelCheckpoint(folder, filename=file_of("alone", name, 1))
        alone(folder, "adamw", pruning_of(name, allow_unfinished=True), keep, epochs=2)


def elsewhere(folder: Path, layout: str, name: str, file: str) -> Fitted:
    """The other two epochs, from what another number of ranks saved."""
    return fit(folder, layout, "adamw", pruning_of(name), ckpt_path=folder / f"{file}.ckpt")


def cell(folder: Path, layout: str, name: str, optimizer: str) -> Fitted:
    return fit(folder, layout, optimizer, pruning_of(name))


def resumed(folder: Path, layout: str, name: str) -> tuple[Fitted, Fitted]:
    """In one go, and from a checkpoint after two of four epochs."""
    keep = ModelCheckpoint(folder, filename=file_of(layout, name, RANKS))
    half = pruning_of(name, allow_unfinished=True)
    fit(folder, layout, "adamw", half, keep, epochs=2, enable_checkpointing=True)
    rest = fit(folder, layout, "adamw", pruning_of(name), ckpt_path=keep.best_model_path)
    return fit(folder, layout, "adamw", pruning_of(name)), rest


def resumptions(ranks: int) -> list[tuple[str, str]]:
    """What is interrupted: every way to prune in two layouts, some in the others."""
    layouts = LAYOUTS[ranks] if ranks != 3 else ()
    return [(a, name) for a in layouts for name in (PRUNINGS if a in ("ddp", "rows") else RESUMED)]


def checks(ranks: int) -> dict[str, Check]:
    cells = [*itertools.product(LAYOUTS[ranks], PRUNINGS, ["sgd"]), *((a, "global", "adamw") for a in LAYOUTS[ranks])]
    found: dict[str, Check] = {
        ", ".join(names): partial(cell, layout=names[0], name=names[1], optimizer=names[2]) for names in cells
    }
    for layout, name in resumptions(ranks):
        found[f"{layout}, {name}, resumed"] = partial(resumed, layout=layout, name=name)
    for layout, name in itertools.product(LAYOUTS[ranks] if ranks != 4 else (), RESUMED):
        file = file_of("alone", name, 1) if ranks == 2 else file_of(ON_TWO[layout], name, 2)
        found[f"{layout}, {name}, elsewhere"] = partial(elsewhere, layout=layout, name=name, file=file)
    return found
