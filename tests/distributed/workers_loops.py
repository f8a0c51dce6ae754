"""The same training on two ranks, in a Trainer, in a loop of Fabric and in a plain one."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from lightning.fabric import Fabric
from lightning.fabric.strategies import ModelParallelStrategy as FabricModelParallel
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from lightning_prune import Constant, Cubic, Linear, Pruning, PruningCallback, RigL, Taylor
from lightning_prune.prune.sharded.tensors import whole
from tests.distributed.launch import RANKS, Check, rank
from tests.distributed.models import GLOBAL_BATCH, Mlp
from tests.distributed.workers_sharded import Sharded
from tests.models import OPTIMIZERS, random_data, trainer

PLANS: dict[str, dict[str, Any]] = {
    "epochs": {"schedule": Linear(final=0.8, initial=0.2, end=3), "scope": "global"},
    "steps": {"schedule": Cubic(final=0.9, begin=2, end=14, every=3, unit="step"), "scope": "global"},
    "taylor": {
        "criterion": Taylor(batches=2),
        "schedule": Cubic(final=0.9, begin=2, end=14, every=3, unit="step"),
        "scope": "global",
    },
    "rigl": {"schedule": Constant(final=0.8), "scope": "erk", "regrow": RigL(every=3, until=15, unit="step", window=2)},
    "groups": {
        "method": "ln_structured",
        "groups": "dependency",
        "example_inputs": torch.zeros(2, 8),
        "schedule": Linear(final=0.5, initial=0.2, end=3),
        "scope": "global",
    },
}
WAYS = [("ddp", "epochs", "SGD", "32-true"), ("ddp", "steps", "AdamW", "bf16-mixed")]
WAYS += [("sharded", "epochs", "AdamW", "32-true"), ("sharded", "steps", "SGD", "bf16-mixed")]
WAYS += [(strategy, plan, "AdamW", "32-true") for strategy in ("ddp", "sharded") for plan in ("taylor", "rigl")]
WAYS += [("ddp", "groups", "SGD", "32-true")]

State = dict[str, Tensor]


class Plain(nn.Module):
    """The layers of ``Mlp`` in a module of torch alone."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.first, self.second, self.last = nn.Linear(8, 17), nn.Linear(17, 6), nn.Linear(6, 3)

    forward = Mlp.forward


def result(model: nn.Module, optimizer: Any, masks: dict[str, Tensor]) -> State:
    """Weights, masks and optimizer states, whole."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    found = {f"model.{name}": value for name, value in model.state_dict().items()}
    for parameter, state in optimizer.state.items():
        found |= {f"optimizer.{names[id(parameter)]}.{key}": torch.as_tensor(v) for key, v in state.items()}
    found |= {f"mask.{name}": mask for name, mask in masks.items()}
    return {name: whole(value.detach()).clone() for name, value in found.items()}


def model_of(strategy: str, name: str) -> Mlp:
    model = Sharded(RANKS) if strategy == "sharded" else Mlp(RANKS)
    model.make = OPTIMIZERS[name]
    return model


def in_a_trainer(folder: Path, strategy: str, plan: str, name: str, precision: Any, interrupted: bool) -> State:
    """Four epochs at once, or two and two with new objects."""
    path = f"{strategy}-{plan}-{name}"
    for epochs in (2, 4) if interrupted else (4,):
        model, keep = model_of(strategy, name), ModelCheckpoint(folder, filename=path, enable_version_counter=False)
        pruning = PruningCallback(**PLANS[plan], verbose=False, allow_unfinished=True)
        parallel = ModelParallelStrategy(data_parallel_size=RANKS, tensor_parallel_size=1)
        given = {"strategy": parallel if strategy == "sharded" else "ddp", "devices": RANKS, "precision": precision}
        fit = trainer(folder, pruning, keep, epochs=epochs, **given)
        fit.fit(model, ckpt_path=folder / f"{path}.ckpt" if interrupted and epochs == 4 else None)
    return result(model, fit.optimizers[0], pruning.masks)


def train(
    pruning: Pruning, model: Any, optimizer: Any, epochs: Iterable[int], backward: Callable[[Tensor], Any]
) -> None:
    data = random_data(48)
    sampler: DistributedSampler[Any] = DistributedSampler(data, RANKS, rank(), shuffle=False)
    loader = DataLoader(data, batch_size=GLOBAL_BATCH // RANKS, sampler=sampler)
    for epoch in epochs:
        pruning.start_epoch(epoch)
        for inputs, labels in loader:
            pruning.start_step()
            optimizer.zero_grad()
            backward(nn.functional.cross_entropy(model(inputs), labels))
            optimizer.step()


def split(model: Any, mesh: Any) -> Any:
    for module in (model.first, model.second, model.last, model):
        fully_shard(module, mesh=mesh["data_parallel"])
    return model


def in_fabric(folder: Path, strategy: str, plan: str, name: str, precision: Any) -> State:
    """Two epochs, ``fabric.save``, ``fabric.load`` into other objects, two epochs."""
    parallel: Any = FabricModelParallel(split, data_parallel_size=RANKS, tensor_parallel_size=1)
    given: Any = {"strategy": parallel if strategy == "sharded" else "ddp", "precision": precision}
    fabric = Fabric(accelerator="cpu", devices=RANKS, **given)
    fabric.launch()
    path = folder / f"fabric-{strategy}-{plan}-{name}"
    for seed, epochs in ((0, range(2)), (5, range(2, 4))):
        plain = Plain(seed)
        model = fabric.setup_module(plain)
        optimizer = fabric.setup_optimizers(OPTIMIZERS[name](model.parameters()))
        with Pruning(model, optimizer, **PLANS[plan], verbose=False) as pruning:
            if seed:
                rest = fabric.load(path, {"model": model, "optimizer": optimizer})
                pruning.load_state_dict(rest["pruning"])
            train(pruning, model, optimizer, epochs, fabric.backward)
            fabric.save(path, {"model": model, "optimizer": optimizer, "pruning": pruning})
            found = result(plain, optimizer.optimizer, pruning.masks)
    return found


def in_a_plain_loop(plan: str, name: str, precision: str) -> State:
    plain = Plain(0)
    model = DistributedDataParallel(plain)
    optimizer = OPTIMIZERS[name](model.parameters())
    half = torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16-mixed")
    with Pruning(model, optimizer, **PLANS[plan], verbose=False) as pruning:
        train(pruning, lambda x: half(model)(x).float(), optimizer, range(4), lambda loss: loss.backward())
        return result(plain, optimizer, pruning.masks)


def alike(folder: Path, strategy: str, plan: str, name: str, precision: str) -> dict[str, State]:
    """What each loop ends with."""
    ways: dict[str, Callable[[], State]] = {
        "trainer": lambda: in_a_trainer(folder, strategy, plan, name, precision, interrupted=False),
        "resumed trainer": lambda: in_a_trainer(folder, strategy, plan, name, precision, interrupted=True),
        "fabric": lambda: in_fabric(folder, strategy, plan, name, precision),
    }
    if strategy == "ddp":
        ways["plain loop"] = lambda: in_a_plain_loop(plan, name, precision)
    return {way: run() for way, run in ways.items()}


def checks() -> dict[str, Check]:
    return {f"loops {'-'.join(way)}": functools.partial(_alike, way=way) for way in WAYS}


def _alike(folder: Path, way: tuple[str, str, str, str]) -> dict[str, State]:
    return alike(folder, *way)
