"""LotteryTicket: what each level of each arm starts from and leaves, and going on after a kill."""

from __future__ import annotations

import functools
import json
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, lr_scheduler
from torch.utils.data import DataLoader

from lightning_prune import Budget, LotteryResults, LotteryTicket, PruningCallback, Rewind
from lightning_prune.lottery import read_mask
from lightning_prune.prune import CustomFromMask, LnStructured
from tests.models import Net, is_plain, net, random_data, zeros

QUIET: dict[str, Any] = {
    "accelerator": "cpu",
    "logger": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "enable_checkpointing": False,
}
CONTROLS = ("reinit", "random_mask", "finetune", "learning_rate")
STEPS = 8  # of a dense network: 2 epochs of 4 batches
LEFT = [176, 140, 112]  # 128 -> 102 -> 82 and 48 -> 38 -> 30: a fifth of each, rounded


def adam(parameters: Iterable[nn.Parameter]) -> Any:
    optimizer = Adam(parameters, lr=0.01)
    scheduler = lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=STEPS)
    return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


class Start(L.Callback):
    """Notes where a fit starts, how often it steps and with which learning rates."""

    def __init__(self) -> None:
        self.weights: dict[str, Tensor] = {}
        self.moments: dict[str, Tensor] = {}
        self.rates: list[float] = []
        self.step = -1

    def on_train_batch_start(self, trainer: L.Trainer, pl_module: L.LightningModule, *args: Any) -> None:
        optimizer: Any = trainer.optimizers[0]
        self.rates.append(optimizer.param_groups[0]["lr"])
        if not self.weights:
            self.step = trainer.global_step
            self.weights = {name: t.detach().clone() for name, t in pl_module.state_dict().items()}
            names = {id(p): name for name, p in pl_module.named_parameters()}
            self.moments = {names[id(p)]: s["exp_avg"].clone() for p, s in optimizer.state.items()}


class Starts:
    """Makes Trainers, and keeps where their fits started in the order of the rows."""

    def __init__(self) -> None:
        self.seen: list[Start] = []

    def __call__(self, level: int) -> L.Trainer:
        self.seen.append(Start())
        return L.Trainer(**QUIET, max_epochs=2, callbacks=[self.seen[-1]])


def lottery(root: Path, trainer: Any = None, module: Any = None, **kwargs: Any) -> LotteryTicket:
    make = functools.partial(Net, adam) if module is None else module
    settings = {"rounds": 2, "directory": root / "lottery", "progress": False}
    return LotteryTicket(make, {**QUIET, "max_epochs": 2} if trainer is None else trainer, **{**settings, **kwargs})


def load(root: Path, *path: str) -> dict[str, Any]:
    loaded: dict[str, Any] = torch.load(root.joinpath("lottery", *path), weights_only=True)
    return loaded


def masked(state: dict[str, Tensor], mask: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: torch.where(mask[name], t, 0) if name in mask else t for name, t in state.items()}


def assert_equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert one.keys() == other.keys()
    assert [name for name in one if not torch.equal(one[name], other[name])] == []


@pytest.fixture(scope="module")
def all_arms(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[tuple[int, str], Start], LotteryResults]:
    """Two rounds of all arms, rewound to step 3."""
    root, starts = tmp_path_factory.mktemp("lottery"), Starts()
    results = lottery(root, starts, rewind=Rewind(step=3), controls=CONTROLS).run()
    return root, {(r.level, r.arm): s for r, s in zip(results.rows, starts.seen, strict=True)}, results


def test_rows(all_arms: Any) -> None:
    _, _, results = all_arms
    arms = ["ticket", *CONTROLS]
    assert [(r.level, r.arm) for r in results.rows] == [(0, "dense"), *((level, a) for level in (1, 2) for a in arms)]
    assert [r.weights for r in results.rows] == [LEFT[r.level] for r in results.rows]
    assert [r.remaining for r in results.rows] == [r.weights / 176 for r in results.rows]
    assert {r.early_stopping_step for r in results.rows} <= {4, 8}
    assert all(r.metrics.keys() == {"test_loss"} for r in results.rows)


