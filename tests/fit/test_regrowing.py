"""Weights that come back during a fit, against brute force in plain PyTorch."""

from __future__ import annotations

import functools
import gc
import itertools
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import CSVLogger
from torch import Tensor, nn

from lightning_prune import (
    SET,
    Constant,
    Cubic,
    OneShot,
    PruningCallback,
    Regrow,
    Reinit,
    Rewind,
    RigL,
    history,
    metrics,
    plots,
)
from lightning_prune.fit.pruning import Pruning
from lightning_prune.fit.regrowth import Regrowth
from tests.models import Net, net, random_data, trainer, zeros
from tests.resume import Scheduled

INPUTS, LABELS = random_data(96)[:]
ADAM = functools.partial(torch.optim.AdamW, lr=3e-3, weight_decay=0.05)
SGD = functools.partial(torch.optim.SGD, lr=0.05, momentum=0.9, weight_decay=1e-3)


class Still(Regrow):
    """Nothing is wanted back more than anything else."""

    def scores(self, weight: Tensor, gradient: Tensor) -> Tensor:
        return torch.zeros_like(weight)


class Low(Regrow):
    """With signs: the lowest gradient comes back."""

    signed = True

    def scores(self, weight: Tensor, gradient: Tensor) -> Tensor:
        return -gradient


def small(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(8, 24), nn.Tanh(), nn.Linear(24, 3))


def backward(model: nn.Module, step: int, accumulated: int = 1) -> None:
    for part in range(accumulated):
        first = 8 * ((step * accumulated + part) % 12)
        loss = nn.functional.cross_entropy(model(INPUTS[first : first + 8]), LABELS[first : first + 8])
        (loss / accumulated).backward()


def moved(weight: Tensor, mask: Tensor, scores: Tensor, count: int, strict: bool) -> Tensor:
    """Sorts everything: of equal weights the first go, of equal scores the last come."""
    w, m, s = weight.flatten(), mask.flatten(), scores.flatten()
    new = m.clone()
    living = m.nonzero().flatten()
    new[living[w[living].abs().argsort(stable=True)[:count]]] = False
    masked = (~(m if strict else new)).nonzero().flatten()
    new[masked[s[masked].argsort(stable=True)[len(masked) - count :]]] = True
    return new.view_as(mask)


def brute_force(
    model: nn.Sequential, optimizer: Any, masks: dict[str, Tensor], regrow: Regrow, steps: int, accumulated: int
) -> None:
    parameters = {name: p for name, p in model.named_parameters() if name in masks}
    for step in range(steps):
        optimizer.zero_grad()
        backward(model, step, accumulated)
        for name, p in parameters.items():
            if regrow.is_update(step):
                old, left = masks[name], int(masks[name].sum())
                count = round(regrow.share(step) * left)
                scores = -p.grad if regrow.signed else p.grad.abs()
                new = masks[name] = moved(p.detach(), old, scores, count, regrow.strict)
                grown, stayed, state = new & ~old, new & old, optimizer.state[p]
                with torch.no_grad():
                    p[~new] = 0
                for key in ("momentum_buffer", "exp_avg"):
                    if key in state:
                        state[key][~new | grown] = 0
                if "exp_avg_sq" in state:
                    total = torch.where(stayed, state["exp_avg_sq"], 0.0).sum()
                    state["exp_avg_sq"][grown] = float(total) / int(stayed.sum())
            p.grad[~masks[name]] = 0
        optimizer.step()
        for name, p in parameters.items():
            with torch.no_grad():
                p[~masks[name]] = 0


