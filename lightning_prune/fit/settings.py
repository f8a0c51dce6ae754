"""What the arguments of PruningCallback and Pruning say, checked and made into values."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Literal

import torch
from torch import nn

from lightning_prune.distributed import require_same_masks
from lightning_prune.fit.rewind import Reinit, Rewind
from lightning_prune.fit.run import PruningRun
from lightning_prune.fit.values import Plain, plain_value
from lightning_prune.prune.arguments import instance_of, one_of
from lightning_prune.prune.attribute import Layout
from lightning_prune.prune.sharded.tensors import is_sharded
from lightning_prune.pruner.biases import biases_of
from lightning_prune.pruner.budgets import Budget, Scope, as_budget
from lightning_prune.pruner.coupled import CoupledPruner, restricted
from lightning_prune.pruner.criteria import Magnitude, as_criterion
from lightning_prune.pruner.criteria.named import CriterionLike
from lightning_prune.pruner.criteria.scorer import Scorer
from lightning_prune.pruner.dependency import find_groups
from lightning_prune.pruner.granularity import Weights
from lightning_prune.pruner.method import Method, make_recipe
from lightning_prune.pruner.outputs import find_outputs
from lightning_prune.pruner.pruner import Pruner
from lightning_prune.pruner.refusals import default_schedule, refuse_unreachable, refuse_untaken
from lightning_prune.schedules import Schedule
from lightning_prune.schedules.plan import Plan, Times, make_plan
from lightning_prune.schedules.regrow import Regrow
from lightning_prune.targets.patterns import Patterns, as_patterns
from lightning_prune.targets.select import Target, all_targets, names_matching, select_trainable
from lightning_prune.targets.unfit import refuse_unfit

_UNKNOWN = {
    "pruning_fn": "method=",
    "parameters_to_prune": "parameters=",
    "parameter_names": 'parameters=, such as "*.weight"',
    "use_global_unstructured": 'scope="global"',
    "apply_pruning": "epochs=, a list or a predicate on the epoch",
    "make_pruning_permanent": "nothing: it always is when the fit ends",
    "use_lottery_ticket_hypothesis": "rewind=Rewind(epoch=0)",
    "resample_parameters": "rewind=Reinit(seed=0)",
    "pruning_dim": "dim=",
    "pruning_norm": "n=",
    "prune_on_train_epoch_end": "nothing: it prunes at the starts of epochs",
    "overrides": "scope=Budget(overrides=...)",
    "max_sparsity": "scope=Budget(max_sparsity=...)",
    "normalize": 'scope=Budget("global", normalize=...)',
}


def _refuse_unknown(arguments: Mapping[str, Any]) -> None:
    """Raises TypeError if there are any, naming for those of other tools and earlier releases the ones to use here."""
    if arguments:
        known = [f"; {name}= is {_UNKNOWN[name]} here" for name in arguments if name in _UNKNOWN]
        raise TypeError(f"there is no argument {', '.join(arguments)}{''.join(known)}")


def _refuse_function(amount: object) -> None:
    if callable(amount):
        raise TypeError(
            "amount= is a number, got a function: schedule=Steps({3: 0.5, 6: 0.8}) names targets by their times, "
            "schedule=FromFunction(...) computes them, and a subclass of PruningCallback whose method due gives "
            "Demand(time, amount=...) decides each time anew"
        )


class Settings:
    """All that says what is pruned, how, how much and when; the arguments are those of ``PruningCallback``.

    Attributes:
        recipe: The pruning method.
        plan: When how much is asked for.
        budget: How that spreads over the tensors.
        criterion: How important each weight is.
        regrow: Which masked weights come back when.
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
        allow_unfinished: bool = False,
        own_policy: bool = False,
        **unknown: Any,
    ) -> None:
        _refuse_unknown(unknown)
        _refuse_function(amount)
        self.budget = as_budget(scope)
        self.criterion = as_criterion(criterion)
        recipe = make_recipe(method, 2 if n is None else n, dim, method_kwargs)
        refuse_untaken(recipe, n=n, dim=dim)
        asked = recipe.amount if amount is None else amount
        refuse_unreachable(recipe, None if schedule is None else getattr(schedule, "final", None), asked)
        self.recipe = recipe if self.by_weights else recipe.ranking(self.criterion)
        self.plan = make_plan(
            self.recipe.amount_or(amount),
            epochs,
            steps,
            schedule,
            takes_amount=self.recipe.takes_amount,
            keep_zeros=keep_zeros,
            scope=self.budget.scope,
            own_policy=own_policy,
            default=default_schedule(recipe),
        )
        self.parameters = None if parameters is None else as_patterns(parameters)
        self.exclude = as_patterns(exclude)
        self.rewind = instance_of("rewind", rewind, (Rewind, Reinit), "Rewind(epoch=0)")
        self.regrow = instance_of("regrow", regrow, (Regrow,), "RigL(every=100)")
        self.seed = instance_of("seed", seed, (int,), "42")
        self.keep_zeros = one_of("keep_zeros", keep_zeros, (False, True))
        self.frozen = one_of("frozen", frozen, ("skip", "join"))
        self.enforce = one_of("enforce", enforce, ("in_place", "read"))
        self.groups = one_of("groups", groups, (None, "dependency"))
        self.example_inputs = example_inputs
        if self.groups is None and example_inputs is not None and not self.recipe.prunes_outputs:
            raise ValueError(
                'example_inputs= are for groups="dependency", and for methods that prune output channels; neither is '
                "asked for"
            )
        if self.groups is not None and self.frozen == "join":
            raise ValueError('frozen="join" is not there for groups="dependency": unfreeze before the fit, or exclude')
        if self.groups is not None and self.criterion.needs == "inputs":
            raise ValueError(
                f'groups="dependency" scores biases and norms with their channels, which {self.criterion} cannot: use '
                "another criterion, such as 'taylor'"
            )
        self.allow_unfinished = one_of("allow_unfinished", allow_unfinished, (False, True))
        if self.criterion.needs == "dense gradients" and self.enforce == "read":
            raise ValueError(f"{self.criterion} needs gradients of masked weights: leave enforce='read' out")
        if self.regrow is not None:
            self._check_regrow(
                chosen=keep_zeros or any(given is not None for given in (amount, schedule, epochs, steps))
            )

    def _check_regrow(self, chosen: bool) -> None:
        """Refuses what does not go together with regrowth."""
        name = f"regrow={self.regrow!r}"
        if not chosen:
            raise ValueError(f"{name} needs to know how sparse: give schedule=Constant(final=0.9), or another one")
        if self.rewind is not None:
            raise ValueError(
                f"{name} trains one network on; rewind={self.rewind} goes back to values that weights had under other "
                "masks, so that those which came back would no longer begin at 0: leave one of them out"
            )
        if self.enforce == "read":
            raise ValueError(f"{name} needs gradients of masked weights: leave enforce='read' out")
        if self.groups is not None or type(self.recipe.granularity) is not Weights or self.budget.scope == "row":
            raise ValueError(
                f"{name} moves single weights within a tensor: use a method that prunes single weights, such as "
                "'l1_unstructured', and scope 'local', 'global' or 'erk'"
            )

    @property
    def by_weights(self) -> bool:
        """Whether weights are ranked by themselves."""
        return isinstance(self.criterion, Magnitude)

    @cached_property
    def values(self) -> dict[str, Plain]:
        """What a run that is resumed must have in common with the one before, as plain values.

        They are noted before the first fit, in which callable objects of the user's may change.
        """
        return {
            "method": plain_value(self.recipe),
            "plan": plain_value(self.plan),
            "scope": plain_value(self.budget),
            "rewind": plain_value(self.rewind),
            **({} if self.groups is None else {"groups": self.groups}),
            **({} if self.by_weights else {"criterion": plain_value(self.criterion)}),
            **({} if self.regrow is None else {"regrow": plain_value(self.regrow)}),
        }

    def __str__(self) -> str:
        """In words that are the same in every process."""
        return self.describe(self.plan)

    def with_unfinished(self) -> Settings:
        """The same for a training that need not finish the plan."""
        other = copy.copy(self)
        other.allow_unfinished = True
        return other

    def describe(self, plan: Plan) -> str:
        """Method, scope and plan for a table.

        Args:
            plan: The plan, which may be bound to a run by now.
        """
        back = "" if self.rewind is None else f"; then back to {self.rewind}"
        coupled = "" if self.groups is None else f", groups={self.groups!r}"
        by = "" if self.by_weights else f" by {self.criterion}"
        again = "" if self.regrow is None else f"; regrown by {self.regrow}"
        return f"{self.recipe}{by}, {self.budget.scope}{coupled}: {plan}{back}{again}"

    def run_of(self, model: nn.Module, alone: bool = True) -> PruningRun:
        """The selection of a model, checked; nothing is changed.

        Args:
            model: The model.
            alone: Whether this process only looks ahead, so that no other ones are asked anything.

        Raises:
            ValueError: If nothing is selected, or a tensor cannot be pruned in this way.
        """
        join = self.frozen == "join"
        outputs = None  # groups leave them alone, and cut what they read
        if self.recipe.prunes_outputs and self.groups is None:
            outputs = find_outputs(model, self.example_inputs)
        spared = () if outputs is None else outputs.names
        targets, frozen = select_trainable(model, self.parameters, self.exclude, join, spared)
        eventual = [*targets, *frozen]
        sharded = any(is_sharded(t.parameter) for t in eventual)
        pruner, targets = self._pruner_of(model, targets, sharded)
        layout = Layout.PLAIN if sharded or self.enforce == "in_place" else Layout.KEPT
        pruned = [*targets, *frozen] if join else targets
        if layout is Layout.KEPT:
            refuse_unfit([t for t in pruned if join or t.parameter.requires_grad], _refuse_sparse_gradients)
        pruner.check(pruned)
        self.criterion.check(pruned)
        seed = torch.initial_seed() % 2**63 if self.seed is None else self.seed
        guard = None if alone else require_same_masks
        scorer = None if self.by_weights else Scorer(self.criterion)
        biases = self._biases_of(model, [*targets, *frozen])
        return PruningRun(targets, pruner, seed, layout, frozen, join, guard, scorer, model, biases, outputs)

    def _biases_of(self, model: nn.Module, targets: Sequence[Target]) -> list[Target]:
        """What is masked along with dead channels: they give zeros then, and no constants."""
        if not self.recipe.prunes_outputs or self.groups is not None:
            return []
        excluded = names_matching(self.exclude, all_targets(model))
        return [bias for bias in biases_of(model, targets, self.recipe.granularity) if bias.name not in excluded]

    def _pruner_of(self, model: nn.Module, targets: list[Target], sharded: bool) -> tuple[Pruner, list[Target]]:
        """What computes masks, and the tensors it masks."""
        if self.groups is None:
            return Pruner(self.recipe, self.budget, self.plan.final), targets
        if sharded:
            raise ValueError('groups="dependency" is not there for sharded models: leave it out, or use "ddp"')
        groups, members = restricted(find_groups(model, self.example_inputs), targets, all_targets(model))
        return CoupledPruner(self.recipe, self.budget, self.plan.final, groups), members


def _refuse_sparse_gradients(target: Target) -> None:
    for module, _ in target.owners:
        if isinstance(module, (nn.Embedding, nn.EmbeddingBag)) and module.sparse:
            raise ValueError(
                f"'{target.name}' belongs to {type(module).__name__}(sparse=True): a tensor that is masked when it "
                'is read has dense gradients only; use enforce="in_place", or sparse=False, or leave it out with '
                "exclude="
            )
