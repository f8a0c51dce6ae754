"""Signals wait until an event is over."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator

import pytest

from lightning_prune.fit.interruptions import uninterrupted

SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2]


@pytest.fixture
def came() -> Iterator[list[int]]:
    """Numbers of the signals that were handled."""
    found: list[int] = []
    before = {number: signal.signal(number, lambda given, frame: found.append(given)) for number in SIGNALS}
    yield found
    for number, handler in before.items():
        signal.signal(number, handler)


def send(number: int) -> None:
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", SIGNALS)
def test_they_are_handled_afterwards(came: list[int], number: int) -> None:
    with uninterrupted():
        send(number)
        assert came == []
    assert came == [number]
    send(number)
    assert came == [number, number]


def test_in_the_order_in_which_they_came_also_after_an_error(came: list[int]) -> None:
    def fail() -> None:
        with uninterrupted():
            send(signal.SIGUSR1)
            send(signal.SIGTERM)
            raise ArithmeticError

    with pytest.raises(ArithmeticError):
        fail()
    assert came == [signal.SIGUSR1, signal.SIGTERM]


def test_one_within_another(came: list[int]) -> None:
    with uninterrupted():
        with uninterrupted():
            send(signal.SIGUSR1)
        assert came == []
    assert came == [signal.SIGUSR1]


def test_ctrl_c_is_raised_afterwards() -> None:
    done = []

    def run() -> None:
        with uninterrupted():
            send(signal.SIGINT)
            done.append(True)

    with pytest.raises(KeyboardInterrupt):
        run()
    assert done == [True]


def test_other_threads_leave_signals_alone() -> None:
    handlers = []

    def look() -> None:
        with uninterrupted():
            handlers.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert handlers == [signal.getsignal(signal.SIGINT)]