def test_checkpoints_are_plain_with_zeros_where_the_mask_says_and_give_the_metrics(all_arms: Any) -> None:
    root, _, results = all_arms
    for row in results.rows:
        model, mask = net(seed=9), read_mask(root / "lottery" / row.mask)
        model.load_state_dict(load(root, row.checkpoint)["state_dict"], strict=True)
        assert is_plain(model)
        assert all(torch.equal(model.get_parameter(name) != 0, kept) for name, kept in mask.items())
        assert zeros(model) == 176 - row.weights
        loss = L.Trainer(**QUIET).test(model, verbose=False)[0]["test_loss"]
        assert loss == row.metrics["test_loss"]


@pytest.mark.parametrize("level", [1, 2])
def test_tickets_prune_trained_weights_and_start_at_the_rewind_point(all_arms: Any, level: int) -> None:
    root, starts, _ = all_arms
    arm = "dense" if level == 1 else "ticket"
    trained = load(root, "seed-0", f"level-{level - 1:02}", arm, "model.ckpt")["state_dict"]
    mask = read_mask(root / f"lottery/seed-0/level-{level:02}/ticket/mask.pt")
    for name, kept in mask.items():
        weakest = trained[name].abs()[kept].min()
        assert bool((trained[name].abs()[~kept] <= weakest).all())
    point = torch.load(root / "lottery/seed-0/level-00/dense/rewind.ckpt", weights_only=True)
    start = starts[level, "ticket"]
    assert_equal(start.weights, masked(point["state_dict"], mask))
    moments = point["optimizer_states"][0]["state"]
    assert_equal(start.moments, masked({n: moments[i]["exp_avg"] for i, n in enumerate(start.moments)}, mask))
    assert start.step == 3
    assert start.rates == starts[0, "dense"].rates[3:]  # the cycle goes on from there, and training ends with it


def test_reinit_has_the_tickets_mask_and_other_weights_each_time(all_arms: Any) -> None:
    root, starts, _ = all_arms
    for level in (1, 2):
        mask = read_mask(root / f"lottery/seed-0/level-{level:02}/reinit/mask.pt")
        assert_equal(mask, read_mask(root / f"lottery/seed-0/level-{level:02}/ticket/mask.pt"))
        start = starts[level, "reinit"]
        assert (start.step, start.moments) == (0, {})
        kept = mask["first.weight"]
        assert torch.equal(start.weights["first.weight"] != 0, kept)
        for other in (starts[0, "dense"], starts[3 - level, "reinit"]):
            both = kept & (other.weights["first.weight"] != 0)
            assert not bool((start.weights["first.weight"] == other.weights["first.weight"])[both].any())


def test_random_masks_have_as_many_zeros_elsewhere_and_the_tickets_weights(all_arms: Any) -> None:
    root, starts, _ = all_arms
    point = torch.load(root / "lottery/seed-0/level-00/dense/rewind.ckpt", weights_only=True)
    for level in (1, 2):
        mask, ticket = (
            read_mask(root / f"lottery/seed-0/level-{level:02}/{arm}/mask.pt") for arm in ("random_mask", "ticket")
        )
        for name in ticket:
            assert int(mask[name].sum()) == int(ticket[name].sum())
            assert not torch.equal(mask[name], ticket[name])
        assert_equal(starts[level, "random_mask"].weights, masked(point["state_dict"], mask))
        assert starts[level, "random_mask"].step == 3


@pytest.mark.parametrize("arm", ["finetune", "learning_rate"])
@pytest.mark.parametrize("level", [1, 2])
def test_trained_weights_go_on(all_arms: Any, arm: str, level: int) -> None:
    root, starts, _ = all_arms
    before = "dense" if level == 1 else arm
    trained = load(root, "seed-0", f"level-{level - 1:02}", before, "model.ckpt")["state_dict"]
    mask = read_mask(root / f"lottery/seed-0/level-{level:02}/{arm}/mask.pt")
    assert_equal(starts[level, arm].weights, masked(trained, mask))


@pytest.mark.parametrize("level", [1, 2])
def test_fine_tuning_keeps_the_last_rate(all_arms: Any, level: int) -> None:
    root, starts, _ = all_arms
    start = starts[level, "finetune"]
    last = load(root, "seed-0/level-00/dense/model.ckpt")["optimizer_states"][0]["param_groups"][0]["lr"]
    assert (start.step, start.moments, start.rates) == (0, {}, [last] * STEPS)


