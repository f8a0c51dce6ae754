"""PruningCallback: precisions, ways to optimize, compiled modules."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import Callback, GradientAccumulationScheduler
from torch import Tensor, nn

from lightning_prune import Cubic, Linear, PruningCallback
from tests.models import Net, Recorder, is_plain, net, trainer, zeros


class Hold(Callback):
    """Checks after each batch that the stored parameters are zero where they are masked."""

    def __init__(self) -> None:
        self.batches = 0

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *args: Any) -> None:
        for callback in trainer.callbacks:
            for name, mask in getattr(callback, "masks", {}).items():
                assert int(pl_module.get_parameter(name)[~mask].count_nonzero()) == 0
                self.batches += 1


def plan(unit: str = "epoch", **kwargs: Any) -> Recorder:
    """35, 88, 141 zeros of 176 at times 0, 1, 2."""
    return Recorder(schedule=Linear(final=0.8, initial=0.2, end=2, unit=unit), scope="global", **kwargs)


@pytest.mark.parametrize(
    ("precision", "dtype"),
    [
        ("bf16-mixed", torch.float32),
        ("16-mixed", torch.float32),
        ("bf16-true", torch.bfloat16),
        ("16-true", torch.float16),
        ("64-true", torch.float64),
    ],
)
@pytest.mark.parametrize("method", ["l1_unstructured", "random_unstructured", "ln_structured"])
def test_precisions(tmp_path: Path, precision: Any, dtype: torch.dtype, method: str) -> None:
    structured = {"parameters": "first"} if method == "ln_structured" else {"scope": "global"}
    callback = Recorder(method, schedule=Linear(final=0.75, initial=0.25, end=2), **structured)
    model, hold = net(), Hold()
    trainer(tmp_path, callback, hold, precision=precision).fit(model)
    assert hold.batches > 0
    assert model.first.weight.dtype == dtype
    assert zeros(model) == (96 if method == "ln_structured" else 132)
    assert is_plain(model)
    assert all(bool(p.isfinite().all()) for p in model.parameters())


def test_accumulation_counts_optimizer_steps(tmp_path: Path) -> None:
    """8 batches of 4 an epoch, a step every 4 batches: steps 0 to 5 in 3 epochs."""
    callback = plan("step")
    trainer(tmp_path, callback, accumulate_grad_batches=4).fit(net(batch_size=4))
    assert callback.seen == [(0, 0, 0, 35), (1, 0, 1, 88), (2, 1, 2, 141)]


@pytest.mark.parametrize(
    "settings",
    [
        {"accumulate_grad_batches": 4},
        {"gradient_clip_val": 0.1},
        {"gradient_clip_val": 0.01, "gradient_clip_algorithm": "value"},
        {"accumulate_grad_batches": 2, "gradient_clip_val": 0.1, "precision": "bf16-mixed"},
        {"detect_anomaly": True},
        {"callbacks": [GradientAccumulationScheduler({0: 1, 1: 2})]},
    ],
)
def test_settings_of_the_trainer(tmp_path: Path, settings: dict[str, Any]) -> None:
    callback, hold, model = plan(), Hold(), net(optimizer=functools.partial(torch.optim.AdamW, lr=0.01))
    others = settings.pop("callbacks", [])
    trainer(tmp_path, callback, hold, *others, **settings).fit(model)
    assert [event[1] for event in callback.seen] == [0, 1, 2]
    assert zeros(model) == 141
    assert hold.batches == 24


def test_clipping_by_norm_measures_the_pruned_gradient(tmp_path: Path) -> None:
    norms = []

    class Norm(Callback):
        def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
            for name, mask in callback.masks.items():
                norms.append(float(pl_module.get_parameter(name).grad[~mask].abs().sum()))

    callback = plan()
    trainer(tmp_path, Norm(), callback, gradient_clip_val=0.1).fit(net())
    assert norms == [0.0] * 24


class TwoOptimizers(Net):
    """Manual optimization: each batch steps both optimizers, so that global_step grows by two."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def configure_optimizers(self) -> Any:
        return (
            torch.optim.Adam(self.first.parameters(), lr=0.01),
            torch.optim.SGD([*self.norm.parameters(), *self.last.parameters()], lr=0.1, momentum=0.9),
        )

    def training_step(self, batch: Any, batch_idx: int) -> None:  # type: ignore[override]
        for optimizer in self.optimizers():
            optimizer.zero_grad()
            self.manual_backward(self.loss(batch))
            optimizer.step()


def test_two_optimizers_with_two_steps_a_batch(tmp_path: Path) -> None:
    callback, hold, model = plan(), Hold(), TwoOptimizers()
    trainer(tmp_path, callback, hold).fit(model)
    assert zeros(model) == 141
    assert hold.batches == 24
    by_step = Recorder(schedule=Linear(final=0.8, initial=0.2, begin=3, end=20, every=4, unit="step"), scope="global")
    again = TwoOptimizers()
    trainer(tmp_path, by_step).fit(again)
    # Due at 3, 7, 11, 15, 19 and 20; batches begin at even steps, and the last of two due together says all.
    assert [(due, step) for due, _, step, _ in by_step.seen] == [(3, 4), (7, 8), (11, 12), (15, 16), (20, 20)]
    assert zeros(again) == 141


def test_lbfgs(tmp_path: Path) -> None:
    model = net(optimizer=functools.partial(torch.optim.LBFGS, lr=0.1, max_iter=3, history_size=4))
    callback, hold = plan(), Hold()
    trainer(tmp_path, callback, hold).fit(model)
    assert zeros(model) == 141
    assert hold.batches == 24
    assert bool(model.first.weight.isfinite().all())


