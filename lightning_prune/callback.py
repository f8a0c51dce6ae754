"""PruningCallback: prunes a model while a Trainer fits it."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from torch import nn

from lightning_prune.budgets import Budget, Scope
from lightning_prune.erasing import erase
from lightning_prune.events import Pruner
from lightning_prune.monitors import FreshScores, restart
from lightning_prune.plan import Demand, Times, make_plan
from lightning_prune.prune.amounts import canonical_amount
from lightning_prune.recipe import Method, make_recipe
from lightning_prune.run import PruningEvent, PruningRun
from lightning_prune.schedules import Schedule
from lightning_prune.scores import Normalization
from lightning_prune.targets import Patterns, describe_patterns, select

DEFAULT_AMOUNT = 0.5


class PruningCallback(Callback):
    """Prunes a model at chosen epochs or steps of ``Trainer.fit``.

    An epoch event happens at the start of that training epoch, a step event before the first batch that starts at or
    after that ``global_step``; both counted as the Trainer counts them, from 0. During the fit parameters keep their
    names, order and identity, masked weights read as zero and get no gradient. When the fit ends, in whatever way,
    the model is a plain one with zeros where it was pruned. Checkpoints hold plain names and zeros at any time, and
    in the callback's own state what resuming needs.

    Args:
        method: ``"l1_unstructured"``, ``"random_unstructured"``, ``"ln_structured"``, ``"random_structured"``, a
            class of pruning methods (of :mod:`lightning_prune.prune` or ``torch.nn.utils.prune``) or a
            ``functools.partial`` of one.
        amount: What each event prunes: a fraction in [0, 1] of the units (weights, or channels of structured methods)
            that are still unpruned, or a count of them; of each tensor, or of all together with ``scope="global"``.
            0.5 by default, unless a schedule is given.
        epochs: Epochs of the events, or a predicate on the epoch; every epoch by default.
        steps: Optimizer steps of the events, or a predicate on the step, instead of epochs.
        schedule: Instead of amounts and times: the target share of zeros among all weights that are selected when the
            fit starts, as a function of time.
        scope: ``"local"``: every tensor alike; ``"global"``: all tensors in one ranking; ``"erk"``: by their shapes.
        n: Norm of ``"ln_structured"``: a positive number, ``inf``, ``-inf``, ``"fro"`` or ``"nuc"``.
        dim: Channels of structured methods: ``"out"`` or ``"in"`` (the right axis of Linear, Conv, ConvTranspose and
            Embedding layers), or a dimension.
        method_kwargs: More arguments of the method.
        parameters: What to prune: names, globs on names, names of modules, compiled regular expressions, module
            types, (module, name) pairs, predicates ``f(name, parameter)``, or several of these. By default every
            trainable parameter of two or more dimensions, without embeddings, norms and biases.
        exclude: What not to prune, chosen like ``parameters``.
        overrides: By name or glob, for single tensors: the share of zeros at the end of the schedule (0.0 leaves
            it alone), or instead of ``amount`` their own amount.
        max_sparsity: Largest share of zeros in one tensor; by default one weight or channel of each survives.
        normalize: ``"l2"`` or ``"lamp"``: makes weights of different tensors comparable with ``scope="global"``.
        seed: Seed of random methods; by default torch's initial seed, so that of ``seed_everything``.
        restart_scores: When an event made the model sparser, let ``ModelCheckpoint`` and ``EarlyStopping`` compare only
            scores from then on, so that the best checkpoint is one of the highest sparsity reached.
        allow_unfinished: Accept a plan that the Trainer's limits cannot finish; otherwise an error when fit starts.
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
        scope: Scope = "local",
        n: int | float | str = 2,
        dim: int | Literal["out", "in"] = "out",
        method_kwargs: Mapping[str, Any] | None = None,
        parameters: Patterns = None,
        exclude: Patterns = None,
        overrides: Mapping[str, float] | None = None,
        max_sparsity: float | None = None,
        normalize: Normalization | None = None,
        seed: int | None = None,
        restart_scores: bool = True,
        allow_unfinished: bool = False,
        verbose: bool = True,
    ) -> None:
        self.recipe = make_recipe(method, n, dim, method_kwargs)
        if amount is not None:
            amount = canonical_amount(amount)
        elif schedule is None and self.recipe.takes_amount:
            amount = DEFAULT_AMOUNT
        self.plan = make_plan(amount, epochs, steps, schedule)
        if not self.recipe.takes_amount and (amount is not None or schedule is not None):
            raise ValueError(f"{self.recipe} does not take an amount: give epochs= or steps= alone")
        self.budget = Budget(scope, overrides or {}, max_sparsity)
        self.parameters, self.exclude = parameters, exclude
        self.normalize = normalize
        self.seed = seed
        self.restart_scores = restart_scores
        self.allow_unfinished = allow_unfinished
        self.verbose = verbose
        self.run: PruningRun | None = None
        self._scores = FreshScores()
        self._saved: dict[str, Any] | None = None
        self._saved_of: weakref.ref[nn.Module] | None = None

    @property
    def state_key(self) -> str:
        """Tells this callback's state in a checkpoint from that of another one on the same model."""
        return self._generate_state_key(
            parameters=describe_patterns(self.parameters), exclude=describe_patterns(self.exclude)
        )

    def due(self, trainer: Trainer, time: int) -> Sequence[Demand]:
        """Whether it is time to prune, and how much; to be overridden by other policies.

        Args:
            trainer: The Trainer that fits.
            time: The epoch or step that begins, in the unit of the plan.

        Returns:
            What to do now, in order; nothing by default between the times of the plan.
        """
        assert self.run is not None
        after = self.plan.start(time) if self.run.done is None else self.run.done
        return self.plan.due(after, time)

    def on_pruned(self, trainer: Trainer, pl_module: LightningModule, event: PruningEvent) -> None:
        """Called after each event; to be overridden.

        Args:
            trainer: The Trainer that fits.
            pl_module: The model.
            event: What was done.
        """

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Forgets what belongs to another model."""
        if stage == "fit" and (self._saved_of is None or self._saved_of() is not pl_module):
            self._saved = None

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Selects the tensors and refuses what cannot work."""
        targets = select(pl_module, self.parameters, self.exclude)
        seed = torch.initial_seed() % 2**63 if self.seed is None else self.seed
        pruner = Pruner(self.recipe, self.budget, self.normalize, self.plan.final)
        self.run = PruningRun(targets, pruner, trainer.strategy.broadcast(seed))
        self._refuse_unfinished(trainer)
        if self.verbose:
            rank_zero_info(self._introduction(pl_module))

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Puts masks back that a checkpoint or an earlier fit of this model left."""
        assert self.run is not None
        if self._saved is None:
            return
        if self._saved.get("plan", str(self.plan)) != str(self.plan):
            raise ValueError(
                f"the checkpoint was written under another plan: {self._saved['plan']}; this one is {self.plan}"
            )
        if self._saved:
            self.run.load_state_dict(self._saved)
        if self._saved_of is not None:
            self.run.done = None
        self._saved = None

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Carries out what is due at this epoch."""
        self._scores.release()
        if self.plan.unit == "epoch":
            self._tick(trainer, pl_module, trainer.current_epoch)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Carries out what is due at this step."""
        self._scores.release()
        if self.plan.unit == "step":
            self._tick(trainer, pl_module, trainer.global_step)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Lets no file be ranked by a score of other weights."""
        if self._leads(trainer):
            self._scores.on_train_batch_end(trainer)

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
        if self._leads(trainer):
            self._scores.on_train_epoch_end(trainer)
        if self.run is not None:
            pl_module.log("sparsity", self.run.sparsity)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Leaves a plain model."""
        self._finish(pl_module)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Leaves a plain model."""
        self._scores.close()
        self._finish(pl_module)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Leaves a plain model."""
        self._finish(pl_module)

    def __getstate__(self) -> dict[str, Any]:
        """Without the reference to the model fitted last, which cannot be pickled."""
        return {**vars(self), "_saved_of": None}

    def state_dict(self) -> dict[str, Any]:
        """Masks and position; kept after a fit until the next one."""
        if self.run is None or self._saved is not None:
            return self._saved or {}
        return {**self.run.state_dict(), "plan": str(self.plan), "recipe": str(self.recipe)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keeps the state until training starts, when all weights are there."""
        self._saved, self._saved_of = state_dict, None

    def _restart_scores(self, trainer: Trainer) -> None:
        restarted = restart(trainer.callbacks) if self.restart_scores else []  # type: ignore[attr-defined]
        if restarted and self.verbose:
            rank_zero_info(f"sparser now: scores of {', '.join(restarted)} are compared from here on")

    def _leads(self, trainer: Trainer) -> bool:
        """Whether this is the first of its kind: what concerns the whole Trainer is done once."""
        return self is next(c for c in trainer.callbacks if isinstance(c, PruningCallback))  # type: ignore[attr-defined]

    def _tick(self, trainer: Trainer, pl_module: LightningModule, time: int) -> None:
        assert self.run is not None
        demands = self.due(trainer, time)
        self.run.done = max(time, self.run.done or 0)
        for demand in demands:
            event = self.run.prune(demand)
            if event.sparser:
                erase(self.run.targets, trainer.optimizers, _held_modules(trainer, pl_module))
                self._restart_scores(trainer)
            self.on_pruned(trainer, pl_module, event)
            if self.verbose:
                rank_zero_info(f"pruned at {self.plan.unit} {time}: {event.zeros} of {event.total} weights are zero")

    def _finish(self, pl_module: LightningModule) -> None:
        if self.run is None:
            return
        self._saved = self.state_dict()
        self._saved_of = weakref.ref(pl_module)
        self._say_if_unfinished()
        self.run.close()
        self.run = None

    def _say_if_unfinished(self) -> None:
        assert self.run is not None
        last, done = self.plan.last, self.run.done
        if last is not None and (done is None or done < last):
            planned = "" if self.plan.final is None else f" of {self.plan.final:.4f} planned"
            rank_zero_warn(
                f"the fit ended at {self.plan.unit} {done}, before the last pruning event at {self.plan.unit} {last}: "
                f"reached is a sparsity of {self.run.sparsity:.4f}{planned}"
            )

    def _introduction(self, model: nn.Module) -> str:
        assert self.run is not None
        weights = sum(p.numel() for p in model.parameters())
        return (
            f"pruning {len(self.run.targets)} tensors, {self.run.total} of {weights} weights, by {self.recipe}, "
            f"{self.budget.scope}: {self.plan}"
        )

    def _refuse_unfinished(self, trainer: Trainer) -> None:
        last, unit = self.plan.last, self.plan.unit
        limit = trainer.max_epochs if unit == "epoch" else trainer.max_steps
        if last is None or limit is None or limit < 0 or last < limit or self.allow_unfinished:
            return
        raise ValueError(
            f"the plan's last event is at {unit} {last}, but max_{unit}s={limit} ends the fit before it (the last "
            f"{unit} is {limit - 1}): raise max_{unit}s to {last + 1} or more, end the plan at {unit} {limit - 1}, or "
            "pass allow_unfinished=True"
        )


def _held_modules(trainer: Trainer, pl_module: LightningModule) -> list[nn.Module]:
    """Copies of the model that other callbacks hold, such as averaged models."""
    values = (value for callback in trainer.callbacks for value in vars(callback).values())  # type: ignore[attr-defined]
    return [value for value in values if isinstance(value, nn.Module) and value is not pl_module]
