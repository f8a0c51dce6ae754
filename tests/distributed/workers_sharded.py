"""What every rank of an FSDP2 run does; the tests look at the whole parameters that come back."""

from __future__ import annotations

import itertools
from functools import partial
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard

from lightning_prune import SNIP, Activation, Budget, Fisher, GraSP, Linear, PruningCallback, SynFlow, Taylor
from lightning_prune.prune import BasePruningMethod, L1Unstructured, LnStructured
from lightning_prune.prune.sharded.tensors import whole
from tests.distributed.launch import RANKS, Check, rank
from tests.distributed.models import Fitted, Mlp, Sent, calibrated, inverse
from tests.models import trainer

METHODS: dict[str, dict[str, Any]] = {
    "l1_unstructured": {},
    "random_unstructured": {},
    "ln_structured": {},
    "ln_structured in": {"dim": "in"},
    "ln_structured inf in": {"dim": "in", "n": float("inf")},
    "random_structured": {},
}
SCOPES = ("local", "global")


class EveryThird(BasePruningMethod):
    """A method of a user, which sees a whole tensor."""

    PRUNING_TYPE = "unstructured"

    def compute_mask(self, t: Any, default_mask: Any) -> Any:
        mask = default_mask.clone()
        mask.view(-1)[::3] = 0
        return mask


class Sharded(Mlp):
    """The same model; layers and root are split by rows in ``configure_model``."""

    def configure_model(self) -> None:
        for layer in (self.first, self.second, self.last):
            fully_shard(layer, mesh=self.device_mesh["data_parallel"])  # type: ignore[index]
        fully_shard(self, mesh=self.device_mesh["data_parallel"])  # type: ignore[index]

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", super().training_step(batch, batch_idx), sync_dist=True)

    def val_dataloader(self) -> Any:
        return self.train_dataloader()


class Replicated(Sharded):
    """Copies on a mesh of two dimensions: every rank holds all rows."""

    def configure_model(self) -> None:
        mesh = init_device_mesh("cpu", (RANKS, 1), mesh_dim_names=("copies", "rows"))
        for module in (self.first, self.second, self.last, self):
            fully_shard(module, mesh=mesh)


class Columns(Sharded):
    """The last matrix is split by columns, where they can be."""

    def configure_model(self) -> None:
        mesh = self.device_mesh["data_parallel"]  # type: ignore[index]
        fully_shard(self, mesh=mesh, shard_placement_fn=lambda p: Shard(int(p.shape == (3, 6))))


class Disturb(Callback):
    """Changes the largest weight of one layer, on rank 1 only, to the smallest."""

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        if rank() == 1 and trainer.current_epoch == 1:
            part = pl_module.second.weight.data.to_local().view(-1)
            part[part.abs().argmax()] = 0


def replicated(folder: Path) -> Fitted:
    return fit(folder, Replicated(RANKS), callback())


def disturbed(folder: Path) -> str:
    try:
        fit(folder, Replicated(RANKS), Disturb(), callback(scope="local"))
    except RuntimeError as error:
        return str(error)
    raise AssertionError("the fit went through")


def schedule(final: float = 0.6) -> Linear:
    return Linear(final=final, begin=0, end=2)


def callback(method: str = "l1_unstructured", scope: Any = "global", **kwargs: Any) -> PruningCallback:
    name, *_ = method.split()
    kwargs = {"schedule": schedule(), "scope": scope, "verbose": False, **METHODS.get(method, {}), **kwargs}
    return PruningCallback(name, **kwargs)


class Zeros(Callback):
    """Looks at the zeros of all parameters after each step, and at how the weights are stored."""

    def __init__(self) -> None:
        self.seen: list[dict[str, int]] = []
        self.names: set[str] = set()
        self.rows: dict[str, int] = {}

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self.seen.append({n: int((whole(p.detach()) == 0).sum()) for n, p in pl_module.named_parameters()})
        self.names |= {name for name, _ in pl_module.named_parameters()}
        masks = next(c for c in trainer.callbacks if isinstance(c, PruningCallback)).masks
        self.rows = {name.removesuffix(".weight"): len(mask.to_local()) for name, mask in masks.items()}


