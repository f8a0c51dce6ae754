"""Masks of a level: from the trained network of the level before, shuffled, and as files."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor, nn

from lightning_prune.checkpoint import pack, unpack
from lightning_prune.fit.erasing import erase
from lightning_prune.fit.messages import without_effect
from lightning_prune.fit.run import PruningRun
from lightning_prune.prune.warning import PruningWarning
from lightning_prune.pruner.pruner import Pruner
from lightning_prune.schedules.plan import Demand
from lightning_prune.targets.patterns import Patterns
from lightning_prune.targets.select import select

State = dict[str, Any]


@dataclass(frozen=True)
class Masking:
    """How networks are pruned from level to level.

    Attributes:
        pruner: Method, budget and overrides.
        amount: What each level prunes of what is left.
        parameters: What is pruned.
        exclude: What is not.
    """

    pruner: Pruner
    amount: int | float
    parameters: Patterns = None
    exclude: Patterns = None

    def run(self, model: nn.Module, seed: int) -> PruningRun:
        """The pruning of one network, with nothing masked yet; refuses what cannot be pruned so."""
        targets = select(model, self.parameters, self.exclude)
        self.pruner.check(targets)
        return PruningRun(targets, self.pruner, seed)

    def further(self, model: nn.Module, state: State, seed: int) -> State:
        """The masks of the next level.

        Args:
            model: The trained network; its zeros become those of the next level.
            state: The masks it was trained with.
            seed: Seed of random methods.
        """
        run = self.run(model, seed)
        run.start()
        run.load_state_dict(state)
        event = run.prune(Demand(run.events + 1, amount=self.amount))
        if message := without_effect(event, "level"):
            rank_zero_warn(message, category=PruningWarning)
        erase(run.targets, [])
        pruned = run.state_dict()
        run.close()
        return pruned

    def shuffled(self, run: PruningRun, state: State) -> State:
        """As many zeros in each tensor as in ``state``, at random places; of structured methods random channels."""
        tensors = {}
        for target in run.targets:
            saved = dict(state["tensors"][target.name])
            if "bits" in saved:
                dim = self.pruner.granularity.dim(target)
                mask = unpack(saved["bits"], saved["shape"])
                saved["bits"] = pack(_permuted(mask, dim, _generator(f"{run.seed}:{state['events']}:{target.name}")))
            tensors[target.name] = saved
        return {**state, "tensors": tensors}


def read_mask(path: str | os.PathLike[str]) -> dict[str, Tensor]:
    """The masks in a level's ``mask.pt``.

    Args:
        path: The file.

    Returns:
        Boolean masks (True = kept) by the names of the parameters; of a level without pruning they are all True.
    """
    return masks_of(torch.load(path, weights_only=True))


def masks_of(state: State) -> dict[str, Tensor]:
    """Boolean masks from a state of pruning."""
    return {name: _mask(saved) for name, saved in state["tensors"].items()}


def remaining(state: State) -> tuple[int, int]:
    """Number of weights that a state of pruning keeps, and of all."""
    masks = masks_of(state).values()
    return sum(int(mask.count_nonzero()) for mask in masks), sum(mask.numel() for mask in masks)


def _mask(saved: Mapping[str, Any]) -> Tensor:
    shape = saved["shape"]
    return unpack(saved["bits"], shape) if "bits" in saved else torch.ones(shape, dtype=torch.bool)


def _permuted(mask: Tensor, dim: int | None, generator: torch.Generator) -> Tensor:
    if dim is not None:
        return mask.index_select(dim, torch.randperm(mask.shape[dim], generator=generator))
    return mask.reshape(-1)[torch.randperm(mask.numel(), generator=generator)].view(mask.shape)


def _generator(key: str) -> torch.Generator:
    return torch.Generator().manual_seed(number(key))


def number(key: str) -> int:
    """A 32-bit seed from words."""
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:4], "little")
