"""Rewinding inside a fit: after every event the training state is the snapshot's, bit for bit."""

from __future__ import annotations

import copy
import functools
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, lr_scheduler
from torch.utils.data import DataLoader

from lightning_prune import PruningCallback, Reinit, Rewind
from lightning_prune.fit.rewind import Snapshot, reinitialize
from tests.fit.test_run import network
from tests.models import Net, is_plain, net, random_data, trainer, zeros

BATCHES = 4  # in an epoch


class Watched(PruningCallback):
    """Takes its own copy of the state when the point is reached, and compares after each event."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, verbose=False, **kwargs)
        self.expected: dict[str, Any] | None = None
        self.differences: list[list[str]] = []
        self.moved: list[int] = []
        self.memory: list[bool] = []

    def on_train_batch_start(self, trainer: L.Trainer, pl_module: L.LightningModule, *args: Any) -> None:
        self.before = copy.deepcopy(state(trainer, pl_module))
        assert isinstance(self.settings.rewind, Rewind)
        if self.expected is None and self.settings.rewind.reached(trainer.current_epoch, trainer.global_step):
            self.expected = self.before
        super().on_train_batch_start(trainer, pl_module, *args)

    def on_pruned(self, trainer: L.Trainer, pl_module: L.LightningModule, event: Any) -> None:
        assert self.run is not None
        assert self.expected is not None
        masks = {t.name: t.alive for t in self.run.targets}
        now, expected, before = (flat(s, masks) for s in (state(trainer, pl_module), self.expected, self.before))
        self.differences.append([k for k in now.keys() | expected.keys() if not same(now.get(k), expected.get(k))])
        self.memory.append(any(bool(optimizer.state) for optimizer in trainer.optimizers))
        self.moved.append(sum(key not in before or not same(now[key], before[key]) for key in now))


def state(trainer: L.Trainer, module: nn.Module) -> dict[str, Any]:
    names = {id(p): name for name, p in module.named_parameters()}
    optimizers: Any = trainer.optimizers
    return {
        "model": dict(module.named_parameters()) | dict(module.named_buffers()),
        "moments": [{names[id(p)]: dict(o.state[p]) for p in o.state} for o in optimizers],
        "groups": [[{k: v for k, v in g.items() if k != "params"} for g in o.param_groups] for o in optimizers],
        "schedulers": [config.scheduler.state_dict() for config in trainer.lr_scheduler_configs],
    }


def flat(value: Any, masks: dict[str, Tensor | None], path: tuple[str, ...] = ()) -> dict[str, Any]:
    """All leaves by their paths; what belongs to a masked parameter and has its shape is masked."""
    if isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        return {k: v for key, item in items for k, v in flat(item, masks, (*path, str(key))).items()}
    for mask in (masks.get(part) for part in path):
        if mask is not None and isinstance(value, Tensor) and value.shape == mask.shape:
            value = torch.where(mask, value.detach(), torch.zeros_like(value))
    return {"/".join(path): value}


def same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor):
        return a.dtype == b.dtype and torch.equal(a.detach().nan_to_num(), b.detach().nan_to_num())
    return bool(a == b)


def plateau(optimizer: Any) -> dict[str, Any]:
    scheduler = lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.7, patience=0, threshold=0.2)
    return {"scheduler": scheduler, "monitor": "val_loss"}


def warm_up(optimizer: Any) -> dict[str, Any]:
    first = lr_scheduler.LinearLR(optimizer, 0.1, total_iters=10)
    then = lr_scheduler.CosineAnnealingLR(optimizer, T_max=60)
    return {"scheduler": lr_scheduler.SequentialLR(optimizer, [first, then], [10]), "interval": "step"}


def one_cycle(optimizer: Any) -> dict[str, Any]:
    return {"scheduler": lr_scheduler.OneCycleLR(optimizer, max_lr=0.2, total_steps=90), "interval": "step"}


SGD_, ADAM = functools.partial(SGD, lr=0.1, momentum=0.9), functools.partial(Adam, lr=0.01)
SETTINGS: dict[str, tuple[Any, Callable[[Any], Any] | None]] = {
    "sgd": (SGD_, None),
    "adam, by epochs": (ADAM, lambda o: lr_scheduler.StepLR(o, 2, 0.8)),
    "sgd, milestones": (SGD_, lambda o: lr_scheduler.MultiStepLR(o, [1, 3, 9], 0.5)),
    "adamw, one cycle": (functools.partial(AdamW, lr=0.01, amsgrad=True), one_cycle),
    "sgd, plateau": (SGD_, plateau),
    "adam, warm-up": (ADAM, warm_up),
}


def scheduled(name: str) -> Callable[[Iterator[nn.Parameter]], Any]:
    make, schedule = SETTINGS[name]

    def configure(parameters: Iterator[nn.Parameter]) -> Any:
        optimizer = make(parameters)
        return optimizer if schedule is None else {"optimizer": optimizer, "lr_scheduler": schedule(optimizer)}

    return configure


class Manual(Net):
    """Two optimizers with a schedule each, both of them stepped for every batch."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> None:
        for optimizer, scheduler in zip(self.optimizers(), self.lr_schedulers(), strict=True):
            optimizer.zero_grad()
            self.manual_backward(self.loss(batch))
            optimizer.step()
            scheduler.step()

    def configure_optimizers(self) -> Any:
        others = [*self.norm.parameters(), *self.last.parameters()]
        optimizers = [SGD(self.first.parameters(), 0.1, 0.9), Adam(others, 0.01)]
        return optimizers, [lr_scheduler.ExponentialLR(o, 0.99) for o in optimizers]


