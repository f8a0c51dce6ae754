"""The pruning of one model during one fit: its targets, masks and position in the plan. Knows no Trainer."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lightning_prune.checkpoint import pack, unpack
from lightning_prune.events import Pruner
from lightning_prune.plan import Demand
from lightning_prune.prune import attribute
from lightning_prune.prune.attribute import Layout
from lightning_prune.prune.container import impose
from lightning_prune.prune.functional import remove
from lightning_prune.prune.methods import CustomFromMask
from lightning_prune.targets import Target

STATE_VERSION = 1


@dataclass(frozen=True)
class PruningEvent:
    """What a pruning event did.

    Attributes:
        demand: What it was asked for.
        zeros: Masked weights after it, over all selected tensors.
        total: Selected weights.
        before: Masked weights before it.
        tensors: Masked weights after it, by the name of the tensor.
    """

    demand: Demand
    zeros: int
    total: int
    before: int
    tensors: dict[str, int]

    @property
    def sparsity(self) -> float:
        """Share of zeros among the selected weights after the event."""
        return self.zeros / self.total

    @property
    def sparser(self) -> bool:
        """Whether the event masked anything."""
        return self.zeros > self.before


class PruningRun:
    """Masks of one model and where its plan stands.

    Args:
        targets: The tensors that are pruned.
        pruner: Computes the masks of an event.
        seed: Seed of all random choices; each event has its own stream from it.
        layout: ``KEPT``, or ``IN_PLACE`` where somebody keeps the zeros.
    """

    def __init__(self, targets: Sequence[Target], pruner: Pruner, seed: int, layout: Layout = Layout.KEPT) -> None:
        self.targets = list(targets)
        self.pruner = pruner
        self.seed = seed
        self.layout = layout
        self.events = 0
        self.done: int | None = None
        self._origin = str(pruner.recipe)

    @property
    def total(self) -> int:
        """Number of selected weights."""
        return sum(t.parameter.numel() for t in self.targets)

    @property
    def zeros(self) -> int:
        """Number of masked weights."""
        return sum(t.zeros for t in self.targets)

    @property
    def sparsity(self) -> float:
        """Share of masked weights among the selected ones."""
        return self.zeros / self.total

    def prune(self, demand: Demand) -> PruningEvent:
        """Carries out one event; a refused one changes nothing.

        Args:
            demand: What is asked for.

        Returns:
            What was done.
        """
        before = self.zeros
        with _own_randomness(f"{self.seed}:{self.events}", self.targets):
            masks = self.pruner.masks(self.targets, demand)
        for target, mask in zip(self.targets, masks, strict=True):
            if mask is not None and mask is not target.alive:
                self._impose(target, mask)
        self.events += 1
        tensors = {t.name: t.zeros for t in self.targets}
        return PruningEvent(demand, sum(tensors.values()), self.total, before, tensors)

    def keep_zeros(self) -> None:
        """Takes the zeros that the tensors already have as their masks."""
        for target in self.targets:
            nonzero = target.parameter.detach() != 0
            if not bool(nonzero.all()):
                self._impose(target, nonzero if target.alive is None else nonzero & target.alive)

    def _impose(self, target: Target, mask: Tensor) -> None:
        for module, name in target.owners:
            impose(CustomFromMask(None, self._origin), module, name, mask, self.layout)

    def close(self) -> None:
        """Makes the pruning permanent: plain parameters with zeros."""
        for target in self.targets:
            for module, name in target.owners:
                if attribute.layout_of(module, name) is not None:
                    remove(module, name)

    def state_dict(self) -> dict[str, Any]:
        """All that resuming needs, as tensors and plain types."""
        return {
            "version": STATE_VERSION,
            "seed": self.seed,
            "events": self.events,
            "done": self.done,
            "masks": {t.name: _mask_state(t) for t in self.targets if t.alive is not None},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Puts the masks and the position of :meth:`state_dict` back.

        Raises:
            ValueError: If the state is of other tensors than the ones selected here.
        """
        found = {t.name: t for t in self.targets}
        for name, saved in state["masks"].items():
            if name not in found or list(found[name].parameter.shape) != list(saved["shape"]):
                here = f"of shape {tuple(found[name].parameter.shape)}" if name in found else "not selected"
                raise ValueError(
                    f"the pruning state is that of another model or selection: it has a mask of shape "
                    f"{tuple(saved['shape'])} for '{name}', which is {here} here; selected are {', '.join(found)}"
                )
        self.seed, self.events, self.done = state["seed"], state["events"], state["done"]
        for name, saved in state["masks"].items():
            self._restore(found[name], saved)

    def _restore(self, target: Target, saved: Mapping[str, Any]) -> None:
        parameter = target.parameter
        mask = torch.empty_like(parameter, dtype=torch.bool, requires_grad=False)
        self._impose(target, mask.copy_(unpack(saved["bits"], saved["shape"])))
        if "hidden" in saved:
            with torch.no_grad():
                parameter[~mask] = saved["hidden"].to(parameter)


def _mask_state(target: Target) -> dict[str, Any]:
    """A mask as bits, and the values under it where an optimizer or a user made them non-zero."""
    mask, parameter = target.alive, target.parameter.detach()
    assert mask is not None
    state: dict[str, Any] = {"shape": list(mask.shape), "bits": pack(mask)}
    if attribute.hidden_values(parameter, mask):
        state["hidden"] = parameter[~mask].cpu()
    return state


@contextmanager
def _own_randomness(key: str, targets: Sequence[Target]) -> Iterator[None]:
    """Seeds torch's global generators for an event and gives them their states back afterwards."""
    devices = sorted({t.parameter.device.index for t in targets if t.parameter.device.type == "cuda"})
    seed = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "little") >> 1
    with torch.random.fork_rng(devices=devices):
        torch.default_generator.manual_seed(seed)
        for index in devices:
            torch.cuda.default_generators[index].manual_seed(seed)
        yield
