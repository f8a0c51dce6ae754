"""Several callbacks in a Trainer: their states in a checkpoint."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from lightning_prune import PruningCallback
from tests.expected import FEW_SELECTED
from tests.models import Net, is_plain, trainer, zeros

pytestmark = FEW_SELECTED


class Twins(Net):
    """Two square layers of one shape."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(self.two(torch.relu(self.one(x))))


def is_named(wanted: str, name: str, parameter: nn.Parameter) -> bool:
    return name == wanted


def holding(wanted: list[str]) -> Callable[[str, nn.Parameter], bool]:
    """Predicates whose words are alike: a list is no word."""
    return lambda name, parameter: name in wanted


def pair(first: Any, second: Any) -> list[PruningCallback]:
    """The first prunes 16 of 64 weights each epoch, the second 24."""
    settings: dict[str, Any] = {"epochs": [0, 1], "allow_unfinished": True, "verbose": False}
    return [PruningCallback(amount=n, parameters=p, **settings) for p, n in [(first, 16), (second, 24)]]


def key(parameters: str, more: str = "") -> str:
    return f"PruningCallback{{'parameters': {parameters!r}, 'exclude': 'default'{more}}}"


CHOICES: dict[str, tuple[Callable[[Twins], tuple[Any, Any]], list[str]]] = {
    "modules": (lambda m: (m.one, m.two), [key("Linear"), key("Linear", ", 'alike': 1")]),
    "pairs": (
        lambda m: ((m.one, "weight"), (m.two, "weight")),
        [key("(Linear, 'weight')"), key("(Linear, 'weight')", ", 'alike': 1")],
    ),
    "closures": (
        lambda m: (holding(["one.weight"]), holding(["two.weight"])),
        [key("holding.<locals>.<lambda>"), key("holding.<locals>.<lambda>", ", 'alike': 1")],
    ),
    "partials": (
        lambda m: (functools.partial(is_named, "one.weight"), functools.partial(is_named, "two.weight")),
        [key("is_named(one.weight)"), key("is_named(two.weight)")],
    ),
    "names": (lambda m: ("one", "two"), [key("'one'"), key("'two'")]),
}


@pytest.mark.parametrize("choice", sorted(CHOICES))
def test_callbacks_of_one_trainer_have_states_of_their_own_that_resume(tmp_path: Path, choice: str) -> None:
    chosen, keys = CHOICES[choice]
    model = Twins()
    callbacks = pair(*chosen(model))
    fits = trainer(tmp_path, *callbacks, epochs=1, limit_train_batches=2)
    fits.fit(model)
    fits.save_checkpoint(tmp_path / "half.ckpt")
    states = torch.load(tmp_path / "half.ckpt", weights_only=True)["callbacks"]
    assert [c.state_key for c in callbacks] == list(states) == keys
    assert [list(state["tensors"]) for state in states.values()] == [["one.weight"], ["two.weight"]]

    again = Twins()
    fits = trainer(tmp_path, *pair(*chosen(again)), epochs=2, limit_train_batches=2)
    fits.fit(again, ckpt_path=tmp_path / "half.ckpt")
    assert (zeros(again, "one.weight"), zeros(again, "two.weight")) == (32, 48)
    assert not model.one.weight[again.one.weight != 0].eq(0).any()
    assert is_plain(again)


def test_callbacks_with_one_selection_are_refused_with_the_tensors_they_share(tmp_path: Path) -> None:
    for callbacks in ([PruningCallback(), PruningCallback(amount=0.1)], pair("one", ["one.weight"])):
        model = Twins()
        with pytest.raises(ValueError, match=r"two PruningCallbacks select the same tensors: .*one\.weight"):
            trainer(tmp_path, *callbacks).fit(model)
        assert is_plain(model)


def test_a_callback_keeps_its_key_in_a_new_trainer(tmp_path: Path) -> None:
    model = Twins()
    callback = PruningCallback(amount=16, epochs=[0], parameters=model.one, verbose=False)
    for _ in range(2):
        trainer(tmp_path, callback, epochs=1, limit_train_batches=1).fit(model)
        assert callback.state_key == key("Linear")
    others = pair(model.two, model.last)
    trainer(tmp_path, others[0], callback, epochs=1, limit_train_batches=1).fit(model)
    assert [others[0].state_key, callback.state_key] == [key("Linear"), key("Linear", ", 'alike': 1")]