@pytest.mark.parametrize("make", [SGD, ADAM], ids=["sgd", "adamw"])
@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("accumulated", [1, 3])
def test_equals_brute_force(make: Any, strict: bool, accumulated: int) -> None:
    if accumulated == 3 and not strict:
        strict, accumulated = False, 2
    rigl = RigL(fraction=0.4, every=7, until=400, unit="step", strict=strict)
    model, twin = small(), small()
    optimizer = make(model.parameters())
    pruning = Pruning(model, optimizer, schedule=Constant(final=0.7), scope="erk", regrow=rigl, seed=1, verbose=False)
    with pruning:
        pruning.start_epoch(0)
        first = {name: mask.clone() for name, mask in pruning.masks.items()}
        with torch.no_grad():
            for name, mask in first.items():
                twin.get_parameter(name)[~mask] = 0
        for step in range(500):
            pruning.start_step()
            optimizer.zero_grad()
            backward(model, step, accumulated)
            optimizer.step()
    masks = dict(first)
    brute_force(twin, make(twin.parameters()), masks, rigl, 500, accumulated)
    assert pruning.regrowth is not None
    assert pruning.regrowth.updates == len(rigl.updates()) == 57
    for name, mask in masks.items():
        assert torch.equal(pruning.masks[name], mask)
        assert not torch.equal(first[name], mask)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), twin.parameters(), strict=True))


def test_own_scores_are_ranked_with_their_signs() -> None:
    low = Low(fraction=0.4, every=7, until=400, unit="step")
    model, twin = small(), small()
    optimizer = SGD(model.parameters())
    with Pruning(model, optimizer, schedule=OneShot(0.6), regrow=low, verbose=False) as pruning:
        pruning.start_epoch(0)
        masks = {name: mask.clone() for name, mask in pruning.masks.items()}
        for name, mask in masks.items():
            twin.get_parameter(name).data[~mask] = 0
        for step in range(100):
            pruning.start_step()
            optimizer.zero_grad()
            backward(model, step)
            optimizer.step()
    brute_force(twin, SGD(twin.parameters()), masks, low, 100, 1)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), twin.parameters(), strict=True))


class Noted(RigL):
    """Keeps the gradients that it is shown."""

    shown: ClassVar[list[Tensor]] = []

    def scores(self, weight: Tensor, gradient: Tensor) -> Tensor:
        self.shown.append(gradient.clone())
        return gradient


@pytest.mark.parametrize("every", [4, 6])
def test_a_window_averages_the_gradients_of_the_steps_before(every: int) -> None:
    Noted.shown.clear()
    value = Noted(every=every, until=13, unit="step", window=4)
    model = nn.Sequential(nn.Linear(8, 3))
    optimizer = ADAM(model.parameters())
    gradients: list[Tensor] = []
    with Pruning(model, optimizer, schedule=OneShot(0.5), regrow=value, verbose=False) as pruning:
        pruning.start_epoch(0)
        for _ in range(20):
            mask = pruning.masks["0.weight"].clone()
            pruning.start_step()
            optimizer.zero_grad()
            twin = nn.functional.linear(INPUTS[:8], (dense := model[0].weight.detach().clone().requires_grad_()))
            nn.functional.cross_entropy(twin + model[0].bias.detach(), LABELS[:8]).backward()
            gradients.append(dense.grad)  # type: ignore[arg-type]
            backward_of_first(model)
            optimizer.step()
            assert float(model[0].weight.grad[~mask & ~pruning.masks["0.weight"]].abs().sum()) == 0
    times = [time for time, _ in value.updates()]
    assert len(times) == len(Noted.shown) > 1
    for time, shown in zip(times, Noted.shown, strict=True):
        assert torch.allclose(shown, torch.stack(gradients[time - 3 : time + 1]).mean(0), atol=1e-7)


def backward_of_first(model: nn.Module) -> None:
    nn.functional.cross_entropy(model(INPUTS[:8]), LABELS[:8]).backward()