def watched(root: Path, rewind: Rewind, model: Net, epochs: int, **kwargs: Any) -> Watched:
    times: dict[str, Any] = {"steps": [40, 46, 53, 61]} if rewind.step else {"epochs": [2, 3, 5, 6]}
    # A plateau's best score is one of denser weights: it would start anew after the way back.
    callback = Watched(amount=0.3, rewind=rewind, restart_scores=False, **times)
    trainer(root, callback, epochs=epochs, **kwargs).fit(model)
    return callback


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize(("rewind", "epochs"), [(Rewind(epoch=0), 8), (Rewind(epoch=1), 8), (Rewind(step=37), 17)])
def test_four_rounds(tmp_path: Path, name: str, rewind: Rewind, epochs: int) -> None:
    model = net(optimizer=scheduled(name))
    callback = watched(tmp_path, rewind, model, epochs)
    assert callback.differences == [[], [], [], []]
    assert min(callback.moved) > 6  # weights, biases, norms, statistics, moments: it was elsewhere before
    assert zeros(model) == 133  # 128 -> 90, 63, 44, 31; 48 -> 34, 24, 17, 12 are left
    assert is_plain(model)


@pytest.mark.parametrize("rewind", [Rewind(epoch=0), Rewind(epoch=1), Rewind(step=37)])
def test_two_optimizers_by_hand(tmp_path: Path, rewind: Rewind) -> None:
    torch.manual_seed(0)
    callback = watched(tmp_path, rewind, Manual(), epochs=9)
    assert callback.differences == [[], [], [], []]


@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-true", "64-true"])
@pytest.mark.parametrize("rewind", [Rewind(epoch=0), Rewind(step=37)])
def test_precisions(tmp_path: Path, precision: str, rewind: Rewind) -> None:
    model = net(optimizer=scheduled("adam, warm-up"))
    callback = watched(tmp_path, rewind, model, 17, precision=precision)
    assert callback.differences == [[], [], [], []]
    assert zeros(model) == 133


def test_lbfgs_goes_back_with_an_empty_memory(tmp_path: Path) -> None:
    model = net(optimizer=functools.partial(torch.optim.LBFGS, lr=0.1, max_iter=3))
    callback = watched(tmp_path, Rewind(epoch=1), model, 8)
    # Its memory mixes all weights, masked ones too, so nothing of it is left; all else is the snapshot's.
    assert callback.expected is not None
    memory = {f"moments/0/first.weight/{key}" for key in callback.expected["moments"][0]["first.weight"]}
    assert "moments/0/first.weight/old_dirs" in memory
    assert [[key for key in found if not key.startswith("moments/")] for found in callback.differences] == [[]] * 4
    assert callback.memory == [False] * 4


