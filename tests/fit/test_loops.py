"""The same training in a Trainer, in a plain loop and in one of Lightning Fabric gives the same to the last bit."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.fabric import Fabric
from torch import Tensor, nn
from torch.utils.data import DataLoader

from lightning_prune import Cubic, Linear, Pruning, PruningCallback, Rewind
from tests.expected import ENDED_EARLY, FEW_SELECTED
from tests.models import OPTIMIZERS, Net, net, random_data, trainer, zeros

pytestmark = [ENDED_EARLY, FEW_SELECTED]

PLANS: dict[str, dict[str, Any]] = {
    "epochs": {"schedule": Linear(final=0.8, initial=0.2, end=3), "scope": "global"},
    "steps": {"schedule": Cubic(final=0.9, begin=2, end=14, every=3, unit="step"), "scope": "erk"},
    "random": {"method": "random_unstructured", "amount": 0.3, "epochs": [1, 3], "seed": 7},
    "criterion": {"criterion": "taylor", "schedule": Linear(final=0.6, end=3), "scope": "global"},
    "rewound": {"amount": 0.3, "epochs": [1, 3], "rewind": Rewind(epoch=0)},
}
WAYS = [(plan, name, "in_place") for plan in PLANS for name in OPTIMIZERS] + [
    ("epochs", "AdamW", "read"),
    ("steps", "SGD", "read"),
]


def arguments(plan: str, enforce: str) -> dict[str, Any]:
    return {**PLANS[plan], "enforce": enforce, "verbose": False, "allow_unfinished": True}  # they are interrupted


def batches() -> DataLoader[Any]:
    return DataLoader(random_data(), batch_size=8)


def result(model: nn.Module, optimizer: torch.optim.Optimizer, masks: dict[str, Tensor]) -> dict[str, Tensor]:
    states = {f"{i}.{k}": v for i, s in optimizer.state_dict()["state"].items() for k, v in s.items()}
    return {
        **{f"model.{name}": value.clone() for name, value in model.state_dict().items()},
        **{f"optimizer.{name}": torch.as_tensor(value).clone() for name, value in states.items()},
        **{f"mask.{name}": mask.clone() for name, mask in masks.items()},
    }


def in_a_trainer(root: Path, plan: str, name: str, enforce: str) -> dict[str, Tensor]:
    model, callback = net(optimizer=OPTIMIZERS[name]), PruningCallback(**arguments(plan, enforce))
    fit = trainer(root, callback, epochs=4, limit_val_batches=0)
    fit.fit(model)
    return result(model, fit.optimizers[0], callback.masks)


def epoch_of(pruning: Pruning, model: Any, optimizer: Any, epoch: int, backward: Any = None) -> None:
    pruning.start_epoch(epoch, steps=4)
    for batch in batches():
        pruning.start_step()
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(batch[0]), batch[1])
        (loss.backward if backward is None else functools.partial(backward, loss))()
        optimizer.step()


def in_a_plain_loop(plan: str, name: str, enforce: str) -> dict[str, Tensor]:
    model = net().train()
    optimizer = OPTIMIZERS[name](model.parameters())
    with Pruning(model, optimizer, max_epochs=4, **arguments(plan, enforce)) as pruning:
        for epoch in range(4):
            epoch_of(pruning, model, optimizer, epoch)
    return result(model, optimizer, pruning.masks)


def interrupted(plan: str, name: str, enforce: str) -> dict[str, Tensor]:
    """After two epochs everything is saved, and goes on in other objects."""
    first = net().train()
    optimizer = OPTIMIZERS[name](first.parameters())
    pruning = Pruning(first, optimizer, max_epochs=4, **arguments(plan, enforce))
    for epoch in range(2):
        epoch_of(pruning, first, optimizer, epoch)
    saved = {"model": first.state_dict(), "optimizer": optimizer.state_dict(), "pruning": pruning.state_dict()}
    model = net(seed=5).train()
    optimizer = OPTIMIZERS[name](model.parameters())
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    with Pruning(model, optimizer, max_epochs=4, **arguments(plan, enforce)) as pruning:
        pruning.load_state_dict(saved["pruning"])
        for epoch in range(2, 4):
            epoch_of(pruning, model, optimizer, epoch)
    return result(model, optimizer, pruning.masks)


def in_fabric(root: Path, plan: str, name: str, enforce: str) -> dict[str, Tensor]:
    """Saved by ``fabric.save`` after two epochs, and gone on with by ``fabric.load``."""
    fabric = Fabric(accelerator="cpu", devices=1)
    path = root / "fabric.ckpt"
    for epochs, seed in ((range(2), 0), (range(2, 4), 5)):
        torch.manual_seed(seed)
        plain = _Plain()
        model, optimizer = fabric.setup(plain, OPTIMIZERS[name](plain.parameters()))
        pruning = Pruning(model, optimizer, max_epochs=4, **arguments(plan, enforce))
        if seed:
            loaded = fabric.load(path)
            plain.load_state_dict(loaded["model"])
            optimizer.load_state_dict(loaded["optimizer"])
            pruning.load_state_dict(loaded["pruning"])
        model.train()
        for epoch in epochs:
            epoch_of(pruning, model, optimizer, epoch, backward=fabric.backward)
        saved = {"model": plain.state_dict(), "optimizer": optimizer.state_dict(), "pruning": pruning.state_dict()}
        fabric.save(path, saved)
        pruning.finish()
    return result(plain, optimizer.optimizer, pruning.masks)


class _Plain(nn.Module):
    """The layers of :class:`tests.models.Net` in a module of torch alone."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.norm = nn.BatchNorm1d(16)
        self.last = nn.Linear(16, 3)

    forward = Net.forward


@pytest.mark.parametrize(("plan", "name", "enforce"), WAYS)
def test_all_loops_train_alike_to_the_last_bit(tmp_path: Path, plan: str, name: str, enforce: str) -> None:
    expected = in_a_trainer(tmp_path, plan, name, enforce)
    assert sum(int((~mask).sum()) for key, mask in expected.items() if key.startswith("mask.")) > 80
    for found in (
        in_a_plain_loop(plan, name, enforce),
        interrupted(plan, name, enforce),
        in_fabric(tmp_path, plan, name, enforce),
    ):
        assert found.keys() == expected.keys()
        assert [key for key in expected if not torch.equal(found[key], expected[key])] == []


def test_the_end_leaves_a_plain_model_also_after_an_error() -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    pruning = Pruning(model, optimizer, amount=0.5, epochs=[0], verbose=False)
    with pytest.raises(ZeroDivisionError):
        _broken(pruning)
    assert zeros(model) == 88
    with torch.no_grad():
        model.first.weight.fill_(1.0)
    model(torch.ones(2, 8)).sum().backward()
    optimizer.step()
    assert zeros(model, "first.weight") == 0
    with pytest.raises(RuntimeError, match="this Pruning is finished"):
        pruning.start_epoch(1)


def _broken(pruning: Pruning) -> None:
    with pruning:
        pruning.start_epoch(0)
        _ = 1 / 0


def test_another_plan_is_refused_by_what_differs() -> None:
    saved = Pruning(net(), amount=0.5, epochs=[0], verbose=False).state_dict()
    with pytest.raises(ValueError, match=r"plan\.amount: 0\.5 there, 0\.4 here"):
        Pruning(net(), amount=0.4, epochs=[0], verbose=False).load_state_dict(saved)


def test_unknown_arguments_are_named() -> None:
    with pytest.raises(TypeError, match="no argument pruning_fn; pruning_fn= is method= here"):
        Pruning(net(), pruning_fn="l1_unstructured")