def test_a_window_of_epochs_ends_in_their_first_step(tmp_path: Path) -> None:
    Noted.shown.clear()
    pruning = sparse(Noted(every=2, until=5, unit="epoch", window=3))
    seen: list[Tensor] = []

    class Look(Callback):
        def on_after_backward(self, trainer: Any, pl_module: Any) -> None:
            seen.append(pl_module.first.weight.grad.clone())

    trainer(tmp_path, Look(), pruning, epochs=6).fit(net(optimizer=ADAM))  # 4 steps an epoch
    first = [shown for shown in Noted.shown if shown.shape == (16, 8)]
    assert len(first) == 2  # at the starts of epochs 2 and 4
    for step, shown in zip((8, 16), first, strict=True):
        assert torch.allclose(shown, torch.stack(seen[step - 2 : step + 1]).mean(0), atol=1e-7)


@pytest.mark.parametrize("regrow", [Still, RigL, SET])
@pytest.mark.parametrize("loss", ["trained", "nothing"])
def test_zeros_of_each_tensor_stay_as_many_over_a_thousand_updates(regrow: Any, loss: str) -> None:
    model = small()
    with torch.no_grad():
        model[0].weight.copy_(model[0].weight.sign())  # ties everywhere
    optimizer = SGD(model.parameters())
    value = regrow(every=1, until=1_001, unit="step", decay="constant", fraction=0.25)
    with Pruning(model, optimizer, schedule=Constant(final=0.8), regrow=value, verbose=False) as pruning:
        pruning.start_epoch(0)
        counts = {name: int((~mask).sum()) for name, mask in pruning.masks.items()}
        assert counts == {"0.weight": 153, "2.weight": 58}  # 80 % of each, 211 of both
        for step in range(1_001):
            pruning.start_step()
            optimizer.zero_grad()
            if loss == "trained":
                backward(model, step)
            else:
                (0 * model(INPUTS[:8])).sum().backward()
            optimizer.step()
            assert {name: int((~mask).sum()) for name, mask in pruning.masks.items()} == counts
            assert all(not bool(model.get_parameter(n)[~m].any()) for n, m in pruning.masks.items())
        assert pruning.regrowth is not None
        assert pruning.regrowth.updates == 1_000
        assert pruning.regrowth.left == 264 - sum(counts.values())
        assert len(pruning._session.state_dict()["regrow"]["ever"]) == 2


def live_bytes() -> tuple[int, int]:
    """Tensors that are alive, and their bytes."""
    gc.collect()
    found = [o for o in gc.get_objects() if isinstance(o, Tensor)]
    return len(found), sum(t.numel() * t.element_size() for t in found)


@pytest.mark.parametrize("regrow", [RigL, SET])
@pytest.mark.parametrize("window", [1, 2])
def test_a_thousand_updates_take_no_memory(regrow: Any, window: int) -> None:
    model = small()
    optimizer = ADAM(model.parameters())
    value = regrow(every=1, until=1_200, unit="step", decay="constant", window=window)
    seen: list[tuple[int, int]] = []
    with Pruning(model, optimizer, schedule=Constant(final=0.8), regrow=value, verbose=False) as pruning:
        pruning.start_epoch(0)
        for step in range(1_101):
            pruning.start_step()
            optimizer.zero_grad()
            backward(model, step)
            optimizer.step()
            if step in (100, 1_100):
                seen.append(live_bytes())
        assert pruning.regrowth is not None
        assert pruning.regrowth.updates == 1_100
        state = pruning._session.state_dict()
    (tensors, their_bytes), (later, later_bytes) = seen
    assert (later, later_bytes) == (tensors, their_bytes)
    assert sum(saved["bits"].numel() for saved in state["regrow"]["ever"].values()) == (192 + 72) // 8


