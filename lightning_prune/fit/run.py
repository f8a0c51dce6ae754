"""The pruning of one model during one fit: its targets, masks and position in the plan. Knows no Trainer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from lightning_prune.distributed import together
from lightning_prune.fit.mask_states import mask_state, require_bits, require_same_selection, saved_mask, tensor_state
from lightning_prune.fit.regrowth import Regrowth
from lightning_prune.fit.selection import Selection
from lightning_prune.prune import attribute
from lightning_prune.prune.attribute import Layout
from lightning_prune.prune.kernels.hashing import stream
from lightning_prune.prune.kernels.randomness import seeded
from lightning_prune.prune.sharded.tensors import dead_entries
from lightning_prune.pruner.biases import mask_of_bias
from lightning_prune.pruner.criteria.scorer import Scorer, masks_in_rounds
from lightning_prune.pruner.method import make_recipe
from lightning_prune.pruner.outputs import Outputs
from lightning_prune.pruner.pruner import Pruner
from lightning_prune.schedules.plan import Demand
from lightning_prune.targets.select import Target, all_targets

STATE_VERSION = 2
"""Version 1 told the plan in words instead of plain values."""


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
        return self.zeros / self.total if self.total else 0.0

    @property
    def sparser(self) -> bool:
        """Whether the event masked anything."""
        return self.zeros > self.before


class PruningRun(Selection):
    """Masks of one model and where its plan stands.

    Args:
        targets: The tensors that are pruned.
        pruner: Computes the masks of an event.
        seed: Seed of all random choices; each event has its own stream from it.
        layout: ``PLAIN``, where somebody keeps the zeros, or ``KEPT``.
        frozen: Tensors that would be targets if they were trainable.
        join: Whether frozen tensors become targets at the first event after they became trainable.
        scorer: Scores the tensors by a criterion; ``None`` = by the weights themselves.
        model: The model, for criteria that run it.
        guard: Called with new masks, by the names of their tensors, before they are imposed; refuses wrong ones.
        biases: Masked along with the dead channels of their layers, and not counted.
        outputs: What makes the model's outputs, where whole output channels go.

    Attributes:
        events: Number of events so far.
        done: Time up to which the plan is carried out, ``None`` before its first time.
        started: Whether training has started, so that masks may be there.
        untouched: Names of tensors of nothing but zeros, which were not taken as pruned.
        regrowth: What regrowth did, ``None`` before its first update.
    """

    def __init__(
        self,
        targets: Sequence[Target],
        pruner: Pruner,
        seed: int,
        layout: Layout = Layout.KEPT,
        frozen: Sequence[Target] = (),
        join: bool = False,
        guard: Callable[[Mapping[str, Tensor | None]], None] | None = None,
        scorer: Scorer | None = None,
        model: nn.Module | None = None,
        biases: Sequence[Target] = (),
        outputs: Outputs | None = None,
    ) -> None:
        super().__init__(targets, frozen, biases, layout, join, origin=str(pruner.recipe))
        self.outputs = outputs
        self.pruner = pruner
        self.seed = seed
        self._guard = guard
        self.scorer = scorer
        self._model = model
        self.events = 0
        self.done: int | None = None
        self.started = False
        self.regrowth: Regrowth | None = None
        self._keeping = False
        self.untouched: list[str] = []

    @property
    def counted(self) -> list[Target]:
        """The targets whose weights count, not the biases and norms that are masked with their channels."""
        return self.pruner.counted(self.ranked)

    @property
    def total(self) -> int:
        """Number of selected weights."""
        return sum(t.parameter.numel() for t in self.counted)

    @property
    def zeros(self) -> int:
        """Number of masked weights."""
        return sum(t.zeros for t in self.counted)

    @property
    def sparsity(self) -> float:
        """Share of masked weights among the selected ones."""
        return self.zeros / self.total if self.total else 0.0

    @property
    def units(self) -> int:
        """Weights in one unit that is pruned, summed over tensors: how far rounding can miss a target."""
        return self.pruner.slack(self.ranked)

    def start(self, keep_zeros: bool = False, take: bool = True) -> None:
        """Gives all targets that are pruned already the layout of this run, at the start of training.

        Args:
            keep_zeros: Take the zeros that tensors have as their masks, when they join later too.
            take: Whether to take those of the present targets; a resumed run has their masks.
        """
        self.started = True
        for target in self.targets:
            self._lay_out(target)
        self._keeping = keep_zeros
        if keep_zeros and take:
            self._keep_zeros(self.targets)

    def moved_to(self, model: nn.Module) -> PruningRun:
        """The same selection and method on a copy of the model.

        Args:
            model: A model with parameters of the same names.
        """
        there = {t.name: t for t in all_targets(model)}
        biases = [there[t.name] for t in self.targets if t.name in self._along]
        targets = [there[t.name] for t in self.ranked]
        return PruningRun(targets, self.pruner, self.seed, self.layout, biases=biases)

    def prune(self, demand: Demand, at_random: bool = False) -> PruningEvent:
        """Carries out one event; a refused one changes nothing.

        Args:
            demand: What is asked for.
            at_random: Whether the weights are drawn at random instead of by the method.

        Returns:
            What was done.
        """
        if self.join:
            self._take_in([t for t in self.frozen if t.parameter.requires_grad])
        before = self.zeros
        masks = self._masks_after(demand, at_random)
        for target, mask in zip(self.targets, masks, strict=True):
            if mask is not None and mask is not target.alive:
                self._impose(target, mask)
        self.events += 1
        tensors = {t.name: t.zeros for t in self.targets}
        return PruningEvent(demand, self.zeros, self.total, before, tensors)

    def move(self, masks: Callable[[], dict[Target, Tensor]], key: str) -> dict[Target, Tensor]:
        """Gives tensors other masks; refused ones change nothing.

        Args:
            masks: Computes them, with random numbers that are the same on every rank.
            key: Tells these random numbers from those of other moments.

        Returns:
            The masks.
        """
        guard, seed = self._guard, stream(f"{self.seed}:{key}")
        with nullcontext() if guard is None else together(), seeded(seed, [t.parameter for t in self.targets]):
            found = masks()
        if guard is not None:
            guard({target.name: mask for target, mask in found.items()})
        for target, mask in found.items():
            self._impose(target, mask)
        return found

    def _masks_after(self, demand: Demand, at_random: bool) -> list[Tensor | None]:
        guard, seed = self._guard, stream(f"{self.seed}:{self.events}")
        all_or_none = nullcontext() if guard is None else together()  # before masks are compared, for which all wait
        with all_or_none, seeded(seed, [t.parameter for t in self.targets]):
            masks = self._with_biases(self._masks_of_ranked(demand, at_random))
        if guard is not None:
            guard({t.name: mask for t, mask in zip(self.targets, masks, strict=True)})
        return masks

    def _masks_of_ranked(self, demand: Demand, at_random: bool) -> list[Tensor | None]:
        ranked = self.ranked
        if not ranked:
            return []
        pruner = self.pruner.among(ranked)
        if at_random:
            recipe = make_recipe("random_unstructured", 2, None, None)
            return replace(pruner, recipe=recipe).masks(ranked, demand)
        if self.scorer is None or self._model is None:
            return pruner.masks(ranked, demand)
        return masks_in_rounds(pruner, self.scorer, self._model, ranked, demand)

    def _with_biases(self, masks: Sequence[Tensor | None]) -> list[Tensor | None]:
        """The masks of all targets out of those that the pruner made."""
        made = dict(zip(self.ranked, masks, strict=True))
        units = self.pruner.granularity
        return [made[t] if t in made else mask_of_bias(t, made, units) for t in self.targets]

    def _keep_zeros(self, targets: Sequence[Target]) -> None:
        self._keep_zeros_of_weights(targets)
        masks = self._with_biases([t.alive for t in self.ranked])
        for bias, mask in zip(self.targets, masks, strict=True):
            if bias.name in self._along and mask is not None and mask is not bias.alive:
                self._impose(bias, mask | (bias.parameter.detach() != 0))  # a constant stays until the next event

    def _keep_zeros_of_weights(self, targets: Sequence[Target]) -> None:
        for target in self.pruner.counted([t for t in targets if t.name not in self._along]):
            nonzero = target.parameter.detach() != 0
            dead = dead_entries(nonzero)
            if dead == nonzero.numel():
                self.untouched.append(target.name)  # it was made of zeros, such as an adapter's, and nobody pruned it
            elif dead:
                self._impose(target, nonzero if target.alive is None else nonzero & target.alive)

    def _take_in(self, unfrozen: Sequence[Target]) -> None:
        """Makes targets of tensors that became trainable."""
        self.targets += unfrozen
        self.frozen = [t for t in self.frozen if t not in unfrozen]
        self._note()
        if self._keeping:
            self._keep_zeros(unfrozen)

    def require_same_masks(self) -> None:
        """Raises RuntimeError on every rank if masks differ between ranks."""
        if self._guard is not None:
            self._guard(self.masks)

    def state_dict(self) -> dict[str, Any]:
        """All that resuming needs, as tensors and plain types."""
        return {**self._position(), "tensors": {t.name: tensor_state(t) for t in self.targets}}

    def state_later(self) -> Callable[[], dict[str, Any]]:
        """What gives the :meth:`state_dict` of now, when all ranks are there to put masks together that are split."""
        position = self._position()
        masks = {t.name: (list(t.parameter.shape), t.alive) for t in self.targets}
        return lambda: {**position, "tensors": {name: mask_state(*mask) for name, mask in masks.items()}}

    def _position(self) -> dict[str, Any]:
        return {
            "version": STATE_VERSION,
            "seed": self.seed,
            "events": self.events,
            "done": self.done,
            "frozen": [t.name for t in self.frozen],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Puts the selection, the masks and the position of :meth:`state_dict` back.

        The selection is that of the state, so that it does not matter what is frozen at the moment.

        Raises:
            ValueError: If the state is of other tensors than the ones selected here.
        """
        found = {t.name: t for t in [*self.targets, *self.frozen]}
        selected = [name for name in found if name not in self._along]  # states of before do not know biases
        require_same_selection([*state["tensors"], *state.get("frozen", found)], selected)
        for name, saved in state["tensors"].items():
            if name not in found or list(found[name].parameter.shape) != list(saved["shape"]):
                here = f"of shape {tuple(found[name].parameter.shape)}" if name in found else "not selected"
                raise ValueError(
                    "the pruning state is that of another model or selection: it has "
                    f"'{name}' of shape {tuple(saved['shape'])}, which is {here} here; selected are {', '.join(found)}"
                )
        for name, saved in state["tensors"].items():
            require_bits(name, saved)
        self.seed, self.events, self.done = state["seed"], state["events"], state["done"]
        known = {*state["tensors"], *state.get("frozen", ())}
        late = [found.pop(t.name) for t in self.targets if t.name in self._along and t.name not in known]
        self.targets = [*(found.pop(name) for name in state["tensors"]), *late]
        self.frozen = list(found.values())
        self._note()
        for target in self.targets:
            self._restore(target, state["tensors"].get(target.name, {}))

    def keep_masks_of(self, state: Mapping[str, Any]) -> list[str]:
        """Masks what an earlier fit of the same model masked; the selection is the one made now.

        Args:
            state: The :meth:`state_dict` at the end of that fit.

        Returns:
            Names of the tensors that were given other weights since, which are not zero under the mask; if there are
            any, nothing is masked.
        """
        masks = {t: saved_mask(t, state["tensors"].get(t.name, {})) for t in self.targets}
        found = {t: mask for t, mask in masks.items() if mask is not None}
        plain = {} if self.sharded else found
        others = [t.name for t, mask in plain.items() if attribute.hidden_values(t.parameter, mask)]
        if not others:
            self.seed, self.events = state["seed"], state["events"]
            for target, mask in found.items():
                self._impose(target, mask)
        return others

    def _restore(self, target: Target, saved: Mapping[str, Any]) -> None:
        mask = saved_mask(target, saved)
        if mask is None:
            return
        self._impose(target, mask)
        if "hidden" in saved:
            with torch.no_grad():
                target.parameter[~mask] = saved["hidden"].to(target.parameter)


def sparsity_of(runs: Sequence[PruningRun]) -> float:
    """Share of masked weights among those that several runs selected."""
    total = sum(run.total for run in runs)
    return sum(run.zeros for run in runs) / total if total else 0.0
