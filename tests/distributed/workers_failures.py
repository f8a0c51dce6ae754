"""Ranks that see different things: policies, methods and arguments that differ, and refusals on one rank only."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint

from lightning_prune import FromFunction, PruningCallback, Rewind
from lightning_prune.checkpoint import unpack
from lightning_prune.prune import BasePruningMethod, L1Unstructured
from lightning_prune.schedules.plan import Demand
from tests.distributed import models, workers_sharded
from tests.distributed.launch import RANKS, Check, rank
from tests.distributed.models import Fitted, Mlp
from tests.distributed.workers_sharded import Sharded

STRATEGIES = ("ddp", "fsdp")


def fit(folder: Path, strategy: str, *callbacks: Any, **kwargs: Any) -> Fitted:
    if strategy == "ddp":
        return models.fit(folder, Mlp(RANKS, adam=True), *callbacks, ranks=RANKS, **kwargs)
    return workers_sharded.fit(folder, Sharded(RANKS, adam=True), *callbacks, distributed_checkpoint=False, **kwargs)


class Noting(PruningCallback):
    """Notes epoch and zeros of each event."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, verbose=False, **kwargs)
        self.seen: list[tuple[int, int]] = []

    def on_pruned(self, trainer: Any, pl_module: Any, event: Any) -> None:
        self.seen.append((event.demand.time, event.zeros))


class ByMetric(Noting):
    """The README's policy with a metric that was logged without ``sync_dist``: better in other epochs on each rank."""

    def due(self, trainer: Any, time: int) -> Sequence[Demand]:
        accuracy = [0.1, 0.2, 0.9][(time + rank()) % 3]
        return [Demand(time, amount=0.25)] if accuracy > 0.5 else []


def by_metric() -> Noting:
    return ByMetric(scope="global")


def by_predicate() -> Noting:
    return Noting(amount=0.25, epochs=lambda epoch: epoch == 2 + rank(), scope="global")


def by_function() -> Noting:
    return Noting(schedule=FromFunction(lambda epoch: 0.1 * epoch + 0.05 * rank(), final=0.4, end=3), scope="global")


class Drawing(BasePruningMethod):
    """Draws from the generators of NumPy and Python."""

    PRUNING_TYPE = "unstructured"

    def __init__(self, amount: int | float) -> None:
        self.amount = amount

    def compute_mask(self, t: Any, default_mask: Any) -> Any:
        draws = [random.random() + np.random.rand() for _ in range(t.numel())]
        return default_mask * (torch.tensor(draws).view_as(t) > 1)


class FailsOnRank1(BasePruningMethod):
    """Fails in its second event."""

    PRUNING_TYPE = "unstructured"

    def compute_mask(self, t: Any, default_mask: Any) -> Any:
        if rank() == 1 and t.numel() == 136 - 1:  # it is shown what the first event left
            raise ArithmeticError("no more of this")
        mask = default_mask.clone()
        mask.view(-1)[0] = 0
        return mask


def falling(epoch: int | float) -> float:
    return 0.1 if rank() == 0 or epoch == 0 else 2.0


def not_the_last(name: str, parameter: Any) -> bool:
    if rank() == 1:
        raise KeyError("no such layer")
    return True


REFUSED: dict[str, Callable[[], PruningCallback]] = {
    "in the second event": lambda: PruningCallback(FailsOnRank1, epochs=[1, 2], verbose=False),
    "of a schedule": lambda: PruningCallback(schedule=FromFunction(falling, final=0.5), verbose=False),
    "of the selection": lambda: PruningCallback(parameters=not_the_last, verbose=False),
    "of a pattern": lambda: PruningCallback(parameters="second.*" if rank() == 0 else "nothing", verbose=False),
    "of the plan's end": lambda: PruningCallback(amount=0.1, epochs=[3 + 30 * rank()], verbose=False),
}
DECIDED: dict[str, Callable[[], Noting]] = {
    "metric": by_metric,
    "predicate": by_predicate,
    "function": by_function,
    "generators": lambda: Noting(Drawing, amount=0.5, epochs=[1]),
}


def decided(folder: Path, strategy: str, make: Callable[[], Noting]) -> tuple[Fitted, list[tuple[int, int]]]:
    callback = make()
    return fit(folder, strategy, callback), callback.seen


def refused(folder: Path, strategy: str, make: Callable[[], PruningCallback]) -> str:
    try:
        fit(folder, strategy, make())
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    raise AssertionError("the fit went through")


class Raises(Callback):
    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        if trainer.global_step == 6:
            raise ArithmeticError


def plan(method: Any = "l1_unstructured", **kwargs: Any) -> PruningCallback:
    return PruningCallback(method, amount=0.3, epochs=[1, 2], scope="global", verbose=False, **kwargs)


def after_an_exception(folder: Path, strategy: str) -> tuple[dict[str, int], Fitted]:
    """Zeros in the masks that the file of an exception holds, and what a fit from there ends with."""
    save = ModelCheckpoint(folder, filename=f"{strategy}-exception", save_on_exception=True, every_n_epochs=100)
    pruning = plan(rewind=Rewind(step=2))
    try:
        fit(folder, strategy, pruning, Raises(), save, enable_checkpointing=True)
    except ArithmeticError:
        state = pruning.state_dict()
    (path,) = folder.glob(f"{strategy}-exception*")
    zeros = {name: int((~unpack(tensor["bits"], tensor["shape"])).sum()) for name, tensor in state["tensors"].items()}
    return zeros, fit(folder, strategy, plan(rewind=Rewind(step=2)), ckpt_path=path)


class Signals(L1Unstructured):
    """Asks for a checkpoint while it ranks."""

    def keep(self, scores: Any, alive: Any, names: Any = None) -> Any:
        os.kill(os.getpid(), signal.SIGUSR1)
        return super().keep(scores, alive, names)


class SavesBySignal(Callback):
    """As a batch system's plugin does."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.before: Any = None

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        def save(number: int, frame: Any) -> None:
            if not self.path.exists():
                trainer.save_checkpoint(self.path)

        self.before = signal.signal(signal.SIGUSR1, save)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        signal.signal(signal.SIGUSR1, self.before)


def by_signal(folder: Path, strategy: str) -> tuple[int, bool, Fitted]:
    """Of a checkpoint that a signal asked for within the first event: its number of events, whether its weights are
    zero just where its masks are, and what a fit from there ends with."""
    path = folder / f"{strategy}-signal.ckpt"
    fit(folder, strategy, plan(Signals), SavesBySignal(path))
    saved = torch.load(path, weights_only=True)
    (state,) = [found for found in saved["callbacks"].values() if "tensors" in found]
    masks = {name: unpack(tensor["bits"], tensor["shape"]) for name, tensor in state["tensors"].items()}
    fits = all(torch.equal(saved["state_dict"][name] != 0, mask) for name, mask in masks.items())
    return state["events"], fits, fit(folder, strategy, plan(Signals), SavesBySignal(path), ckpt_path=path)


def checks() -> dict[str, Check]:
    found: dict[str, Check] = {}
    for strategy in STRATEGIES:
        found |= {f"{strategy} {n}": partial(decided, strategy=strategy, make=make) for n, make in DECIDED.items()}
        found |= {f"{strategy} {n}": partial(refused, strategy=strategy, make=make) for n, make in REFUSED.items()}
        found[f"{strategy} exception"] = partial(after_an_exception, strategy=strategy)
        found[f"{strategy} signal"] = partial(by_signal, strategy=strategy)
    return found