class Watch(Callback):
    """Notes masks, and what weights that came back have, before each step."""

    def __init__(self, pruning: PruningCallback) -> None:
        self.pruning = pruning
        self.masks: dict[str, Tensor] = {}
        self.changed: list[int] = []
        self.came: list[tuple[float, float, float, float]] = []
        self.zeros: list[int] = []

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        now = {name: mask.clone() for name, mask in self.pruning.masks.items()}
        self.zeros.append(sum(int((~m).sum()) for m in now.values()))
        grown = {n: m & ~self.masks[n] for n, m in now.items()} if self.masks else {}
        if any(bool(g.any()) for g in grown.values()):
            self.changed.append(trainer.global_step)
            p, g = pl_module.first.weight, grown["first.weight"]
            state = optimizer.state[p]
            under = float(p.grad[~now["first.weight"]].abs().sum())
            stayed = state["exp_avg_sq"][now["first.weight"] & ~g].mean()
            moments = float((state["exp_avg_sq"][g] / stayed - 1).abs().sum())
            self.came.append((float(p.detach()[g].abs().sum()), float(state["exp_avg"][g].abs().sum()), moments, under))
        self.masks = now


def sparse(regrow: Regrow | None, **more: Any) -> PruningCallback:
    return PruningCallback(**{"schedule": Constant(final=0.6), "seed": 3, "verbose": False, "regrow": regrow, **more})


def test_weights_come_back_at_updates_and_begin_anew(tmp_path: Path) -> None:
    pruning = sparse(RigL(every=3, until=0.75))
    watch = Watch(pruning)
    model = net(optimizer=ADAM)
    trainer(tmp_path, pruning, watch, epochs=5).fit(model)  # 20 steps
    assert watch.changed == [3, 6, 9, 12]
    assert watch.came == [(0.0, 0.0, pytest.approx(0, abs=1e-5), 0.0)] * 4
    assert set(watch.zeros) == {77 + 29}
    assert zeros(model) == 77 + 29
    assert pruning.regrowth is not None
    assert (pruning.regrowth.updates, pruning.regrowth.time, pruning.regrowth.left) == (4, 12, 70)
    assert 0 < pruning.regrowth.churn < 0.3
    assert 70 / 176 < pruning.regrowth.explored < 1


def test_churn_and_the_share_explored_are_logged(tmp_path: Path) -> None:
    pruning = sparse(RigL(every=3, until=0.75))
    fit = trainer(tmp_path, pruning, epochs=5)
    fit.fit(net())
    found = pruning.regrowth
    assert found is not None
    assert float(fit.callback_metrics["regrow/churn"]) == pytest.approx(found.churn)
    assert float(fit.callback_metrics["regrow/explored"]) == pytest.approx(found.explored)


def test_each_update_is_in_the_log_the_history_and_the_picture(tmp_path: Path) -> None:
    found: list[Regrowth] = []
    pruning = sparse(RigL(every=3, until=0.75))

    class Note(Callback):
        def on_train_batch_end(self, *args: Any) -> None:
            if pruning.regrowth is not None and pruning.regrowth not in found:
                found.append(pruning.regrowth)

    trainer(tmp_path, pruning, Note(), epochs=5, logger=CSVLogger(tmp_path, "", "")).fit(net())
    over = history.read_csv(tmp_path, unit="step")
    made = history.of_events([], {}, "step", found)
    assert [time for time, _ in made.churn] == [3, 6, 9, 12]
    assert dict(made.churn).items() <= dict(over.churn).items()
    assert dict(made.explored).items() <= dict(over.explored).items()
    shares = [share for _, share in over.explored]
    assert shares == sorted(shares)
    _, ax = plots.regrowth_over_time(over)
    churn, explored = ax.get_lines()
    assert list(zip(churn.get_xdata(), churn.get_ydata(), strict=True)) == list(over.churn)
    assert list(zip(explored.get_xdata(), explored.get_ydata(), strict=True)) == list(over.explored)
    with pytest.raises(ValueError, match="has no regrowth"):
        plots.regrowth_over_time(history.of_events([], {}))


