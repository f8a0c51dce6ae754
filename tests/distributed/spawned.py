"""Fits in child processes that the Trainer starts itself; what is saved is what the parent has afterwards."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch

from lightning_prune import Linear, PruningCallback
from tests.distributed.models import Mlp, fit

STRATEGIES = ("ddp_fork", "ddp_spawn")


def main(folder: Path) -> None:
    """One fit for each strategy, and a second one that goes on pruning the model of the first."""
    torch.set_num_threads(1)
    results: dict[str, Any] = {}
    for strategy in STRATEGIES:
        callback = PruningCallback(schedule=Linear(final=0.6, begin=0, end=2), scope="global", verbose=False)
        model = Mlp(ranks=2)
        results[strategy] = fit(folder, model, callback, ranks=2, strategy=strategy)
    more = PruningCallback(amount=0.5, epochs=[1], scope="global", keep_zeros=True, verbose=False)
    results["again"] = fit(folder, model, more, ranks=2, strategy="ddp_fork", epochs=2)
    torch.save(results, folder / "spawned.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
