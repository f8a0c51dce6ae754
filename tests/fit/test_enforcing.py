"""Both ways of keeping zeros give the same training to the last bit, and leave nothing behind."""

from __future__ import annotations

import copy
import functools
import gc
import math
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import Callback
from torch import Tensor, nn

from lightning_prune import PruningCallback
from lightning_prune.fit.enforcing import Enforcement
from lightning_prune.prune.attribute import Layout
from lightning_prune.schedules.plan import Demand
from tests.expected import ENDED_EARLY, MOVED
from tests.fit.test_run import network, run_of
from tests.models import Net, is_plain, net, trainer, zeros

pytestmark = [ENDED_EARLY, MOVED]

WAYS = ("read", "in_place")
SGD = functools.partial(torch.optim.SGD, lr=0.05, momentum=0.9, weight_decay=0.01)
ADAMW = functools.partial(torch.optim.AdamW, lr=0.01, weight_decay=0.1)
LBFGS = functools.partial(torch.optim.LBFGS, lr=0.1, max_iter=3, history_size=4)


class Manual(Net):
    """Two steps a batch."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> None:
        for _ in range(2):
            self.optimizers().zero_grad()
            self.manual_backward(self.loss(batch))
            self.optimizers().step()


class Skipping(Net):
    """Has no loss in the batch after which an accumulated step comes."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return None if batch_idx == 2 else super().training_step(batch, batch_idx)


class TwoOptimizers(Manual):
    """One for each layer, by turns, both seeing the gradients of one backward."""

    def training_step(self, batch: Any, batch_idx: int) -> None:
        for optimizer in self.optimizers():
            optimizer.zero_grad()
            self.manual_backward(self.loss(batch))
            self.clip_gradients(optimizer, 0.5, "norm")
            optimizer.step()

    def configure_optimizers(self) -> Any:
        return SGD(self.first.parameters()), ADAMW(self.last.parameters())


class Bare(Manual):
    """Clips and steps by itself, past Lightning."""

    def training_step(self, batch: Any, batch_idx: int) -> None:
        optimizer = self.optimizers(use_pl_optimizer=False)
        optimizer.zero_grad()
        self.loss(batch).backward()
        nn.utils.clip_grad_norm_(self.parameters(), 0.05)
        optimizer.step()


class Wrapper:
    """What Lightning takes for an optimizer, though it is none of torch's."""

    def __init__(self, parameters: Any) -> None:
        self.inner = SGD(parameters)
        self.count = 0
        self.slow = [p.detach().clone() for group in self.inner.param_groups for p in group["params"]]

    def __getattr__(self, name: str) -> Any:
        return getattr(vars(self)["inner"], name)

    @property
    def parameters(self) -> list[nn.Parameter]:
        return [p for group in self.inner.param_groups for p in group["params"]]


class SharpnessAware(Wrapper):
    """Takes the gradient at the point that is worst nearby, and steps from where it was."""

    def step(self, closure: Any) -> Any:
        loss = closure()
        with torch.no_grad():
            norm = torch.stack([p.grad.norm() for p in self.parameters]).norm()
            moves = [0.05 * p.grad / norm for p in self.parameters]
            for parameter, move in zip(self.parameters, moves, strict=True):
                parameter.add_(move)
        closure()
        with torch.no_grad():
            for parameter, move in zip(self.parameters, moves, strict=True):
                parameter.sub_(move)
                parameter.add_(parameter.grad, alpha=-0.05)
        return loss


class Lookahead(Wrapper):
    """Every third step goes half of the way from slow weights to the fast ones."""

    def step(self, closure: Any) -> Any:
        loss = closure()
        with torch.no_grad():
            for parameter in self.parameters:
                parameter.add_(parameter.grad, alpha=-0.05)
            self.count += 1
            for slow, parameter in zip(self.slow, self.parameters, strict=True) if self.count % 3 == 0 else ():
                parameter.copy_(slow.add_(parameter - slow, alpha=0.5))
        return loss


class Restoring(Callback):
    """Brings back the weights of an earlier epoch in mid-fit."""

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        if trainer.current_epoch == 2:
            self.best = copy.deepcopy(pl_module.state_dict())
        if trainer.current_epoch in (6, 12):
            pl_module.load_state_dict(self.best)


class Noisy(Callback):
    """Adds noise to all weights before every fifth batch."""

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        if trainer.global_step % 5 == 0:
            generator = torch.Generator().manual_seed(trainer.global_step)
            with torch.no_grad():
                for parameter in pl_module.parameters():
                    parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.01)


class Inside(Callback):
    """What the parameters hold during the fit."""

    def __init__(self) -> None:
        self.zeros: list[int] = []

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *args: Any) -> None:
        self.zeros.append(zeros(pl_module))


