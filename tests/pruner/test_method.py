"""Pruning methods with their arguments."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
import torch.nn.utils.prune as torch_prune
from torch import Tensor, nn

from lightning_prune.prune import BasePruningMethod, L1Unstructured, LnStructured, RandomStructured
from lightning_prune.pruner.granularity import NM, Blocks, Channels, Granularity, Weights
from lightning_prune.pruner.method import make_recipe
from lightning_prune.targets.select import select


class Threshold(BasePruningMethod):
    PRUNING_TYPE = "unstructured"

    def __init__(self, threshold: float, hook: Any = None) -> None:
        self.threshold = threshold

    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        return default_mask * (t.abs() > self.threshold)


class Loud(L1Unstructured):
    """Passes on what it gets."""

    def __init__(self, *args: Any, loud: bool = True, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.loud = loud


class Columns(torch_prune.BasePruningMethod):
    """Structured along a dimension that it sets itself."""

    PRUNING_TYPE = "structured"
    dim = 1

    def __init__(self, amount: int) -> None:
        self.amount = amount

    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        mask = default_mask.clone()
        mask[:, : self.amount] = 0
        return mask


def test_names_and_torch_classes_are_ours() -> None:
    assert make_recipe("l1_unstructured", 2, "out", None).cls is L1Unstructured
    assert make_recipe(torch_prune.RandomStructured, 2, "out", None).cls is RandomStructured
    assert make_recipe("lightning_prune.prune.LnStructured", 2, "out", None).cls is LnStructured
    assert make_recipe(Columns, 2, "out", None).cls is Columns


def test_arguments_reach_the_method() -> None:
    method = make_recipe("ln_structured", "fro", "out", None).make(0.5, 1)
    assert (method.amount, method.n, method.dim) == (0.5, "fro", 1)  # type: ignore[attr-defined]
    assert make_recipe("ln_structured", 2, "out", {"n": 1}).make(0.5, 1).n == 1  # type: ignore[attr-defined]
    method = make_recipe(functools.partial(Threshold, threshold=0.3), 2, "out", {"hook": 3}).make(0.5)
    assert method.threshold == 0.3  # type: ignore[attr-defined]
    assert make_recipe("l1_unstructured", 2, "out", None).make(7).amount == 7  # type: ignore[attr-defined]


def test_amount_and_dim_may_come_with_the_method() -> None:
    recipe = make_recipe(functools.partial(LnStructured, amount=0.25, n=1, dim=-1), 2, "out", None)
    assert (recipe.amount, recipe.dim, dict(recipe.kwargs)) == (0.25, -1, {"n": 1})
    assert recipe.amount_or(None) == 0.25
    with pytest.raises(ValueError, match=r"amount=0\.5 is given, and amount=0\.25 to the method"):
        recipe.amount_or(0.5)
    assert make_recipe("l1_unstructured", 2, "out", None).amount_or(torch.tensor(3)) == 3


def test_what_a_method_takes() -> None:
    assert make_recipe("l1_unstructured", 2, "out", None).takes_amount
    assert make_recipe(Loud, 2, "out", {"loud": False}).takes_amount
    assert make_recipe(Loud, 2, "out", {"loud": False}).make(3).loud is False  # type: ignore[attr-defined]
    assert not make_recipe(Threshold, 2, "out", {"threshold": 1.0}).takes_amount


@pytest.mark.parametrize(
    ("method", "kwargs", "granularity"),
    [
        ("l1_unstructured", None, Weights()),
        (Threshold, {"threshold": 1.0}, Weights()),
        ("ln_structured", None, Channels("out")),
        (Columns, None, Channels(1)),
        ("n_m", {"n": 1}, NM(1, 4, "in")),
        ("n_m", {"m": 8, "dim": 0}, NM(2, 8, 0)),
        ("ln_blocks", {"block": [1, 4]}, Blocks((1, 4))),
    ],
)
def test_what_is_pruned_as_one(method: Any, kwargs: Any, granularity: Granularity) -> None:
    assert make_recipe(method, 2, None, kwargs).granularity == granularity


def test_channel_dimension_is_that_of_the_method() -> None:
    model = nn.Sequential(nn.ConvTranspose1d(4, 6, 3), nn.Linear(4, 5))
    up, linear = select(model)
    assert [make_recipe("ln_structured", 2, "out", None).granularity.dim(t) for t in (up, linear)] == [1, 0]
    assert [make_recipe("ln_structured", 2, -1, None).granularity.dim(t) for t in (up, linear)] == [2, 1]
    assert [make_recipe(Columns, 2, "out", None).granularity.dim(t) for t in (up, linear)] == [1, 1]
    with pytest.raises(ValueError, match=r"'1\.bias' of shape \(5,\) has no channels: exclude it"):
        make_recipe("ln_structured", 2, "out", None).granularity.check(select(model, "1.bias")[0])


def test_words_are_the_same_in_every_process() -> None:
    assert str(make_recipe("ln_structured", 2, "out", None)) == "LnStructured(n=2, dim='out')"
    recipe = make_recipe(Threshold, 2, "out", {"threshold": 0.5, "hook": nn.Linear(1, 1)})
    assert str(recipe) == "Threshold(hook=Linear, threshold=0.5)"
    assert "0x" not in str(make_recipe(Threshold, 2, "out", {"threshold": 1.0, "hook": lambda x: x}))


@pytest.mark.parametrize(
    ("method", "kwargs", "error", "message"),
    [
        ("l1", None, ValueError, "method='l1' is unknown; known are l1_unstructured, random_unstructured"),
        ("no.such.Class", None, ValueError, r"method='no\.such\.Class' cannot be imported"),
        ("torch.nn.Linear", None, TypeError, "should be a name"),
        (Threshold, None, ValueError, "Threshold needs threshold"),
        (Threshold, {"treshold": 0.1}, TypeError, "Threshold does not take treshold; its arguments are threshold"),
        (functools.partial(L1Unstructured, 0.5), None, TypeError, "by name"),
        (L1Unstructured(0.5), None, TypeError, "should be a name"),
        (functools.partial(L1Unstructured, amount=2.0), None, ValueError, "amount as a fraction"),
        (None, None, TypeError, "should be a name"),
    ],
)
def test_what_is_refused(method: Any, kwargs: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make_recipe(method, 2, "out", kwargs)
