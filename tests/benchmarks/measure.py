"""Time and peak memory of functions that are to be compared, and tables of the results."""

from __future__ import annotations

import ctypes
import gc
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

Run = Callable[[], object]
Prepare = Callable[[], Run]

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of malloc.h


class Timing(NamedTuple):
    """Median of some seconds, and how far apart the shortest and longest were, relative to it."""

    median: float
    spread: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Timing:
        median = statistics.median(seconds)
        return cls(median, (max(seconds) - min(seconds)) / median)

    def __str__(self) -> str:
        return f"{self.median * 1e3:.1f} ms ±{self.spread / 2:.0%}"


def interleaved(contenders: Mapping[str, Prepare], rounds: int, warm_up: bool = True) -> dict[str, Timing]:
    """Times the contenders in turn (A, B, A, B, ...), so that a slow spell of the machine meets all of them.

    Each contender is a function that prepares a run, untimed, and returns it. Functions are run once before, unless
    `warm_up` is off, which only those that take seconds can afford. What counts is the processor time of this
    process: with one thread it is what a clock shows on an idle machine, and other programs hardly change it.
    """
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(rounds + warm_up):
        for name, prepare in contenders.items():
            elapsed = _timed(prepare())
            if turn >= warm_up:
                seconds[name].append(elapsed)
    return {name: Timing.of(values) for name, values in seconds.items()}


def _timed(run: Run) -> float:
    start = time.process_time()
    result = run()
    elapsed = time.process_time() - start
    del result
    return elapsed


def peak_memory(prepare: Prepare) -> int:
    """Bytes by which the resident memory of this process rose, at most, while the run lasted (Linux only).

    The kernel's own high-water mark is reset before and read after. Unlike a profiler of torch's allocator it also
    counts the buffers that kernels such as ``topk`` take from elsewhere. What the allocator had kept is given back
    to the system first, so that memory reused by the run counts as well; what the run returns counts too.
    """
    run = prepare()
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    before = _status_bytes("VmRSS")
    result = run()
    peak = _status_bytes("VmHWM")
    del result
    return max(0, peak - before)


def keep_freed_memory() -> None:
    """Has the C library keep what is freed for later.

    It gives freed memory back to the system only when that lies at the end of its heap. Which contender meets this, and
    pays for fresh pages in each step, is decided by what others have put there.
    """
    library = ctypes.CDLL(None)
    library.mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)
    library.mallopt(_M_MMAP_THRESHOLD, 2**25)


def give_back_freed_memory() -> None:
    """Has the C library give large blocks back to the system as soon as they are freed."""
    ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, 2**16)


def _status_bytes(key: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{key}:"))


def print_table(title: str, header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Prints aligned columns: the first to the left, the others to the right."""
    lines = [list(header), *map(list, rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    print(f"\n{title}")
    for line in lines:
        first, *others = (
            cell.rjust(width) if place else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        print("  ".join([first, *others]), flush=True)
