"""One fit: the run, its plan, and what a start, an event and an end bring with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn

from lightning_prune.distributed import require_same, require_same_masks, together
from lightning_prune.fit.enforcing import Enforcement
from lightning_prune.fit.erasing import averaged_models, erase
from lightning_prune.fit.messages import Announcer, unfinished
from lightning_prune.fit.rewind import Reinit, Rewind, Rewinder
from lightning_prune.fit.run import PruningEvent, PruningRun, refuse_other
from lightning_prune.prune.attribute import Layout
from lightning_prune.prune.sharded.tensors import is_sharded, reshard
from lightning_prune.pruner.pruner import Pruner
from lightning_prune.schedules.plan import Demand, Plan
from lightning_prune.targets.select import Target, describe_targets
from lightning_prune.trainer.limits import Limits, bound, limits_of, require_room


class Session:
    """The pruning of one model in one fit.

    Args:
        run: Selection and masks.
        plan: When something is due; one in fractions is bound to the run's number of steps at the start.
        words: How and when is pruned, in words that are the same in every process.
        rewind: Where to go back to after events.
        epochs: ``max_epochs`` of the fit, before other callbacks added epochs of their own.
        say: Tells the user what happens.
    """

    def __init__(
        self,
        run: PruningRun,
        plan: Plan,
        words: str,
        rewind: Rewind | Reinit | None,
        epochs: int | None,
        say: Announcer,
    ) -> None:
        if run.sharded and rewind is not None:
            raise ValueError(f"{rewind} does not work with sharded parameters: use 'ddp', or leave rewind= out")
        self.run = run
        self.plan = plan
        self.words = words
        self._rewind = rewind
        self._say = say
        self._epochs = epochs
        self._rewinder = Rewinder(rewind)
        self._enforcement = Enforcement(run)

    def check(self, trainer: Trainer, pl_module: LightningModule, allow_unfinished: bool) -> None:
        """Refuses what cannot work, before anything is changed."""
        if trainer.world_size > 1:
            require_same([self.words, *describe_targets([*self.run.targets, *self.run.frozen])], "what is pruned")
        self.run.seed = trainer.strategy.broadcast(self.run.seed)
        with together():
            self._rewinder.check(pl_module)
            if not allow_unfinished:
                require_room(self.plan, Limits(self._epochs, trainer.max_steps))

    def start(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        saved: Mapping[str, Any] | None,
        keep_zeros: bool,
        allow_unfinished: bool,
    ) -> None:
        """Puts masks and position back that a checkpoint or an earlier fit left; all weights are there now."""
        with together():
            self._bind(limits_of(trainer, self._epochs), allow_unfinished)
            if saved:
                refuse_other(saved["words"], self.words)
        reshard(pl_module)
        self._enforcement.start(trainer.optimizers)
        self.run.start(keep_zeros, take=not saved)
        if saved and "again" in saved:
            self._say.replaced(self.run.keep_masks_of(saved))
        elif saved:
            self.load_state_dict(saved)
        self._enforcement.write_zeros()
        if trainer.world_size > 1:
            require_same_masks(self.run.masks)
        self._say.start(pl_module, self.run, self.words, trainer.optimizers)

    def _bind(self, limits: Limits, allow_unfinished: bool) -> None:
        self.plan = bound(self.plan, limits)
        self.plan.check(limits.of(self.plan.unit))
        if not allow_unfinished:
            require_room(self.plan, limits)

    def is_past(self, trainer: Trainer, time: int) -> bool:
        """Whether nothing can be due: the time was there before, or another callback made the fit longer."""
        longer = self._epochs is not None and 0 <= self._epochs <= trainer.current_epoch
        return longer or (self.run.done is not None and time <= self.run.done)

    def watch(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Takes the snapshot to go back to, when training is there."""
        self._rewinder.watch(trainer.current_epoch, trainer.global_step, *_training_state(trainer, pl_module))

    def prune(self, pl_module: LightningModule, time: int, demands: Sequence[Demand]) -> list[PruningEvent]:
        """Meets what is demanded at a time, which is done then; see also :func:`settle`."""
        self.run.done = max(time, self.run.done or 0)
        if demands:
            reshard(pl_module)
        return [self.run.prune(demand) for demand in demands]

    def go_back(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Goes back to the snapshot, if that is asked for."""
        if not self._rewinder.go_back(*_training_state(trainer, pl_module), self.run.events):
            self._say.not_rewound(self._rewind, trainer.current_epoch)

    def epoch_end(self) -> None:
        """Tells of weights that training moved under their masks."""
        self._say.disturbed(self.run.disturbed)

    def after_backward(self) -> None:
        """Lets no gradient move a zero that is kept in place."""
        self._enforcement.after_backward()

    def close(self, pl_module: LightningModule, alone: bool) -> dict[str, Any] | None:
        """Leaves a plain model, and says what was reached.

        Args:
            pl_module: The model.
            alone: Other ranks may not be here to exchange anything.

        Returns:
            The state for a next fit, ``None`` if it cannot be gathered.
        """
        silent = alone and self.run.sharded
        state = None if silent else self.state_dict()
        shortfall = unfinished(self.run, self.plan)
        self._enforcement.stop()
        reshard(pl_module)
        self.run.close()
        if self.run.started and not silent:
            self._say.end(pl_module, self.run.targets, self.plan, shortfall)
        return state

    def state_dict(self) -> dict[str, Any]:
        """All that resuming needs."""
        return {**self.run.state_dict(), "words": self.words, "rewind": self._rewinder.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Puts masks, position and snapshot back."""
        self.run.load_state_dict(state)
        self._rewinder.load_state_dict(state["rewind"])


def settle(
    trainer: Trainer,
    pl_module: LightningModule,
    sessions: Sequence[Session],
    events: Sequence[Sequence[PruningEvent]],
) -> None:
    """Goes back and erases after events of several prunings of one model.

    Args:
        trainer: The Trainer that fits.
        pl_module: The model.
        sessions: All that is at work on it; a snapshot brings back values under all their masks.
        events: What was done for each of them.
    """
    sparser = [s for s, done in zip(sessions, events, strict=True) if any(event.sparser for event in done)]
    for session in sparser:
        session.go_back(trainer, pl_module)
    if sparser:
        targets = [target for session in sessions for target in session.run.targets]
        erase(targets, trainer.optimizers, averaged_models(trainer.callbacks))  # type: ignore[attr-defined]


def new_run(
    targets: Sequence[Target],
    frozen: Sequence[Target],
    join: bool,
    pruner: Pruner,
    in_place: bool,
    seed: int | None,
    trainer: Trainer | None,
) -> PruningRun:
    """The run of a selection, checked; nothing is changed.

    Args:
        targets: The tensors that are pruned.
        frozen: Those that would be if they were trainable.
        join: Whether they may join later.
        pruner: Computes masks.
        in_place: Whether zeros are kept in the parameters; those of split tensors always are.
        seed: Seed of random choices; torch's initial one by default.
        trainer: The Trainer that fits, ``None`` to look ahead only.

    Raises:
        ValueError: If a tensor cannot be pruned in this way.
    """
    eventual = [*targets, *frozen]
    sharded = any(is_sharded(t.parameter) for t in eventual)
    pruned = eventual if join else targets
    _refuse_sparse_gradients([t for t in pruned if join or t.parameter.requires_grad])
    pruner.check(pruned)
    seed = torch.initial_seed() % 2**63 if seed is None else seed
    guard = require_same_masks if trainer is not None and trainer.world_size > 1 else None
    layout = Layout.IN_PLACE if sharded or in_place else Layout.KEPT
    return PruningRun(targets, pruner, seed, layout, frozen, join, guard)


def _refuse_sparse_gradients(targets: Sequence[Target]) -> None:
    for target in targets:
        for module, _ in target.owners:
            if isinstance(module, (nn.Embedding, nn.EmbeddingBag)) and module.sparse:
                raise ValueError(
                    f"'{target.name}' belongs to {type(module).__name__}(sparse=True): a masked tensor has dense "
                    "gradients only; make it with sparse=False, or leave it out with exclude="
                )


def _training_state(trainer: Trainer, pl_module: LightningModule) -> tuple[LightningModule, list[Any], list[Any]]:
    """The model, its optimizers and its learning-rate schedulers."""
    return pl_module, trainer.optimizers, [config.scheduler for config in trainer.lr_scheduler_configs]