@pytest.mark.parametrize("level", [1, 2])
def test_rewinding_the_rate_repeats_its_course(all_arms: Any, level: int) -> None:
    _, starts, _ = all_arms
    start = starts[level, "learning_rate"]
    assert (start.step, start.rates) == (3, starts[0, "dense"].rates[3:])
    assert start.moments.keys() == dict(net().named_parameters()).keys()


def test_epochs_and_the_start_are_points_too(tmp_path: Path) -> None:
    for name, rewind, step in (("start", None, 0), ("epoch", Rewind(epoch=1), 4)):
        starts = Starts()
        lottery(tmp_path / name, starts, rewind=rewind, rounds=1).run()
        point = torch.load(tmp_path / name / "lottery/seed-0/level-00/dense/rewind.ckpt", weights_only=True)
        mask = read_mask(tmp_path / name / "lottery/seed-0/level-01/ticket/mask.pt")
        assert_equal(starts.seen[1].weights, masked(point["state_dict"], mask))
        assert starts.seen[1].step == step
        assert starts.seen[1].rates == starts.seen[0].rates[step:]


def shuffled_loader() -> DataLoader[Any]:
    return DataLoader(random_data(64), batch_size=8, shuffle=True, generator=torch.Generator().manual_seed(3))


def test_seeds_and_data_made_anew_for_every_network(tmp_path: Path) -> None:
    batches: list[list[float]] = []

    class Seen(L.Callback):
        def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
            batches[-1].append(float(batch[0].sum()))

    def make_trainer(level: int) -> L.Trainer:
        batches.append([])
        return L.Trainer(**QUIET, max_epochs=1, callbacks=[Seen()])

    experiment = lottery(tmp_path, make_trainer, rounds=1, seeds=[4, 5], train_dataloaders=shuffled_loader)
    results = experiment.run()
    assert [(r.seed, r.level) for r in results.rows] == [(4, 0), (4, 1), (5, 0), (5, 1)]
    assert len(batches[0]) == 8
    assert batches[1:] == batches[:1] * 3
    first, second = (load(tmp_path, f"seed-{s}/level-00/dense/rewind.ckpt")["state_dict"] for s in (4, 5))
    assert not torch.equal(first["first.weight"], second["first.weight"])


class Data(L.LightningDataModule):
    def train_dataloader(self) -> DataLoader[Any]:
        return DataLoader(random_data(16), batch_size=8)

    def val_dataloader(self) -> DataLoader[Any]:
        return DataLoader(random_data(8), batch_size=8)

    test_dataloader = val_dataloader


@pytest.mark.parametrize("datamodule", [Data, Data()])
def test_a_module_and_a_datamodule(tmp_path: Path, datamodule: Any) -> None:
    module = net(optimizer=functools.partial(SGD, lr=0.1))
    given = {name: t.clone() for name, t in module.state_dict().items()}
    lottery(tmp_path, module=module, datamodule=datamodule, rounds=1, seeds=[0, 1], controls=["reinit"]).run()
    assert_equal(given, module.state_dict())
    starts = [load(tmp_path, f"seed-{s}/level-00/dense/rewind.ckpt")["state_dict"] for s in (0, 1)]
    assert_equal(starts[0], given)
    assert not bool((starts[1]["first.weight"] == given["first.weight"]).any())


def test_own_amounts_and_one_ranking(tmp_path: Path) -> None:
    rows = lottery(tmp_path / "a", scope=Budget(overrides={"last.weight": 0.1})).run().rows
    assert [r.weights for r in rows] == [176, 102 + 43, 82 + 39]  # 48 -> 43 -> 39
    rows = lottery(tmp_path / "b", scope="global", amount=0.5).run().rows
    assert [r.weights for r in rows] == [176, 88, 44]


def test_random_masks_of_channels_are_channels(tmp_path: Path) -> None:
    method = functools.partial(LnStructured, n=2)
    experiment = lottery(tmp_path, method=method, parameters="first.weight", amount=0.25, controls=["random_mask"])
    experiment.run()
    rows = [
        read_mask(tmp_path / f"lottery/seed-0/level-02/{arm}/mask.pt")["first.weight"].float().mean(dim=1)
        for arm in ("ticket", "random_mask")
    ]
    assert [sorted(row.tolist()) for row in rows] == [[0.0] * 7 + [1.0] * 9] * 2  # 16 -> 12 -> 9
    assert not torch.equal(rows[0], rows[1])