class Churned(Net):
    """Logs the metric of the masks before and after each step."""

    def __init__(self, pruning: PruningCallback) -> None:
        super().__init__()
        self.pruning, self.churn, self.before = pruning, metrics.MaskChurn(), {}

    def on_train_batch_end(self, *args: Any) -> None:
        now = {name: mask.clone() for name, mask in self.pruning.masks.items()}
        if self.before:
            self.log("churn", self.churn(self.before, now))
        self.before = now


def test_the_metric_of_churn_counts_both_ends_of_a_move(tmp_path: Path) -> None:
    pruning = sparse(RigL(every=3, until=5, unit="step"))
    fit = trainer(tmp_path, pruning, epochs=4, max_steps=4)
    fit.fit(Churned(pruning))
    assert pruning.regrowth is not None
    assert pruning.regrowth.moved > 0
    assert float(fit.callback_metrics["churn"]) == pytest.approx(2 * pruning.regrowth.moved / pruning.regrowth.total)


@pytest.mark.parametrize("unit", ["epoch", "step"])
def test_with_accumulation_weights_move_at_optimizer_steps(tmp_path: Path, unit: Any) -> None:
    times = {"every": 2, "until": 5} if unit == "epoch" else {"every": 4, "until": 10}
    pruning = sparse(RigL(unit=unit, **times))
    watch = Watch(pruning)
    trainer(tmp_path, pruning, watch, epochs=6, accumulate_grad_batches=2).fit(net(optimizer=ADAM))
    assert watch.changed == [4, 8]


def test_first_masks_are_random_and_the_method_ranks_later(tmp_path: Path) -> None:
    def masks(**more: Any) -> dict[str, Tensor]:
        pruning = sparse(**more)
        trainer(tmp_path, pruning, epochs=1, max_steps=1).fit(net())
        return pruning.masks

    at_random = masks(regrow=RigL(until=0))
    method = masks(regrow=RigL(until=0, initial="method"))
    assert torch.equal(at_random["first.weight"], masks(regrow=None, method="random_unstructured")["first.weight"])
    assert torch.equal(method["first.weight"], masks(regrow=None)["first.weight"])
    assert not torch.equal(at_random["first.weight"], method["first.weight"])


def test_a_rising_schedule_is_met_while_weights_move(tmp_path: Path) -> None:
    pruning = sparse(
        RigL(every=2, until=0.9), schedule=Cubic(final=0.8, initial=0.2, end=16, every=3, unit="step"), scope="global"
    )
    watch = Watch(pruning)
    model = net(optimizer=ADAM)
    trainer(tmp_path, pruning, watch, epochs=5).fit(model)
    events = pruning.plan.schedule.events()  # type: ignore[attr-defined]
    for step, found in enumerate(watch.zeros):
        assert found == round([target for time, target in events if time <= step][-1] * 176)
    assert watch.changed == [2, 4, 6, 8, 10, 12, 14]  # at 16 the share is less than half a weight


class Stop(Callback):
    def __init__(self, path: Path, step: int) -> None:
        self.path, self.step = path, step

    def on_train_batch_end(self, trainer: Any, *args: Any) -> None:
        if trainer.global_step == self.step:
            trainer.save_checkpoint(self.path)
            raise RuntimeError("crashed on purpose")


def scheduled(seed: int) -> Net:
    torch.manual_seed(seed)
    return Scheduled(ADAM)


@pytest.mark.parametrize("regrow", [RigL, SET])
@pytest.mark.parametrize("step", [9, 10, 11, 12])
def test_resumes_bit_equal_between_and_at_updates(tmp_path: Path, regrow: Any, step: int) -> None:
    def callback() -> PruningCallback:
        return sparse(regrow(every=5, until=0.9), scope="erk")

    whole = scheduled(0)
    straight = callback()
    trainer(tmp_path, straight, epochs=6).fit(whole)
    with pytest.raises(RuntimeError, match="on purpose"):
        trainer(tmp_path, callback(), Stop(tmp_path / "a.ckpt", step), epochs=6).fit(scheduled(0))
    resumed, again = scheduled(9), callback()
    trainer(tmp_path, again, epochs=6).fit(resumed, ckpt_path=tmp_path / "a.ckpt")
    assert all(torch.equal(value, resumed.state_dict()[name]) for name, value in whole.state_dict().items())
    assert all(torch.equal(mask, again.masks[name]) for name, mask in straight.masks.items())
    assert straight.regrowth == again.regrowth is not None


