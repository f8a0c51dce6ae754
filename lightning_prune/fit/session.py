"""One training: the run, its plan, and what a start, an event and an end bring with them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch.optim import Optimizer

from lightning_prune.distributed import of_rank_0, require_same, several_ranks, together
from lightning_prune.fit.enforcing import Enforcement
from lightning_prune.fit.erasing import erase
from lightning_prune.fit.gradients import Watcher, all_finite
from lightning_prune.fit.limits import Limits, bound, require_room
from lightning_prune.fit.messages import Announcer, unfinished
from lightning_prune.fit.regrowing import Regrowing
from lightning_prune.fit.resuming import Kept, Later, Saved, require_same_plan
from lightning_prune.fit.rewind import Rewinder
from lightning_prune.fit.run import PruningEvent
from lightning_prune.fit.scoring import Scoring
from lightning_prune.fit.settings import Settings
from lightning_prune.fit.training import Training
from lightning_prune.prune.sharded.tensors import reshard
from lightning_prune.schedules.plan import AmountPlan, Clock, Demand, Plan
from lightning_prune.targets.select import Target, describe_targets


class Session:
    """The pruning of one model in one training.

    Args:
        settings: What is pruned, how and when.
        training: The training that begins, before anything of it is there but the model.
        say: Tells the user what happens.
        ready: Called with an optimizer that is about to step without a closure, so that its gradients are there.

    Attributes:
        watchers: Those who want to see gradients.
        waits: Whether events wait for the gradients of the batch that begins, and happen before its step.
        postponed: What is demanded of an event that waits.
        run: Selection and masks.
        model: The model.
        plan: When something is due; one in fractions is bound to the number of steps at the start.

    Raises:
        ValueError: If the model or the training does not fit the settings; nothing is changed then.
    """

    def __init__(
        self,
        settings: Settings,
        training: Training,
        say: Announcer,
        ready: Callable[[Optimizer], None] | None = None,
    ) -> None:
        run = settings.run_of(training.model, alone=not several_ranks())
        self.settings = settings
        self._values = settings.values
        self.model = training.model
        self.watchers: list[Watcher] = []
        self.waits = not settings.by_weights and settings.criterion.needs not in ("nothing", "model")
        self.postponed: list[Demand] = []
        self.run = run
        if run.scorer is not None:
            self.watchers.append(
                Scoring(
                    run.scorer,
                    plan=lambda: self.plan,
                    done=lambda: run.done,
                    targets=lambda: run.ranked,
                    due=lambda: bool(self.postponed),
                )
            )
        self._regrowing = None if settings.regrow is None else Regrowing(run, settings.regrow)
        if self._regrowing is not None:
            self.watchers.append(self._regrowing)  # after the criterion, which sees gradients that are not masked
        self.plan = settings.plan
        self._say = say
        self._epochs = training.limits.of("epoch")
        self._rewinder = Rewinder(settings.rewind)
        self._enforcement = Enforcement(run, ready)
        self._shown: set[Target] = set()
        self._limits = training.limits

    def agree(self) -> None:
        """Gives every rank the seed of rank 0, and refuses what cannot work, or differs between ranks.

        Raises:
            RuntimeError: If ranks would prune different things.
            ValueError: If the training cannot finish the plan.
            TypeError: If the model cannot be initialized anew, which is asked for.
        """
        targets = [*self.run.targets, *self.run.frozen]
        require_same([str(self.settings), *describe_targets(targets)], "what is pruned")
        self.run.seed = of_rank_0(lambda: [self.run.seed])[0]
        with together():
            self._rewinder.check(self.model)
            if not self.settings.allow_unfinished:
                require_room(self.plan, self._limits)

    def start(self, training: Training, saved: Saved | None = None) -> None:
        """Begins to train; all weights are there now.

        Args:
            training: The training, with optimizers and known limits.
            saved: What a checkpoint or an earlier training of this model left.

        Raises:
            ValueError: If the plan cannot be carried out, or what was saved belongs to another one.
        """
        if isinstance(saved, Kept) and not saved.means_something(self.settings):
            saved = None
        with together():
            self._rewinder.check_optimizers(training.optimizers)
            self.plan = self._bound(training.limits)
            if saved is not None:
                require_same_plan(saved, self.settings)
            if self.run.scorer is not None:
                self.run.scorer.try_out(training.model, self.run.ranked)
        reshard(training.model)
        self._enforcement.start(training.optimizers)
        self.run.start(self.settings.keep_zeros, take=saved is None)
        if isinstance(saved, Kept):
            self.run.done = None
            self._say.replaced(self.run.keep_masks_of(saved.state))
        elif saved is not None:
            self.load_state_dict(saved.state)
        self._enforcement.write_zeros()
        self._say.untouched(self.run.untouched)
        self.run.require_same_masks()
        self._say.start(training.model, self.run, self.settings.describe(self.plan), training.optimizers)
        if isinstance(self.plan, AmountPlan) and self.plan.amount is not None:
            self._say.kept_back(self.plan.amount, self.run.pruner.kept_back(self.run.ranked, self.plan.amount))

    def _bound(self, limits: Limits) -> Plan:
        plan = bound(self.plan, limits)
        if self._regrowing is not None:
            self._regrowing.bind(limits)
        plan.check(limits.of(plan.unit))
        if not self.settings.allow_unfinished:
            require_room(plan, limits)
        return plan

    def is_due(self, training: Training, only: Clock | None = None) -> bool:
        """Whether this moment is one to ask the plan at: it was not there before, and is not past the last epoch.

        Args:
            training: The moment.
            only: Whether only plans that count in this unit are asked.
        """
        longer = self._epochs is not None and self._epochs <= training.epoch  # another callback made the fit longer
        waiting = bool(self.postponed)
        past = self.run.done is not None and training.time(self.plan.unit) <= self.run.done
        return only in (None, self.plan.unit) and not longer and not past and not waiting

    def demands(self, time: int) -> list[Demand]:
        """What the plan asks for at a time."""
        return self.plan.due(self.plan.start(time) if self.run.done is None else self.run.done, time)

    def watch(self, training: Training) -> None:
        """Takes the snapshot to go back to, when training is there."""
        self._rewinder.watch(training.epoch, training.step, training.model, training.optimizers, training.schedulers)

    def prune(self, training: Training, demands: Sequence[Demand]) -> list[PruningEvent]:
        """Meets what is demanded now, which is done as soon as it is met; see also :func:`settle`.

        Events that wait for gradients are met when those are there.
        """
        if self.waits and demands and not self.postponed and not self._at_random(training):
            self.postponed = list(demands)
            return []
        return self._meet(training, demands)

    def _at_random(self, training: Training) -> bool:
        """Whether events draw weights at random, since none was trained."""
        regrow = self.settings.regrow
        return regrow is not None and regrow.initial == "random" and training.step == 0

    def _meet(self, training: Training, demands: Sequence[Demand]) -> list[PruningEvent]:
        if demands:
            reshard(training.model)
            self._say.relayered(self.run.refresh(training.model))
        events = []
        for demand in demands:
            events.append(self.run.prune(demand, self._at_random(training)))
            self.run.done = max(demand.time, self.run.done or 0)
        if events and self.run.scorer is not None:
            self.run.scorer.forget()
        self.run.done = max(training.time(self.plan.unit), self.run.done or 0)
        return events

    def go_back(self, training: Training) -> None:
        """Goes back to the snapshot, if that is asked for."""
        state = (training.model, training.optimizers, training.schedulers)
        if not self._rewinder.go_back(*state, self.run.events):
            self._say.not_rewound(self.settings.rewind, training.epoch)

    def tell(self, events: Sequence[PruningEvent]) -> None:
        """Tells the user of events."""
        for event in events:
            self._say.pruned(event, self.plan.unit)

    def mend(self, thoroughly: bool = False) -> None:
        """Writes zeros again where somebody wrote others, before a forward.

        Args:
            thoroughly: Also over what torch has not counted, such as writes into ``parameter.data``.
        """
        (self._enforcement.write_zeros if thoroughly else self._enforcement.mend)()

    def after_backward(self) -> None:
        """Lets no gradient move a zero, where no hook on the gradient has done that."""
        self._enforcement.after_backward()

    def batch_start(self, training: Training) -> None:
        """Writes zeros again where somebody wrote others, and asks who wants to see the gradients of the next step.

        Args:
            training: The moment before the batch.
        """
        self._enforcement.mend()
        wanted = any(watcher.wants(training) for watcher in self.watchers)
        self._enforcement.watching = wanted or bool(self.postponed)

    @property
    def watching(self) -> bool:
        """Whether somebody waits for the gradients of the next step."""
        return self._enforcement.watching

    def show_gradients(self, training: Training, optimizer: Optimizer | None = None) -> list[PruningEvent]:
        """Shows gradients to those who watch, and carries out the event that waited for them.

        Args:
            training: The moment after the backward, before gradients are clipped and the step is made.
            optimizer: The one that is about to step; all by default. Others may have stepped in this batch before.

        Returns:
            What was done; see also :func:`settle`.
        """
        ranked = self.run.ranked
        held = ranked if optimizer is None else self._enforcement.held_by(optimizer)
        new = [t for t in ranked if t in held and t not in self._shown and t.parameter.grad is not None]
        if not self.watching or not new or not all_finite(new):
            return []
        for watcher in self.watchers:
            watcher.see(new, training)
        self._shown.update(new)
        if any(t.parameter.grad is not None and t not in self._shown for t in ranked):
            return []  # another optimizer's
        self._shown.clear()
        waited, self.postponed = self.postponed, []
        return self._meet(training, waited) if waited else []

    def mask_gradients(self, optimizer: Optimizer | None = None) -> None:
        """Masks gradients that were left as they are for those who watch.

        Args:
            optimizer: Only those of its parameters; of all by default.
        """
        self._enforcement.gradients_are_ready(optimizer)

    def batch_end(self) -> None:
        """Writes the zeros after steps that could not be followed."""
        self._enforcement.batch_end()

    def epoch_end(self) -> None:
        """Tells of weights that training moved under masks that only reading applies."""
        self._say.disturbed(self.run.disturbed)

    def close(self, alone: bool = False, failed: bool = False) -> Mapping[str, Any]:
        """Leaves a plain model, tensor by tensor, whatever fails, and says what was reached.

        Args:
            alone: Other ranks may not be here to exchange anything.
            failed: An error ended the training, which says enough.

        Returns:
            The state for a next training; one that has to be gathered is when it is first read, on all ranks.
        """
        silent = alone and self.run.sharded
        with contextlib.ExitStack() as after:
            if self.run.started and not silent and not failed:
                shortfall = None if self.settings.allow_unfinished else unfinished(self.run, self.plan)
                after.callback(self._say.end, self.model, self.run.counted, self.plan, shortfall)
            after.callback(self.run.close)
            after.callback(reshard, self.model)
            after.callback(self._enforcement.stop)
            if self.run.scorer is not None:
                after.callback(self.run.scorer.close)
            return self._state_later() if silent else self.state_dict()

    def state_dict(self) -> dict[str, Any]:
        """All that resuming needs, as tensors and plain types."""
        self._enforcement.write_zeros()
        state = {**self.run.state_dict(), "settings": self._values, "rewind": self._rewinder.state_dict()}
        scores = {} if self.run.scorer is None else self.run.scorer.state_dict(self.run.ranked)
        regrow = {} if self._regrowing is None else {"regrow": self._regrowing.state_dict()}
        return state | ({"scores": scores} if scores else {}) | regrow

    def _state_later(self) -> Later:
        """The state of now, of which each rank keeps its part until somebody reads it."""
        of_run, settings, rewinder = self.run.state_later(), self._values, self._rewinder
        regrown = None if self._regrowing is None else self._regrowing.state_later()
        return Later(
            lambda: {
                **of_run(),
                "settings": settings,
                "rewind": rewinder.state_dict(),
                **({} if regrown is None else {"regrow": regrown()}),
            }
        )

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Puts masks, position and snapshot back."""
        self.run.load_state_dict(state)
        self._rewinder.load_state_dict(state["rewind"])
        if self.run.scorer is not None:
            self.run.scorer.load_state_dict(state.get("scores", {}), self.run.ranked)
        if self._regrowing is not None:
            self._regrowing.load_state_dict(state["regrow"])
        self._enforcement.follow()


def settle(training: Training, sessions: Sequence[Session], events: Sequence[Sequence[PruningEvent]]) -> None:
    """Goes back and erases after events of several prunings of one model.

    Args:
        training: The training.
        sessions: All that is at work on the model; a snapshot brings back values under all their masks.
        events: What was done for each of them.
    """
    sparser = [s for s, done in zip(sessions, events, strict=True) if any(event.sparser for event in done)]
    for session in sparser:
        session.go_back(training)
    if sparser:
        targets = [target for session in sessions for target in session.run.targets]
        erase(targets, training.optimizers, training.averages())
        for session in sessions:
            session.mend()
