"""LotteryTicket: iterative magnitude pruning with rewinding, level by level, beside control runs."""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

from lightning.pytorch import LightningDataModule, LightningModule
from lightning.pytorch.utilities.seed import isolate_rng

from lightning_prune.fit.rewind import Rewind
from lightning_prune.lottery.arms import DENSE, Control, arms
from lightning_prune.lottery.files import Place, claim, write_results
from lightning_prune.lottery.level import Settings, train
from lightning_prune.lottery.masks import Masking, number
from lightning_prune.lottery.results import LotteryResults, LotteryRow
from lightning_prune.lottery.sources import (
    Data,
    MakeModule,
    MakeTrainer,
    make_module,
    make_trainer,
    require_other_weights,
)
from lightning_prune.prune.amounts import canonical_amount
from lightning_prune.prune.progress import Progress
from lightning_prune.pruner.budgets import Budget, as_budget
from lightning_prune.pruner.method import Method, make_recipe
from lightning_prune.pruner.pruner import Pruner
from lightning_prune.targets.patterns import Patterns, as_patterns, describe_patterns


class LotteryTicket:
    """Finds lottery tickets: trains, tests, prunes and rewinds, level by level, and compares with control runs.

    Level 0 trains the dense network. Every further level prunes the trained network of the level before by ``amount``,
    takes the survivors (and biases, norms, buffers, optimizers, schedulers and progress) back to the rewind point of
    the dense training, and trains from there to the Trainer's end with the mask (Frankle & Carbin 2019, rewinding
    after the start: Frankle et al. 2020). Controls share the dense network and, but for what they are to show, do the
    same:

    - ``"reinit"``: the ticket's mask, new initial weights, trained from the beginning.
    - ``"random_mask"``: the ticket's weights, in each tensor as many zeros at random places.
    - ``"finetune"``: no rewinding; the trained survivors go on for as long again, with fresh optimizers at the learning
      rates at which the dense training ended, and are pruned further.
    - ``"learning_rate"``: the trained survivors go on, only optimizers, schedulers and progress are rewound, and are
      pruned further (Renda et al. 2020).

    Everything is written to ``directory``: in ``seed-S/level-LL/ARM`` the plain checkpoint ``model.ckpt`` (it loads
    into the unpruned module) and ``mask.pt`` (:func:`~lightning_prune.lottery.read_mask`), and all rows in
    ``results.csv``. An experiment that was killed goes on, when it is run again, with the level that it had not
    finished, and gives the same rows. All levels of a seed are trained from the same random state, so in the same
    order of data.

    Args:
        module: A function that makes a LightningModule with ``test_step``; or a module, whose copies are trained (for
            other seeds and for ``"reinit"`` they draw new weights through ``reset_parameters``).
        trainer: A function of the level that makes a fresh Trainer; or keyword arguments for one.
        datamodule: Data, as for ``Trainer.fit``; or a function that makes it anew for every network.
        train_dataloaders: Training data, as for ``Trainer.fit``, or a function that makes it.
        val_dataloaders: Validation data, as for ``Trainer.fit``, or a function that makes it.
        test_dataloaders: Test data, as for ``Trainer.test``, or a function that makes it.
        rounds: How often it is pruned.
        amount: What each level prunes: a fraction of the units that are left, or a count, as for
            :class:`~lightning_prune.PruningCallback`.
        rewind: The point of the dense training to go back to.
        controls: Which controls to run.
        seeds: One repetition of everything for each.
        directory: Where everything is written.
        monitor: Name of the validation loss; its minimum is the early-stopping step. ``None`` for none.
        method: Method of pruning, as for :class:`~lightning_prune.PruningCallback`.
        scope: ``"local"``: each tensor loses its share; ``"global"``: all together; or a
            :class:`~lightning_prune.Budget`: half the rate for the output layer, say.
        parameters: What is pruned, as for :class:`~lightning_prune.PruningCallback`.
        exclude: What is not.
        progress: Say on a terminal which network is trained, of how many, and the time left: a line for each, on the
            standard error output.

    Raises:
        ValueError: If an argument is out of range, or a control unknown.

    Example:
        >>> from lightning.pytorch.demos.boring_classes import BoringModel
        >>> experiment = LotteryTicket(
        ...     BoringModel, {"max_steps": 2000}, rounds=2, rewind=Rewind(step=500), controls=["reinit"]
        ... )
        >>> experiment.networks  # that experiment.run() trains
        [(0, 0, 'dense'), (0, 1, 'ticket'), (0, 1, 'reinit'), (0, 2, 'ticket'), (0, 2, 'reinit')]
    """

    def __init__(
        self,
        module: MakeModule,
        trainer: MakeTrainer,
        datamodule: LightningDataModule | Callable[[], LightningDataModule] | None = None,
        *,
        train_dataloaders: Any = None,
        val_dataloaders: Any = None,
        test_dataloaders: Any = None,
        rounds: int = 12,
        amount: int | float = 0.2,
        rewind: Rewind | None = None,
        controls: Iterable[Control] = (),
        seeds: Sequence[int] = (0,),
        directory: str | os.PathLike[str] = "lottery_ticket",
        monitor: str | None = "val_loss",
        method: Method = "l1_unstructured",
        scope: Literal["local", "global"] | Budget = "local",
        parameters: Patterns = None,
        exclude: Patterns = None,
        progress: bool = True,
    ) -> None:
        if rounds < 1:
            raise ValueError(f"rounds should be 1 or more, got {rounds}")
        seeds = _whole_numbers(seeds)
        amount = amount if isinstance(amount, (int, float)) else amount.item()
        budget = as_budget(scope)
        if budget.scope == "erk":
            raise ValueError("scope should be 'local' or 'global', got 'erk': it spreads targets, not amounts")
        self.rewind = Rewind(epoch=0) if rewind is None else rewind
        if self.rewind.what != "weights":
            raise ValueError(
                f"a ticket's weights, optimizers and schedulers are rewound (what='weights'), got {self.rewind}; to "
                "rewind the learning rate only add controls=['learning_rate']"
            )
        recipe = make_recipe(method, 2, "out", None)
        if not recipe.takes_amount:
            raise ValueError(f"each level prunes an amount, but {recipe.cls.__name__} does not take one")
        pruner = Pruner(recipe, budget)
        chosen = None if parameters is None else as_patterns(parameters)
        masking = Masking(pruner, canonical_amount(amount), chosen, as_patterns(exclude))
        data = Data(datamodule, train_dataloaders, val_dataloaders, test_dataloaders)
        self.settings = Settings(masking, self.rewind, data, monitor)
        self.module = module
        self.trainer = trainer
        self.rounds = rounds
        self.arms = arms(controls)
        self.seeds = seeds
        self.directory = Path(directory)
        self.progress = progress

    @property
    def networks(self) -> list[tuple[int, int, str]]:
        """Seed, level and arm of each network, in the order in which they are trained."""
        return [(place.seed, place.level, place.arm.name) for place in self._places()]

    def run(self) -> LotteryResults:
        """Trains what is not trained yet.

        Returns:
            One row for each level, arm and seed, ordered by seed, level and arm.

        Raises:
            ValueError: If ``directory`` holds an experiment with other settings, the rewind point is never reached,
                or the module cannot be tested, pruned or re-initialised so.
        """
        places, rows = self._places(), list[LotteryRow]()
        with isolate_rng(), Progress("lottery ticket", len(places), lines=True) as progress:
            self._check()
            claim(self.directory, self._words())
            for i, place in enumerate(places):
                if self.progress and place.row() is None:
                    progress.at(i, f"seed {place.seed}, level {place.level} of {self.rounds}, {place.arm.name}")
                rows.append(self._row(place))
                write_results(self.directory, LotteryResults(rows))
        return LotteryResults(rows)

    def _places(self) -> list[Place]:
        pruned = [(level, arm) for level in range(1, self.rounds + 1) for arm in self.arms]
        return [Place(self.directory, seed, *which) for seed in self.seeds for which in [(0, DENSE), *pruned]]

    def _row(self, place: Place) -> LotteryRow:
        """The row of one network, trained now or before."""
        row = place.row()
        if row is None:
            train(place, self.settings, self._made(place), make_trainer(self.trainer, place.level, place.folder))
            row = place.row()
        assert row is not None
        return row

    def _made(self, place: Place) -> LightningModule:
        if place.arm.name == "reinit":
            return make_module(self.module, number(f"{place.seed}:{place.level}:reinit"), as_given=False)
        return make_module(self.module, place.seed, as_given=place.seed == self.seeds[0])

    def _check(self) -> None:
        """Refuses before anything is trained what could not be done later."""
        module = self._made(Place(self.directory, self.seeds[0], 0, DENSE))
        if len(self.seeds) > 1:
            self._made(Place(self.directory, self.seeds[1], 0, DENSE))
        for arm in self.arms:
            if arm.name == "reinit":
                require_other_weights(module, self._made(Place(self.directory, self.seeds[0], 1, arm)))

    def _words(self) -> str:
        """What must be the same when an experiment goes on."""
        masking, budget = self.settings.masking, self.settings.masking.pruner.budget
        return (
            f"{masking.pruner.recipe}, {budget}, amount={masking.amount!r}, {self.rewind}, parameters: "
            f"{describe_patterns(masking.parameters)}, exclude: {describe_patterns(masking.exclude)}"
        )


def _whole_numbers(seeds: Iterable[int]) -> list[int]:
    """The seeds as plain numbers; raises TypeError or ValueError if they are not one or more different ones."""
    given = list(seeds)
    if not all(hasattr(seed, "__index__") and not isinstance(seed, bool) for seed in given):
        raise TypeError(f"seeds should be whole numbers, got {given}")
    numbers = [operator.index(seed) for seed in given]
    if not numbers or len(set(numbers)) < len(numbers):
        raise ValueError(f"seeds should be one or more different numbers, got {numbers}")
    return numbers
