"""PruningCallback: plans against the Trainer's limits, subclasses, arguments that contradict each other."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import BatchSizeFinder, Callback, GradientAccumulationScheduler
from torch.utils.data import DataLoader, IterableDataset

from lightning_prune import Constant, Cubic, Demand, Linear, OneShot, PruningCallback, Schedule, Steps
from lightning_prune.prune import L1Unstructured
from tests.callback.test_styles import TwoOptimizers
from tests.expected import ENDED_EARLY, FEW_SELECTED
from tests.models import Net, Recorder, is_plain, net, random_data, trainer, zeros
from tests.versions import needs_lightning

pytestmark = [ENDED_EARLY, FEW_SELECTED]


class Endless(Net):
    """Data without a length: 4 batches an epoch."""

    def train_dataloader(self) -> Any:
        class Stream(IterableDataset[Any]):
            def __iter__(self) -> Any:
                return iter(random_data())

        return DataLoader(Stream(), batch_size=8)


@pytest.mark.parametrize(
    ("arguments", "settings", "numbers"),
    [
        ({"schedule": Cubic(final=0.9, end=30)}, {"max_epochs": 20}, "epoch 30.*after 20 epochs.*the last epoch is 19"),
        ({"amount": 0.2, "epochs": [20]}, {"max_epochs": 20}, "epoch 20.*after 20 epochs"),
        ({"amount": 0.2, "epochs": [2]}, {"max_epochs": 20, "max_steps": 8}, "epoch 2.*after 2 epochs"),
        ({"amount": 0.2, "steps": [8]}, {"max_steps": 8, "max_epochs": -1}, "step 8.*after 8 steps"),
        ({"schedule": Linear(final=0.5, end=12, unit="step")}, {"max_epochs": 3}, "step 12.*after 12 steps"),
        ({"amount": 0.2, "steps": [3]}, {"accumulate_grad_batches": 4}, "step 3.*after 3 steps"),
        ({"amount": 0.2, "steps": [6]}, {"limit_train_batches": 2}, "step 6.*after 6 steps"),
    ],
)
def test_a_plan_that_cannot_finish(
    tmp_path: Path, arguments: dict[str, Any], settings: dict[str, Any], numbers: str
) -> None:
    model = net()
    with pytest.raises(ValueError, match=numbers):
        trainer(tmp_path, PruningCallback(**arguments), **{"epochs": 3, **rename(settings)}).fit(model)
    assert is_plain(model)
    assert zeros(model) == 0
    trainer(tmp_path, PruningCallback(**arguments, allow_unfinished=True), **rename(settings)).fit(net())


def rename(settings: dict[str, Any]) -> dict[str, Any]:
    return {"epochs" if key == "max_epochs" else key: value for key, value in settings.items()}


def test_a_plan_that_just_finishes(tmp_path: Path) -> None:
    for arguments in ({"epochs": [2]}, {"steps": [11]}):
        callback = Recorder(amount=8, scope="global", **arguments)
        trainer(tmp_path, callback).fit(net())
        assert [event[-1] for event in callback.seen] == [8]


HALF = Linear(final=0.5, initial=0.1, begin=0.25, end=0.75, every=3, unit="fraction")


def steps_of_events(root: Path, model: Net, schedule: Schedule, *others: Callback, **settings: Any) -> list[int]:
    callback = Recorder(schedule=schedule, scope="global")
    trainer(root, *others, callback, **settings).fit(model)
    assert zeros(model) == 88
    return [event[2] for event in callback.seen]


def test_fractions_are_bound_to_the_steps_of_the_run(tmp_path: Path) -> None:
    events = functools.partial(steps_of_events, tmp_path)
    assert events(net(), HALF) == [3, 6, 9]
    assert events(net(), HALF, accumulate_grad_batches=2, epochs=4) == [2, 5, 6]
    assert events(net(), HALF, max_steps=8) == [2, 5, 6]
    assert events(net(), HALF, limit_train_batches=2, epochs=4) == [2, 5, 6]
    assert events(Endless(), HALF, max_steps=12, epochs=-1) == [3, 6, 9]
    assert events(TwoOptimizers(), HALF, max_steps=12, epochs=-1) == [4, 6, 10]
    assert events(net(), OneShot(0.5, begin=1.0, unit="fraction")) == [11]


@needs_lightning(6, "the finder of older ones ends with another batch size")
def test_fractions_are_bound_to_the_steps_that_a_batch_size_finder_leaves(tmp_path: Path) -> None:
    finder = BatchSizeFinder(mode="power", steps_per_trial=1, max_trials=1, init_val=16)
    assert steps_of_events(tmp_path, net(), HALF, finder) == [2, 4]


@pytest.mark.parametrize(
    ("make", "settings"),
    [
        (net, {"epochs": -1}),
        (Endless, {"epochs": 3}),
        (TwoOptimizers, {"epochs": 3}),
        (net, {"epochs": 3, "callbacks": [GradientAccumulationScheduler({0: 1, 1: 2})]}),
    ],
)
def test_fractions_of_a_run_without_a_known_length_are_refused(tmp_path: Path, make: Any, settings: Any) -> None:
    others = settings.pop("callbacks", [])
    schedule = Linear(final=0.5, begin=0.25, end=0.75, unit="fraction")
    model = make()
    with pytest.raises(ValueError, match="how many steps this one has is not known"):
        trainer(tmp_path, PruningCallback(schedule=schedule), *others, **settings).fit(model)
    assert is_plain(model)


def test_fractions_across_a_resume(tmp_path: Path) -> None:
    class Save(Callback):
        def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
            if trainer.current_epoch == 1 and not trainer.sanity_checking:
                trainer.save_checkpoint(tmp_path / "half.ckpt")

    def callback() -> Recorder:
        return Recorder(schedule=Linear(final=0.8, begin=0.1, end=0.9, every=2, unit="fraction"), scope="global")

    straight, resumed = net(), net(seed=1)
    trainer(tmp_path, callback(), Save()).fit(straight)
    trainer(tmp_path, callback()).fit(resumed, ckpt_path=tmp_path / "half.ckpt")
    assert zeros(straight) == 141
    assert torch.equal(straight.first.weight, resumed.first.weight)


def test_open_ended_plans_run_as_long_as_the_fit(tmp_path: Path) -> None:
    callback = Recorder(schedule=Constant(final=0.5, begin=1, every=2), scope="global")
    model = net()
    trainer(tmp_path, callback, epochs=-1, max_steps=24).fit(model)
    assert [event[0] for event in callback.seen] == [1, 3, 5]
    assert zeros(model) == 88


def test_steps_of_a_schedule(tmp_path: Path) -> None:
    callback = Recorder(schedule=Steps({0: 0.1, 2: 0.5}), scope="global")
    trainer(tmp_path, callback).fit(net())
    assert callback.seen == [(0, 0, 0, 18), (2, 2, 8, 88)]


def test_a_subclass_decides_when_and_how_much(tmp_path: Path) -> None:
    asked = []

    class WhenGood(Recorder):
        def due(self, trainer: Any, time: int) -> list[Demand]:
            asked.append(time)
            good = float(trainer.callback_metrics.get("val_loss", 9.0)) < 2.0
            return [Demand(time, sparsity=0.1 * time)] if good else []

    callback = WhenGood(epochs=[0])
    trainer(tmp_path, callback, epochs=4).fit(net())
    assert asked == [0, 1, 2, 3]
    assert [(event[0], event[-1]) for event in callback.seen] == [(1, 18), (2, 35), (3, 53)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"amount": 0.5, "schedule": OneShot(0.5)}, "schedule= says when and how much"),
        ({"epochs": [1], "schedule": OneShot(0.5)}, "schedule= says when and how much"),
        ({"epochs": [1], "steps": [1]}, "epochs= or steps=, not both"),
        ({"epochs": []}, "one or more numbers"),
        ({"epochs": [-1]}, "numbers >= 0"),
        ({"epochs": [1.5]}, "whole numbers"),
        ({"epochs": 3}, "a list of numbers or a predicate"),
        ({"amount": 1.5}, "amount as a fraction"),
        ({"amount": True}, "amount should be"),
        ({"method": "l2_unstructured"}, "is unknown; known are l1_unstructured"),
        ({"method": "l1_unstructured", "method_kwargs": {"m": 1}}, "does not take m"),
        ({"method": functools.partial(L1Unstructured, amount=0.5), "amount": 0.2}, "give one"),
        ({"method": functools.partial(L1Unstructured, 0.5)}, "by name"),
        ({"method": torch.nn.Linear}, "should be a name, a subclass of BasePruningMethod"),
        ({"frozen": "maybe"}, "'skip' or 'join'"),
        ({"scope": "layer"}, "known scopes"),
        ({"overrides": {"a": 0.2}}, r"no argument overrides; overrides= is scope=Budget\(overrides=\.\.\.\) here"),
        ({"pruning_fn": "l1_unstructured"}, "no argument pruning_fn; pruning_fn= is method= here"),
        (
            {"parameters_to_prune": [], "color": 1},
            "no argument parameters_to_prune, color; parameters_to_prune= is param",
        ),
        ({"use_global_unstructured": True}, 'is scope="global" here'),
    ],
)
def test_arguments_that_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        PruningCallback(**arguments)
