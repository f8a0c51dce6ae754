"""Starts workers that find each other on the loopback interface, and collects what they return."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

Results = dict[str, Any]
Check = Callable[[Path], Any]

ROOT = Path(__file__).parents[2]
WORKERS = "tests.distributed.workers"
RANKS = int(os.environ.get("WORLD_SIZE", "1"))  # noted before a fit, after which Lightning deletes it


def launch(ranks: int, folder: Path) -> list[Results]:
    """Starts the workers of all ranks, and loads what each one saved."""
    for code, text in run(ranks, WORKERS, folder):
        if code:
            raise RuntimeError(f"a worker ended with {code}:\n{text[-4000:]}")
    return saved(ranks, folder)


def run(ranks: int, module: str, folder: Path, seconds: float = 600) -> list[tuple[int, str]]:
    """Runs a module in a process for each rank, as ``torchrun`` would: exit codes, and what was printed."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(ranks), "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", module, str(folder)],
            env={**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank), "NODE_RANK": "0"},
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(ranks)
    ]
    try:
        output = [process.communicate(timeout=seconds)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [(process.returncode, text) for process, text in zip(processes, output, strict=True)]


def saved(ranks: int, folder: Path) -> list[Results]:
    """What all ranks saved, nothing if they have not."""
    paths = [_path(folder, ranks, rank) for rank in range(ranks)]
    return [torch.load(path, weights_only=False) for path in paths] if all(path.exists() for path in paths) else []


def work(checks: Mapping[str, Check]) -> None:
    """Runs all checks in order, in this worker, and saves what they return or how they failed."""
    torch.set_num_threads(1)
    folder = Path(sys.argv[1])
    results = {}
    for name, check in checks.items():
        try:
            results[name] = check(folder)
        except Exception:
            results[name] = Failure(traceback.format_exc())
    torch.save(results, _path(folder, RANKS, rank()))


class Failure(str):
    """How a check failed."""


def result(results: list[Results], name: str) -> list[Any]:
    """What one check returned, of all ranks; raises if it failed on one."""
    values = [of_rank[name] for of_rank in results]
    for rank, value in enumerate(values):
        if isinstance(value, Failure):
            raise AssertionError(f"{name} failed on rank {rank}:\n{value}")
    return values


def rank() -> int:
    return int(os.environ.get("RANK", "0"))


def _path(folder: Path, ranks: int, rank: int) -> Path:
    return folder / f"{rank}-of-{ranks}.pt"