class Scripted(Net):
    """Validates every other step, with given losses."""

    losses = (0.5, 0.2, 0.3, 0.2)

    def on_fit_start(self) -> None:
        self.validations = iter((9.0, *self.losses))  # the sanity check takes the first

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        if batch_idx == 0:
            self.log("loss", next(self.validations))


def test_early_stopping_step_is_that_of_the_first_lowest_loss(tmp_path: Path) -> None:
    trainer = {**QUIET, "max_epochs": 2, "val_check_interval": 2, "num_sanity_val_steps": 1, "limit_val_batches": 1}
    rows = lottery(tmp_path, trainer, module=Scripted, monitor="loss", rounds=1).run().rows
    assert [row.early_stopping_step for row in rows] == [4, 4]
    rows = lottery(tmp_path / "none", trainer, module=Scripted, monitor=None, rounds=1).run().rows
    assert [row.early_stopping_step for row in rows] == [None, None]


KILLED = """
import os, signal, sys, functools, torch
import lightning as L
from pathlib import Path
from tests.lottery.test_experiment import QUIET, killable
torch.set_num_threads(1)  # as in the other run: sums depend on it
root = Path(sys.argv[1])
class Kill(L.Callback):
    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        if trainer.global_step == 5:
            os.kill(os.getpid(), signal.SIGKILL)
killable(root, lambda level: L.Trainer(**QUIET, max_epochs=2, callbacks=[Kill()] if level == 3 else [])).run()
"""


def killable(root: Path, trainer: Any = None) -> LotteryTicket:
    return lottery(root, trainer, rounds=4, rewind=Rewind(step=2), controls=["reinit"])


def test_killed_and_started_again_gives_the_same_file(tmp_path: Path) -> None:
    whole = killable(tmp_path / "whole").run()
    command = [sys.executable, "-c", KILLED, str(tmp_path / "killed")]
    assert subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True).returncode == -signal.SIGKILL
    finished = sorted((tmp_path / "killed").rglob("row.json"))
    assert [path.parent.parent.name for path in finished] == [f"level-0{level}" for level in (0, 1, 1, 2, 2)]
    times = [path.stat().st_mtime_ns for path in finished]
    assert killable(tmp_path / "killed").run() == whole
    assert [path.stat().st_mtime_ns for path in finished] == times
    files = [(tmp_path / name / "lottery/results.csv").read_bytes() for name in ("whole", "killed")]
    assert files[0] == files[1]
    assert len(files[0].splitlines()) == 1 + len(whole.rows) == 10


def test_more_rounds_and_controls_go_on(tmp_path: Path) -> None:
    first = lottery(tmp_path, rounds=1).run()
    starts = Starts()
    more = lottery(tmp_path, starts, rounds=2, controls=["reinit"]).run()
    assert len(starts.seen) == 3
    assert [row for row in more.rows if row in first.rows] == list(first.rows)


def test_other_settings_are_refused(tmp_path: Path) -> None:
    lottery(tmp_path, rounds=1).run()
    with pytest.raises(ValueError, match=r"(?s)holds another experiment.*amount=0\.2.*this one.*amount=0\.3"):
        lottery(tmp_path, rounds=1, amount=0.3).run()


def test_the_caller_keeps_its_random_state(tmp_path: Path) -> None:
    torch.manual_seed(1)
    lottery(tmp_path, rounds=1).run()
    drawn = torch.rand(3)
    torch.manual_seed(1)
    assert torch.equal(drawn, torch.rand(3))


class Stop(L.Callback):
    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        trainer.should_stop = True


def test_the_same_trainer_twice_is_refused(tmp_path: Path) -> None:
    trainer = L.Trainer(**QUIET, max_epochs=1)
    with pytest.raises(ValueError, match=r"trainer\(1\) gave a Trainer that was used before"):
        lottery(tmp_path, lambda level: trainer, rounds=1).run()


DECIDED = functools.partial(CustomFromMask, mask=torch.ones(3, 16))


def pruned_trainer(level: int) -> L.Trainer:
    return L.Trainer(**QUIET, callbacks=[PruningCallback(verbose=False)])


STOPPED = {**QUIET, "max_epochs": 2, "callbacks": [Stop()]}


class Untested(Net):
    test_step = L.LightningModule.test_step


class Stubborn(Net):
    def __init__(self) -> None:
        super().__init__(adam)
        self.extra = nn.Module()
        self.extra.scale = nn.Parameter(torch.ones(2, 2))


