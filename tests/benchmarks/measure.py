"""Time and peak memory of functions that are to be compared, and tables of the results."""

from __future__ import annotations

import ctypes
import gc
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

Run = Callable[[], object]
Prepare = Callable[[], Run]

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of malloc.h


class Watch:
    """Processor time of a block, or the bytes by which the resident memory rose at most while it ran (Linux only).

    With one thread the processor time of this process is what a clock shows on an idle machine, and other programs
    hardly change it. For memory the kernel's own high-water mark is reset before and read after; unlike a profiler of
    torch's allocator it also counts the buffers that kernels such as ``topk`` take from elsewhere. What the allocator
    had kept is given back to the system first, so that memory reused by the block counts as well.

    Args:
        memory: Whether memory is measured.
    """

    def __init__(self, memory: bool = False) -> None:
        self._memory = memory
        self.seconds = 0.0
        self.peak = 0

    def __enter__(self) -> Watch:
        if self._memory:
            gc.collect()
            ctypes.CDLL(None).malloc_trim(0)
            Path("/proc/self/clear_refs").write_text("5")
            self.peak = -_status_bytes("VmRSS")
        self.seconds = -time.process_time()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds += time.process_time()
        if self._memory:
            self.peak = max(0, self.peak + _status_bytes("VmHWM"))


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
    """Prints a table in Markdown, the first column to the left and blank where it repeats, the others to the right."""
    print(f"\n{title}:\n")
    print(f"| {' | '.join(header)} |\n|---|{'---:|' * (len(header) - 1)}", flush=True)
    above = ""
    for first, *rest in rows:
        print(f"| {' | '.join(['' if first == above else first, *rest])} |", flush=True)
        above = first
