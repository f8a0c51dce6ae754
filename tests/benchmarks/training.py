"""A training step: our two ways of pruning, torch.nn.utils.prune and dense training.

Nine tenths of the weights are masked after two dense steps. Times are those of whole optimizer steps, with
the zeroing of gradients, in plain loops; "accumulation 4" has four backward passes in each.

    python -m tests.benchmarks training
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from tests.benchmarks.measure import keep_freed_memory, print_table
from tests.benchmarks.models import CONVNET, MLP_60, MLP_512, TRANSFORMER, Workload
from tests.benchmarks.paired import Seconds, in_turn, ratio, repeated
from tests.benchmarks.ways import WAYS

PAIRS = [("torch", "dense"), ("ours, read", "dense"), ("ours, in place", "dense"), ("ours, read", "torch")]
HEADER = ["one step", "dense", "torch/dense", "read/dense", "in place/dense", "read/torch"]
STEPS = {MLP_60: 20, MLP_512: 4, CONVNET: 1, TRANSFORMER: 1}
ROUNDS = {MLP_60: 60, MLP_512: 40, CONVNET: 30, TRANSFORMER: 24}
WARM_UP = 4  # until then the heap still grows


def cases(quick: bool) -> Iterator[tuple[Workload, str, int]]:
    """Workload, optimizer and accumulation of each line of the table."""
    for workload in (MLP_60, MLP_512, CONVNET, TRANSFORMER):
        for optimizer in ("SGD", "Adam"):
            for accumulation in (1,) if quick or (workload is TRANSFORMER and optimizer == "Adam") else (1, 4):
                yield workload, optimizer, accumulation


def measure(workload: Workload, optimizer: str, accumulation: int, quick: bool) -> Seconds:
    """Seconds of some steps of each way, in each round."""
    steps = max(1, STEPS[workload] // accumulation)
    ways = {name: make(workload, optimizer, accumulation) for name, make in WAYS.items()}
    rounds = max(3, ROUNDS[workload] // (10 if quick else 1) // (1 + (accumulation > 1)))
    return in_turn({name: repeated(way.step, steps) for name, way in ways.items()}, rounds, WARM_UP)


def main(quick: bool = False) -> None:
    """Prints the table."""
    keep_freed_memory()
    rows = []
    for workload, optimizer, accumulation in cases(quick):
        seconds = measure(workload, optimizer, accumulation, quick)
        steps = max(1, STEPS[workload] // accumulation)
        label = f"{workload.name}, {optimizer}" + (f", accumulation {accumulation}" if accumulation > 1 else "")
        dense = f"{statistics.median(seconds['dense']) / steps * 1e3:.2f} ms"
        rows.append([label, dense, *(ratio(seconds, *pair) for pair in PAIRS)])
    print_table("training, 90 % of the weights masked, 1 thread", HEADER, rows)