@pytest.mark.parametrize(
    ("kwargs", "error", "message"),
    [
        ({"rounds": 0}, ValueError, "rounds should be 1 or more, got 0"),
        ({"trainer": pruned_trainer}, ValueError, "of its own: leave it out"),
        ({"seeds": [0.2, 0.4]}, TypeError, r"seeds should be whole numbers, got \[0.2, 0.4\]"),
        ({"seeds": [1, 1]}, ValueError, r"different numbers, got \[1, 1\]"),
        ({"scope": "erk"}, ValueError, "scope should be 'local' or 'global', got 'erk'"),
        ({"method": DECIDED}, ValueError, "CustomFromMask does not take one"),
        ({"trainer": {**QUIET, "max_epochs": 0}}, ValueError, "not reached: training ended at step 0"),
        ({"trainer": STOPPED, "rewind": Rewind(step=6)}, ValueError, "not reached: training ended at step 4"),
        ({"controls": ["reinit", "dense"]}, ValueError, "'dense' is unknown; known are reinit, random_mask, finetune"),
        ({"rewind": Rewind(epoch=0, what="learning_rate")}, ValueError, r"add controls=\['learning_rate'\]"),
        ({"rewind": Rewind(step=8)}, ValueError, r"step=8.* is never reached: training ends after 8 steps"),
        ({"monitor": "loss"}, ValueError, "monitor='loss' is not logged by validation; logged are val_loss"),
        ({"module": Untested}, ValueError, "Untested has no test_step"),
        ({"module": net, "controls": ["reinit"]}, ValueError, "gives the same ones under another seed"),
        ({"module": Stubborn(), "controls": ["reinit"]}, TypeError, r"without it: 'extra' \(Module\)"),
        ({"module": nn.Linear}, TypeError, "missing"),
        ({"module": dict}, TypeError, "should make a LightningModule, it made a dict"),
        ({"parameters": "frist.weight"}, ValueError, "near names: first.weight"),
        ({"scope": Budget(overrides={"frist.weight": 0.1})}, ValueError, "frist.weight"),
        ({"trainer": {**QUIET, "strategy": "ddp_spawn"}}, ValueError, "use strategy='ddp'"),
    ],
)
def test_what_cannot_work_is_refused_before_training(tmp_path: Path, kwargs: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        lottery(tmp_path, **kwargs).run()
    assert list(tmp_path.rglob("row.json")) == []


def test_rows_on_disk_are_the_rows(all_arms: Any) -> None:
    root, _, results = all_arms
    for row in results.rows:
        assert json.loads((root / "lottery" / row.mask).with_name("row.json").read_text()) == vars(row)


class Counts(L.Callback):
    """Remembers what it has seen."""

    def __init__(self) -> None:
        self.fits = 0

    def on_fit_start(self, *_: Any) -> None:
        self.fits += 1

    def on_validation_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        pl_module.log("fits", float(self.fits))

    def on_test_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        pl_module.log("fits", float(self.fits))


def test_callbacks_in_the_arguments_are_fresh_for_each_network(tmp_path: Path) -> None:
    callback = Counts()
    rows = lottery(tmp_path, trainer={**QUIET, "max_epochs": 1, "callbacks": [callback]}, rounds=1).run().rows
    assert [row.metrics["fits"] for row in rows] == [1.0] * len(rows)
    assert callback.fits == 0


def test_generators_of_a_given_loader_start_anew_for_each_network(tmp_path: Path) -> None:
    def shuffled() -> DataLoader[Any]:
        return DataLoader(random_data(), batch_size=8, shuffle=True, generator=torch.Generator().manual_seed(5))

    whole = lottery(tmp_path / "whole", rounds=2, train_dataloaders=shuffled()).run()
    lottery(tmp_path / "parts", rounds=1, train_dataloaders=shuffled()).run()
    assert lottery(tmp_path / "parts", rounds=2, train_dataloaders=shuffled()).run() == whole


def test_a_damaged_row_is_named(tmp_path: Path) -> None:
    lottery(tmp_path, rounds=1).run()
    (file, *_) = sorted(tmp_path.rglob("row.json"))
    file.write_text('{"level": 0')
    with pytest.raises(ValueError, match=r"row.json' is damaged .*: remove it, and this network is trained again"):
        lottery(tmp_path, rounds=1).run()
