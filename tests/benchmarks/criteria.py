"""Events that rank by gradients beside ones by magnitude: each call below is made and timed where the fit calls it.

A model of ten layers is fitted with gradients that are written instead of computed. "event" is all from the moment
that an event is due to its masks: ``Session.prune`` for magnitude, ``Session.show_gradients`` for criteria that see
gradients, which also looks for gradients that are not finite; "batch" is what the latter takes in the other batches of
an open window. A pass, ``weight.abs() > threshold`` over all layers, is timed before each.

    python -m tests.benchmarks criteria
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from lightning_prune import Fisher, PruningCallback, Taylor
from lightning_prune.fit.session import Session
from tests.benchmarks.events import seconds_of_a_pass, spread, trainer
from tests.benchmarks.measure import Watch, keep_freed_memory, print_table
from tests.benchmarks.updates import Stepped

STEPS = range(8, 40, 8)
CALLS = (
    'PruningCallback("l1_unstructured", amount=0.2, steps=STEPS, scope="global")',
    'PruningCallback("l1_unstructured", amount=0.2, steps=STEPS, scope="global", criterion=Taylor(batches=1))',
    'PruningCallback("l1_unstructured", amount=0.2, steps=STEPS, scope="global", criterion=Taylor(batches=4))',
    'PruningCallback("l1_unstructured", amount=0.2, steps=STEPS, scope="global", criterion=Fisher(batches=4))',
)
HEADER = ["`PruningCallback`", "event / pass", "event / that of magnitude", "batch / pass", "ms"]


class Measured:
    """What the events of one fit took, and the batches of their windows."""

    def __init__(self) -> None:
        self.events: list[float] = []
        self.of_pass: list[float] = []
        self.batches: list[float] = []


@contextmanager
def watched(module: Stepped, measured: Measured) -> Iterator[None]:
    """Measures each event and each batch in which gradients are looked at."""
    prune, show = Session.prune, Session.show_gradients

    def timed(call: Any, session: Session, *arguments: Any) -> Any:
        events, one_pass = session.run.events, seconds_of_a_pass(module)
        with Watch() as watch:
            found = call(session, *arguments)
        if session.run.events > events:
            measured.events.append(watch.seconds)
            measured.of_pass.append(watch.seconds / one_pass)
        elif call is show:
            measured.batches.append(watch.seconds / one_pass)
        return found

    Session.prune = lambda session, *arguments: timed(prune, session, *arguments)  # type: ignore[method-assign]
    Session.show_gradients = lambda session, *arguments: timed(show, session, *arguments)  # type: ignore[method-assign]
    try:
        yield
    finally:
        Session.prune, Session.show_gradients = prune, show  # type: ignore[method-assign]


def fit(call: str, size: int) -> Measured:
    """Fits a model with the callback that the call makes."""
    names = {"PruningCallback": PruningCallback, "Taylor": Taylor, "Fisher": Fisher, "STEPS": STEPS}
    callback, measured = eval(f"{call[:-1]}, verbose=False)", names), Measured()
    module = Stepped(size, "SGD with momentum", batches=max(STEPS) + 1)
    with watched(module, measured):
        trainer(callbacks=[callback], max_steps=max(STEPS) + 1).fit(module)
    return measured


def main(quick: bool = False, size: int = 60_000_000) -> None:
    """Prints the table."""
    keep_freed_memory()
    size = 1_000_000 if quick else size
    fits = {call: fit(call, size) for call in CALLS}
    first = fits[CALLS[0]].events
    rows = [
        [
            f"`{call}`",
            spread(found.of_pass),
            spread([mine / one for mine, one in zip(found.events, first, strict=True)]),
            spread(found.batches) if found.batches else "",
            f"{statistics.median(found.events) * 1e3:.0f}",
        ]
        for call, found in fits.items()
    ]
    title = f"Events of a fit with {size / 1e6:g} million float32 weights in 10 layers, one thread"
    print_table(title, HEADER, rows)