@pytest.mark.parametrize("rewind", [Rewind(epoch=1), Rewind(step=37), Rewind(epoch=0, what="all"), Reinit(3)])
@pytest.mark.parametrize("name", ["adam, by epochs", "adamw, one cycle"])
@pytest.mark.parametrize("stop", [10, 11, 13])
def test_resumed_runs_are_equal(tmp_path: Path, rewind: Any, name: str, stop: int) -> None:
    def callback() -> PruningCallback:
        return PruningCallback(amount=0.3, epochs=[10, 11, 13, 14], rewind=rewind, verbose=False)

    whole = net(optimizer=scheduled(name))
    saver = SaveAfter(stop)
    trainer(tmp_path, callback(), saver, epochs=16).fit(whole)
    resumed = net(seed=1, optimizer=scheduled(name))
    trainer(tmp_path, callback(), epochs=16).fit(resumed, ckpt_path=saver.path(tmp_path))
    assert_equal(whole.state_dict(), resumed.state_dict())


class SaveAfter(L.Callback):
    """Saves a checkpoint at the end of an epoch."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch

    def path(self, root: Path) -> Path:
        return root / "between.ckpt"

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if trainer.current_epoch == self.epoch:
            trainer.save_checkpoint(self.path(Path(trainer.default_root_dir)))


def assert_equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert [name for name in one if not torch.equal(one[name], other[name])] == []


@pytest.mark.parametrize("name", SETTINGS)
def test_the_snapshot_is_in_the_checkpoint_once_and_plain(tmp_path: Path, name: str) -> None:
    saver = SaveAfter(3)
    callback = PruningCallback(amount=0.3, epochs=[2, 3], rewind=Rewind(step=6, what="all"), verbose=False)
    trainer(tmp_path, callback, saver, epochs=4).fit(net(optimizer=scheduled(name)))
    checkpoint = torch.load(saver.path(tmp_path), weights_only=True)
    snapshot = checkpoint["callbacks"][callback.state_key]["rewind"]
    assert snapshot["model"].keys() == net().state_dict().keys()
    assert all(tensor.device.type == "cpu" for tensor in snapshot["model"].values())
    assert len(snapshot["rng"]["python"]) == 3
    assert "first.weight" in checkpoint["state_dict"]


def test_learning_rate_only(tmp_path: Path) -> None:
    seen: list[tuple[bool, float, int, bool]] = []

    class See(PruningCallback):
        def on_pruned(self, trainer: L.Trainer, pl_module: Any, event: Any) -> None:
            optimizer: Any = trainer.optimizers[0]
            moved = not torch.equal(pl_module.first.bias, start)
            epochs = trainer.lr_scheduler_configs[0].scheduler.last_epoch
            seen.append((moved, optimizer.param_groups[0]["lr"], epochs, bool(optimizer.state)))

    model = net(optimizer=scheduled("adam, by epochs"))
    start = model.first.bias.detach().clone()
    callback = See(amount=0.3, epochs=[3, 5], rewind=Rewind(epoch=0, what="learning_rate"), verbose=False)
    trainer(tmp_path, callback, epochs=6).fit(model)
    assert seen == [(True, 0.01, 0, False)] * 2


def test_random_state_too(tmp_path: Path) -> None:
    drawn: list[float] = []

    class Draw(PruningCallback):
        def on_train_batch_start(self, trainer: L.Trainer, *args: Any) -> None:
            super().on_train_batch_start(trainer, *args)
            drawn.append(float(torch.rand(())))

    torch.manual_seed(0)
    rewind = Rewind(step=5, what="all")
    trainer(tmp_path, Draw(amount=0.3, steps=[8, 12], rewind=rewind, verbose=False), epochs=4).fit(net())
    assert drawn[8] == drawn[5] == drawn[12]
    assert drawn[9] == drawn[6] == drawn[13]
    assert drawn[11] == drawn[15]
    assert len(set(drawn)) == 9


def test_events_before_the_point_do_not_rewind(tmp_path: Path) -> None:
    callback = Watched(amount=0.3, epochs=[1, 4], rewind=Rewind(epoch=3))
    callback.expected = {}
    seen: list[bool] = []
    callback.on_pruned = lambda trainer, module, event: seen.append(float(module.norm.num_batches_tracked))  # type: ignore[assignment]
    with pytest.warns(UserWarning, match="nothing is rewound"):
        trainer(tmp_path, callback, epochs=5).fit(net())
    assert seen == [4, 12]  # the batches that the running statistics saw: 1 epoch, and back to 3


def test_training_follows_the_last_rewinding(tmp_path: Path) -> None:
    model, start = net(), net()
    trainer(tmp_path, PruningCallback(amount=0.3, rewind=Rewind(epoch=0), verbose=False), epochs=4).fit(model)
    for name in ("first.weight", "last.weight"):
        weight = model.get_parameter(name)
        assert float((weight != start.get_parameter(name))[weight != 0].float().mean()) > 0.6
    assert int(model.norm.num_batches_tracked) == BATCHES


def test_several_events_at_once_rank_trained_weights_and_go_back_once(tmp_path: Path) -> None:
    """Both optimizers step for every batch, so steps 13 and 14 are due together."""
    masks: list[Tensor] = []

    class See(PruningCallback):
        def on_train_batch_start(self, trainer: L.Trainer, pl_module: Any, *args: Any) -> None:
            trained = pl_module.first.weight.detach().clone()
            super().on_train_batch_start(trainer, pl_module, *args)
            if trainer.global_step == 14:
                cut = trained.abs().flatten().kthvalue(128 - 31).values
                masks.extend([pl_module.first.weight != 0, trained.abs() > cut])

    torch.manual_seed(0)
    callback = See(amount=0.5, steps=[13, 14], rewind=Rewind(step=0), verbose=False)
    trainer(tmp_path, callback, epochs=2).fit(Manual())
    assert int(masks[0].sum()) == 32
    assert int((masks[0] & masks[1]).sum()) == 31


class Custom(nn.Module):
    """A layer that cannot draw its weights anew."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3, 3))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.scale


