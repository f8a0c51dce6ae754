"""PruningCallback: prunes a model while a Trainer fits it. Only the translation of a Trainer's hooks."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Mapping, MutableMapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Literal

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.weak import WeakIdKeyDictionary

from lightning_prune.distributed import of_rank_0, together
from lightning_prune.fit.interruptions import uninterrupted
from lightning_prune.fit.limits import Limits
from lightning_prune.fit.messages import Announcer, Verbose
from lightning_prune.fit.preview import Preview, play
from lightning_prune.fit.regrowth import Regrowth
from lightning_prune.fit.resuming import Kept, Saved, find_state
from lightning_prune.fit.rewind import Reinit, Rewind
from lightning_prune.fit.run import PruningEvent, PruningRun
from lightning_prune.fit.selection import refuse_overlap
from lightning_prune.fit.session import Session, settle
from lightning_prune.fit.settings import Settings
from lightning_prune.fit.training import Training
from lightning_prune.prune.warning import PruningWarning
from lightning_prune.pruner.budgets import Budget, Scope
from lightning_prune.pruner.criteria.named import CriterionLike
from lightning_prune.pruner.method import Method
from lightning_prune.schedules import Schedule
from lightning_prune.schedules.plan import Clock, Demand, Plan, Times
from lightning_prune.schedules.regrow import Regrow
from lightning_prune.targets.patterns import Patterns, describe_patterns
from lightning_prune.trainer.lightning import callback_base
from lightning_prune.trainer.limits import limits_of
from lightning_prune.trainer.logs import Log, Running, SparsityLog, as_log
from lightning_prune.trainer.loop import training_of
from lightning_prune.trainer.monitors import FreshScores
from lightning_prune.trainer.refusals import explain, require_fit, require_rewindable

if TYPE_CHECKING:
    CallbackBase = Callback
else:
    CallbackBase = callback_base()


class PruningCallback(CallbackBase):
    """Prunes a model at chosen epochs or steps of ``Trainer.fit``.

    An epoch event happens at the start of that training epoch, a step event before the first batch that starts at or
    after that ``global_step``; both counted as the Trainer counts them, from 0. During the fit parameters keep their
    names, order and identity, masked weights read as zero and get no gradient. When the fit ends, in whatever way,
    the model is a plain one with zeros where it was pruned. Checkpoints hold plain names and zeros at any time, and
    in the callback's own state what resuming needs.

    Args:
        method: ``"l1_unstructured"``, ``"random_unstructured"``, ``"ln_structured"``, ``"random_structured"``,
            ``"n_m"`` (2:4 by default), ``"ln_blocks"`` (``method_kwargs={"block": (4, 1)}`` by default), a class of
            pruning methods (of :mod:`lightning_prune.prune` or ``torch.nn.utils.prune``) or its import path, or a
            ``functools.partial`` of one.
        amount: What each event prunes: a fraction in [0, 1] of the units (weights, or channels of structured methods)
            that are still unpruned, or a count of them; of each tensor, or of all together with ``scope="global"``.
            0.5 by default, where times are given. Without amount, times and schedule half of the weights go, gradually
            from a tenth to six tenths of the run: ``schedule=Cubic(final=0.5, begin=0.1, end=0.6, unit="fraction")``.
        epochs: Epochs of the events, or a predicate on the epoch; every epoch by default.
        steps: Optimizer steps of the events, or a predicate on the step, instead of epochs.
        schedule: Instead of amounts and times: the target share of zeros among all weights that are selected when the
            fit starts, as a function of time.
        criterion: How important a weight is: ``"magnitude"``, ``"taylor"``, ``"snip"``, ``"fisher"``, ``"synflow"``,
            ``"movement"``, ``"activation"``, a :class:`~lightning_prune.Criterion` such as ``Taylor(batches=8)``, or a
            function ``f(targets) -> scores``. Events of criteria that watch gradients or inputs happen between the
            backward and the step of the batch at which they are due.
        scope: ``"local"``: every tensor alike; ``"global"``: all tensors in one ranking; ``"erk"``: by their shapes;
            ``"row"``: every output of every tensor alike; or a :class:`~lightning_prune.Budget`, which says more.
        n: Norm of ``"ln_structured"``: a positive number, ``inf``, ``-inf``, ``"fro"`` or ``"nuc"``; of ``"ln_blocks"``
            a number; with ``"n_m"`` how many of each ``m`` (4, or another one in ``method_kwargs``) stay. 2 by default;
            methods that have no such argument refuse it.
        dim: Channels of structured methods: ``"out"`` or ``"in"`` (the right axis of Linear, Conv, ConvTranspose and
            Embedding layers), or a dimension; ``"out"`` by default. With ``"n_m"`` that along which groups lie,
            ``"in"`` by default.
        method_kwargs: More arguments of the method.
        parameters: What to prune: names, globs on names, modules or their names, compiled regular expressions, module
            types, (module, name) pairs, predicates ``f(name, parameter)``, or several of these. By default every
            trainable parameter of two or more dimensions, without embeddings, norms and biases.
        exclude: What not to prune, chosen like ``parameters``. Where whole output channels are pruned, the biases of
            dead ones go along, without being counted, unless they are excluded: ``exclude="*.bias"``.
        rewind: Where to go back to after each event: ``Rewind(epoch=0)``, ``Rewind(step=500)``; or ``Reinit(seed)`` for
            new initial values. Masks stay. Nowhere by default.
        regrow: Let masked weights come back, in the places of as many others: :class:`~lightning_prune.RigL`,
            :class:`~lightning_prune.SET` or your own :class:`~lightning_prune.Regrow`. Zeros of each tensor stay as
            many as ``schedule`` says: ``Constant(final=0.9)`` trains a sparse network from the first step, whose
            masks are drawn at random then (``method`` ranks in events after the first step); with a rising schedule
            it repairs gradual pruning. Not with ``rewind``, sharded parameters or ``enforce="read"``.
        seed: Seed of random methods; by default torch's initial seed, so that of ``seed_everything``.
        keep_zeros: Take the zeros that the selected weights have when training starts as pruned: they stay zero, and
            count for the plan. Without ``amount``, ``schedule`` and times nothing else is pruned.
        frozen: ``"skip"``: tensors that are frozen when fit starts are not pruned; ``"join"``: at the first event after
            they became trainable they are pruned with the others, and count for the plan from then on.
        enforce: How masked weights are kept at zero. ``"in_place"``: modules stay as they are; the parameter holds the
            zeros, its gradient is masked where it arises, and zeros are written again after each step and over what
            others wrote. ``"read"``: reading the parameter gives zeros, whatever is written into it, at the cost of a
            product in each forward and backward; the module's class is another one during the fit. The results are
            the same. Sharded parameters are always kept in place.
        groups: ``"dependency"``: structured methods prune channels together with all that makes and all that reads them
            in other layers, so that :func:`lightning_prune.export.shrink` can cut what is masked without changing any
            output (extra ``shrink``). By default each tensor has channels of its own, since groups need a call of the
            model, and because channels of single tensors are what ``torch.nn.utils.prune`` means.
        example_inputs: What the model is called with to find groups, or the layers that make its outputs, which
            methods that prune output channels spare: a tensor, a tuple of arguments or a dict of them by name; by
            default the module's ``example_input_array``. Without any, the layer that is declared last is spared.
        restart_scores: When an event made the model sparser, let ``ModelCheckpoint``, ``EarlyStopping`` and
            ``ReduceLROnPlateau`` compare only scores from then on, so that the best checkpoint is one of the highest
            sparsity reached. Until the next validation what they monitor is a value that is worse (999999).
        allow_unfinished: Accept a plan that the Trainer's limits cannot finish, which is an error when fit starts
            otherwise, and one that is not carried out to its end, which is a warning otherwise.
        log: Log ``sparsity`` and the ``sparsity/target`` of a schedule; a :class:`~lightning_prune.Log` says more (keys
            of tensors, a prefix, the progress bar), ``False`` = log nothing. Of several callbacks on a model the first
            one logs, for all of them.
        verbose: ``"table"`` or ``True``: say what is selected and planned when fit starts, what each event did, and in
            a table at the end what was reached; ``"line"``: one line for each of these; ``False``: only warnings.

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
        criterion: CriterionLike = "magnitude",
        scope: Scope | Budget = "local",
        n: int | float | str | None = None,
        dim: int | Literal["out", "in"] | None = None,
        method_kwargs: Mapping[str, Any] | None = None,
        parameters: Patterns = None,
        exclude: Patterns = None,
        rewind: Rewind | Reinit | None = None,
        regrow: Regrow | None = None,
        seed: int | None = None,
        keep_zeros: bool = False,
        frozen: Literal["skip", "join"] = "skip",
        enforce: Literal["in_place", "read"] = "in_place",
        groups: Literal["dependency"] | None = None,
        example_inputs: Any = None,
        restart_scores: bool = True,
        allow_unfinished: bool = False,
        log: bool | Log = True,
        verbose: Verbose = True,
        **unknown: Any,
    ) -> None:
        self.settings = Settings(
            method,
            amount,
            epochs=epochs,
            steps=steps,
            schedule=schedule,
            criterion=criterion,
            scope=scope,
            n=n,
            dim=dim,
            method_kwargs=method_kwargs,
            parameters=parameters,
            exclude=exclude,
            rewind=rewind,
            regrow=regrow,
            seed=seed,
            keep_zeros=keep_zeros,
            frozen=frozen,
            enforce=enforce,
            groups=groups,
            example_inputs=example_inputs,
            allow_unfinished=allow_unfinished,
            own_policy=type(self).due is not PruningCallback.due,
            **unknown,
        )
        self.restart_scores = restart_scores
        self._scores = FreshScores()
        self._log = SparsityLog(as_log(log))
        decides = None if type(self).due is PruningCallback.due else f"{type(self).__name__}.due"
        self._say = Announcer(verbose, decides)
        self._session: Session | None = None
        self._loaded: Saved | None = None
        self._asked = False
        self._max_epochs: int | None = None
        self._alike: int | None = None
        self._keys: dict[int | None, str] = {}
        self._forget()

    def _forget(self) -> None:
        """Knows no Trainer and no model."""
        self._trainer: weakref.ref[Trainer] | None = None
        self._model: weakref.ref[nn.Module] | None = None
        self._left: MutableMapping[nn.Module, Kept | None] = WeakIdKeyDictionary()
        self._ended: tuple[dict[str, Tensor], dict[str, Any]] = ({}, {})
        self._regrowth: Regrowth | None = None

    @property
    def plan(self) -> Plan:
        """When how much is asked for."""
        return self.settings.plan

    @property
    def run(self) -> PruningRun | None:
        """Selection and masks while a fit is running."""
        return None if self._session is None else self._session.run

    @property
    def masks(self) -> dict[str, Tensor]:
        """Boolean masks (True = kept) of the pruned tensors by name, during the fit and after it."""
        return self._ended[0] if self.run is None else self.run.pruned

    @property
    def history(self) -> dict[str, Any]:
        """The methods that pruned each tensor, by name, during the fit and after it."""
        return self._ended[1] if self.run is None else self.run.history

    @property
    def regrowth(self) -> Regrowth | None:
        """What regrowth did, during the fit and after it; ``None`` without any update."""
        return self._regrowth if self.run is None else self.run.regrowth

    @property
    def state_key(self) -> str:
        """Tells this callback's state in a checkpoint from that of another one on the same model.

        From ``setup`` on it is the same in every process: the selection in words and, if callbacks before it in the
        Trainer have the same words (of two modules of a class), their number. What a new Trainer sees tells more apart,
        so that it lets callbacks pass whose selections are only compared when the fit starts.
        """
        if self._alike not in self._keys:  # a Trainer asks at each hook of each batch
            self._keys[self._alike] = self._key(**self._selection(), **self._told_apart())
        return self._keys[self._alike]

    def _told_apart(self) -> dict[str, Any]:
        if self._alike is not None:
            return {"alike": self._alike} if self._alike else {}
        patterns = [*(self.settings.parameters or ()), *self.settings.exclude]
        chosen = [p if isinstance(p, str) else id(p) for p in patterns]
        return {"how": str(self.settings), "chosen": chosen}

    def due(self, trainer: Trainer, time: int) -> Sequence[Demand]:
        """Whether it is time to prune, and how much; to be overridden by other policies. Asked once for each time.

        Args:
            trainer: The Trainer that fits.
            time: The epoch or step that begins, in the unit of the plan.

        Returns:
            What to do now, in order; nothing by default between the times of the plan. On several devices every rank
            is asked, and what rank 0 says is done on all.
        """
        return self._at_work().demands(time)

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
        table = play(model, self.settings.run_of(model), self.plan, total, self.settings.keep_zeros)
        print(table)
        return table

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Begins the plan anew; frees what an earlier fit could not."""
        if self._session is not None and self._is_of(trainer, stage):
            self._finish()
        if self._session is not None:
            return  # another Trainer works on the model within a fit
        if stage == "fit":
            require_fit(trainer)
            self._loaded, self._asked = None, False
            self._max_epochs = trainer.max_epochs  # before averaging callbacks add epochs of their own
        self._model = weakref.ref(pl_module)
        before = itertools.takewhile(lambda c: c is not self, trainer.callbacks)  # type: ignore[attr-defined]
        self._alike = sum(isinstance(c, PruningCallback) and c._selection() == self._selection() for c in before)

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Selects the tensors and refuses what cannot work."""
        limits = Limits(self._max_epochs, trainer.max_steps)
        with together():
            session = Session(self._settings_for(trainer), training_of(trainer, pl_module, limits), self._say)
            refuse_overlap(session.run, [c.run for c in self._crew(trainer) if c.run is not None])
        session.agree()
        self._session, self._trainer = session, weakref.ref(trainer)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Puts masks back that a checkpoint or an earlier fit of this model left."""
        session = self._at_work()
        if self.settings.rewind is not None:
            require_rewindable(trainer, session.plan)
        self._log.start(trainer)
        limits = limits_of(trainer, self._max_epochs)
        session.start(training_of(trainer, pl_module, limits), self._loaded or self._left.get(pl_module))
        self._loaded = None
        if self._leads(trainer):
            self._scores.start(trainer)
            self._say.coverage(pl_module, [t for s in self._sessions(trainer) for t in s.run.targets])

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Carries out what is due at this epoch."""
        self._scores.epoch_start(trainer)
        self._tick(trainer, pl_module, training_of(trainer, pl_module), only="epoch")
        self._at_work().mend(thoroughly=True)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Carries out what is due at this step, or at an epoch whose start was skipped, as by some resumed fits."""
        now = training_of(trainer, pl_module)
        self._tick(trainer, pl_module, now)
        self._at_work().batch_start(now)

    def on_after_backward(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Lets no gradient move a zero that is kept in place."""
        if self._session is not None:
            self._session.after_backward()

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer) -> None:
        """Shows gradients to those who watch, before they are clipped; the last callback does, for all of them."""
        crew = self._crew(trainer)
        if not crew or crew[-1] is not self:
            return
        sessions = [callback._at_work() for callback in crew]
        if any(session.watching for session in sessions):
            now = training_of(trainer, pl_module)
            with uninterrupted():
                done = [session.show_gradients(now, optimizer) for session in sessions]
                self._conclude(trainer, pl_module, now, crew, done)
        for session in sessions:
            session.mask_gradients(optimizer)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Says how sparse the model is, and counts no patience by a score of less sparse weights."""
        if self._session is not None:
            self._session.batch_end()
        if self._leads(trainer):
            self._log.batch_end(trainer, self._running(trainer))
            self._scores.batch_end(trainer)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Writes zeros over what others wrote, and notes which scores a validation during the fit makes."""
        if self._session is not None and self._is_of(trainer):
            self._session.mend(thoroughly=True)
            if not trainer.sanity_checking:
                self._scores.validation_start(trainer)

    def on_validation_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Writes zeros over what others wrote when the validation began, such as averages."""
        if self._session is not None:
            self._session.mend()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Notes which scores a validation during the fit made."""
        if self._session is not None and self._is_of(trainer) and not trainer.sanity_checking:
            self._scores.validation_end(trainer)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Gives files back their scores that were out of competition."""
        self._scores.close(trainer)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Logs the share of zeros."""
        self._at_work().epoch_end()
        if self._leads(trainer):
            self._scores.epoch_end(trainer)
            self._log.epoch_end(trainer, self._running(trainer))

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Leaves a plain model."""
        self._finish()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Leaves a plain model."""
        explain(exception)
        if self._is_of(trainer):
            self._scores.close(trainer)
            self._finish(alone=True, failed=isinstance(exception, Exception))

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Leaves a plain model."""
        if self._is_of(trainer):
            self._finish()

    def __getstate__(self) -> dict[str, Any]:
        """Without what belongs to a model: the fit that runs, references, and Lightning's ``log`` of it."""
        others = ("log", "log_dict", "_model", "_trainer", "_left", "_ended")
        return {key: value for key, value in vars(self).items() if key not in others} | {"_session": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """A copy belongs to no model yet."""
        vars(self).update(state)
        self._forget()

    def state_dict(self) -> dict[str, Any]:
        """Masks and position; those of the model at hand are kept after a fit until the next one."""
        if self._session is not None and self._session.run.started:
            files = self._scores.state_dict()
            return self._session.state_dict() | ({"files": files} if files else {})
        self._asked = True
        model = None if self._model is None else self._model()
        saved = self._loaded or (None if model is None else self._left.get(model))
        return {} if saved is None else dict(saved.state)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes the state when a tuner went back in mid-fit; see :meth:`on_load_checkpoint` for all other times."""
        if self._session is not None and self._session.run.started:
            self._session.load_state_dict(state_dict)

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Writes zeros over what others wrote; the state dict in the checkpoint shares memory with the model."""
        if self._session is not None and self._is_of(trainer):
            self._session.mend(thoroughly=True)

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Finds the state of this pruning, to be used when training starts and all weights are there."""
        fits = trainer.state.fn == "fit"
        if (fits and self._asked) or (self._session is not None and self._session.run.started):
            return  # a tuner goes back to what it was given, or another Trainer works within the fit
        state = find_state(checkpoint["callbacks"], self.state_key, [c.state_key for c in self._all(trainer)])
        if not fits:
            self._left[pl_module] = None if state is None else Kept(state)
        elif state is not None:
            self._loaded = Saved(state)
            self._scores.load_state_dict(state.get("files", {}))
        else:
            message = f"the checkpoint has no state of this pruning ({self.state_key}): the plan starts afresh"
            rank_zero_warn(message, category=PruningWarning)

    def _key(self, **words: Any) -> str:
        return f"{type(self).__qualname__}{words!r}"  # as other callbacks of Lightning have it

    def _selection(self) -> dict[str, str]:
        """What is pruned, in words that are the same in every process."""
        settings = self.settings
        return {
            "parameters": describe_patterns(settings.parameters),
            "exclude": describe_patterns(settings.exclude),
        }

    def _settings_for(self, trainer: Trainer) -> Settings:
        """Those of this callback; a Trainer that only tries a few batches finishes no plan."""
        if trainer.fast_dev_run:  # type: ignore[attr-defined]
            return self.settings.with_unfinished()
        return self.settings

    def _all(self, trainer: Trainer) -> list[PruningCallback]:
        return [c for c in trainer.callbacks if isinstance(c, PruningCallback)]  # type: ignore[attr-defined]

    def _crew(self, trainer: Trainer) -> list[PruningCallback]:
        """All callbacks at work on the model of this Trainer: the first leads, the last carries out."""
        return [c for c in self._all(trainer) if c._is_of(trainer)]

    def _sessions(self, trainer: Trainer) -> list[Session]:
        return [c._at_work() for c in self._crew(trainer)]

    def _running(self, trainer: Trainer) -> Running:
        return [(session.run, session.plan) for session in self._sessions(trainer)]

    def _leads(self, trainer: Trainer) -> bool:
        """Whether what concerns the whole Trainer is done by this one."""
        return self._session is not None and self._crew(trainer)[0] is self

    def _is_of(self, trainer: Trainer, stage: str = "fit") -> bool:
        """Whether a pruning is at work in this Trainer, not in one that has it in its hooks."""
        mine = None if self._trainer is None else self._trainer()
        return self._session is not None and stage == "fit" and mine in (trainer, None)

    def _at_work(self) -> Session:
        if self._session is None:
            raise RuntimeError(
                f"this {type(self).__name__} was not there when the fit began: give it to the Trainer before fit()"
            )
        return self._session

    def _tick(self, trainer: Trainer, pl_module: LightningModule, now: Training, only: Clock | None = None) -> None:
        """Carries out what is due now in plans that count in ``only``; the last of its kind does, for all of them.

        So all of them rank the trained weights, before any goes back.
        """
        self._at_work()
        crew = self._crew(trainer)
        if crew[-1] is not self:
            return
        with ExitStack() as until_settled:
            done = [callback._prune(trainer, now, only, until_settled) for callback in crew]
            self._conclude(trainer, pl_module, now, crew, done)

    def _conclude(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        now: Training,
        crew: Sequence[PruningCallback],
        done: Sequence[Sequence[PruningEvent]],
    ) -> None:
        """Goes back, erases and tells after events."""
        if not any(done):
            return
        settle(now, [c._at_work() for c in crew], done)
        for callback, events in zip(crew, done, strict=True):
            callback._tell(trainer, pl_module, events)

    def _prune(
        self, trainer: Trainer, now: Training, only: Clock | None, until_settled: ExitStack
    ) -> list[PruningEvent]:
        session = self._at_work()
        session.watch(now)
        if not session.is_due(now, only):
            return []
        time, alike = now.time(session.plan.unit), session.plan.pure and type(self).due is PruningCallback.due
        demands = of_rank_0(lambda: self.due(trainer, time), nothing_everywhere=alike)
        if demands:
            until_settled.enter_context(uninterrupted())
        return session.prune(now, demands)

    def _tell(self, trainer: Trainer, pl_module: LightningModule, events: Sequence[PruningEvent]) -> None:
        """Tells other callbacks and the user."""
        restarts = self.restart_scores and any(event.sparser for event in events)
        self._at_work().tell(events)
        if restarts:
            leader = self._crew(trainer)[0]
            self._say.restarted(leader._scores.restart(trainer, keep=leader._log.keys))
        for event in events:
            self.on_pruned(trainer, pl_module, event)

    def _finish(self, alone: bool = False, failed: bool = False) -> None:
        session, self._session, self._trainer = self._session, None, None
        if session is None:
            return
        self._ended = session.run.pruned, session.run.history
        self._regrowth = session.run.regrowth
        state = session.close(alone, failed)
        if session.run.started:
            self._left[session.model] = Kept(state)
        self._loaded = None
