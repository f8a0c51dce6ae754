"""Criteria in a fit: which gradients they see, when events happen, and what the step then does."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import Callback
from torch import Tensor, nn

from lightning_prune import (
    SNIP,
    GradientCriterion,
    GraSP,
    Linear,
    OneShot,
    PruningCallback,
    Steps,
    SynFlow,
    Taylor,
)
from lightning_prune.fit.pruning import Pruning
from tests.models import Net, Recorder, net, trainer, zeros


class Dense(Callback):
    """The gradients and weights with which each optimizer step would have been made without pruning."""

    def __init__(self) -> None:
        self.seen: list[dict[str, tuple[Tensor, Tensor]]] = []

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        names = ("first.weight", "last.weight")
        found = {name: pl_module.get_parameter(name) for name in names}
        self.seen.append({name: (p.detach().clone(), p.grad.clone()) for name, p in found.items()})


def dense(tmp_path: Path, **settings: Any) -> list[dict[str, tuple[Tensor, Tensor]]]:
    steps = Dense()
    trainer(tmp_path, steps, epochs=3, **settings).fit(net())
    return steps.seen


def lowest(scores: dict[str, Tensor], count: int) -> dict[str, Tensor]:
    flat = torch.cat([s.flatten() for s in scores.values()])
    keep = torch.ones_like(flat, dtype=torch.bool)
    keep[flat.argsort(stable=True)[:count]] = False
    parts = keep.split([s.numel() for s in scores.values()])
    return {name: part.view(scores[name].shape) for name, part in zip(scores, parts, strict=True)}


@pytest.mark.parametrize("accumulated", [1, 2])
@pytest.mark.parametrize("enforce", ["in_place", "read"])
def test_snip_at_step_0_ranks_the_first_gradients(tmp_path: Path, accumulated: int, enforce: Any) -> None:
    first = dense(tmp_path, accumulate_grad_batches=accumulated)[0]
    wanted = lowest({name: (w * g).abs() for name, (w, g) in first.items()}, round(0.7 * 176))
    callback = PruningCallback(criterion="snip", schedule=OneShot(0.7), scope="global", enforce=enforce, verbose=False)
    model = net()
    trainer(tmp_path, callback, epochs=1, accumulate_grad_batches=accumulated).fit(model)
    assert all(torch.equal(callback.masks[name], mask) for name, mask in wanted.items())
    assert zeros(model) == round(0.7 * 176)


@pytest.mark.parametrize(
    ("schedule", "step"), [(OneShot(0.6, begin=5, unit="step"), 5), (OneShot(0.6, begin=2), 8)], ids=["step", "epoch"]
)
def test_taylor_averages_the_last_batches_before_and_at_the_event(tmp_path: Path, schedule: Any, step: int) -> None:
    seen = dense(tmp_path)
    scores = {
        name: (seen[step][name][0] * torch.stack([seen[i][name][1] for i in range(step - 2, step + 1)]).mean(0)).abs()
        for name in seen[0]
    }
    callback = Recorder(criterion=Taylor(batches=3), schedule=schedule, scope="global")
    trainer(tmp_path, callback, epochs=3).fit(net())
    wanted = lowest(scores, round(0.6 * 176))
    assert all(torch.equal(callback.masks[name], mask) for name, mask in wanted.items())
    assert [at for _, _, at, _ in callback.seen] == [step]


class Counting(GradientCriterion):
    """Notes how often it is shown something."""

    terms = 0

    def term(self, weight: Tensor, gradient: Tensor) -> Tensor:
        type(self).terms += 1
        return gradient

    def score(self, weight: Tensor, seen: Tensor) -> Tensor:
        return (weight * seen).abs()


@pytest.mark.parametrize("n", [1, 3])
def test_gradients_are_looked_at_while_the_window_is_open_only(tmp_path: Path, n: int) -> None:
    Counting.terms = 0
    callback = PruningCallback(criterion=Counting(batches=n), amount=0.2, steps=[4, 9], verbose=False)
    trainer(tmp_path, callback, epochs=3).fit(net())
    assert Counting.terms == 2 * 2 * n + 2  # events, tensors, steps; once for each tensor when the fit starts


def test_masks_hold_in_the_step_of_the_event(tmp_path: Path) -> None:
    after: list[tuple[int, int]] = []

    class Look(Callback):
        def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
            state = trainer.optimizers[0].state.get(pl_module.first.weight, {})
            masked = ~callback.masks["first.weight"] if callback.masks else torch.zeros(16, 8, dtype=torch.bool)
            moved = sum(int((value[masked] != 0).sum()) for k, value in state.items() if k == "exp_avg")
            after.append((zeros(pl_module), moved))

    callback = PruningCallback(criterion=SNIP(), schedule=OneShot(0.5, begin=3, unit="step"), verbose=False)
    model = net(optimizer=functools.partial(torch.optim.Adam, lr=0.05))
    trainer(tmp_path, callback, Look(), epochs=2).fit(model)
    assert after == [(0, 0)] * 3 + [(88, 0)] * 5


def test_own_loops_have_criteria_too(tmp_path: Path) -> None:
    callback = PruningCallback(criterion="movement", schedule=Linear(final=0.5, begin=0, end=2), verbose=False)
    fitted = net()
    trainer(tmp_path, callback, epochs=3).fit(fitted)
    model = net()
    optimizer = model.configure_optimizers()
    with Pruning(model, optimizer, criterion="movement", schedule=Linear(final=0.5, end=2), verbose=False) as pruning:
        for epoch in range(3):
            pruning.start_epoch(epoch)
            for batch in model.train_dataloader():
                pruning.start_step()
                optimizer.zero_grad()
                model.loss(batch).backward()
                optimizer.step()
    assert zeros(fitted) == zeros(model) == 88
    assert all(torch.equal(a, b) for a, b in zip(fitted.parameters(), model.parameters(), strict=True))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"criterion": "tailor"}, "criterion='tailor' is unknown"),
        ({"criterion": "snip", "method": "random_unstructured"}, "RandomUnstructured reads no scores"),
        ({"criterion": "activation", "method": "ln_structured", "groups": "dependency"}, "scores biases and norms"),
        ({"criterion": "movement", "enforce": "read"}, "needs gradients of masked weights"),
    ],
)
def test_what_contradicts_is_refused(arguments: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PruningCallback(**arguments)


class Flat(GradientCriterion):
    """A mistake: one number for all weights."""

    def score(self, weight: Tensor, seen: Tensor) -> Tensor:
        return (weight * seen).sum()


@pytest.mark.parametrize(
    ("criterion", "error", "message"),
    [
        ("synflow", ValueError, "SynFlow needs example_inputs=, or a module with an example_input_array"),
        (SynFlow(example_inputs=torch.zeros(1, 5)), RuntimeError, "shapes cannot be multiplied"),
        (SNIP(loss=lambda model: model(torch.zeros(2, 8))), ValueError, r"give a scalar tensor, got .* shape \(2, 3\)"),
        (GraSP(loss=lambda model: 0.5), ValueError, "give a scalar tensor, got 0.5"),
        (Flat(), ValueError, r"of Flat\(batches=1\) should have the shape \(16, 8\) of 'first.weight', got \(\)"),
        (
            lambda targets: [t.parameter[0] for t in targets],
            ValueError,
            r"shape \(16, 8\) of 'first.weight', got \(8,\)",
        ),
        (lambda targets: [targets[0].parameter], ValueError, "returned scores of 1 tensors for 2 targets"),
        (lambda targets: targets[0].parameter, TypeError, "a list with scores of each of 2 targets, got one tensor"),
        (lambda targets: 3, TypeError, "a list with scores of each of 2 targets, got 3"),
    ],
)
def test_what_an_event_would_refuse_is_refused_when_the_fit_starts(
    tmp_path: Path, criterion: Any, error: type[Exception], message: str
) -> None:
    model, steps = net(), []

    class Trained(Callback):
        def on_train_batch_start(self, *args: Any) -> None:
            steps.append(1)

    callback = PruningCallback(criterion=criterion, schedule=OneShot(0.5, begin=2), verbose=False)
    with pytest.raises(error, match=message):
        trainer(tmp_path, callback, Trained(), epochs=3).fit(model)
    assert steps == []
    assert type(model.first) is nn.Linear
    assert zeros(model) == 0


def test_a_function_that_reads_what_training_makes_is_asked_at_its_event(tmp_path: Path) -> None:
    seen: dict[str, Tensor] = {}

    class Seen(Callback):
        def on_train_batch_end(self, trainer: Any, pl_module: Any, *args: Any) -> None:
            seen.update({name: p.detach().clone() for name, p in pl_module.named_parameters()})

    model = net()
    callback = PruningCallback(
        criterion=lambda targets: [seen[t.name] for t in targets], schedule=OneShot(0.5, begin=1), verbose=False
    )
    trainer(tmp_path, callback, Seen(), epochs=2).fit(model)
    assert zeros(model) == 88


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n": 1}, "L1Unstructured takes no n=1: n is the norm of 'ln_structured' and 'ln_blocks', and how many"),
        ({"dim": "in"}, "L1Unstructured takes no dim='in': dim is that of the channels of 'ln_structured'"),
        ({"method": "random_structured", "n": 2}, "RandomStructured takes no n=2"),
        ({"method": "ln_blocks", "dim": 0}, "LnBlocks takes no dim=0"),
        ({"method": "n_m", "n": 0}, "0 < n < m, got n=0, m=4"),
        ({"method": "n_m", "n": "foo"}, "0 < n < m, got n='foo', m=4"),
        ({"method": "n_m", "n": True}, "0 < n < m, got n=True, m=4"),
        ({"method": "ln_structured", "n": "foo"}, "n='foo' is not the order of a norm"),
        ({"method": "ln_blocks", "n": "nuc"}, "n='nuc' is no norm of a block"),
        (
            {"method": "n_m", "schedule": OneShot(0.6)},
            "final=0.6 cannot be reached with 2:4, whose share of zeros is 0.5 at most: 3:4 gives 0.25, 2:4 gives 0.5",
        ),
        ({"method": "n_m", "amount": 0.9, "epochs": [0]}, "amount=0.9 cannot be reached with 2:4"),
    ],
)
def test_arguments_that_a_method_cannot_use_are_refused(arguments: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PruningCallback(**arguments)


def test_n_of_m_ends_at_its_pattern_if_nobody_says_how_much(tmp_path: Path) -> None:
    model = net()
    trainer(tmp_path, PruningCallback("n_m", n=1, verbose=False), epochs=10).fit(model)
    assert bool(((model.first.weight != 0).view(-1, 4).sum(1) == 1).all())


def test_shapes_and_layers_that_do_not_fit_are_refused_before_training(tmp_path: Path) -> None:
    class Odd(Net):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.LSTM(16, 16)  # type: ignore[assignment]

    for arguments, message in (
        (
            {"method": "n_m", "n": 2, "method_kwargs": {"m": 5}},
            "'first.weight' cannot be pruned to 2:5.*; refused too: 'last.weight'; exclude=",
        ),
        ({"method": "ln_blocks", "method_kwargs": {"block": (5, 1)}}, "'first.weight' cannot be pruned"),
    ):
        with pytest.raises(ValueError, match=message):
            trainer(tmp_path, PruningCallback(**arguments), epochs=1).fit(net())
    with pytest.raises(ValueError, match="belongs to LSTM"):
        trainer(tmp_path, PruningCallback(criterion="activation"), epochs=1).fit(Odd())


def test_n_of_m_is_exact_at_the_end_and_all_groups_thin_alike(tmp_path: Path) -> None:
    model, groups = net(), []

    class Look(PruningCallback):
        def on_pruned(self, trainer: Any, pl_module: Any, event: Any) -> None:
            mask = self.masks["first.weight"]
            groups.append(sorted(set(mask.view(-1, 4).sum(1).tolist())))

    callback = Look("n_m", schedule=Steps({0: 0.25, 2: 0.5}), scope="global", verbose=False)
    trainer(tmp_path, callback, epochs=4).fit(model)
    assert groups == [[3], [2]]
    assert bool(((model.last.weight != 0).view(-1, 4).sum(1) == 2).all())
