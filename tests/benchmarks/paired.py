"""Ratios of the times of contenders that run in turn, so that a slow spell of the machine meets all of them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence

from tests.benchmarks.measure import Prepare, Run

Seconds = dict[str, list[float]]


def in_turn(contenders: Mapping[str, Prepare], rounds: int, warm_up: int = 1) -> Seconds:
    """Seconds of processor time of each contender in each round (A, B, A, B, ...), after some that do not count."""
    seconds: Seconds = {name: [] for name in contenders}
    for turn in range(rounds + warm_up):
        for name, prepare in contenders.items():
            run = prepare()
            start = time.process_time()
            run()
            if turn >= warm_up:
                seconds[name].append(time.process_time() - start)
    return seconds


def repeated(run: Run, times: int) -> Prepare:
    """A contender that runs so many times in a row."""

    def runs() -> None:
        for _ in range(times):
            run()

    return lambda: runs


def ratio(seconds: Seconds, name: str, to: str) -> str:
    """Median over the rounds of how many times as long `name` takes as `to`, and half its interquartile range."""
    ratios = [mine / theirs for mine, theirs in zip(seconds[name], seconds[to], strict=True)]
    low, _, high = statistics.quantiles(ratios, n=4)
    return f"{statistics.median(ratios):.2f} ±{(high - low) / 2:.2f}"


def row(label: str, seconds: Seconds, pairs: Sequence[tuple[str, str]], per_run: int = 1) -> list[str]:
    """A line of a table: the median milliseconds of the first contender, then ratios."""
    first = next(iter(seconds))
    return [label, f"{statistics.median(seconds[first]) / per_run * 1e3:.2f} ms", *(ratio(seconds, *p) for p in pairs)]
