"""Modules, Trainers and data for each network of an experiment: made anew, or taken as given."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningDataModule, LightningModule, Trainer, seed_everything
from torch import nn
from torch.utils.data import DataLoader

from lightning_prune.callback import PruningCallback
from lightning_prune.fit.rewind import reinitialize, require_reinitializable
from lightning_prune.trainer.lightning import classes_of, is_a, is_module, spawns, trusting

MakeModule = Callable[[], LightningModule] | LightningModule
MakeTrainer = Callable[[int], Trainer] | Mapping[str, Any]


@dataclass(frozen=True)
class Data:
    """Data as for ``Trainer.fit`` and ``Trainer.test``, or functions that make them.

    Attributes:
        datamodule: A datamodule.
        train_dataloaders: Training data.
        val_dataloaders: Validation data.
        test_dataloaders: Test data.

    Generators that given loaders and samplers draw from start for each network as they were in the beginning, so that
    a network sees the same batches whether others were trained before it in this process or not.
    """

    datamodule: LightningDataModule | Callable[[], LightningDataModule] | None
    train_dataloaders: Any
    val_dataloaders: Any
    test_dataloaders: Any
    _started: list[tuple[torch.Generator, torch.Tensor]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Notes where generators start."""
        given = [self.train_dataloaders, self.val_dataloaders, self.test_dataloaders]
        started = [(generator, generator.get_state()) for generator in _generators(given)]
        object.__setattr__(self, "_started", started)

    def made(self) -> Data:
        """With the data that functions make, and generators at their start."""
        for generator, state in self._started:
            generator.set_state(state)
        values = (getattr(self, f.name) for f in fields(self) if f.init)
        return Data(*(value() if _makes_data(value) else value for value in values))

    def fit(self, trainer: Trainer, module: LightningModule, checkpoint: Path | None) -> None:
        """Trains, from a checkpoint on if there is one."""
        loaders = None if self.datamodule is not None else self.train_dataloaders
        fit: Callable[..., None] = trainer.fit
        fit(module, loaders, self.val_dataloaders, self.datamodule, ckpt_path=checkpoint, **trusting(trainer))

    def test(self, trainer: Trainer, module: LightningModule) -> dict[str, float]:
        """Tests; all metrics of all loaders."""
        found = trainer.test(module, self.test_dataloaders, verbose=False, datamodule=self.datamodule)  # type: ignore[arg-type]
        return {name: float(value) for metrics in found for name, value in metrics.items()}


def make_module(source: MakeModule, seed: int, as_given: bool) -> LightningModule:
    """A module with the initial weights of a seed.

    Args:
        source: A function that makes one, or a module to copy.
        seed: Seed of the weights.
        as_given: Whether the copy keeps its weights.

    Raises:
        TypeError: If that is no LightningModule, or a copy cannot draw new weights.
        ValueError: If it has no ``test_step``.
    """
    seed_everything(seed, workers=True, verbose=False)
    module = copy.deepcopy(source) if is_module(source) else source()
    if not is_module(module):
        raise TypeError(f"module should make a LightningModule, it made a {type(module).__name__}")
    step = getattr(type(module), "test_step", None)
    if any(step is getattr(cls, "test_step", None) for cls in classes_of("LightningModule")):
        raise ValueError(f"{type(module).__name__} has no test_step: results are what it logs")
    if is_module(source) and not as_given:
        require_reinitializable(module)
        reinitialize(module, seed)
    return module


def make_trainer(source: MakeTrainer, level: int, folder: Path) -> Trainer:
    """A Trainer for a level.

    Args:
        source: A function of the level, or keyword arguments, of whose callbacks copies are taken.
        level: The level.
        folder: Its ``default_root_dir`` if keyword arguments name no other.

    Raises:
        ValueError: If it was used before, or its strategy trains in processes that give nothing back.
    """
    if callable(source):
        trainer = source(level)
    else:  # what a callback has seen of one network, such as the best score, is nothing to the next one
        fresh = {"callbacks": copy.deepcopy(source.get("callbacks"))}
        trainer = Trainer(**{"default_root_dir": folder, **source, **fresh})
    own = [callback for callback in trainer.callbacks if isinstance(callback, PruningCallback)]  # type: ignore[attr-defined]
    if own:
        raise ValueError("the Trainer has a PruningCallback of its own: leave it out, LotteryTicket prunes")
    if trainer.state.fn is not None:
        raise ValueError(f"trainer({level}) gave a Trainer that was used before: make a fresh one each time")
    if spawns(trainer.strategy):
        raise ValueError("processes that are spawned or forked give no results back: use strategy='ddp'")
    return trainer


def require_other_weights(one: nn.Module, other: nn.Module) -> None:
    """Raises ValueError if two modules made under different seeds have the same weights."""
    pairs = list(zip(one.parameters(), other.parameters(), strict=True))
    if pairs and all(torch.equal(a, b) for a, b in pairs):
        raise ValueError(
            "the control 'reinit' needs other initial weights, but module() gives the same ones under another seed: "
            "let it draw them from torch's global random state"
        )


def _makes_data(value: Any) -> bool:
    return callable(value) and not (isinstance(value, DataLoader) or is_a(value, "LightningDataModule"))


def _generators(data: Any) -> Iterator[torch.Generator]:
    """The random generators of the loaders in some data, and those of their samplers."""
    if isinstance(data, (list, tuple, Mapping)):
        for part in data.values() if isinstance(data, Mapping) else data:
            yield from _generators(part)
    elif isinstance(data, DataLoader):
        for holder in (data, data.sampler, data.batch_sampler):
            generator = getattr(holder, "generator", None)
            if isinstance(generator, torch.Generator):
                yield generator
