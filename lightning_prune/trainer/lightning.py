"""The classes of Lightning, of both packages that it comes in: the one place that knows about the two.

``lightning.pytorch`` and ``pytorch_lightning`` have the same classes twice, and none is a subclass of its twin. Whoever
asks whether something is a class of Lightning asks here. Nothing is imported for it: an object of a class can only be
there if somebody imported its package.
"""

from __future__ import annotations

import inspect
import sys
from typing import TYPE_CHECKING, Any

from torch.optim.lr_scheduler import ReduceLROnPlateau

if TYPE_CHECKING:
    from lightning.pytorch import Callback, LightningModule, Trainer
    from lightning.pytorch.callbacks import EarlyStopping, GradientAccumulationScheduler, ModelCheckpoint
    from lightning.pytorch.loggers import Logger
    from lightning.pytorch.strategies import Strategy
    from typing_extensions import TypeIs

_PACKAGES = ("lightning.pytorch", "pytorch_lightning")


def classes_of(path: str) -> tuple[type, ...]:
    """The classes of a name in all packages of Lightning that are imported.

    Args:
        path: Where a package has it, such as ``"callbacks.ModelCheckpoint"``.

    Returns:
        None, one or two; none where the installed version does not have it.

    Example:
        >>> import lightning.pytorch
        >>> lightning.pytorch.callbacks.ModelCheckpoint in classes_of("callbacks.ModelCheckpoint")
        True
        >>> classes_of("callbacks.NoSuchCallback")
        ()
    """
    room, _, name = path.rpartition(".")
    modules = [sys.modules.get(f"{package}.{room}" if room else package) for package in _PACKAGES]
    found = [getattr(module, name, None) for module in modules]
    return tuple(cls for cls in found if isinstance(cls, type))


def is_a(thing: object, *paths: str) -> bool:
    """Whether something is an object of a class of Lightning, or of a subclass.

    Args:
        thing: Anything.
        paths: Names of classes as in :func:`classes_of`; one has to fit.

    Example:
        >>> from lightning.pytorch.callbacks import EarlyStopping
        >>> is_a(EarlyStopping("loss"), "callbacks.ModelCheckpoint", "callbacks.EarlyStopping")
        True
    """
    return any(isinstance(thing, classes_of(path)) for path in paths)


def callback_base() -> type[Callback]:
    """What callbacks of this package are subclasses of: the ``Callback`` of each package that is imported.

    ``LightningCLI`` of a package takes only subclasses of its own ``Callback`` from a file.
    """
    bases = classes_of("Callback")
    return bases[0] if len(bases) == 1 else type("Callback", bases, {"__doc__": "A callback of both packages."})


def callbacks_of(trainer: Trainer) -> list[Callback]:
    """All callbacks of a Trainer, in the order in which it calls them."""
    return list(trainer.callbacks)  # type: ignore[attr-defined]


def is_checkpoint(callback: object) -> TypeIs[ModelCheckpoint]:
    """Whether it is a ``ModelCheckpoint``."""
    return is_a(callback, "callbacks.ModelCheckpoint")


def is_early_stopping(callback: object) -> TypeIs[EarlyStopping]:
    """Whether it is an ``EarlyStopping``."""
    return is_a(callback, "callbacks.EarlyStopping")


def is_accumulation_scheduler(callback: object) -> TypeIs[GradientAccumulationScheduler]:
    """Whether it is a ``GradientAccumulationScheduler``."""
    return is_a(callback, "callbacks.GradientAccumulationScheduler")


def is_module(thing: object) -> TypeIs[LightningModule]:
    """Whether it is a ``LightningModule``."""
    return is_a(thing, "LightningModule")


def is_logger(thing: object) -> TypeIs[Logger]:
    """Whether it is a logger."""
    return is_a(thing, "loggers.Logger")


def plateaus_of(trainer: Trainer) -> list[tuple[str, ReduceLROnPlateau]]:
    """The learning-rate schedulers of a fit that wait for a plateau, with what they monitor."""
    configs: list[Any] = trainer.lr_scheduler_configs
    return [(str(c.monitor), c.scheduler) for c in configs if isinstance(c.scheduler, ReduceLROnPlateau)]


def trusting(trainer: Trainer) -> dict[str, bool]:
    """Arguments for ``trainer.fit`` by which a checkpoint that is trusted may hold any object.

    Lightning before 2.6 knows no ``weights_only`` and reads all of them so.
    """
    known = "weights_only" in inspect.signature(trainer.fit).parameters
    return {"weights_only": False} if known else {}


def spawns(strategy: Strategy) -> bool:
    """Whether a strategy trains in processes that it spawns or forks, which give no objects back.

    Args:
        strategy: That of the Trainer.
    """
    launcher = type(strategy.launcher)
    return any(cls.__module__.endswith(".strategies.launchers.multiprocessing") for cls in launcher.__mro__)