@pytest.mark.parametrize(
    "optimizer",
    [
        functools.partial(torch.optim.SGD, lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.1),
        functools.partial(torch.optim.AdamW, lr=0.01, amsgrad=True, foreach=True),
        functools.partial(torch.optim.AdamW, lr=0.01, fused=True),
        functools.partial(torch.optim.RMSprop, lr=0.001, momentum=0.9, centered=True),
        functools.partial(torch.optim.Adagrad, lr=0.05),
        functools.partial(torch.optim.Adadelta),
        functools.partial(torch.optim.NAdam, lr=0.01),
        functools.partial(torch.optim.RAdam, lr=0.01),
        functools.partial(torch.optim.Adamax, lr=0.01),
        functools.partial(torch.optim.ASGD, lr=0.01),
        functools.partial(torch.optim.Rprop, lr=0.001),
        functools.partial(torch.optim.Adafactor, lr=0.01),
    ],
    ids=lambda optimizer: optimizer.func.__name__,
)
def test_parameters_hold_their_zeros_under_every_optimizer(tmp_path: Path, optimizer: Any) -> None:
    model, hold = net(optimizer=optimizer), Hold()
    trainer(tmp_path, plan(), hold).fit(model)
    assert zeros(model) == 141
    assert hold.batches == 24
    assert bool(model.first.weight.isfinite().all())


def test_gradient_masked_weights_do_not_move_the_others(tmp_path: Path) -> None:
    """A fit that starts with given zeros equals one of a model in which those weights do not exist."""

    class Masked(Net):
        def forward(self, x: Tensor) -> Tensor:
            hidden = torch.relu(self.norm(nn.functional.linear(x, self.first.weight * self.keep, self.first.bias)))
            return self.last(hidden)

    optimizer = functools.partial(torch.optim.Adam, lr=0.01)
    pruned, torch_seed = net(optimizer=optimizer), 0
    callback = PruningCallback(amount=0.5, epochs=[0], parameters="first", verbose=False)
    keep = (pruned.first.weight.abs() > pruned.first.weight.abs().flatten().kthvalue(64).values).float()
    trainer(tmp_path, callback).fit(pruned)
    torch.manual_seed(torch_seed)
    masked = Masked(optimizer)
    masked.keep = keep
    trainer(tmp_path).fit(masked)
    assert torch.equal(pruned.first.weight, masked.first.weight * keep)
    assert torch.equal(pruned.last.weight, masked.last.weight)


@pytest.mark.parametrize("whole", [True, False])
def test_compiled_modules(tmp_path: Path, whole: bool) -> None:
    plain, model = net(), net()
    trainer(tmp_path, plan()).fit(plain)
    if whole:
        compiled: Any = torch.compile(model, backend="eager")
    else:
        model.first = torch.compile(model.first, backend="eager")
        compiled = model
    callback, hold = plan(), Hold()
    trainer(tmp_path, callback, hold).fit(compiled)
    assert [event[-1] for event in callback.seen] == [35, 88, 141]
    assert zeros(model) == 141
    assert torch.equal(model.last.weight, plain.last.weight)
    assert hold.batches == 24


def test_two_fits_of_a_compiled_module(tmp_path: Path) -> None:
    model, callback = net(), Recorder(amount=0.5, epochs=[0])
    compiled: Any = torch.compile(model, backend="eager")
    trainer(tmp_path, callback).fit(compiled)
    dead = model.first.weight == 0
    trainer(tmp_path, callback).fit(compiled)
    assert bool((model.first.weight == 0)[dead].all())
    assert zeros(model, "first.weight") == 96


def test_every_ten_steps_with_accumulation_and_frequent_validation(tmp_path: Path) -> None:
    def run(**settings: Any) -> tuple[list[tuple[int, int, int, int]], Tensor]:
        schedule = Cubic(final=0.9, begin=20, end=100, every=10, unit="step")
        model, callback = net(batch_size=2), Recorder(schedule=schedule, scope="global")
        trainer(tmp_path, callback, epochs=30, **settings).fit(model)
        return callback.seen, model.first.weight

    seen, weight = run(accumulate_grad_batches=4)
    assert [step for _, _, step, _ in seen] == [20, 30, 40, 50, 60, 70, 80, 90, 100]
    assert seen[-1][-1] == round(0.9 * 176) == 158
    for settings in ({"val_check_interval": 0.25}, {"check_val_every_n_epoch": 7}, {"limit_val_batches": 0}):
        also, same = run(accumulate_grad_batches=4, **settings)
        assert also == seen
        assert torch.equal(same, weight)


def test_steps_as_a_list_and_as_a_predicate(tmp_path: Path) -> None:
    listed = Recorder(amount=8, steps=[3, 5], scope="global")
    trainer(tmp_path, listed).fit(net())
    assert listed.seen == [(3, 0, 3, 8), (5, 1, 5, 16)]
    predicate = Recorder(amount=8, steps=lambda step: step in (3, 5), scope="global")
    trainer(tmp_path, predicate).fit(net())
    assert predicate.seen == listed.seen
    every = Recorder(amount=1, epochs=lambda epoch: epoch % 2 == 1, scope="global")
    trainer(tmp_path, every, epochs=4).fit(net())
    assert every.seen == [(1, 1, 4, 1), (3, 3, 12, 2)]
