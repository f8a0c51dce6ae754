"""Peak memory of training, each way in a process of its own.

It is the resident memory at the peak of two steps over that before the model was made: weights, gradients, momentum,
masks, activations, buffers of the kernels; as a multiple of the bytes of the weights. Making the masks does not count,
nor do holes between blocks: the C library is told to give large ones back at once, as their number differs by chance.

    python -m tests.benchmarks memory
"""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
from pathlib import Path

import torch

from tests.benchmarks.measure import _status_bytes as status_bytes
from tests.benchmarks.measure import give_back_freed_memory, print_table
from tests.benchmarks.models import MLP_60, TRANSFORMER, Workload
from tests.benchmarks.ways import OPTIMIZERS, WAYS

HEADER = ["peak memory / weights", *WAYS]


def peak(workload: Workload, optimizer: str, name: str) -> float:
    """The peak of training as a multiple of the weights."""
    torch.set_num_threads(1)
    give_back_freed_memory()
    WAYS[name](MLP_60, optimizer).step()  # loads the kernels
    before = _settled()
    way = WAYS[name](workload, optimizer)
    way.step()
    way.optimizer.zero_grad()
    _settled()
    Path("/proc/self/clear_refs").write_text("5")
    way.step()
    way.step()
    return (status_bytes("VmHWM") - before) / sum(p.numel() * p.element_size() for p in way.model.parameters())


def _settled() -> int:
    """Resident bytes after the allocator has given back what it can."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return status_bytes("VmRSS")


def _peak_in_child(workload: Workload, optimizer: str, name: str) -> float:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(peak, (workload, optimizer, name))


def main(quick: bool = False) -> None:
    """Prints the table."""
    rows = []
    for optimizer in ("SGD",) if quick else OPTIMIZERS:
        peaks = [_peak_in_child(TRANSFORMER, optimizer, name) for name in WAYS]
        rows.append([f"{TRANSFORMER.name}, {optimizer}", *(f"{value:.2f} x" for value in peaks)])
    print_table("peak memory of training, 90 % of the weights masked", HEADER, rows)
