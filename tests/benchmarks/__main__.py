"""All benchmarks in one run: ratios to torch.nn.utils.prune, to dense training and to a pass over the memory.

python -m tests.benchmarks [--quick] [selection] [training] [memory] [using]
"""

from __future__ import annotations

import argparse
import platform
from collections.abc import Callable

import torch

from tests.benchmarks import memory, selection, training, using


def _selection(quick: bool) -> None:
    selection.main(sizes=(1_000_000,) if quick else (1_000_000, 10_000_000, 60_000_000), rounds=3 if quick else 5)


BENCHMARKS: dict[str, Callable[[bool], None]] = {
    "selection": _selection,
    "training": training.main,
    "memory": memory.main,
    "using": using.main,
}


def main() -> None:
    """Runs those that are named, by default all."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description="ratio benchmarks on one thread")
    parser.add_argument("names", nargs="*", choices=[[], *BENCHMARKS], metavar="name", help=", ".join(BENCHMARKS))
    parser.add_argument("--quick", action="store_true", help="fewer and smaller: under a minute, not for quoting")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    print(f"{_processor()}, torch {torch.__version__}, 1 thread of processor time")
    for name in arguments.names or BENCHMARKS:
        BENCHMARKS[name](arguments.quick)


def _processor() -> str:
    with open("/proc/cpuinfo") as lines:
        return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine())


if __name__ == "__main__":
    main()
