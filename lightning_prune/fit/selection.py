"""The tensors that a fit prunes, with their masks: which ones they are while the model around them changes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import replace

from torch import Tensor, nn

from lightning_prune.prune import attribute
from lightning_prune.prune.attribute import Layout
from lightning_prune.prune.base import history_of, impose
from lightning_prune.prune.functional import remove
from lightning_prune.prune.masks import AnyMethod
from lightning_prune.prune.methods import CustomFromMask
from lightning_prune.prune.sharded.tensors import dead_entries, is_sharded
from lightning_prune.targets.select import Target, all_targets


class Selection:
    """The tensors that a fit prunes, and those that it would prune if they were trained.

    Args:
        targets: The tensors that are pruned.
        frozen: Tensors that would be targets if they were trainable.
        biases: Masked along with the dead channels of their layers, and not counted.
        layout: ``PLAIN``, where somebody keeps the zeros, or ``KEPT``.
        join: Whether frozen tensors become targets at the first event after they became trainable.
        origin: What their masks are said to come from.

    Attributes:
        sharded: Whether the tensors are split over ranks.
    """

    def __init__(
        self,
        targets: Sequence[Target],
        frozen: Sequence[Target],
        biases: Sequence[Target],
        layout: Layout,
        join: bool,
        origin: str,
    ) -> None:
        self._along = {t.name for t in biases}
        self.targets = [*targets, *(t for t in biases if t.parameter.requires_grad)]
        self.frozen = [*frozen, *(t for t in biases if not t.parameter.requires_grad)]
        self.layout = layout
        self.join = join
        self.sharded = any(is_sharded(t.parameter) for t in [*self.targets, *self.frozen])
        self._origin = origin
        self._note()

    @property
    def ranked(self) -> list[Target]:
        """The targets that the pruner makes masks of; the others are biases that go with their channels."""
        return [t for t in self.targets if t.name not in self._along]

    @property
    def masks(self) -> dict[str, Tensor | None]:
        """The mask of each target by its name, ``None`` = nothing pruned."""
        return {t.name: t.alive for t in self.targets}

    @property
    def pruned(self) -> dict[str, Tensor]:
        """The masks of the targets that are pruned, by name."""
        return {name: mask for name, mask in self.masks.items() if mask is not None}

    @property
    def history(self) -> dict[str, AnyMethod]:
        """The methods that made the mask of each target that is pruned."""
        made = {t.name: history_of(*t.owners[0]) for t in self.targets}
        return {name: method for name, method in made.items() if method is not None}

    @property
    def disturbed(self) -> list[str]:
        """Names of the tensors whose parameter holds values under the mask, which only the masked read hides."""
        if self.sharded or self.layout is Layout.PLAIN:  # where zeros are kept by those who train
            return []
        masks = {t: t.alive for t in self.targets}
        return [t.name for t, m in masks.items() if m is not None and attribute.hidden_values(t.parameter, m)]

    def refresh(self, model: nn.Module) -> list[str]:
        """Follows layers that were replaced since: the tensor that has a target's name now takes its place.

        It begins without a mask, and the next event prunes it like the others. A name that is gone is no target any
        more. A parameter that a parametrization took over stays the same target.

        Args:
            model: The model.

        Returns:
            Names of the targets that were replaced or are gone.
        """
        there = all_targets(model)
        slots = {(id(module), name): t for t in there for module, name in t.owners}
        parameters = {id(t.parameter): t for t in there}
        names = {alias: t for t in there for alias in t.aliases}
        changed: list[str] = []
        targets: list[Target] = []
        for target in self.targets:
            module, name = target.owners[0]
            in_slot, known = slots.get((id(module), name)), self._known[target.name]
            if in_slot is not None and in_slot.parameter.shape == known.shape:
                targets.append(target)
            elif id(known) in parameters:
                targets.append(target if target.alive is not None else _as(target, parameters[id(known)]))
            else:
                changed.append(target.name)
                self._forget(target)
                targets += [_as(target, names[target.name])] if target.name in names else []
        self.targets = targets
        self._note()
        return changed

    def _note(self) -> None:
        self._known = {t.name: t.parameter for t in self.targets}

    def _lay_out(self, target: Target) -> None:
        """Ends the layout in which a target was pruned before, and imposes the same mask anew."""
        if target.alive is not None:
            mask = target.alive.clone()
            self._forget(target)
            self._impose(target, mask)

    def _forget(self, target: Target) -> None:
        for module, name in target.owners:
            if attribute.layout_of(module, name) is not None:
                remove(module, name)

    def overlap(self, other: Selection) -> list[str]:
        """Names of the tensors that both runs prune, or will when they are trainable."""
        mine = {id(t.parameter) for t in self._eventual()}
        return [t.name for t in other._eventual() if id(t.parameter) in mine]

    def leave_to(self, other: Selection) -> None:
        """Leaves biases alone that another run has selected."""
        theirs = {id(t.parameter) for t in other._eventual() if t.name not in other._along}
        left = {t.name for t in self._eventual() if t.name in self._along and id(t.parameter) in theirs}
        self._along -= left
        self.targets = [t for t in self.targets if t.name not in left]
        self.frozen = [t for t in self.frozen if t.name not in left]
        self._note()

    def _eventual(self) -> list[Target]:
        return [*self.targets, *(self.frozen if self.join else ())]

    def _impose(self, target: Target, mask: Tensor) -> None:
        for module, name in target.owners:
            impose(CustomFromMask(None, self._origin), module, name, mask, self.layout)
        if self.sharded:
            dead_entries(mask)  # counted now, when all ranks are here

    def close(self) -> None:
        """Makes the pruning permanent: plain parameters with zeros."""
        with contextlib.ExitStack() as everything:  # goes on with the others where one fails
            for target in reversed(self.targets):
                everything.callback(self._forget, target)


def refuse_overlap(run: Selection, others: Iterable[Selection]) -> None:
    """Raises ValueError if another run prunes a tensor of this one; a bias is left to the run that has selected it."""
    runs = list(others)
    for other in runs:
        run.leave_to(other)
        other.leave_to(run)
    shared = [name for other in runs for name in run.overlap(other)]
    if shared:
        raise ValueError(
            f"two PruningCallbacks select the same tensors: {', '.join(shared)}; tell them apart by parameters= and "
            "exclude="
        )


def _as(target: Target, other: Target) -> Target:
    """Another tensor in the place of a target, under its name."""
    first, *others = other.places
    return replace(other, places=(first._replace(name=target.name), *others))