def fitted(root: Path, enforce: str, make: Any = net, ckpt: Path | None = None, epochs: int = 50, **kwargs: Any) -> Any:
    """Weights, optimizer states and zeros in the fit, of epochs of 4 batches; 0.3 of what is left at 0, 5 and 10."""
    torch.manual_seed(0)
    model, inside = make(), Inside()
    callback = PruningCallback(
        amount=0.3,
        epochs=[0, 5, 10],
        enforce=enforce,
        allow_unfinished=epochs < 11,
        verbose=False,  # type: ignore
    )
    others = [make_one() for make_one in kwargs.pop("others", ())]
    fit = trainer(root, *others, callback, inside, epochs=epochs, **kwargs)
    fit.fit(model, ckpt_path=ckpt)
    assert is_plain(model)
    fit.save_checkpoint(root / f"{enforce}.ckpt")
    states = [optimizer.state_dict()["state"] for optimizer in fit.optimizers]
    return plain({"weights": model.state_dict(), "states": states}), inside.zeros


def plain(state: Any) -> Any:
    """The same with lists for tensors, so that it can be compared."""
    if isinstance(state, dict):
        return {key: plain(value) for key, value in state.items()}
    if isinstance(state, (list, tuple)):
        return [plain(value) for value in state]
    return state.tolist() if isinstance(state, Tensor) else state


ACCUMULATED: dict[str, Any] = {"accumulate_grad_batches": 3, "gradient_clip_val": 0.05}
TRAININGS: dict[str, tuple[Any, dict[str, Any]]] = {
    "SGD with momentum and decay": (functools.partial(net, optimizer=SGD), {}),
    "AdamW": (functools.partial(net, optimizer=ADAMW), {}),
    "clipping by norm": (functools.partial(net, optimizer=SGD), {"gradient_clip_val": 0.5}),
    "clipping by value": (
        functools.partial(net, optimizer=ADAMW),
        {"gradient_clip_val": 0.05, "gradient_clip_algorithm": "value"},
    ),
    "accumulation": (functools.partial(net, optimizer=ADAMW), {"accumulate_grad_batches": 4}),
    "accumulation with a rest": (functools.partial(net, optimizer=SGD), ACCUMULATED),
    "accumulation with a batch left out": (functools.partial(Skipping, optimizer=SGD), ACCUMULATED),
    "bf16-mixed": (functools.partial(net, optimizer=SGD), {"precision": "bf16-mixed"}),
    "two steps a batch": (functools.partial(Manual, optimizer=ADAMW), {}),
    "two optimizers": (TwoOptimizers, {}),
    "LBFGS": (functools.partial(net, optimizer=LBFGS), {}),
    "a bare backward and clipping": (functools.partial(Bare, optimizer=SGD), {}),
}
WRITTEN: dict[str, tuple[Any, dict[str, Any]]] = {
    "an optimizer of another kind: SAM": (functools.partial(net, optimizer=SharpnessAware), {}),
    "an optimizer of another kind: Lookahead": (functools.partial(net, optimizer=Lookahead), {}),
    "restored weights": (functools.partial(net, optimizer=SGD), {"others": [Restoring]}),
    "noise": (functools.partial(net, optimizer=SGD), {"others": [Noisy]}),
}


@pytest.mark.parametrize("name", TRAININGS)
def test_both_ways_train_alike_to_the_last_bit(tmp_path: Path, name: str) -> None:
    make, kwargs = TRAININGS[name]
    (read, zeros_read), (in_place, zeros_in_place) = (fitted(tmp_path, way, make, **kwargs) for way in WAYS)
    assert read == in_place
    assert zeros_read == zeros_in_place == [52] * 20 + [89] * 20 + [115] * 160


@pytest.mark.parametrize("name", WRITTEN)
def test_both_ways_give_the_same_weights_whoever_writes_into_them(tmp_path: Path, name: str) -> None:
    """Under the masks, that which is read holds other numbers, and momentum of them."""
    make, kwargs = WRITTEN[name]
    (read, _), (in_place, zeros_in_place) = (fitted(tmp_path, way, make, **kwargs) for way in WAYS)
    assert read["weights"] == in_place["weights"]
    assert zeros_in_place == [52] * 20 + [89] * 20 + [115] * 160


