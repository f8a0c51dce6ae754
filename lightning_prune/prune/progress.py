"""One line on a terminal about work that takes long: what runs, of how many, and the time left."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from types import TracebackType
from typing import TextIO

import torch.distributed as dist

_AFTER, _EVERY = 1.0, 0.1
"""Seconds until a line that is written over appears, and between two looks of it."""


class Progress:
    """Tells on a terminal how far some work is; silent where there is none, and on all ranks but the first.

    Args:
        what: What is done, such as ``"timing layers"``.
        total: Of how many parts.
        lines: Write a line for each part, which stays, for parts that write something themselves. Otherwise it is one
            line, written over and cleared at the end, and only of work that takes longer than a second.
        file: Where to; the standard error output by default.
        clock: Seconds that only rise.

    Example:
        >>> class Terminal:
        ...     isatty, flush = (lambda self: True), (lambda self: None)
        ...     write = lambda self, text: print(text, end="")
        >>> with Progress("training", 3, lines=True, file=Terminal(), clock=iter([0, 90, 150]).__next__) as progress:
        ...     for i, name in enumerate(["dense", "ticket", "reinit"]):
        ...         progress.at(i, name)
        training: 1 of 3, dense
        training: 2 of 3, ticket, about 0:03:00 left
        training: 3 of 3, reinit, about 0:01:15 left
    """

    def __init__(
        self,
        what: str,
        total: int,
        *,
        lines: bool = False,
        file: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._what, self._total, self._lines, self._clock = what, total, lines, clock
        self._file = sys.stderr if file is None else file
        self._shown = self._file.isatty() and _is_first_rank()
        self._first: tuple[int, float] | None = None
        self._written: float | None = None

    def at(self, index: int, item: str = "") -> None:
        """Says that a part begins; the time left is told by the parts since the first one that was said.

        Args:
            index: Its place, counted from 0.
            item: Its name.
        """
        if not self._shown:
            return
        now = self._clock()
        self._first = self._first or (index, now)
        text = self._text(index, item, now)
        if self._lines:
            self._write(f"{text}\n")
        elif now - self._first[1] >= _AFTER and (self._written is None or now - self._written >= _EVERY):
            self._written = now
            self._write(f"\r{text[: shutil.get_terminal_size().columns - 1]}\x1b[K")

    def _text(self, index: int, item: str, now: float) -> str:
        done, spent = (index - self._first[0], now - self._first[1]) if self._first else (0, 0.0)
        parts = [f"{self._what}: {index + 1} of {self._total}", item]
        if done:
            parts.append(f"about {timedelta(seconds=round(spent / done * (self._total - index)))} left")
        return ", ".join(part for part in parts if part)

    def __enter__(self) -> Progress:
        """For use in a ``with`` statement, which clears the line in any case."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Clears the line."""
        if self._written is not None:
            self._write("\r\x1b[K")

    def _write(self, text: str) -> None:
        self._file.write(text)
        self._file.flush()


def _is_first_rank() -> bool:
    """Whether this process is rank 0, also before there is a process group."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank() == 0
    return all(os.environ.get(name, "0") == "0" for name in ("RANK", "LOCAL_RANK"))
