"""One pruning event on coupled channels: which ones die, so that the number of zeros comes nearest to the target."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from lightning_prune.prune.amounts import compute_nparams_to_prune
from lightning_prune.prune.checks import naming, require_maskable
from lightning_prune.prune.kernels.smallest import keep_masks
from lightning_prune.prune.masks import next_mask
from lightning_prune.prune.methods import LnStructured, RandomStructured
from lightning_prune.prune.sharded.tensors import is_sharded
from lightning_prune.pruner.candidates import candidates_of
from lightning_prune.pruner.channel_state import ChannelState, shapes_of
from lightning_prune.pruner.channels import require_channel_scores
from lightning_prune.pruner.granularity import Channels
from lightning_prune.pruner.groups import (
    ChannelGroup,
    Groups,
    LeftOut,
    comparable,
    nearest,
    zeros_after,
)
from lightning_prune.pruner.normalization import normalized
from lightning_prune.pruner.pruner import Pruner
from lightning_prune.schedules.plan import Demand
from lightning_prune.targets.select import Target, listing
from lightning_prune.targets.unfit import refuse_unfit


@dataclass(frozen=True)
class CoupledPruner(Pruner):
    """A :class:`Pruner` of whole channels that go together, each with all that makes and all that reads it.

    A channel is scored by the method on one row with all its parameters, over the mean of its group where groups are
    ranked together (Fang et al. 2023). Targets count the weights of matrices and kernels; biases and norms are masked
    with their channels, and not counted.

    Attributes:
        groups: The coupled channels.
    """

    groups: Groups = field(default_factory=lambda: Groups(()))

    def counted(self, targets: Sequence[Target]) -> list[Target]:
        """Matrices and kernels."""
        return [t for t in targets if t.parameter.dim() > 1]

    def slack(self, targets: Sequence[Target]) -> int:
        """How many weights rounding to whole channels can miss a target by: those of the largest channel."""
        shapes = shapes_of(self.counted(targets))
        sizes = []
        for group in self.groups.groups:
            own = {s.name: shapes[s.name] for s in group.masked if s.name in shapes}
            sizes += [zeros_after([group], [[channel]], own) for channel in range(group.channels)]
        return max(sizes, default=0)

    def kept_back(self, targets: Sequence[Target], amount: int | float) -> list[str]:
        """Nothing is said of channels: one of each group stays, as the groups that are shown at the start tell."""
        return []

    def among(self, targets: Sequence[Target]) -> CoupledPruner:
        """Itself: groups are whole from the start."""
        return self

    def masks(
        self,
        targets: Sequence[Target],
        demand: Demand,
        scores: Sequence[Tensor] | None = None,
        alive: Sequence[Tensor | None] | None = None,
    ) -> list[Tensor | None]:
        """The boolean masks of all targets after the event; ``None`` where nothing is pruned yet.

        Args:
            targets: All tensors of the groups.
            demand: What the event is asked for.
            scores: Importance of their entries, one tensor of its shape for each; the parameters by default.
            alive: Masks to start from instead of those that the tensors have.

        Raises:
            ValueError: If the demand cannot be met, or scores do not fit.
        """
        state = ChannelState(self.groups.groups, candidates_of(targets, scores, alive), by_weights=scores is None)
        if demand.sparsity is None and demand.amount is None:
            return state.masks_after([self._dead_in(state, i, None) for i in range(len(state.groups))])
        if demand.sparsity is not None:
            counts = self._dead_at_target(state, demand.sparsity)
        else:
            counts = self._dead_after_amount(state, demand.amount or 0)
        return state.masks_after(counts)

    def check(self, targets: Sequence[Target]) -> None:
        """Refuses, before anything is pruned, what an event would have to refuse later.

        Args:
            targets: All tensors of the groups.

        Raises:
            ValueError: If the method is not a structured one, or cannot rank channels together; for scopes and
                dimensions that groups have not; if tensors are sharded; if overrides contradict each other or match
                nothing; or if the target at the end is out of reach.
            TypeError: If a mask cannot be put on a tensor.
        """
        self._check_choices()
        sharded = [t.name for t in targets if is_sharded(t.parameter)]
        if sharded:
            raise ValueError(f"groups='dependency' is not there for sharded models, but '{sharded[0]}' is sharded")
        refuse_unfit(targets, _require_maskable)
        shares = self._override_shares()
        if self.final is not None:
            self._check_reachable(
                ChannelState(self.groups.groups, candidates_of(targets, alive=[None] * len(targets))), shares
            )

    def _check_choices(self) -> None:
        if not isinstance(self.recipe.granularity, Channels):
            raise ValueError(
                f"groups='dependency' prunes whole channels, {self.recipe.cls.__name__} does not: use 'ln_structured', "
                "'random_structured' or another structured method"
            )
        if self.recipe.dim != "out":
            raise ValueError(
                f"dim={self.recipe.dim!r}: coupled channels have no other dimension than 'out'; leave it out"
            )
        if self.budget.scope not in ("local", "global"):
            raise ValueError(f"scope={self.budget.scope!r} is not there for coupled channels: use 'local' or 'global'")
        if self.budget.scope == "global":
            require_channel_scores(self.recipe.make(0, 0))

    def _check_reachable(self, state: ChannelState, shares: dict[int, float]) -> None:
        assert self.final is not None
        counts = [round(shares[i] * g.channels) if i in shares else self._cap(g) for i, g in enumerate(state.groups)]
        wanted, most = round(self.final * state.total), state.zeros(counts)
        if wanted > most + self.slack(state.targets):
            held = [f"{g.name} ({n} of {g.channels})" for g, n in zip(state.groups, counts, strict=True)]
            raise ValueError(
                f"{wanted} zeros of {state.total} weights cannot be reached: {most} at most, with {sum(counts)} of "
                f"{sum(g.channels for g in state.groups)} channels pruned (one of each group stays, and what "
                f"max_sparsity and overrides hold): {listing(held)}"
            )

    def _cap(self, group: ChannelGroup) -> int:
        """How many channels of a group may die: one stays."""
        return min(self.budget.cap(group.channels), group.channels - 1)

    def _override_shares(self) -> dict[int, float]:
        """The share of channels of the groups that have an override, by position: that of a layer that makes them.

        Raises:
            ValueError: If an override matches no such layer, or those of one group differ.
        """
        made = [(s.name, i) for i, g in enumerate(self.groups.groups) for s in g.of("write") if _is_kernel(s.name)]
        shares: dict[int, float] = {}
        for position, share in self.budget.override_shares([name for name, _ in made]).items():
            name, group = made[position]
            if shares.setdefault(group, share) != share:
                raise ValueError(
                    f"overrides give '{name}' {share}, and {shares[group]} to another layer of the same "
                    f"channels ('{self.groups.groups[group].name}'): give all of them the same"
                )
        return shares

    def _dead_at_target(self, state: ChannelState, sparsity: float) -> list[list[bool]]:
        """The dead channels with which the zeros come nearest to a share of all weights."""
        wanted, base = round(sparsity * state.total), [sum(flags) for flags in state.dead]
        if wanted <= state.zeros_now:
            return state.dead
        shares, final = self._override_shares(), max(sparsity, self.final or 0.0)
        for i, share in shares.items():
            group = state.groups[i]
            base[i] = max(base[i], min(round(share * sparsity / final * group.channels), self._cap(group)))
        free = [i for i in range(len(base)) if i not in shares]
        order = self._order(state, free)

        def counts(steps: int) -> list[int]:
            more = Counter(i for i, _ in order[:steps])
            return [n + more[place] for place, n in enumerate(base)]

        steps = nearest(len(order), lambda n: state.zeros(counts(n), _by_group(order[:n])), wanted)
        return self._with(state, counts(steps), order[:steps])

    def _dead_after_amount(self, state: ChannelState, amount: int | float) -> list[list[bool]]:
        """The dead channels after an amount of what is left of each group, or of all together."""
        shares = self._override_shares()
        left = [g.channels - sum(dead) for g, dead in zip(state.groups, state.dead, strict=True)]
        room = [max(self._cap(g) - sum(dead), 0) for g, dead in zip(state.groups, state.dead, strict=True)]
        counts = [sum(dead) for dead in state.dead]
        together = [i for i in range(len(left)) if i not in shares and self.budget.scope == "global"]
        for i in [i for i in range(len(left)) if i not in together]:
            counts[i] += min(compute_nparams_to_prune(shares.get(i, amount), left[i]), room[i])
        number = compute_nparams_to_prune(amount, sum(left[i] for i in together))
        order = self._order(state, together)[:number]
        for i, _ in order:
            counts[i] += 1
        return self._with(state, counts, order)

    def _order(self, state: ChannelState, free: Sequence[int]) -> list[tuple[int, int | None]]:
        """(group, channel) in the order in which channels die, up to what each group lets go.

        With ``scope="global"`` by their scores; else the group with the smallest share of dead channels is next, and
        which of its channels it is remains open (``None``).
        """
        room = {i: self._cap(state.groups[i]) - sum(state.dead[i]) for i in free}
        if self.budget.scope != "global":
            steps = [
                ((sum(state.dead[i]) + k + 0.5) / state.groups[i].channels, i) for i in free for k in range(room[i])
            ]
            return [(i, None) for _, i in sorted(steps)]
        ranked = sorted(
            (float(score), i, channel)
            for i in free
            for channel, score in enumerate(self._scores(state, i).tolist())
            if not state.dead[i][channel]
        )
        order: list[tuple[int, int | None]] = []
        for _, i, channel in ranked:
            if room[i] > 0:
                room[i] -= 1
                order.append((i, channel))
        return order

    def _scores(self, state: ChannelState, place: int) -> Tensor:
        alive = state.alive(place)
        scores = self._raw_scores(state, place)
        if self.budget.normalize is not None:
            return normalized(scores, alive, self.budget.normalize)
        return scores if self.recipe.signed else comparable(scores, alive)  # sums with signs have no mean to divide by

    def _raw_scores(self, state: ChannelState, place: int) -> Tensor:
        """What the method says of each channel; norms without laying channels out in rows."""
        method, alive = require_channel_scores(self.recipe.make(0, 0)), state.alive(place)
        if type(method) is RandomStructured:  # reads the number of channels only
            return method.channel_scores(torch.empty(len(alive), 1, device=alive.device))
        if type(method) is LnStructured and isinstance(method.n, (int, float)) and 0 < method.n < float("inf"):
            return state.norms(place, float(method.n))
        return method.channel_scores(torch.where(alive[:, None], state.matrix(place), 0))

    def _with(
        self, state: ChannelState, counts: Sequence[int], order: Sequence[tuple[int, int | None]]
    ) -> list[list[bool]]:
        """The dead channels of each group: those that were ranked, else as many as are asked for, by the method."""
        ranked = _by_group(order)
        dead = []
        for i, count in enumerate(counts):
            known = {channel for channel in ranked.get(i, []) if channel is not None}
            more = count - sum(state.dead[i])
            if known:
                dead.append([flag or channel in known for channel, flag in enumerate(state.dead[i])])
            else:
                dead.append(self._dead_in(state, i, more) if more > 0 else state.dead[i])
        return dead

    def _dead_in(self, state: ChannelState, place: int, count: int | None) -> list[bool]:
        """The dead channels of one group after the method dropped ``count`` more."""
        if count is not None and self.recipe.cls in (LnStructured, RandomStructured) and not self.recipe.signed:
            alive, scores = state.alive(place), self._raw_scores(state, place)
            keep = keep_masks([scores], count, alive=[alive], names=[state.groups[place].name])[0]
            return [not kept for kept in keep.tolist()]
        rows, group = state.matrix(place), state.groups[place]
        alive = state.alive(place)[:, None].expand_as(rows)
        with naming(f"coupled channels of '{group.name}', rows of shape {tuple(rows.shape)}"):
            mask = next_mask(self.recipe.make(count, 0), rows, alive.contiguous())
        dead: list[bool] = (~mask.any(dim=1)).tolist()
        if all(dead):
            dead[state.dead[place].index(False)] = False
        return dead


def restricted(groups: Groups, selected: Sequence[Target], everything: Sequence[Target]) -> tuple[Groups, list[Target]]:
    """The groups of which all matrices and kernels are selected, and all their tensors.

    Args:
        groups: All groups of the model.
        selected: What is to be pruned.
        everything: All parameters of the model.

    Returns:
        The groups, with the others left out, and their tensors in the order of the model.

    Raises:
        ValueError: If no group is left.
    """
    chosen = {t.name for t in selected}
    fitting, left = [], list(groups.left_out)
    kernels = {t.name for t in everything if t.parameter.dim() > 1}
    for group in groups.groups:
        others = [s.name for s in group.masked if s.name in kernels - chosen]
        if others:
            left.append(LeftOut(group.name, f"'{others[0]}' belongs to its channels and is not selected"))
        else:
            fitting.append(group)
    if not fitting:
        reasons = listing([str(one) for one in left], 6) or "the model has no layer whose channels another one reads"
        raise ValueError(f"groups='dependency' finds no channels to prune: {reasons}")
    names = {s.name for group in fitting for s in group.masked}
    return replace(groups, groups=tuple(fitting), left_out=tuple(left)), [t for t in everything if t.name in names]


def _by_group(order: Iterable[tuple[int, int | None]]) -> dict[int, list[int | None]]:
    found: dict[int, list[int | None]] = {}
    for group, channel in order:
        found.setdefault(group, []).append(channel)
    return found


def _is_kernel(name: str) -> bool:
    return not name.endswith("bias")


def _require_maskable(target: Target) -> None:
    for module, name in target.owners:
        with naming(f"'{target.name}' cannot be pruned"):
            require_maskable(module, name)
