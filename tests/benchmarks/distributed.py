"""What pruning sends between ranks, per training step and per event, and the memory that an event takes on each rank.

Run as ``python -m tests.benchmarks.distributed [ranks]`` (Linux, CPU, gloo). Bytes are those that a rank hands to the
kernel (``wchar`` of ``/proc/self/io``), so they hold gloo's own headers too: about 50 to 600 bytes for each exchange.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from lightning_prune.distributed import require_same_masks
from lightning_prune.fit.enforcing import Enforcement
from lightning_prune.fit.erasing import erase
from lightning_prune.fit.run import PruningRun
from lightning_prune.prune.attribute import Layout
from lightning_prune.prune.sharded.tensors import reshard
from lightning_prune.pruner.budgets import Budget, Scope
from lightning_prune.pruner.method import make_recipe
from lightning_prune.pruner.pruner import Pruner
from lightning_prune.schedules.plan import Demand
from lightning_prune.targets.select import select
from tests.benchmarks.measure import peak_memory, print_table

WIDTH, LAYERS = 2048, 8
WEIGHTS = WIDTH * WIDTH * LAYERS
EVENTS: list[tuple[str, Scope, str]] = [
    ("l1_unstructured", "global", "out"),
    ("l1_unstructured", "local", "out"),
    ("random_unstructured", "global", "out"),
    ("ln_structured", "local", "out"),
    ("ln_structured", "local", "in"),
]


def sent() -> int:
    """Bytes that this process has written so far."""
    dist.barrier()
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("wchar"))


def bytes_of(action: Callable[[], object]) -> int:
    """What one action sends, without what measuring sends."""
    idle = -(sent() - sent())
    before = sent()
    action()
    return sent() - before - idle


def model_of(sharded: bool) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)])
    if not sharded:
        return model
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for module in (*model, model):
        fully_shard(module, mesh=mesh)
    return model


def run_of(model: nn.Module, method: str, scope: Scope, dim: str) -> PruningRun:
    sharded = isinstance(model, nn.Sequential) and hasattr(model, "reshard")
    layout = Layout.PLAIN if sharded else Layout.KEPT
    recipe = make_recipe(method, 2, dim, None)
    return PruningRun(select(model), Pruner(recipe, Budget(scope)), 0, layout, guard=require_same_masks)


class Training:
    """A model with its optimizer, wrapped for DDP or sharded, pruned or not."""

    def __init__(self, sharded: bool) -> None:
        self.model = model_of(sharded)
        self.wrapped = self.model if sharded else DistributedDataParallel(self.model)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.enforcement: Enforcement | None = None

    def prune(self, run: PruningRun) -> None:
        reshard(self.model)
        run.prune(Demand(0, amount=0.5))
        erase(run.targets, [self.optimizer])

    def enforce(self, run: PruningRun) -> None:
        self.enforcement = Enforcement(run)
        self.enforcement.start([self.optimizer])

    def step(self) -> None:
        self.wrapped(torch.ones(4, WIDTH)).square().mean().backward()
        if self.enforcement is not None:
            self.enforcement.after_backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


def measure_steps(sharded: bool) -> list[str]:
    training = Training(sharded)
    training.step()
    training.step()  # DDP arranges its buckets after the first
    dense = bytes_of(training.step)
    run = run_of(training.model, *EVENTS[0])
    training.enforce(run)
    event = bytes_of(lambda: training.prune(run))
    pruned = bytes_of(training.step)
    return ["FSDP2" if sharded else "DDP", f"{dense:,}", f"{pruned:,}", f"{pruned - dense:,}", f"{event:,}"]


def measure_event(method: str, scope: Scope, dim: str) -> list[str]:
    with fresh(method, scope, dim) as run:
        exchanged = bytes_of(lambda: run.prune(Demand(0, amount=0.5)))
    with fresh(method, scope, dim) as run:
        peak = peak_memory(lambda: lambda: run.prune(Demand(0, amount=0.5)))
    held = WEIGHTS / dist.get_world_size() / 2**20
    name = f"{method}, {scope}" + (f", {dim}" if "structured" in method and "un" not in method else "")
    return [name, f"{exchanged:,}", f"{peak / 2**20:.1f}", f"{held:.1f}"]


def measure_checkpoint() -> list[str]:
    with fresh(*EVENTS[0]) as run:
        run.prune(Demand(0, amount=0.5))
        exchanged = bytes_of(run.state_dict)
        peak = peak_memory(lambda: run.state_dict)
    return ["masks for a checkpoint", f"{exchanged:,}", f"{peak / 2**20:.1f}", f"{WEIGHTS / 8 / 2**20:.1f}"]


@contextmanager
def fresh(method: str, scope: Scope, dim: str) -> Iterator[PruningRun]:
    yield run_of(model_of(sharded=True), method, scope, dim)


def work() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    steps = [measure_steps(sharded=False), measure_steps(sharded=True)]
    events = [measure_event(*event) for event in EVENTS] + [measure_checkpoint()]
    if dist.get_rank() == 0:
        ranks = dist.get_world_size()
        print_table(
            f"bytes that a rank sends, {ranks} ranks, {WEIGHTS:,} float32 weights in {LAYERS} tensors",
            ["", "dense step", "pruned step", "difference", "event, l1 global"],
            steps,
        )
        print_table(
            "events of a model sharded by fully_shard",
            ["", "bytes sent", "peak MiB", "of which the masks"],
            events,
        )
    dist.barrier()
    dist.destroy_process_group()


def main(ranks: int) -> None:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    shared: dict[str, Any] = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(ranks)}
    command = [sys.executable, "-m", "tests.benchmarks.distributed"]
    workers = [subprocess.Popen(command, env={**os.environ, **shared, "RANK": str(rank)}) for rank in range(ranks)]
    for worker in workers:
        worker.wait()


if __name__ == "__main__":
    if "RANK" in os.environ:
        work()
    else:
        main(int(sys.argv[1]) if len(sys.argv) > 1 else 2)