def test_reinit_refuses_a_custom_layer_by_name(tmp_path: Path) -> None:
    model = net()
    model.last = nn.Sequential(nn.Linear(16, 3), Custom())
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(TypeError, match=r"without it: 'last.1' \(Custom\)$"):
        trainer(tmp_path, PruningCallback(rewind=Reinit()), epochs=1).fit(model)
    assert_equal(before, model.state_dict())
    assert is_plain(model)


def reinitialized(root: Path, seed: int) -> list[dict[str, Tensor]]:
    seen: list[dict[str, Tensor]] = []

    class See(PruningCallback):
        def on_pruned(self, trainer: Any, pl_module: Any, event: Any) -> None:
            seen.append(copy.deepcopy(dict(pl_module.named_parameters())))
            assert event.zeros == zeros(pl_module)

    model = net(optimizer=ADAM)
    trainer(root, See(amount=0.3, epochs=[1, 2], rewind=Reinit(seed), verbose=False), epochs=3).fit(model)
    return seen


def test_an_optimizer_in_parts_is_refused_by_name_before_anything_is_pruned(tmp_path: Path) -> None:
    class Parted(SGD):
        """As ZeroRedundancyOptimizer, which gives its state only after all ranks have sent theirs to one."""

        def consolidate_state_dict(self, to: int = 0) -> None:
            raise NotImplementedError

    model = Net(optimizer=lambda parameters: Parted(parameters, 0.1))
    callback = PruningCallback(amount=0.5, epochs=[1], rewind=Rewind(epoch=0), verbose=False)
    with pytest.raises(ValueError, match="Parted keeps a part of its state on each rank"):
        trainer(tmp_path, callback, max_epochs=2).fit(model)
    assert zeros(model) == 0
    assert is_plain(model)


def test_reinit_draws_other_values_each_time_the_same_for_a_seed(tmp_path: Path) -> None:
    one, again, other = (reinitialized(tmp_path, seed) for seed in (0, 0, 1))
    for first, second in zip(one, again, strict=True):
        assert_equal(first, second)
    for different in (one[1], other[0]):
        both = (one[0]["first.weight"] != 0) & (different["first.weight"] != 0)
        assert int(both.sum()) > 40
        assert not bool((one[0]["first.weight"] == different["first.weight"])[both].any())
    assert torch.equal(one[0]["norm.weight"], torch.ones(16))