def test_another_regrowth_does_not_resume(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="on purpose"):
        trainer(tmp_path, sparse(RigL(every=5)), Stop(tmp_path / "a.ckpt", 7), epochs=6).fit(net())
    with pytest.raises(ValueError, match=r"regrow\.every: 5 there, 4 here"):
        trainer(tmp_path, sparse(RigL(every=4)), epochs=6).fit(net(), ckpt_path=tmp_path / "a.ckpt")


class Two(Net):
    """The layers are stepped by optimizers of their own, in turns."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def configure_optimizers(self) -> Any:
        return ADAM(self.first.parameters()), ADAM(self.last.parameters())

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        optimizer = self.optimizers()[batch_idx % 2]
        self.zero_grad()
        self.manual_backward(self.loss(batch))
        optimizer.step()


def test_tensors_of_optimizers_that_step_in_turns_all_move(tmp_path: Path) -> None:
    pruning = sparse(RigL(every=4, until=13, unit="step", decay="constant"))
    watch = [{}]  # type: ignore[var-annotated]

    class Note(Callback):
        def on_train_batch_end(self, trainer: Any, *args: Any) -> None:
            watch.append({name: mask.clone() for name, mask in pruning.masks.items()})

    torch.manual_seed(0)
    model = Two()
    trainer(tmp_path, pruning, Note(), epochs=5).fit(model)
    for name in ("first.weight", "last.weight"):
        masks = [found[name] for found in watch[1:]]
        changes = sum(not torch.equal(a, b) for a, b in itertools.pairwise(masks))
        assert changes == 3
    assert zeros(model) == 77 + 29


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"rewind": Rewind(epoch=0)}, "no longer begin at 0"),
        ({"rewind": Reinit(0)}, "no longer begin at 0"),
        ({"enforce": "read"}, "leave enforce='read' out"),
        ({"method": "ln_structured"}, "moves single weights"),
        ({"method": "n_m", "schedule": Constant(final=0.5)}, "moves single weights"),
        ({"scope": "row"}, "moves single weights"),
        ({"schedule": None}, "needs to know how sparse"),
    ],
)
def test_what_does_not_go_together_is_refused(more: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        sparse(RigL(), **more)


def test_a_regrowth_is_wanted() -> None:
    with pytest.raises(TypeError, match=r"RigL\(every=100\)"):
        sparse("rigl")  # type: ignore[arg-type]


def test_fractions_need_the_length_of_the_run() -> None:
    model = small()
    with pytest.raises(ValueError, match="how many steps this one has is not known"):
        Pruning(model, SGD(model.parameters()), schedule=Constant(final=0.5), regrow=RigL(), verbose=False)
    assert zeros(model) == 0


def test_scores_of_another_shape_are_refused() -> None:
    class Wrong(Regrow):
        def scores(self, weight: Tensor, gradient: Tensor) -> Tensor:
            return gradient[0]

    model = small()
    optimizer = SGD(model.parameters())
    value = Wrong(every=1, until=9, unit="step")
    with Pruning(model, optimizer, schedule=Constant(final=0.5), regrow=value, verbose=False) as pruning:
        pruning.start_epoch(0)
        for step in range(2):
            before = pruning.masks
            pruning.start_step()
            backward(model, step)
            if step == 0:
                optimizer.step()
        with pytest.raises(ValueError, match=r"shape \(8,\) for '0.weight' of shape \(24, 8\)"):
            optimizer.step()
        assert all(torch.equal(mask, before[name]) for name, mask in pruning.masks.items())
