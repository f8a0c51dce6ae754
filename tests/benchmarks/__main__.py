"""All benchmarks in one run: ratios to torch.nn.utils.prune, to dense training and to a pass over the memory.

python -m tests.benchmarks [--quick] [--weights 60000000] [NAME ...]   # one or more of BENCHMARKS, all by default
"""

from __future__ import annotations

import argparse
import functools
import platform
from collections.abc import Callable

import torch

from tests.benchmarks import criteria, events, fits, functions, memory, training, updates, using

BENCHMARKS: dict[str, Callable[..., None]] = {
    "events": events.main,
    "functions": functions.main,
    "fits": fits.main,
    "training": training.main,
    "memory": memory.main,
    "using": using.main,
    "updates": updates.main,
    "criteria": criteria.main,
}

SIZED = ("events", "functions", "updates", "criteria")


def main() -> None:
    """Runs those that are named, by default all."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description="ratio benchmarks on one thread")
    parser.add_argument("names", nargs="*", choices=[[], *BENCHMARKS], metavar="name", help=", ".join(BENCHMARKS))
    parser.add_argument("--quick", action="store_true", help="fewer and smaller: under a minute, not for quoting")
    parser.add_argument("--weights", type=int, default=60_000_000, help=f"how many weights {', '.join(SIZED)} prune")
    arguments = parser.parse_args()
    sized = {name: functools.partial(BENCHMARKS[name], size=arguments.weights) for name in SIZED}
    torch.manual_seed(0)
    torch.set_num_threads(1)
    print(f"{_processor()}, torch {torch.__version__}, 1 thread of processor time")
    for name in arguments.names or BENCHMARKS:
        {**BENCHMARKS, **sized}[name](arguments.quick)


def _processor() -> str:
    with open("/proc/cpuinfo") as lines:
        return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine())


if __name__ == "__main__":
    main()
