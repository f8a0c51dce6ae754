"""Signals that come while an event runs: a save by one of them would hold half of what the event does."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_NAMES = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2")


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Lets signals wait until the block is over, then handles them in the order in which they came.

    Batch systems ask for a checkpoint by ``SIGUSR1`` or ``SIGTERM``, whose handlers run between any two instructions.
    Signals without a handler in Python, and those of threads other than the main one, are left alone.

    Example:
        >>> import os
        >>> came = []
        >>> before = signal.signal(signal.SIGUSR1, lambda number, frame: came.append(number))
        >>> with uninterrupted():
        ...     os.kill(os.getpid(), signal.SIGUSR1)
        ...     len(came)
        0
        >>> len(came)
        1
        >>> _ = signal.signal(signal.SIGUSR1, before)
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    waiting: list[tuple[int, Any]] = []
    numbers = [getattr(signal, name) for name in _NAMES if hasattr(signal, name)]
    handlers = {number: handler for number in numbers if callable(handler := signal.getsignal(number))}
    for number in handlers:
        signal.signal(number, lambda came, frame: waiting.append((came, frame)))
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for number, frame in waiting:
            handlers[number](number, frame)
