"""Pruning: the pruning of a model in a training loop of your own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from types import TracebackType
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from lightning_prune.distributed import of_rank_0, together
from lightning_prune.fit.interruptions import uninterrupted
from lightning_prune.fit.limits import Limits
from lightning_prune.fit.messages import Announcer, Verbose
from lightning_prune.fit.regrowth import Regrowth
from lightning_prune.fit.resuming import Saved, require_same_plan
from lightning_prune.fit.run import PruningEvent
from lightning_prune.fit.session import Session, settle
from lightning_prune.fit.settings import Settings
from lightning_prune.fit.training import Training
from lightning_prune.schedules.plan import Clock


class Pruning:
    """Prunes a model in a loop that is not a ``Trainer``'s: a plain one, or one of Lightning Fabric.

    From now on zeros stay zero whatever the optimizers do; call :meth:`start_epoch` before each epoch, and
    :meth:`start_step` before each batch if the plan counts in steps. In the end :meth:`finish` leaves a plain model.

    Args:
        model: The model, also one that Fabric or ``DistributedDataParallel`` has wrapped.
        optimizers: Its optimizer, or several.
        *arguments: ``method`` and ``amount``, as for :class:`~lightning_prune.PruningCallback`.
        schedulers: Learning-rate schedulers, which go back with ``rewind=``.
        max_epochs: Number of epochs of the loop, if known; a plan that cannot be finished is refused.
        max_steps: Number of optimizer steps of the loop; needed by schedules in fractions of the run.
        verbose: ``"table"`` or ``True``: say what is selected and planned, what each event did, and in a table at the
            end what was reached; ``"line"``: one line for each of these; ``False``: only warnings.
        **more: All other arguments of :class:`~lightning_prune.PruningCallback` that say what is pruned, how and when.

    Attributes:
        events: What was done so far.

    Raises:
        ValueError: If arguments contradict each other, or the model or its optimizers do not fit them.
        TypeError: If an argument is unknown or of a wrong kind.

    Example:
        >>> import torch
        >>> from lightning_prune import Linear
        >>> model = torch.nn.Linear(8, 2)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> with Pruning(model, optimizer, schedule=Linear(final=0.5, end=2), verbose=False) as pruning:
        ...     for epoch in range(3):
        ...         pruning.start_epoch(epoch)
        ...         optimizer.zero_grad()
        ...         model(torch.ones(1, 8)).sum().backward()
        ...         optimizer.step()
        >>> int((model.weight == 0).sum()), pruning.sparsity
        (8, 0.5)
    """

    def __init__(
        self,
        model: nn.Module,
        optimizers: Any = (),
        *arguments: Any,
        schedulers: Sequence[Any] = (),
        max_epochs: int | None = None,
        max_steps: int | None = None,
        verbose: Verbose = True,
        **more: Any,
    ) -> None:
        self._settings = Settings(*arguments, **more)
        self._model = _unwrapped(model)
        given = list(optimizers) if isinstance(optimizers, Iterable) else [optimizers]
        self._optimizers = [_raw(optimizer) for optimizer in given]
        self._schedulers = schedulers
        self._limits = Limits(max_epochs, max_steps)
        self._epoch = self._step = 0
        self._epoch_end: int | None = None
        self._last: dict[str, Any] | None = None
        self._masks: dict[str, Tensor] = {}
        self._sparsity = 0.0
        self._regrowth: Regrowth | None = None
        self.events: list[PruningEvent] = []
        with together():
            session = Session(self._settings, self._training(), Announcer(verbose), self._ready)
        session.agree()
        session.start(self._training())
        self._session: Session | None = session
        self._handles = [o.register_step_post_hook(self._count) for o in self._optimizers if isinstance(o, Optimizer)]

    @property
    def masks(self) -> dict[str, Tensor]:
        """Boolean masks (True = kept) of the pruned tensors by name; after the end those of the end."""
        if self._session is not None:
            self._masks = self._session.run.pruned
        return self._masks

    @property
    def history(self) -> dict[str, Any]:
        """The methods that pruned each tensor, by name."""
        return {} if self._session is None else self._session.run.history

    @property
    def sparsity(self) -> float:
        """Share of zeros among the selected weights."""
        if self._session is not None:
            self._sparsity = self._session.run.sparsity
        return self._sparsity

    @property
    def regrowth(self) -> Regrowth | None:
        """What regrowth did so far; ``None`` without any update."""
        if self._session is not None:
            self._regrowth = self._session.run.regrowth
        return self._regrowth

    def start_epoch(self, epoch: int, steps: int | None = None) -> None:
        """Carries out what is due at an epoch.

        Args:
            epoch: The epoch that begins, counted from 0.
            steps: Optimizer steps that it will take, if known; criteria that watch several batches before an event of a
                plan in epochs need it, and watch the one batch of the event otherwise.
        """
        self._epoch = epoch
        self._epoch_end = None if steps is None else self._step + steps
        self._tick("epoch")

    def start_step(self) -> None:
        """Carries out what is due at the optimizer step that comes next; steps are counted as optimizers take them."""
        self._tick(None)

    def finish(self) -> None:
        """Leaves a plain model with zeros; nothing is followed any more."""
        self._finish(failed=False)

    def _finish(self, failed: bool) -> None:
        if self._session is None:
            return
        _ = self.masks, self.sparsity, self.regrowth
        session, self._session = self._session, None
        for handle in self._handles:
            handle.remove()
        self._last = dict(session.close(failed=failed))

    def state_dict(self) -> dict[str, Any]:
        """All that going on needs, as tensors and plain types."""
        if self._session is None:
            return self._last or {}
        return {**self._session.state_dict(), "epoch": self._epoch, "step": self._step}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from :meth:`state_dict`; model and optimizers are loaded by the loop, before or after.

        Args:
            state: The state.

        Raises:
            ValueError: If it was saved under other settings.
        """
        session = self._at_work()
        require_same_plan(Saved(state), self._settings)
        session.load_state_dict(state)
        session.mend(thoroughly=True)
        self._epoch, self._step = state.get("epoch", 0), state.get("step", 0)

    def __enter__(self) -> Pruning:
        """For use in a ``with`` statement, which finishes in any case."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leaves a plain model."""
        self._finish(failed=isinstance(error, Exception))

    def _tick(self, only: Clock | None) -> None:
        session, now = self._at_work(), self._training()
        session.watch(now)
        if session.is_due(now, only):
            time = now.time(session.plan.unit)
            demands = of_rank_0(lambda: session.demands(time), nothing_everywhere=session.plan.pure)
            with uninterrupted() if demands else nullcontext():
                self._conclude(now, session.prune(now, demands))
        session.mend(thoroughly=only == "epoch")
        session.batch_start(now)

    def _ready(self, optimizer: Optimizer) -> None:
        """Shows gradients to those who watch, when an optimizer is about to step."""
        session, now = self._at_work(), self._training()
        with uninterrupted() if session.postponed else nullcontext():
            self._conclude(now, session.show_gradients(now, optimizer))
        session.mask_gradients(optimizer)

    def _conclude(self, now: Training, events: list[PruningEvent]) -> None:
        session = self._at_work()
        if events:
            settle(now, [session], [events])
            session.tell(events)
            self.events += events

    def _at_work(self) -> Session:
        if self._session is None:
            raise RuntimeError("this Pruning is finished: make a new one to prune on")
        return self._session

    def _training(self) -> Training:
        return Training(
            self._model,
            self._optimizers,
            self._schedulers,
            self._epoch,
            self._step,
            left=None if self._epoch_end is None else self._epoch_end - self._step,
            limits=self._limits,
        )

    def _count(self, *_: Any) -> None:
        self._step += 1


def _unwrapped(model: nn.Module) -> nn.Module:
    """The module that Fabric or DistributedDataParallel wraps."""
    of_fabric = type(model).__module__.startswith(("lightning.fabric", "lightning_fabric"))
    inner = getattr(model, "module", None)
    if isinstance(inner, nn.Module) and (of_fabric or isinstance(model, nn.parallel.DistributedDataParallel)):
        return _unwrapped(inner)
    return model


def _raw(optimizer: Any) -> Any:
    """The optimizer that Fabric wraps."""
    inner = getattr(optimizer, "optimizer", None)
    return inner if isinstance(inner, Optimizer) else optimizer
