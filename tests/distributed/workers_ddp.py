"""What every rank of a DDP run does in one launch; the tests look at what comes back."""

from __future__ import annotations

import itertools
from functools import partial
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor, nn

from lightning_prune import (
    SET,
    SNIP,
    Activation,
    Constant,
    Fisher,
    GraSP,
    Linear,
    Movement,
    PruningCallback,
    Reinit,
    Rewind,
    RigL,
    SynFlow,
    Taylor,
)
from lightning_prune.distributed import mean_over_ranks, require_same, seeded_alike
from lightning_prune.prune import L1Unstructured, random_unstructured
from tests.distributed.launch import RANKS, Check, rank
from tests.distributed.models import Fitted, Mlp, Sent, calibrated, fit, inverse

METHODS = ("l1_unstructured", "random_unstructured", "ln_structured", "random_structured")
SCOPES = ("local", "global")
COUPLED = (("ln_structured", "local"), ("ln_structured", "global"), ("random_structured", "global"))
OPTIONS: dict[str, dict[str, Any]] = {
    "static_graph": {"static_graph": True},
    "find_unused_parameters": {"find_unused_parameters": True},
    "gradient_as_bucket_view": {"gradient_as_bucket_view": True},
}
REWINDS: dict[str, Any] = {"rewind": Rewind(step=3), "reinit": Reinit(seed=5)}


CRITERIA: dict[str, Any] = {
    "taylor": Taylor(batches=3),
    "taylor of each": Taylor(batches=3, order="each"),
    "snip": SNIP(),
    "fisher": Fisher(batches=3),
    "movement": Movement(),
    "synflow": SynFlow(rounds=5, example_inputs=torch.zeros(1, 8)),
    "grasp": GraSP(loss=calibrated),
    "activation": Activation(batches=3),
    "snip of a loss": SNIP(loss=calibrated),
    "function": inverse,
}
GRANULARITIES: dict[str, dict[str, Any]] = {
    "n of m": {"method": "n_m", "n": 1, "method_kwargs": {"m": 2}, "schedule": Linear(final=0.5, begin=0, end=2)},
    "blocks": {"method": "ln_blocks", "method_kwargs": {"block": (1, 2)}, "criterion": Taylor(batches=3)},
    "rows": {"scope": "row", "criterion": "snip"},
}


REGROWTHS: dict[str, Any] = {
    "rigl": RigL(every=2, until=11, unit="step"),
    "set": SET(every=1, until=3, unit="epoch", decay="constant"),
}


def pruning(method: str = "l1_unstructured", scope: Any = "global", **kwargs: Any) -> PruningCallback:
    kwargs = {"schedule": Linear(final=0.6, begin=0, end=2), "parameters": "*", **kwargs}
    return PruningCallback(method, scope=scope, verbose=False, **kwargs)


def coupled_pruning(method: str, scope: str) -> PruningCallback:
    return pruning(method, scope, groups="dependency", example_inputs=torch.zeros(2, 8))


def unseeded(folder: Path, method: str, scope: str) -> Fitted:
    """Each rank has its own random state, and draws in between."""
    model = Mlp(RANKS)
    torch.manual_seed(100 + rank())
    torch.rand(rank() + 1)
    return fit(folder, model, pruning(method, scope), ranks=RANKS)


def coupled(folder: Path, method: str, scope: str) -> Fitted:
    model = Mlp(RANKS)
    torch.manual_seed(100 + rank())
    return fit(folder, model, coupled_pruning(method, scope), ranks=RANKS)


def by_criterion(folder: Path, name: str) -> Fitted:
    return fit(folder, Mlp(RANKS), pruning(criterion=CRITERIA[name], parameters=None), ranks=RANKS)


def granular(folder: Path, name: str, ranks: int = RANKS) -> Fitted:
    return fit(folder, Mlp(ranks), pruning(**GRANULARITIES[name], parameters=["first", "last"]), ranks=ranks)


def regrown(folder: Path, name: str, ranks: int = RANKS) -> tuple[Fitted, Any]:
    callback = pruning(schedule=Constant(final=0.6), scope="erk", regrow=REGROWTHS[name], parameters=None, seed=1)
    if ranks > 1:
        torch.manual_seed(100 + rank())  # which is not what random weights are drawn by
    fitted = fit(folder, Mlp(ranks, adam=True), callback, ranks=ranks)
    return fitted, callback.regrowth


def with_options(folder: Path, options: dict[str, Any]) -> Fitted:
    model = Mlp(RANKS, adam=True, unused="find_unused_parameters" in options)
    callback = pruning(exclude="idle.*") if "find_unused_parameters" in options else pruning()
    return fit(folder, model, callback, ranks=RANKS, strategy=DDPStrategy(**options))


def rewound(folder: Path, rewind: Any) -> Fitted:
    callback = PruningCallback(amount=0.3, epochs=[1, 2], scope="global", rewind=rewind, verbose=False)
    return fit(folder, Mlp(RANKS), callback, ranks=RANKS)


def in_place(folder: Path) -> Fitted:
    return fit(folder, Mlp(RANKS, adam=True), pruning(enforce="in_place"), ranks=RANKS)


