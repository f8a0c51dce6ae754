"""PruningCallback: prunes a model while a Trainer fits it."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_warn
from torch import nn

from lightning_prune.distributed import of_rank_0, require_strategy, together
from lightning_prune.fit.messages import Announcer
from lightning_prune.fit.preview import Preview, play
from lightning_prune.fit.rewind import Reinit, Rewind
from lightning_prune.fit.run import PruningEvent, PruningRun, refuse_overlap
from lightning_prune.fit.session import Session, new_run, settle
from lightning_prune.prune.arguments import instance_of, one_of
from lightning_prune.pruner.budgets import Budget, Scope, as_budget
from lightning_prune.pruner.method import Method, make_recipe
from lightning_prune.pruner.pruner import Pruner
from lightning_prune.schedules import Schedule
from lightning_prune.schedules.plan import Clock, Demand, Times, make_plan
from lightning_prune.targets.patterns import Patterns, as_patterns, describe_patterns
from lightning_prune.targets.select import select_trainable
from lightning_prune.trainer.logs import Running, SparsityLog
from lightning_prune.trainer.monitors import FreshScores, restart


class PruningCallback(Callback):
    """Prunes a model at chosen epochs or steps of ``Trainer.fit``.

    An epoch event happens at the start of that training epoch, a step event before the first batch that starts at or
    after that ``global_step``; both counted as the Trainer counts them, from 0. During the fit parameters keep their
    names, order and identity, masked weights read as zero and get no gradient. When the fit ends, in whatever way,
    the model is a plain one with zeros where it was pruned. Checkpoints hold plain names and zeros at any time, and
    in the callback's own state what resuming needs.

    Args:
        method: ``"l1_unstructured"``, ``"random_unstructured"``, ``"ln_structured"``, ``"random_structured"``, a
            class of pruning methods (of :mod:`lightning_prune.prune` or ``torch.nn.utils.prune``) or its import path,
            or a ``functools.partial`` of one.
        amount: What each event prunes: a fraction in [0, 1] of the units (weights, or channels of structured methods)
            that are still unpruned, or a count of them; of each tensor, or of all together with ``scope="global"``.
            0.5 by default, unless a schedule is given.
        epochs: Epochs of the events, or a predicate on the epoch; every epoch by default.
        steps: Optimizer steps of the events, or a predicate on the step, instead of epochs.
        schedule: Instead of amounts and times: the target share of zeros among all weights that are selected when the
            fit starts, as a function of time.
        scope: ``"local"``: every tensor alike; ``"global"``: all tensors in one ranking; ``"erk"``: by their shapes; or
            a :class:`~lightning_prune.Budget`, which says more.
        n: Norm of ``"ln_structured"``: a positive number, ``inf``, ``-inf``, ``"fro"`` or ``"nuc"``.
        dim: Channels of structured methods: ``"out"`` or ``"in"`` (the right axis of Linear, Conv, ConvTranspose and
            Embedding layers), or a dimension.
        method_kwargs: More arguments of the method.
        parameters: What to prune: names, globs on names, modules or their names, compiled regular expressions, module
            types, (module, name) pairs, predicates ``f(name, parameter)``, or several of these. By default every
            trainable parameter of two or more dimensions, without embeddings, norms and biases.
        exclude: What not to prune, chosen like ``parameters``.
        rewind: Where to go back to after each event: ``Rewind(epoch=0)``, ``Rewind(step=500)``; or ``Reinit(seed)`` for
            new initial values. Masks stay. Nowhere by default.
        seed: Seed of random methods; by default torch's initial seed, so that of ``seed_everything``.
        keep_zeros: Take the zeros that the selected weights have when training starts as pruned: they stay zero, and
            count for the plan. Without ``amount``, ``schedule`` and times nothing else is pruned.
        frozen: ``"skip"``: tensors that are frozen when fit starts are not pruned; ``"join"``: at the first event after
            they became trainable they are pruned with the others, and count for the plan from then on.
        enforce: How masked weights are kept at zero: ``"read"``: whatever is written into the parameter, reading it
            gives zeros; ``"in_place"``: the parameter holds them, its gradient is masked after each backward, and zeros
            are written again after each step, with the same results, close to dense training in speed and memory.
            Sharded parameters are always kept in place.
        restart_scores: When an event made the model sparser, let ``ModelCheckpoint`` and ``EarlyStopping`` compare only
            scores from then on, so that the best checkpoint is one of the highest sparsity reached.
        allow_unfinished: Accept a plan that the Trainer's limits cannot finish; otherwise an error when fit starts.
        log_tensors: Log, besides ``sparsity`` and the ``sparsity/target`` of a schedule, ``sparsity/<name>`` of each
            tensor. Of several callbacks on a model the first one logs, for all of them.
        log_prefix: What the keys in the logs begin with.
        prog_bar: Show ``sparsity`` in the progress bar.
        verbose: Say what is selected when fit starts, and what each event did.

    Raises:
        ValueError: If arguments contradict each other or are out of range.
        TypeError: If the method or an amount is not one.

    Example:
        >>> PruningCallback("l1_unstructured", amount=0.2, epochs=[5, 10, 15]).plan
        AmountPlan(amount=0.2, unit='epoch', times=(5, 10, 15))
    """

    def __init__(
        self,
        method: Method = "l1_unstructured",
        amount: int | float | None = None,
        *,
        epochs: Times = None,
        steps: Times = None,
        schedule: Schedule | None = None,
        scope: Scope | Budget = "local",
        n: int | float | str = 2,
        dim: int | Literal["out", "in"] = "out",
        method_kwargs: Mapping[str, Any] | None = None,
        parameters: Patterns = None,
        exclude: Patterns = None,
        rewind: Rewind | Reinit | None = None,
        seed: int | None = None,
        keep_zeros: bool = False,
        frozen: Literal["skip", "join"] = "skip",
        enforce: Literal["read", "in_place"] = "read",
        restart_scores: bool = True,
        allow_unfinished: bool = False,
        log_tensors: bool = False,
        log_prefix: str = "",
        prog_bar: bool = False,
        verbose: bool = True,
    ) -> None:
        self.recipe = make_recipe(method, n, dim, method_kwargs)
        amount = self.recipe.amount_or(amount)
        self.budget = as_budget(scope)
        self.plan = make_plan(
            *(amount, epochs, steps, schedule),
            takes_amount=self.recipe.takes_amount,
            keep_zeros=keep_zeros,
            scope=self.budget.scope,
        )
        self.parameters = None if parameters is None else as_patterns(parameters)
        self.exclude = as_patterns(exclude)
        self.rewind = instance_of("rewind", rewind, (Rewind, Reinit), "Rewind(epoch=0)")
        self.seed = instance_of("seed", seed, (int,), "42")
        self.keep_zeros = one_of("keep_zeros", keep_zeros, (False, True))
        self.frozen = one_of("frozen", frozen, ("skip", "join"))
        self.enforce = one_of("enforce", enforce, ("read", "in_place"))
        self.restart_scores = restart_scores
        self.allow_unfinished = allow_unfinished
        self.verbose = verbose
        self._session: Session | None = None
        self._scores = FreshScores()
        self._log = SparsityLog(log_tensors, log_prefix, prog_bar)
        self._saved: dict[str, Any] | None = None
        self._saved_of: weakref.ref[nn.Module] | None = None
        self._say = Announcer(verbose)
        self._max_epochs: int | None = None
        self._alike: int | None = None

    @property
    def run(self) -> PruningRun | None:
        """Selection and masks while a fit is running."""
        return None if self._session is None else self._session.run

    @property
    def state_key(self) -> str:
        """Tells this callback's state in a checkpoint from that of another one on the same model.

        From ``setup`` on it is the same in every process: the selection in words and, if callbacks before it in the
        Trainer have the same words (of two modules of a class), their number. What a new Trainer sees tells more apart,
        so that it lets callbacks pass whose selections are only compared when the fit starts.
        """
        if self._alike is None:
            chosen = [p if isinstance(p, str) else id(p) for p in [*(self.parameters or ()), *self.exclude]]
            return self._generate_state_key(**self._selection(), how=self._words(), chosen=chosen)
        return self._generate_state_key(**self._selection(), **({"alike": self._alike} if self._alike else {}))

    def due(self, trainer: Trainer, time: int) -> Sequence[Demand]:
        """Whether it is time to prune, and how much; to be overridden by other policies. Asked once for each time.

        Args:
            trainer: The Trainer that fits.
            time: The epoch or step that begins, in the unit of the plan.

        Returns:
            What to do now, in order; nothing by default between the times of the plan. On several devices every rank
            is asked, and what rank 0 says is done on all.
        """
        assert self._session is not None
        run, plan = self._session.run, self._session.plan
        return plan.due(plan.start(time) if run.done is None else run.done, time)

    def on_pruned(self, trainer: Trainer, pl_module: LightningModule, event: PruningEvent) -> None:
        """Called after each event; to be overridden.

        Args:
            trainer: The Trainer that fits.
            pl_module: The model.
            event: What was done.
        """

    def preview(self, model: nn.Module, total: int | None = None) -> Preview:
        """Prints and returns what is selected of a model and how many zeros the plan gives it at each event.

        Args:
            model: The model, which is not changed.
            total: Epochs of the fit, or steps if the plan counts steps or fractions; by default up to the plan's last
                event.

        Returns:
            The table; where tensors are ranked together its numbers are those of the present weights.

        Raises:
            ValueError: As a fit would, and if a plan without an end needs a total.
        """
        table = play(model, self._run_of(model), self.plan, total, self.keep_zeros)
        print(table)
        return table

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Begins the plan anew; forgets masks of another model."""
        if stage == "fit":
            require_strategy(trainer.strategy)
            known = self._saved_of is not None and self._saved_of() is pl_module
            self._saved = {**self._saved, "again": True} if known and self._saved else None
            self._max_epochs = trainer.max_epochs  # before averaging callbacks add epochs of their own
        before = itertools.takewhile(lambda c: c is not self, trainer.callbacks)  # type: ignore[attr-defined]
        self._alike = sum(isinstance(c, PruningCallback) and c._selection() == self._selection() for c in before)

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Selects the tensors and refuses what cannot work."""
        with together():
            run = self._run_of(pl_module, trainer)
            refuse_overlap(run, [s.run for s in self._sessions(trainer)])
            session = Session(run, self.plan, self._words(), self.rewind, self._max_epochs, self._say)
        session.check(trainer, pl_module, self._unfinished_is_fine(trainer))
        self._session = session

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Puts masks back that a checkpoint or an earlier fit of this model left."""
        assert self._session is not None
        self._log.start()
        self._scores = FreshScores()
        self._session.start(trainer, pl_module, self._saved, self.keep_zeros, self._unfinished_is_fine(trainer))
        self._saved = None
        if self._leads(trainer):
            self._scores.start(trainer)
            self._say.coverage(pl_module, [t for s in self._sessions(trainer) for t in s.run.targets])

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Carries out what is due at this epoch."""
        self._scores.on_train_epoch_start()
        self._tick(trainer, pl_module, only="epoch")

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Carries out what is due at this step, or at an epoch whose start was skipped, as by some resumed fits."""
        self._tick(trainer, pl_module)

    def on_after_backward(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Lets no gradient move a zero that is kept in place."""
        if self._session is not None:
            self._session.after_backward()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Says how sparse the model is, and lets no file be ranked by a score of other weights."""
        if self._leads(trainer):
            self._log.batch_end(trainer, self._running(trainer))
            self._scores.on_train_batch_end()

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Notes which scores a validation during the fit makes."""
        if self.run is not None and not trainer.sanity_checking:
            self._scores.on_validation_start(trainer)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Notes which scores a validation during the fit made."""
        if self.run is not None and not trainer.sanity_checking:
            self._scores.on_validation_end(trainer)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Leaves other callbacks as they were."""
        self._scores.close()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Logs the share of zeros."""
        if self._session is not None:
            self._session.epoch_end()
        if self._leads(trainer):
            self._scores.on_train_epoch_end(trainer)
            self._log.epoch_end(trainer, pl_module, self._running(trainer))

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Leaves a plain model."""
        self._finish(pl_module)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Leaves a plain model."""
        self._scores.close()
        self._finish(pl_module, alone=True)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Leaves a plain model."""
        self._finish(pl_module)

    def __getstate__(self) -> dict[str, Any]:
        """Without what belongs to the model fitted last: the reference to it, and Lightning's ``log`` of it."""
        return {key: value for key, value in vars(self).items() if key not in ("log", "log_dict")} | {"_saved_of": None}

    def state_dict(self) -> dict[str, Any]:
        """Masks and position; kept after a fit until the next one."""
        if self._session is None or self._saved is not None:
            return self._saved or {}
        return self._session.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keeps the state until training starts, when all weights are there; later (a tuner went back) takes it."""
        if self._session is not None and self._session.run.started:
            self._session.load_state_dict(state_dict)
        else:
            self._saved = state_dict

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Says so when a fit goes on from a checkpoint without a pruning state."""
        self._saved_of = weakref.ref(pl_module)
        resuming = trainer.state.fn == "fit" and trainer.ckpt_path is not None
        if resuming and self.state_key not in checkpoint["callbacks"]:
            rank_zero_warn(f"the checkpoint has no state of this pruning ({self.state_key}): the plan starts afresh")

    def _run_of(self, model: nn.Module, trainer: Trainer | None = None) -> PruningRun:
        """The selection of a model, checked; nothing is changed."""
        join = self.frozen == "join"
        targets, frozen = select_trainable(
            model, self.parameters, self.exclude, join, spare_outputs=self.recipe.prunes_outputs
        )
        pruner = Pruner(self.recipe, self.budget, self.plan.final)
        return new_run(targets, frozen, join, pruner, self.enforce == "in_place", self.seed, trainer)

    def _selection(self) -> dict[str, str]:
        """What is pruned, in words that are the same in every process."""
        return {"parameters": describe_patterns(self.parameters), "exclude": describe_patterns(self.exclude)}

    def _words(self) -> str:
        """How and when is pruned, in words that are the same in every process."""
        return f"{self.recipe}, {self.budget.scope}: {self.plan}"

    def _at_work(self, trainer: Trainer) -> list[PruningCallback]:
        """All callbacks of this kind, since a model can be pruned by several."""
        callbacks = [c for c in trainer.callbacks if isinstance(c, PruningCallback)]  # type: ignore[attr-defined]
        return [c for c in callbacks if c._session is not None]

    def _sessions(self, trainer: Trainer) -> list[Session]:
        return [c._session for c in self._at_work(trainer) if c._session is not None]

    def _running(self, trainer: Trainer) -> Running:
        return [(session.run, session.plan) for session in self._sessions(trainer)]

    def _leads(self, trainer: Trainer) -> bool:
        """Whether this is the first of its kind: what concerns the whole Trainer is done once."""
        return self._session is not None and self._leader(trainer) is self

    def _leader(self, trainer: Trainer) -> PruningCallback:
        return self._at_work(trainer)[0]

    def _unfinished_is_fine(self, trainer: Trainer) -> bool:
        return self.allow_unfinished or bool(trainer.fast_dev_run)  # type: ignore[attr-defined]

    def _tick(self, trainer: Trainer, pl_module: LightningModule, only: Clock | None = None) -> None:
        """Carries out what is due now in plans that count in ``only``; the last of its kind does, for all of them.

        So all of them rank the trained weights, before any goes back.
        """
        callbacks = self._at_work(trainer)
        if callbacks[-1] is not self:
            return
        done = [(callback, callback._prune(trainer, pl_module, only)) for callback in callbacks]
        settle(trainer, pl_module, self._sessions(trainer), [events for _, events in done])
        for callback, events in done:
            callback._tell(trainer, pl_module, events)

    def _prune(self, trainer: Trainer, pl_module: LightningModule, only: Clock | None) -> list[PruningEvent]:
        session = self._session
        assert session is not None
        session.watch(trainer, pl_module)
        time = trainer.global_step if session.plan.unit == "step" else trainer.current_epoch
        if only not in (None, session.plan.unit) or session.is_past(trainer, time):
            return []
        return session.prune(pl_module, time, self._demands(trainer, time))

    def _demands(self, trainer: Trainer, time: int) -> Sequence[Demand]:
        """What is due now, as rank 0 says: a policy may look at what ranks see differently, such as a metric."""
        alike = self.plan.pure and type(self).due is PruningCallback.due
        return of_rank_0(lambda: self.due(trainer, time), nothing_everywhere=alike)

    def _tell(self, trainer: Trainer, pl_module: LightningModule, events: Sequence[PruningEvent]) -> None:
        """Tells other callbacks and the user."""
        assert self._session is not None
        restarts = self.restart_scores and any(event.sparser for event in events)
        if events:
            self._leader(trainer)._scores.on_event(trainer, restarts)
        if restarts:
            self._say.restarted(restart(trainer.callbacks))  # type: ignore[attr-defined]
        for event in events:
            self._say.pruned(event, self._session.plan.unit)
            self.on_pruned(trainer, pl_module, event)

    def _finish(self, pl_module: LightningModule, alone: bool = False) -> None:
        if self._session is not None:
            pending, state = self._saved, self._session.close(pl_module, alone)
            self._saved = state if pending is None else pending
            self._saved_of = weakref.ref(pl_module)
            self._session = None
