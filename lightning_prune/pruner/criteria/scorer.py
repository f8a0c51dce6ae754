"""What a criterion has seen of one model, and the scores and masks that follow from it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lightning_prune.distributed import mean_over_ranks
from lightning_prune.prune.checks import require_shape
from lightning_prune.prune.progress import Progress
from lightning_prune.prune.sharded.agreement import together
from lightning_prune.prune.sharded.tensors import cut, is_sharded, local, split_like, whole
from lightning_prune.pruner.criteria.activation import Activation, spread, watch
from lightning_prune.pruner.criteria.base import Criterion, Function, Magnitude
from lightning_prune.pruner.criteria.guard import own_randomness
from lightning_prune.pruner.pruner import Pruner
from lightning_prune.schedules.plan import Demand
from lightning_prune.targets.select import Target


class Scorer:
    """Collects what a criterion watches, and scores tensors by it.

    Args:
        criterion: The criterion.

    Example:
        >>> from lightning_prune.pruner.criteria.gradients import Taylor
        >>> from lightning_prune.targets.select import select
        >>> net = nn.Linear(2, 1, bias=False)
        >>> _ = net.weight.data.copy_(torch.tensor([[2.0, -1.0]]))
        >>> scorer = Scorer(Taylor(batches=2))
        >>> for value in (1.0, 3.0):
        ...     scorer.observe(select(net), [torch.full((1, 2), value)])
        >>> scorer.scores(net, select(net))[0]
        tensor([[4., 2.]])
    """

    def __init__(self, criterion: Criterion) -> None:
        self.criterion = criterion
        self._sums: dict[str, Tensor] = {}
        self._counts: dict[str, int] = {}
        self._handles: list[Any] = []

    def observe(self, targets: Sequence[Target], gradients: Sequence[Tensor | None] | None = None) -> None:
        """Takes the gradients of one optimizer step, for criteria that watch gradients.

        Args:
            targets: The tensors.
            gradients: Their gradients, unscaled and averaged over ranks; ``None`` in it for one without. Those of the
                parameters by default.
        """
        given = [t.parameter.grad for t in targets] if gradients is None else gradients
        for target, gradient in zip(targets, given, strict=True):
            if gradient is not None:
                dense = local(gradient.detach())
                dense = dense.to_dense() if dense.layout is not torch.strided else dense
                weight = local(target.parameter.detach())
                term = self.criterion.term(weight, dense).detach()
                # Sums are written into, so a term that is a view of the weight or its gradient is copied.
                memory = term.untyped_storage().data_ptr()
                shared = memory in (weight.untyped_storage().data_ptr(), dense.untyped_storage().data_ptr())
                self._add(target, term.clone() if shared and target.name not in self._sums else term)

    def open(self, targets: Sequence[Target]) -> None:
        """Begins to watch inputs of layers, for criteria that do."""
        if self.criterion.needs == "inputs" and not self._handles:
            self._handles = watch(targets, self._add)

    def close(self) -> None:
        """Watches inputs no more."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def forget(self) -> None:
        """Drops what was seen, unless the criterion adds up from the start."""
        if self.criterion.forgets:
            self._sums, self._counts = {}, {}

    def try_out(self, model: nn.Module, targets: Sequence[Target]) -> None:
        """Scores once, as far as that is possible before training: refuses what an event would have to refuse.

        Nothing is kept, and the model and random states are left as they are. A function that cannot score yet, because
        it reads what training makes, is asked again at its event.

        Args:
            model: The model.
            targets: The tensors.

        Raises:
            ValueError: If scores do not fit the tensors, or the criterion cannot run the model.
            TypeError: If they are no tensors.
        """
        criterion = self.criterion
        likes = [t.parameter.detach() for t in targets]
        if isinstance(criterion, Function):
            try:
                with own_randomness():
                    answer = criterion.function(targets)
            except Exception:
                return
            found = _one_each(criterion, answer, targets)
        elif criterion.needs == "model":
            found = criterion.run(model, targets, [t.alive for t in targets])
        else:
            found, likes = [_blank_score(criterion, t) for t in targets], [local(weight) for weight in likes]
        for target, scores, like in zip(targets, found, likes, strict=True):
            require_shape(scores, like, f"scores of {criterion}", f"'{target.name}'")

    def scores(
        self, model: nn.Module, targets: Sequence[Target], alive: Sequence[Tensor | None] | None = None
    ) -> list[Tensor]:
        """One tensor of scores for each target, of its shape and split like it.

        Args:
            model: The model.
            targets: The tensors.
            alive: Masks of what is left, also such as are not imposed yet; those of the targets by default.

        Raises:
            ValueError: If nothing was seen, or a score of what is left is not finite; names the tensor.
        """
        masks = [t.alive for t in targets] if alive is None else alive
        with together():
            found = self._scores(model, targets, masks)
            for target, scores, mask in zip(targets, found, masks, strict=True):
                require_shape(scores, target.parameter, f"scores of {self.criterion}", f"'{target.name}'")
                _require_finite(target, scores, mask, self.criterion)
        return found

    def _scores(self, model: nn.Module, targets: Sequence[Target], alive: Sequence[Tensor | None]) -> list[Tensor]:
        criterion = self.criterion
        if isinstance(criterion, Magnitude):
            return [t.parameter.detach() for t in targets]
        if isinstance(criterion, Function):
            answers = _one_each(criterion, criterion.function(targets), targets)
            return [_like(t, scores) for t, scores in zip(targets, answers, strict=True)]
        if criterion.needs == "model":
            with together():
                found = criterion.run(model, targets, alive)
            return mean_over_ranks(found)
        return [self._score(t) for t in targets]

    def _score(self, target: Target) -> Tensor:
        parameter = target.parameter.detach()
        if self.criterion.needs == "nothing":
            return split_like(self.criterion.score(local(parameter), torch.zeros_like(local(parameter))), parameter)
        if target.name not in self._sums:
            what = "inputs" if self.criterion.needs == "inputs" else "gradient"
            raise ValueError(f"'{target.name}': {self.criterion} has seen no {what} of it; exclude it, or train it")
        total = self._sums[target.name]
        if isinstance(self.criterion, Activation):
            total = spread(target.module, mean_over_ranks([total])[0], parameter)
        elif self.criterion.forgets and self._counts[target.name] > 1:
            total = total / self._counts[target.name]
        return split_like(self.criterion.score(local(parameter), total), parameter)

    def _add(self, target: Target, term: Tensor) -> None:
        if target.name in self._sums:
            self._sums[target.name] += term
        else:
            self._sums[target.name] = term
        self._counts[target.name] = self._counts.get(target.name, 0) + 1

    def state_dict(self, targets: Sequence[Target] = ()) -> dict[str, Any]:
        """What was seen, as tensors and plain types; empty where there is nothing.

        Args:
            targets: Those whose terms are split over ranks; every rank has to call it.
        """
        split = {t.name: t.parameter.detach() for t in targets}
        sums = {
            name: (whole(split_like(total, split[name])) if name in split and self._entrywise else total).cpu().clone()
            for name, total in self._sums.items()
        }
        return {"counts": dict(self._counts), "sums": sums} if sums else {}

    @property
    def _entrywise(self) -> bool:
        return self.criterion.needs != "inputs"

    def load_state_dict(self, state: Mapping[str, Any], targets: Sequence[Target]) -> None:
        """Puts what was seen back.

        Args:
            state: The :meth:`state_dict`.
            targets: The tensors, on whose devices it goes on.
        """
        self._counts, self._sums = dict(state.get("counts", {})), {}
        for target in targets:
            total, parameter = state.get("sums", {}).get(target.name), target.parameter.detach()
            if total is not None:
                part = local(cut(total.to(parameter.device), parameter)) if self._entrywise else total
                self._sums[target.name] = part.to(parameter.device).clone()


