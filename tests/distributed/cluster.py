"""What batch systems do to a run on two ranks: it is put back into the queue by a signal, and a rank is killed."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from lightning.pytorch.plugins.environments import SLURMEnvironment
from torch import Tensor

from lightning_prune import PruningCallback
from lightning_prune.targets.select import Target
from tests.distributed import models, workers_sharded
from tests.distributed.launch import RANKS, rank
from tests.distributed.models import Fitted, Mlp
from tests.distributed.workers_sharded import Sharded

JOB = "4711"


class Interrupted:
    """Scores by magnitude, and sends its process signals within chosen events; it is tried out before the first one."""

    def __init__(self, signals: dict[int, int] | None = None) -> None:
        self._signals = signals or {}
        self.events = -1

    def __call__(self, targets: Sequence[Target]) -> list[Tensor]:
        self.events += 1
        if self.events in self._signals:
            os.kill(os.getpid(), self._signals[self.events])
        return [t.parameter.detach().abs() for t in targets]


def plan(criterion: Interrupted | None = None) -> PruningCallback:
    """Events at the starts of the second and third of four epochs."""
    scores = criterion or Interrupted()
    return PruningCallback(amount=0.3, epochs=[1, 2], scope="global", criterion=scores, verbose=False)


class Saves(Callback):
    """Saves where the first event was, after it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        if trainer.current_epoch == 1:
            trainer.save_checkpoint(self.path)


class IsTold(Callback):
    """Gets the signal of the batch system after the last batch of the second epoch."""

    def on_train_batch_end(self, trainer: Any, *args: Any) -> None:
        if trainer.global_step == 8:
            os.kill(os.getpid(), signal.SIGUSR1)


def queued(root: Path, *callbacks: Callback, **kwargs: Any) -> Fitted:
    """A fit of a SLURM job, which goes on by itself where a signal had it saved."""
    return models.fit(root, Mlp(RANKS, adam=True), *callbacks, ranks=RANKS, plugins=[SLURMEnvironment()], **kwargs)


def put_back(folder: Path) -> dict[str, Any]:
    """Jobs that are told to go, within their first event and after a batch, and those that take their places."""
    commands = folder / "bin"
    commands.mkdir(exist_ok=True)
    if rank() == 0:
        (commands / "scontrol").write_text(f'#!/bin/sh\necho "$@" >> {folder}/asked\n')
        (commands / "scontrol").chmod(0o755)
    task = {"NTASKS": RANKS, "NTASKS_PER_NODE": RANKS, "PROCID": rank(), "LOCALID": rank(), "NODEID": 0}
    job = {"JOB_ID": JOB, "JOB_NAME": "training", "NODELIST": "127.0.0.1", **task}
    os.environ.update({f"SLURM_{name}": str(value) for name, value in job.items()})
    os.environ["PATH"] = f"{commands}:{os.environ['PATH']}"
    path, later = folder / "by-hand.ckpt", Interrupted()
    found = {
        "straight": queued(folder, plan(), Saves(path)),
        "by hand": queued(folder, plan(), ckpt_path=path),
        "within": queued(folder / "within", plan(Interrupted({1: signal.SIGUSR1}))),
        "within, rest": queued(folder / "within", plan(later)),
        "after": queued(folder / "after", plan(), IsTold()),
        "after, rest": queued(folder / "after", plan()),
        "events": later.events,
    }
    for name in job:
        del os.environ[f"SLURM_{name}"]
    return found


def killed(folder: Path) -> None:
    """Of a sharded model the second rank is killed within its second event."""
    keep = ModelCheckpoint(folder, filename="{epoch}", save_top_k=-1)
    pruning, model = plan(Interrupted({2: signal.SIGKILL} if rank() == 1 else {})), Sharded(RANKS, adam=True)
    try:
        workers_sharded.fit(folder, model, pruning, keep, distributed_checkpoint=False, enable_checkpointing=True)
    except Exception as error:
        torch.save((type(error).__name__, [type(module).__name__ for module in model.modules()]), folder / "left.pt")
        raise


if __name__ == "__main__":
    torch.set_num_threads(1)
    given = Path(sys.argv[1])
    torch.save(put_back(given), given / f"put-back-{rank()}.pt")
    killed(given)