@pytest.mark.parametrize(("first", "then"), [("read", "in_place"), ("in_place", "read")])
@pytest.mark.parametrize("optimizer", [SGD, ADAMW])
def test_a_checkpoint_of_one_way_resumes_in_the_other(tmp_path: Path, first: str, then: str, optimizer: Any) -> None:
    make = functools.partial(net, optimizer=optimizer)
    whole, _ = fitted(tmp_path, first, make)
    fitted(tmp_path, first, make, epochs=8)
    resumed, zeros_resumed = fitted(tmp_path, then, make, ckpt=tmp_path / f"{first}.ckpt")
    assert whole == resumed
    assert zeros_resumed == [89] * 8 + [115] * 160


def test_other_words_are_refused() -> None:
    with pytest.raises(ValueError, match="enforce should be 'in_place' or 'read', got 'inplace'"):
        PruningCallback(enforce="inplace")  # type: ignore[arg-type]


def test_zeros_are_written_after_the_batch_for_optimizers_of_other_kinds() -> None:
    model = network()
    run = run_of(model, layout=Layout.PLAIN)
    run.prune(Demand(0, amount=0.5))
    enforcement = Enforcement(run)
    enforcement.start(["another kind"])
    with torch.no_grad():
        model[0].weight.fill_(3)
    enforcement.batch_end()
    assert zeros(model, "0.weight") == 24


def test_reading_masks_works_with_any_optimizer() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    enforcement = Enforcement(run_of(model))
    enforcement.start([optimizer, "another kind"])  # type: ignore[list-item]
    assert len(optimizer._optimizer_step_post_hooks) == 1
    enforcement.stop()
    assert len(optimizer._optimizer_step_post_hooks) == 0


def in_place() -> tuple[nn.Sequential, torch.optim.Optimizer, Enforcement, Tensor]:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    run = run_of(model, layout=Layout.PLAIN)
    run.prune(Demand(0, amount=0.5))
    enforcement = Enforcement(run)
    enforcement.start([optimizer])
    alive = run.targets[0].alive
    assert alive is not None
    return model, optimizer, enforcement, ~alive


@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
def test_gradients_under_the_mask_are_zero_even_if_they_were_not_finite(bad: float) -> None:
    model, _, enforcement, dead = in_place()
    (model[0].weight * torch.ones(6, 8).masked_fill(dead, bad)).sum().backward()
    enforcement.stop()
    assert torch.equal(model[0].weight.grad, (~dead).float())
    assert model[2].weight.grad is None


def test_whatever_a_step_writes_is_zero_after_it() -> None:
    """Gradients that no hook has seen, and what a user wrote."""
    model, optimizer, _, dead = in_place()
    for _ in range(2):
        with torch.no_grad():
            model[0].weight.fill_(3)
        model[0].weight.grad = torch.ones(6, 8)
        optimizer.step()
        assert torch.equal(model[0].weight, 2.9 * (~dead))


def test_only_what_an_optimizer_holds_is_written_after_its_step() -> None:
    model, _, enforcement, dead = in_place()
    other = torch.optim.SGD(model[2].parameters(), 0.1)
    enforcement.start([other])
    with torch.no_grad():
        model[0].weight.fill_(3)
    model[2](torch.ones(1, 6)).sum().backward()
    other.step()
    assert int((model[0].weight == 3).sum()) == 48
    enforcement.write_zeros()
    assert torch.equal(model[0].weight, 3.0 * (~dead))


def test_a_new_mask_is_followed() -> None:
    model, _, enforcement, dead = in_place()
    enforcement.write_zeros()
    enforcement._run.prune(Demand(1, amount=0.5))
    with torch.no_grad():
        model[0].weight.fill_(3)
    enforcement.write_zeros()
    assert int((model[0].weight == 0).sum()) == 36 > int(dead.sum())


def live_bytes() -> int:
    gc.collect()
    return sum(t.numel() * t.element_size() for t in gc.get_objects() if type(t) in (Tensor, nn.Parameter))


@pytest.mark.parametrize("layout", [Layout.KEPT, Layout.PLAIN])
def test_a_thousand_rounds_leave_nothing_behind(layout: Layout) -> None:
    """Each masks two more weights of each tensor, and is followed by a step."""
    model = nn.Sequential(nn.Linear(50, 50), nn.Linear(50, 50))
    optimizer = torch.optim.Adam(model.parameters(), 0.001)
    run = run_of(model, layout=layout)
    enforcement = Enforcement(run)
    enforcement.start([optimizer])
    seen = []
    for event in range(1, 1001):
        run.prune(Demand(event, amount=2))
        optimizer.zero_grad()
        model(torch.ones(2, 50)).square().sum().backward()
        optimizer.step()
        if event in (10, 1000):
            seen.append((live_bytes(), len(pickle.dumps(copy.deepcopy(model)))))
    assert run.zeros == 4000
    assert seen[0][0] == seen[1][0]
    assert abs(seen[0][1] - seen[1][1]) < 16  # digits of counts