def sent(folder: Path) -> tuple[list[int], list[int]]:
    """Bytes of each step, dense and pruned; the callback that counts comes last, so it does not see events."""
    dense, pruned = Sent(), Sent()
    fit(folder, Mlp(RANKS), dense, ranks=RANKS)
    fit(folder, Mlp(RANKS), pruning(), pruned, ranks=RANKS)
    return dense.seen, pruned.seen


class Disturb(Callback):
    """Changes one weight on rank 1, so that another one is the smallest there."""

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        if rank() == 1 and trainer.current_epoch == 1:
            pl_module.second.weight.data.view(-1)[pl_module.second.weight.data.abs().argmin()] = 9.0


class OwnChoice(L1Unstructured):
    """A method whose masks depend on the rank."""

    def compute_mask(self, t: Any, default_mask: Any) -> Any:
        mask = default_mask.clone()
        mask.view(-1)[rank()] = 0
        return mask


def refused(folder: Path, *callbacks: Any) -> tuple[str, Fitted]:
    model = Mlp(RANKS)
    try:
        fit(folder, model, *callbacks, ranks=RANKS)
    except RuntimeError as error:
        return str(error), fit(folder, model, ranks=RANKS, epochs=0)
    raise AssertionError("the fit went through")


def other_selection() -> PruningCallback:
    return PruningCallback(amount=0.3, epochs=[1], exclude="last.*" if rank() else None, verbose=False)


def other_words() -> str:
    try:
        require_same(["same", f"of rank {rank()}"], "a list")
    except RuntimeError as error:
        return str(error)
    return "nothing"


def averaged() -> list[Any]:
    scores = [torch.full((3, 2), 1.0 + rank()), torch.tensor([2.0 * rank()])]
    return [*mean_over_ranks(scores), *scores]


def own_loop() -> Tensor:
    """A random mask on ranks with random states of their own."""
    torch.manual_seed(100 + rank())
    layer = nn.Linear(8, 5)
    with seeded_alike():
        random_unstructured(layer, "weight", amount=0.5)
    return layer.weight_mask


def saved(folder: Path) -> Fitted:
    """Two of four epochs, with checkpoints."""
    keep = ModelCheckpoint(dirpath=folder, filename="half", save_last=False, save_top_k=-1)
    kwargs = {"epochs": 2, "enable_checkpointing": True}
    schedule = Linear(final=0.6, begin=0, end=2)
    callback = Events("random_unstructured", schedule=schedule, scope="global", allow_unfinished=True)
    return fit(folder, Mlp(RANKS), callback, keep, ranks=RANKS, **kwargs)


class Look(Callback):
    """Notes where the matrices are zero when training goes on."""

    def __init__(self) -> None:
        self.found: dict[str, Any] = {}

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        if not self.found:
            self.found = {n: p.detach() == 0 for n, p in pl_module.named_parameters() if p.dim() > 1}


def resumed(folder: Path, ranks: int = RANKS) -> tuple[dict[str, Any], list[tuple[int, int]], Fitted]:
    """The rest of :func:`saved`, on any number of ranks."""
    look, events = Look(), Events("random_unstructured", schedule=Linear(final=0.6, begin=0, end=2), scope="global")
    fitted = fit(folder, Mlp(ranks), look, events, ranks=ranks, ckpt_path=folder / "half.ckpt")
    return look.found, events.seen, fitted


class Events(PruningCallback):
    """Notes the epoch and the zeros of each event."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, verbose=False, **kwargs)
        self.seen: list[tuple[int, int]] = []

    def on_pruned(self, trainer: Any, pl_module: Any, event: Any) -> None:
        self.seen.append((event.demand.time, event.zeros))


def checks_on_two() -> dict[str, Check]:
    checks: dict[str, Check] = {}
    for method, scope in itertools.product(METHODS, SCOPES):
        checks[f"{method} {scope}"] = partial(unseeded, method=method, scope=scope)
    for method, scope in COUPLED:
        checks[f"coupled {method} {scope}"] = partial(coupled, method=method, scope=scope)
    for name in GRANULARITIES:
        checks[f"granularity {name}"] = partial(granular, name=name)
    for name in CRITERIA:
        checks[f"criterion {name}"] = partial(by_criterion, name=name)
    for name in REGROWTHS:
        checks[f"regrow {name}"] = partial(regrown, name=name)
    for name, options in OPTIONS.items():
        checks[name] = partial(with_options, options=options)
    for name, rewind in REWINDS.items():
        checks[name] = partial(rewound, rewind=rewind)
    checks["disturbed weight"] = lambda folder: refused(folder, Disturb(), pruning(scope="local"))
    own: dict[str, Any] = {"amount": 0.5, "epochs": [1], "parameters": "first.weight", "verbose": False}
    checks["own choice"] = lambda folder: refused(folder, PruningCallback(OwnChoice, **own))
    checks["other selection"] = lambda folder: refused(folder, other_selection())
    checks["in place"] = in_place
    checks["sent"] = sent
    checks["other words"] = lambda folder: other_words()
    checks["averaged"] = lambda folder: averaged()
    checks["own loop"] = lambda folder: own_loop()
    checks["saved"] = saved
    return checks
