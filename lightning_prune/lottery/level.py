"""One network of an experiment: trained, tested and pruned for the level after it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything

from lightning_prune.fit.rewind import Rewind
from lightning_prune.lottery.arms import DENSE, TICKET
from lightning_prune.lottery.callbacks import HeldMask, LowestLoss, RewindPoint, StartFrom
from lightning_prune.lottery.files import Place
from lightning_prune.lottery.masks import Masking, State
from lightning_prune.lottery.sources import Data


@dataclass(frozen=True)
class Settings:
    """What all networks share.

    Attributes:
        masking: How they are pruned.
        rewind: Where tickets go back to.
        data: What they are trained and tested on.
        monitor: Name of the validation loss.
    """

    masking: Masking
    rewind: Rewind
    data: Data
    monitor: str | None


def train(place: Place, settings: Settings, module: LightningModule, trainer: Trainer) -> None:
    """Trains, tests and prunes one network, and writes its files.

    Args:
        place: Which network, and where its files are.
        settings: What all networks share.
        module: With initial weights.
        trainer: A fresh one.
    """
    held = HeldMask(settings.masking, _state(place), place.arm.shuffled, place.seed)
    lowest = LowestLoss(settings.monitor)
    trainer.callbacks[:0] = [*_start(place, settings.rewind), held, lowest]  # type: ignore[attr-defined]
    seed_everything(place.seed, workers=True, verbose=False)
    data = settings.data.made()
    data.fit(trainer, module, place.dense.rewind if place.arm.rewound else None)
    trainer.save_checkpoint(place.checkpoint, weights_only=place.arm is not DENSE)
    metrics = data.test(trainer, module)
    prunes = place.arm is DENSE or place.arm.own_mask
    pruned = settings.masking.further(module, held.kept, place.seed) if prunes else None
    if trainer.is_global_zero:
        place.finish(lowest.step, metrics, held.kept, pruned)
    trainer.strategy.barrier()


def _state(place: Place) -> State | None:
    """The masks that a network gets, ``None`` for a dense one."""
    if place.arm is DENSE:
        return None
    state: State = torch.load(place.before(place.arm if place.arm.own_mask else TICKET).pruned, weights_only=True)
    return state


def _start(place: Place, rewind: Rewind) -> list[Callback]:
    if place.arm is DENSE:
        return [RewindPoint(rewind, place.rewind)]
    if not place.arm.trained:
        return []
    weights = _read(place.before(place.arm))["state_dict"]
    return [StartFrom(weights, None if place.arm.rewound else _last_rates(place.dense))]


def _last_rates(dense: Place) -> list[list[float]]:
    return [[float(group["lr"]) for group in state["param_groups"]] for state in _read(dense)["optimizer_states"]]


def _read(place: Place) -> dict[str, Any]:
    checkpoint: dict[str, Any] = torch.load(place.checkpoint, map_location="cpu", weights_only=False)
    return checkpoint
