"""What the callback says, and when: selection and plan, events, and in the end what was reached."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Literal

from lightning.pytorch.utilities import rank_zero_info, rank_zero_only, rank_zero_warn
from torch import nn
from torch.optim import Optimizer
from tqdm import tqdm  # type: ignore[import-untyped]

from lightning_prune import report
from lightning_prune.fit import checks
from lightning_prune.fit.run import PruningEvent, PruningRun
from lightning_prune.prune.printing import covered
from lightning_prune.prune.warning import PruningWarning
from lightning_prune.pruner.coupled import CoupledPruner
from lightning_prune.schedules.plan import Plan
from lightning_prune.targets.names import listing
from lightning_prune.targets.select import Target

Verbose = bool | Literal["table", "line"]


class Announcer:
    """Tells the user what happens, on rank zero; warnings are told once each, and also when not verbose.

    Args:
        verbose: ``"table"`` or ``True``: say what is selected and planned, what each event did, and in a table what
            was reached; ``"line"``: a line at the start, for each event and at the end; ``False``: only warnings.

        decides: What decides at each time of the plan how much is pruned, if it is not the plan itself.

    Raises:
        ValueError: If ``verbose`` is none of these.
    """

    def __init__(self, verbose: Verbose, decides: str | None = None) -> None:
        if verbose not in ("table", "line", True, False):
            raise ValueError(f'verbose={verbose!r}: give "table" (or True), "line" or False')
        self.verbose: Verbose = verbose
        self._decides = "" if decides is None else f"; {decides} decides what is done"
        self._warned: set[str] = set()
        self._restarted: Sequence[str] = ()

    def start(self, model: nn.Module, run: PruningRun, plan: str, optimizers: Sequence[Optimizer]) -> None:
        """What is selected, how it will be pruned, and what no optimizer trains."""
        self._warned.clear()
        waiting = f"; {len(run.frozen)} frozen tensors join when they are trained" if run.join and run.frozen else ""
        notes = checks.told_at_the_start(run.counted, run.outputs)
        plan += self._decides + waiting
        lines = [report.selection(model, run.counted), plan + _channels(run), *notes]
        short = [f"pruning {run.total:,} weights of {listing([t.name for t in run.counted], limit=1)}, {plan}"]
        self._tell("\n".join(short if self.verbose == "line" else lines))
        self._warn(checks.not_trained(run.counted, optimizers))

    def kept_back(self, amount: int | float, kept: Sequence[str]) -> None:
        """That an amount asks for more than will go."""
        if kept:
            self._warn(
                ["kept back"],
                f"amount={amount} asks for more than goes: what stays is {listing(kept)} "
                "(scope=Budget(max_sparsity=1.0) lets all of it go)",
            )

    def coverage(self, model: nn.Module, targets: Sequence[Target]) -> None:
        """That all callbacks of a fit together select little of the model."""
        self._warn(checks.narrow_selection(model, targets))

    def pruned(self, event: PruningEvent, unit: str) -> None:
        """What an event did."""
        if message := without_effect(event, unit):
            self._warn(["without effect"], message)
        restarted, self._restarted = self._restarted, ()
        if event.sparser:
            scores = f"; scores of {', '.join(restarted)} are compared from here on" if restarted else ""
            self._tell(
                f"pruned at {unit} {event.demand.time}: {event.zeros:,} of {event.total:,} weights are zero "
                f"({event.sparsity:.2%}){scores}"
            )

    def restarted(self, names: Sequence[str]) -> None:
        """Which scores are compared from now on only; said with the event."""
        self._restarted = names

    def replaced(self, names: Sequence[str]) -> None:
        """That masks of the fit before are forgotten."""
        if names:
            self._warn(
                ["other weights"],
                f"the model was given other weights since it was pruned: {_quoted(names)} are not "
                "zero where the fit before pruned them; its masks are forgotten and the plan begins anew",
            )

    def untouched(self, names: Sequence[str]) -> None:
        """That tensors of nothing but zeros are not taken as pruned."""
        if names:
            self._warn(
                ["untouched"],
                f"{_quoted(names)} hold nothing but zeros, as adapters and residual layers begin: they are trained, "
                "not kept at zero; mask them by hand if they were pruned",
            )

    def relayered(self, names: Sequence[str]) -> None:
        """That layers were replaced in mid-training."""
        if names:
            self._warn(
                ["replaced", *names],
                f"{_quoted(names)} of the model were replaced since the last event: the masks of the old ones are "
                "forgotten, tensors of the same names are pruned with the others from now on",
            )

    def disturbed(self, names: Sequence[str]) -> None:
        """That a parameter itself is not sparse, only what is read of it."""
        if names:
            self._warn(
                ["disturbed"],
                f"training moved masked weights of {_quoted(names)} away from zero: a forward that "
                "holds the parameter itself does not see its zeros, or the optimizer moves weights without "
                "gradient; with enforce='in_place' the parameters themselves stay sparse",
            )

    def not_rewound(self, rewind: object, epoch: int) -> None:
        """That there is nothing to go back to yet."""
        self._warn([f"nothing is rewound: {rewind} lies ahead of epoch {epoch}"])

    def end(self, model: nn.Module, targets: Sequence[Target], plan: Plan, shortfall: str | None) -> None:
        """What was reached, and what is wrong with it."""
        if self.verbose == "line":
            reached = report.end(targets)
            self._tell(f"pruned: {reached.zeros:,} of {reached.weights:,} weights are zero ({reached.sparsity:.2%})")
        else:
            self._show(report.end(targets, plan.final))
        self._warn([*([shortfall] if shortfall else []), *checks.dead_layers(targets), *checks.cut_layers(model)])

    def _show(self, table: report.Summary) -> None:
        if self.verbose:
            rank_zero_only(report.show)(table)

    def _tell(self, message: str) -> None:
        if self.verbose:
            with tqdm.external_write_mode():  # else the line goes into that of a progress bar
                if (below := covered(sys.stderr)) is not None:
                    below.write("\r\x1b[2K")  # that of rich, which draws itself again
                rank_zero_info(message)

    def _warn(self, kinds: Iterable[str], message: str | None = None) -> None:
        for kind in kinds:
            if kind not in self._warned:
                self._warned.add(kind)
                rank_zero_warn(message or kind, category=PruningWarning)


def _channels(run: PruningRun) -> str:
    """Lines on coupled channels: how many there are, and which are left alone, why."""
    if not isinstance(run.pruner, CoupledPruner):
        return ""
    groups = run.pruner.groups
    total = sum(group.channels for group in groups.groups)
    found = f"{total:,} coupled channels in {len(groups.groups)} groups; biases and norms go with them, uncounted"
    return "\n".join(["", found, *(f"left alone: {one}" for one in groups.left_out)])


def _quoted(names: Sequence[str]) -> str:
    return listing([repr(name) for name in names], limit=4)


def unfinished(run: PruningRun, plan: Plan) -> str | None:
    """What was reached and what was planned, or ``None`` if the plan was carried out."""
    last, done = plan.last, run.done
    planned = "" if plan.final is None else f" of {plan.final:.4f} planned"
    if last is not None and (done is None or done < last):
        ended = f"at {plan.unit} {done}" if done is not None else "when it had hardly begun"
        return (
            f"the fit ended {ended}, before the last pruning event at {plan.unit} {last}: reached is a "
            f"sparsity of {run.sparsity:.4f}{planned}"
        )
    if plan.final is not None and plan.final * run.total - run.zeros > run.units:
        return f"the plan was carried out, but reached is a sparsity of {run.sparsity:.4f}{planned}"
    return None


def without_effect(event: PruningEvent, unit: str) -> str | None:
    """That an event which was to prune an amount found nothing to prune, or ``None``."""
    amount = event.demand.amount
    if event.sparser or not amount:
        return None
    return (
        f"nothing was left to prune at {unit} {event.demand.time}: {event.zeros} of {event.total} weights are masked, "
        f"and amount={amount} of what is left rounds to nothing or would take the last of each tensor "
        "(scope=Budget(max_sparsity=1.0) lets all of it go)"
    )