def fit(
    folder: Path, model: Any, *callbacks: Any, distributed_checkpoint: bool = True, ckpt_path: Any = None, **kwargs: Any
) -> Fitted:
    strategy = ModelParallelStrategy(
        data_parallel_size=RANKS, tensor_parallel_size=1, save_distributed_checkpoint=distributed_checkpoint
    )
    t = trainer(folder, *callbacks, **{"epochs": 4, "devices": RANKS, "strategy": strategy, **kwargs})
    t.fit(model, ckpt_path=ckpt_path)
    return values(model)


def values(model: nn.Module) -> Fitted:
    """As for plain models, but with whole parameters."""
    return {
        "parameters": {name: whole(p.detach()).clone() for name, p in model.named_parameters()},
        "classes": [type(module).__name__.removeprefix("FSDP") for module in model.modules()],
        "plain": not any(hasattr(module, "_masked_base") for module in model.modules()),
    }


def pruned(folder: Path, method: str, scope: str) -> tuple[Fitted, dict[str, Any]]:
    zeros = Zeros()
    fitted = fit(folder, Sharded(RANKS), callback(method, scope), zeros)
    return fitted, {"seen": zeros.seen, "names": zeros.names, "rows": zeros.rows}


def with_adam(folder: Path) -> Fitted:
    """Weight decay and momentum would move zeros; gradients are clipped by their norm."""
    model = Sharded(RANKS)
    model.make = partial(torch.optim.AdamW, lr=0.02, weight_decay=0.1)  # type: ignore[assignment]
    return fit(folder, model, callback(), gradient_clip_val=0.05)


def by_user(folder: Path) -> Fitted:
    return fit(folder, Sharded(RANKS), PruningCallback(EveryThird, epochs=[1], verbose=False))


def kept_zeros(folder: Path) -> Fitted:
    model = Sharded(RANKS)
    with torch.no_grad():
        model.first.weight[::2] = 0
    return fit(folder, model, PruningCallback(keep_zeros=True, verbose=False))


def steps(folder: Path) -> Fitted:
    plan = Linear(final=0.6, begin=3, end=11, every=2, unit="step")
    return fit(folder, Sharded(RANKS), PruningCallback(schedule=plan, scope="global", verbose=False))


def straight(folder: Path, method: str) -> Fitted:
    return fit(folder, Sharded(RANKS, adam=True), callback(method))


def saved(folder: Path, kind: str, method: str) -> Path:
    """Two of four epochs."""
    keep = ModelCheckpoint(folder, filename=f"{kind}-{method}-{RANKS}")
    kwargs: dict[str, Any] = {
        "epochs": 2,
        "enable_checkpointing": True,
        "distributed_checkpoint": kind == "distributed",
    }
    fit(folder, Sharded(RANKS, adam=True), callback(method, allow_unfinished=True), keep, **kwargs)
    return Path(keep.best_model_path)


def resumed(folder: Path, kind: str, method: str) -> tuple[Path, Fitted]:
    """The other two epochs, from a checkpoint of either kind."""
    path = saved(folder, kind, method)
    pruning = callback(method)
    return path, fit(folder, Sharded(RANKS, adam=True), pruning, ckpt_path=path)


def elsewhere(folder: Path, kind: str) -> Fitted:
    """The other two epochs, from a checkpoint that two ranks wrote."""
    path = folder / (f"{kind}-l1_unstructured-2" + (".ckpt"))
    return fit(folder, Sharded(RANKS, adam=True), callback(), ckpt_path=path)


class Halved(L1Unstructured):
    """A subclass with scores of its own: the first half of each tensor counts for more."""

    def keep(self, scores: Any, alive: Any, names: Any = None) -> Any:
        return super().keep([score.abs().sqrt() for score in scores], alive, names)


class Norms(LnStructured):
    """Channels scored by a function of its own."""

    def channel_scores(self, t: Any) -> Any:
        return t.abs().sum(dim=[d for d in range(t.dim()) if d != self.dim])


