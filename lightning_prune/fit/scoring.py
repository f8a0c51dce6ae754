"""When a criterion watches: the batches before an event, or all of a fit."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lightning_prune.fit.training import Training
from lightning_prune.pruner.criteria.scorer import Scorer
from lightning_prune.schedules.plan import Plan
from lightning_prune.targets.target import Target


class Scoring:
    """Shows a criterion what it watches: a :class:`~lightning_prune.fit.gradients.Watcher`.

    Args:
        scorer: Collects what the criterion sees.
        plan: Gives the plan of the fit.
        done: Gives the time up to which it is carried out.
        targets: Gives the tensors.
        due: Whether an event waits for the batch that begins.
    """

    def __init__(
        self,
        scorer: Scorer,
        plan: Callable[[], Plan],
        done: Callable[[], int | None],
        targets: Callable[[], Sequence[Target]],
        due: Callable[[], bool],
    ) -> None:
        self._scorer = scorer
        self._plan, self._done, self._targets, self._due = plan, done, targets, due
        self._open = False

    def wants(self, training: Training) -> bool:
        """Whether the criterion watches the step that comes next.

        Args:
            training: The moment before the batch.
        """
        self._open = self._due() or self._always() or self._soon(training)
        if self._open:
            self._scorer.open(self._targets())
        else:
            self._scorer.close()
        return self._open and self._scorer.criterion.needs in ("gradients", "dense gradients")

    def see(self, targets: Sequence[Target], training: Training) -> None:
        """Hands gradients on while the criterion watches.

        Args:
            targets: Tensors with gradients.
            training: The moment before the step.
        """
        if self._open and self._scorer.criterion.needs in ("gradients", "dense gradients"):
            self._scorer.observe(targets)

    def _always(self) -> bool:
        last, done = self._plan().last, self._done()
        over = last is not None and done is not None and done >= last
        return not self._scorer.criterion.forgets and not over

    def _soon(self, training: Training) -> bool:
        """Whether an event is due within the window; of a plan in epochs in the first step of the next one."""
        ahead, plan = self._scorer.criterion.window - 1, self._plan()
        if ahead == 0 or not plan.pure or plan.counts_fractions:
            return False
        if plan.unit == "step":
            return bool(plan.due(training.step, training.step + ahead))
        near = training.left is not None and training.left <= ahead
        return near and bool(plan.due(training.epoch, training.epoch + 1))
