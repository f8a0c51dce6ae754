"""What pruning sends between ranks, per training step and per event, and the memory and time of an event on each rank.

Run as ``python -m tests.benchmarks.distributed [--ranks 2] [--width 2048]`` (Linux, CPU, gloo). Bytes are those that
a rank hands to the kernel (``wchar`` of ``/proc/self/io``), so they hold gloo's own headers too: about 50 to 600 bytes
for each exchange. Of an event the memory is its peak over what there was before, time is processor time for each weight
that the rank holds; both of the first event and of a second one, in which there are masks already.
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

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
from tests.benchmarks.measure import Watch, print_table

LAYERS = 8
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


def model_of(sharded: bool, width: int) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(width, width) for _ in range(LAYERS)])
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

    def __init__(self, sharded: bool, width: int) -> None:
        self.model, self.inputs = model_of(sharded, width), torch.ones(4, width)
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
        self.wrapped(self.inputs).square().mean().backward()
        if self.enforcement is not None:
            self.enforcement.after_backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


def measure_steps(sharded: bool, width: int) -> list[str]:
    training = Training(sharded, width)
    training.step()
    training.step()  # DDP arranges its buckets after the first
    dense = bytes_of(training.step)
    run = run_of(training.model, *EVENTS[0])
    training.enforce(run)
    event = bytes_of(lambda: training.prune(run))
    pruned = bytes_of(training.step)
    return ["FSDP2" if sharded else "DDP", f"{dense:,}", f"{pruned:,}", f"{pruned - dense:,}", f"{event:,}"]


def measure_event(method: str, scope: Scope, dim: str, width: int) -> list[str]:
    here = width * width * LAYERS // dist.get_world_size()

    def event(run: PruningRun) -> None:
        run.prune(Demand(run.events, amount=0.5))

    run = run_of(model_of(True, width), method, scope, dim)
    exchanged = bytes_of(lambda: event(run))
    times, peaks = [], []
    for found, memory in ((times, False), (peaks, True)):
        run = run_of(model_of(True, width), method, scope, dim)
        for _ in range(2):
            with Watch(memory) as watch:
                event(run)
            found.append(f"{watch.peak / 2**20:.1f}" if memory else f"{watch.seconds / here * 1e9:.1f}")
    name = f"{method}, {scope}" + (f", {dim}" if "structured" in method and "un" not in method else "")
    return [name, f"{exchanged:,}", *times, *peaks, f"{here / 2**20:.1f}"]


def measure_checkpoint(width: int) -> list[str]:
    run = run_of(model_of(True, width), *EVENTS[0])
    run.prune(Demand(0, amount=0.5))
    exchanged = bytes_of(run.state_dict)
    with Watch(memory=True) as watch:
        run.state_dict()
    size = width * width * LAYERS / 8 / 2**20
    return ["masks for a checkpoint", f"{exchanged:,}", "", "", f"{watch.peak / 2**20:.1f}", "", f"{size:.1f}"]


def work(width: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    steps = [measure_steps(sharded, width) for sharded in (False, True)]
    events = [measure_event(*event, width) for event in EVENTS] + [measure_checkpoint(width)]
    if dist.get_rank() == 0:
        weights, ranks = width * width * LAYERS, dist.get_world_size()
        print_table(
            f"bytes that a rank sends, {ranks} ranks, {weights:,} float32 weights in {LAYERS} tensors",
            ["", "dense step", "pruned step", "difference", "event, l1 global"],
            steps,
        )
        print_table(
            "events of a model sharded by fully_shard: the first one / a later one",
            ["", "bytes sent", "ns a weight", "later", "peak MiB", "later", "of which the masks"],
            events,
        )
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.distributed")
    parser.add_argument("--ranks", type=int, default=2, help="processes (default: 2)")
    parser.add_argument(
        "--width", type=int, default=2048, help=f"of each of the {LAYERS} square layers (default: 2048)"
    )
    arguments = parser.parse_args()
    if "RANK" in os.environ:
        work(arguments.width)
        return
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(arguments.ranks)}
    command = [sys.executable, "-m", "tests.benchmarks.distributed", "--width", str(arguments.width)]
    ranks = range(arguments.ranks)
    workers = [subprocess.Popen(command, env={**os.environ, **shared, "RANK": str(rank)}) for rank in ranks]
    sys.exit(max(worker.wait() for worker in workers))


if __name__ == "__main__":
    main()