AS_ONE: dict[str, dict[str, Any]] = {
    "l2": {"scope": Budget("global", normalize="l2")},
    "lamp": {"scope": Budget("global", normalize="lamp")},
    "own method, global": {"method": EveryThird, "schedule": None, "epochs": [1]},
    "subclass, global": {"method": Halved},
    "subclass, local": {"method": Halved, "scope": "local"},
    "own norms": {"method": Norms},
    "erk": {"scope": "erk"},
    "nuclear": {"method": "ln_structured", "n": "nuc", "scope": "local"},
    "taylor": {"criterion": Taylor(batches=3)},
    "taylor, channels": {"criterion": Taylor(batches=3), "method": "ln_structured"},
    "snip, local": {"criterion": "snip", "scope": "local"},
    "fisher, erk": {"criterion": Fisher(batches=2), "scope": "erk"},
    "movement": {"criterion": "movement"},
    "function": {"criterion": inverse},
    "rows": {"scope": "row"},
    "n of m": {"method": "n_m", "n": 1, "method_kwargs": {"m": 2}, "schedule": schedule(0.5), "exclude": "second"},
    "blocks": {
        "method": "ln_blocks",
        "method_kwargs": {"block": (1, 2)},
        "criterion": Taylor(batches=3),
        "exclude": "second",
    },
}


def pruning_of(name: str) -> PruningCallback:
    return PruningCallback(**{"schedule": schedule(), "scope": "global", "verbose": False, **AS_ONE[name]})


def as_one(folder: Path, name: str) -> Fitted:
    return fit(folder, Sharded(RANKS), pruning_of(name))


def sent(folder: Path) -> tuple[list[int], list[int]]:
    """Bytes of each step, dense and pruned."""
    dense, pruned = Sent(), Sent()
    fit(folder, Sharded(RANKS), dense)
    fit(folder, Sharded(RANKS), callback(), pruned)
    return dense.seen, pruned.seen


class Fails(Callback):
    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        if trainer.global_step == 6:
            raise ArithmeticError


def exception(folder: Path) -> tuple[Fitted, dict[str, Any]]:
    model, pruning = Sharded(RANKS), callback()
    try:
        fit(folder, model, pruning, Fails())
    except ArithmeticError:
        return values(model), pruning.state_dict()
    raise AssertionError("the fit went through")


def refused(folder: Path) -> list[str]:
    """What cannot be pruned in parts is refused when the fit starts."""
    arguments: list[dict[str, Any]] = [
        {"method": "ln_structured", "groups": "dependency", "example_inputs": torch.zeros(2, 8)},
        {"criterion": Activation()},
        {"criterion": GraSP(loss=calibrated)},
        {"criterion": SynFlow(example_inputs=torch.zeros(1, 8))},
        {"criterion": SNIP(loss=calibrated)},
    ]
    messages = []
    for given in arguments:
        model = given.pop("model", Sharded)(RANKS)
        try:
            fit(folder, model, PruningCallback(**{"schedule": schedule(), "scope": "global", **given}))
        except ValueError as error:
            messages.append(str(error))
    return messages


def checks(ranks: int) -> dict[str, Check]:
    found: dict[str, Check] = {
        f"sharded {method}, {scope}": partial(pruned, method=method, scope=scope)
        for method, scope in itertools.product(METHODS, SCOPES)
    }
    found |= {f"sharded {name}": partial(as_one, name=name) for name in AS_ONE}
    found |= {
        "adam": with_adam,
        "by user": by_user,
        "kept zeros": kept_zeros,
        "steps": steps,
        "refused in parts": refused,
        "exception": exception,
        "sent by shards": sent,
        "replicated": replicated,
        "disturbed": disturbed,
    }
    for method in ("l1_unstructured", "random_unstructured"):
        found[f"straight {method}"] = partial(straight, method=method)
        for kind in ("full", "distributed"):
            found[f"resumed {kind} {method}"] = partial(resumed, kind=kind, method=method)
    if ranks == 3:
        found |= {f"elsewhere {kind}": partial(elsewhere, kind=kind) for kind in ("full", "distributed")}
    return found