def test_reinit_keeps_masks_and_the_global_random_state() -> None:
    from lightning_prune.prune import l1_unstructured

    layer = nn.Sequential(l1_unstructured(nn.Linear(8, 8), "weight", amount=0.5), nn.LSTM(8, 4))
    mask, old = layer[0].weight_mask.clone(), layer[0].weight.detach().clone()
    torch.manual_seed(5)
    reinitialize(layer, seed=1)
    drawn = torch.rand(())
    torch.manual_seed(5)
    assert torch.equal(torch.rand(()), drawn)
    assert torch.equal(layer[0].weight_mask, mask)
    assert torch.equal(layer[0].weight != 0, mask.bool())
    assert not bool((layer[0].weight == old)[mask.bool()].any())


def test_snapshots_are_copies_and_keep_their_types() -> None:
    model = nn.Linear(2, 2)
    optimizer = Adam(model.parameters())
    scheduler = lr_scheduler.MultiStepLR(optimizer, [3, 3])
    snapshot = Snapshot.take(model, [optimizer], [scheduler], "weights")
    before = model.weight.detach().clone()
    model(torch.ones(2)).sum().backward()
    optimizer.step()
    parameter = model.weight
    for _ in range(2):
        snapshot.restore(model, [optimizer], [scheduler])
        assert model.weight is parameter
        assert torch.equal(model.weight, before)
        optimizer.step()  # does not write into the snapshot
        assert not torch.equal(model.weight, before)
    assert scheduler.milestones == Counter([3, 3])
    assert type(snapshot.schedulers[0]["milestones"]) is Counter


def test_parameters_that_joined_the_optimizer_cannot_be_rewound() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    optimizer = Adam(model[0].parameters())
    snapshot = Snapshot.take(model, [optimizer], [], "weights")
    optimizer.add_param_group({"params": list(model[1].parameters())})
    with torch.no_grad():
        model[0].weight.fill_(1)
    with pytest.raises(ValueError, match=r"have \[\[2, 2\]\] parameters, they had \[\[2\]\]"):
        snapshot.restore(model, [optimizer], [])
    assert torch.equal(model[0].weight, torch.ones(2, 2))


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({}, "epoch=None and step=None"),
        ({"epoch": 1, "step": 2}, "epoch=1 and step=2"),
        ({"epoch": -1}, ">= 0"),
        ({"step": 1, "what": "momentum"}, "'momentum'"),
    ],
)
def test_impossible_points(kwargs: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Rewind(**kwargs)


def test_accumulated_gradients(tmp_path: Path) -> None:
    callback = Watched(amount=0.3, steps=[3, 5], rewind=Rewind(step=1))
    model = net(optimizer=ADAM)
    loader = DataLoader(random_data(64), batch_size=8)
    trainer(tmp_path, callback, epochs=4, accumulate_grad_batches=4).fit(model, loader)
    assert callback.differences == [[], []]


def test_schedulers_that_were_replaced_refuse_before_anything_goes_back() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    snapshot = Snapshot.take(model, [optimizer], [scheduler], "weights")
    with torch.no_grad():
        model[0].weight.fill_(3)
    other = torch.optim.swa_utils.SWALR(optimizer, 0.05)
    with pytest.raises(ValueError, match=r"schedulers \(SWALR\) are not those of the point to go back to"):
        snapshot.restore(model, [optimizer], [other])
    assert bool((model[0].weight == 3).all())


def test_layers_that_changed_refuse_before_anything_goes_back() -> None:
    model = network()
    snapshot = Snapshot.take(model, [], [], "weights")
    model[2] = torch.nn.Linear(6, 5)
    with torch.no_grad():
        model[0].weight.fill_(3)
    with pytest.raises(ValueError, match=r"'2\.weight' has another shape than at the point to go back to"):
        snapshot.restore(model, [], [])
    assert bool((model[0].weight == 3).all())