def masks_in_rounds(
    pruner: Pruner, scorer: Scorer, model: nn.Module, targets: Sequence[Target], demand: Demand
) -> list[Tensor | None]:
    """The masks of an event whose criterion may ask for several rounds, each with new scores.

    The share of weights left falls in geometric steps (Tanaka et al. 2020); the last round meets the demand exactly.

    Args:
        pruner: Turns demands and scores into masks.
        scorer: Scores the tensors.
        model: The model.
        targets: All tensors that are pruned together.
        demand: What the event is asked for.

    Returns:
        Boolean masks, ``None`` where nothing is pruned yet.
    """
    masks = [t.alive for t in targets]
    counted = pruner.counted(targets)
    if isinstance(scorer.criterion, Magnitude) or _asks_for_nothing(counted, demand):
        return pruner.masks(targets, demand)
    between = _between(counted, demand, scorer.criterion.steps)
    with Progress(f"rounds of {type(scorer.criterion).__name__}", len(between) + 1) as progress:
        for i, sparsity in enumerate(between):
            progress.at(i)
            scores = scorer.scores(model, targets, masks)
            masks = pruner.masks(targets, Demand(demand.time, sparsity=sparsity), scores, masks)
    return pruner.masks(targets, demand, scorer.scores(model, targets, masks), masks)


