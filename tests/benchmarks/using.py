"""What is done with a pruned model apart from training: inference, removing the pruning, checkpoints.

python -m tests.benchmarks using
"""

from __future__ import annotations

import io
import statistics
from collections.abc import Callable
from functools import partial

import torch

from lightning_prune.prune import custom_from_mask
from tests.benchmarks.measure import Prepare, keep_freed_memory, print_table
from tests.benchmarks.models import CONVNET, MLP_60, MLP_512, TRANSFORMER, Workload
from tests.benchmarks.paired import in_turn, ratio, repeated
from tests.benchmarks.ways import WAYS, Dense, Torch, Way

PAIRS = [("torch", "dense"), ("ours, read", "dense"), ("ours, in place", "dense"), ("ours, read", "torch")]
HEADER = ["task", "dense", "torch/dense", "read/dense", "in place/dense", "read/torch"]
TIMES = {MLP_60: 50, MLP_512: 10, CONVNET: 2, TRANSFORMER: 1}


class Documented(Torch):
    """Our functional API, in the layout that torch documents."""

    def prune(self) -> None:
        super().prune()
        masks = [module.get_buffer(f"{name}_mask") for module, name in self.pairs]
        super().remove()
        for (module, name), mask in zip(self.pairs, masks, strict=True):
            custom_from_mask(module, name, mask)


def inference(workload: Workload, rounds: int) -> list[str]:
    """A forward without gradients."""
    ways = {name: make(workload) for name, make in WAYS.items()}
    runs = {name: repeated(partial(_forward, way), TIMES[workload]) for name, way in ways.items()}
    return _row(f"inference, {workload.name}", runs, rounds, TIMES[workload])


@torch.inference_mode()
def _forward(way: Way) -> object:
    return way.model(way.batch)


def saving(workload: Workload, rounds: int) -> list[str]:
    """Making a checkpoint and writing it to memory, with what resuming needs."""
    ways = {name: make(workload) for name, make in WAYS.items()}
    return _row(f"save, {workload.name}", {n: repeated(partial(_save, way), 1) for n, way in ways.items()}, rounds, 1)


def _save(way: Way) -> io.BytesIO:
    file = io.BytesIO()
    torch.save(way.state(), file)
    return file


def loading(workload: Workload, rounds: int) -> list[str]:
    """Reading that checkpoint into a model that is pruned already."""
    runs: dict[str, Prepare] = {}
    for name, make in WAYS.items():
        way = make(workload)
        runs[name] = repeated(partial(_load, way, _save(way)), 1)
    return _row(f"load, {workload.name}", runs, rounds, 1)


def _load(way: Way, file: io.BytesIO) -> None:
    file.seek(0)
    way.load(torch.load(file))


def sizes(workload: Workload) -> list[str]:
    """Bytes of the checkpoints, as multiples of the dense one."""
    found = {name: _save(make(workload)).getbuffer().nbytes for name, make in WAYS.items()}
    dense, theirs, read, in_place = (found[name] for name in WAYS)
    ratios = [theirs / dense, read / dense, in_place / dense, read / theirs]
    return [f"checkpoint size, {workload.name}", f"{dense / 1e6:.1f} MB", *(f"{value:.2f}" for value in ratios)]


def removal(workload: Workload, rounds: int) -> list[str]:
    """Making the pruning of a whole model permanent; "read" is the callback layout, "torch" its own functions."""
    runs = {name: partial(_removal_of, make, workload) for name, make in WAYS.items() if make is not Dense}
    seconds = in_turn(runs, rounds)
    first = f"torch {statistics.median(seconds['torch']) * 1e3:.2f} ms"
    cells = ["", "", "", ratio(seconds, "ours, read", "torch")]
    return [f"remove, {workload.name}", first, *cells]


def _removal_of(make: Callable[[Workload], Way], workload: Workload) -> Callable[[], object]:
    return make(workload).remove


def _row(label: str, runs: dict[str, Prepare], rounds: int, times: int) -> list[str]:
    seconds = in_turn(runs, rounds)
    dense = f"{statistics.median(seconds['dense']) / times * 1e3:.2f} ms"
    return [label, dense, *(ratio(seconds, *pair) for pair in PAIRS)]


def documented(workload: Workload, rounds: int) -> list[str]:
    """A training step in the documented layout, beside torch's."""
    kinds: dict[str, type[Way]] = {"dense": Dense, "torch": Torch, "ours": Documented}
    ways = {name: make(workload) for name, make in kinds.items()}
    seconds = in_turn({name: repeated(way.step, max(1, TIMES[workload] // 5)) for name, way in ways.items()}, rounds)
    dense = f"{statistics.median(seconds['dense']) / max(1, TIMES[workload] // 5) * 1e3:.2f} ms"
    cells = [ratio(seconds, "torch", "dense"), ratio(seconds, "ours", "dense"), "", ratio(seconds, "ours", "torch")]
    return [f"step in the documented layout, {workload.name}", dense, *cells]


def main(quick: bool = False) -> None:
    """Prints the table."""
    keep_freed_memory()
    rounds = 3 if quick else 20
    small, large = (MLP_60, CONVNET), (MLP_60, MLP_512, CONVNET, TRANSFORMER)
    workloads = small if quick else large
    rows = [documented(workload, 2 * rounds) for workload in workloads]
    rows += [inference(workload, 2 * rounds) for workload in workloads]
    for task in (saving, loading, removal):
        rows += [
            task(workload, rounds if workload is not TRANSFORMER else max(3, rounds // 4))
            for workload in ((MLP_60,) if quick else (MLP_60, TRANSFORMER))
        ]
    rows.append(sizes(MLP_60))
    print_table("using, 90 % of the weights masked, 1 thread", HEADER, rows)