def _asks_for_nothing(targets: Sequence[Target], demand: Demand) -> bool:
    """Whether there are as many zeros as a target asks for, so that nothing has to be scored."""
    total = sum(t.parameter.numel() for t in targets)
    return demand.sparsity is not None and round(demand.sparsity * total) <= sum(t.zeros for t in targets)


def _between(targets: Sequence[Target], demand: Demand, rounds: int) -> list[float]:
    """Shares of zeros after all rounds but the last, for a target; amounts are met in one round."""
    if demand.sparsity is None:
        return []
    total = sum(t.parameter.numel() for t in targets)
    start = 1 - sum(t.zeros for t in targets) / max(total, 1)
    left = max(1 - demand.sparsity, 1 / max(total, 1))
    if left >= start:
        return []
    return [1 - start * (left / start) ** (k / rounds) for k in range(1, rounds)]


def _one_each(criterion: Function, found: Any, targets: Sequence[Target]) -> list[Any]:
    """What a user's function returned, refused unless it is one of something for each target."""
    if isinstance(found, Tensor) or not isinstance(found, Iterable):
        got = "one tensor" if isinstance(found, Tensor) else repr(found)
        raise TypeError(f"{criterion} should return a list with scores of each of {len(targets)} targets, got {got}")
    scores = list(found)
    if len(scores) != len(targets):
        raise ValueError(f"{criterion} returned scores of {len(scores)} tensors for {len(targets)} targets")
    return scores


def _blank_score(criterion: Criterion, target: Target) -> Tensor:
    """The score of a tensor, or of this rank's part of it, for which nothing but zeros was seen."""
    weight = local(target.parameter.detach())
    zeros = torch.zeros_like(weight)
    return criterion.score(weight, zeros if criterion.needs == "inputs" else criterion.term(weight, zeros))


def _like(target: Target, scores: Any) -> Tensor:
    """Scores of a user's function, which may be whole ones of a split tensor, or split like it."""
    require_shape(scores, target.parameter, "scores", f"'{target.name}'")
    parameter, found = target.parameter.detach(), scores.detach()
    if is_sharded(found) and getattr(found, "placements", None) == getattr(parameter, "placements", None):
        return found
    return cut(whole(found).to(parameter.device), parameter)


def _require_finite(target: Target, scores: Tensor, alive: Tensor | None, criterion: Criterion) -> None:
    if bool(local(scores).sum().isfinite()):
        return  # nothing that is inf or NaN adds up to a number
    wrong = ~local(scores).isfinite()
    wrong = wrong if alive is None else wrong & local(alive)
    if bool(wrong.any()):
        raise ValueError(f"'{target.name}': {int(wrong.sum())} scores of {criterion} are inf or NaN: nothing is pruned")
