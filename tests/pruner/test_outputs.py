"""Which layers make a model's outputs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from lightning_prune import Constant, PruningCallback
from lightning_prune.pruner.outputs import Outputs, find_outputs
from tests.expected import FEW_SELECTED
from tests.models import Net, trainer


class Backwards(nn.Module):
    """Two heads that are declared before the body, and one that nobody calls."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(6, 2), nn.Linear(6, 3)
        self.body = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 6))
        self.unused = nn.Linear(6, 5)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        x = self.body(x).relu_()
        return {"one": self.one(x).log_softmax(1), "two": self.two(x).view(-1, 3, 1)}


class Summed(nn.Module):
    """Its outputs are a sum of two layers, behind a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4)
        self.a, self.b, self.c = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.a(x)
        return self.norm(x + self.c(self.b(x).relu()))


class Attending(nn.Module):
    """Attention uses the weights of a layer inside it without calling that."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.first = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        return self.attention(x, x, x, need_weights=False)[0]


class Functional(nn.Module):
    """No layer is called."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return linear(linear(x, self.a.weight), self.b.weight)


class Tied(nn.Module):
    """Its outputs are made by the weights of its embedding, which is not pruned."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.body, self.head = nn.Embedding(9, 4), nn.Linear(4, 4), nn.Linear(4, 9, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(self.embedding(x.abs().long())))


class Failing(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        raise KeyError("batch")


@pytest.mark.parametrize(
    ("model", "shape", "names"),
    [
        (Backwards(), (5, 4), ("one.weight", "two.weight")),
        (Summed(), (5, 4), ("a.weight", "c.weight")),
        (Attending(), (5, 3, 4), ("attention.out_proj.weight",)),
        (Functional(), (5, 4), ("b.weight",)),
        (Tied(), (5, 4), ()),
        (nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.ConvTranspose2d(4, 2, 3)), (1, 1, 8, 8), ("2.weight",)),
        (nn.Sequential(nn.Linear(4, 3), nn.LSTM(3, 5)), (5, 2, 4), ("1.weight_hh_l0",)),
        (nn.Sequential(nn.Linear(4, 3).requires_grad_(False), nn.Dropout()), (2, 4), ("0.weight",)),
    ],
)
def test_the_nearest_layers_behind_outputs_make_them(
    model: nn.Module, shape: tuple[int, ...], names: tuple[str, ...]
) -> None:
    before = {name: value.clone() for name, value in model.state_dict().items()}
    frozen = [p.requires_grad for p in model.parameters()]
    drawn = torch.get_rng_state()
    assert find_outputs(model, torch.randn(shape, generator=torch.Generator())) == Outputs(names, traced=True)
    assert torch.equal(torch.get_rng_state(), drawn)
    assert [p.requires_grad for p in model.parameters()] == frozen
    assert model.training
    assert not any(module._forward_hooks for module in model.modules())
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])


def test_a_model_that_cannot_be_called_is_judged_by_its_declarations() -> None:
    model = Failing(nn.Linear(4, 4), nn.Linear(4, 2))
    assert find_outputs(model) == Outputs(("1.weight",), traced=False)
    model.example_input_array = torch.zeros(1, 4)  # type: ignore[assignment]
    assert find_outputs(model) == Outputs(("1.weight",), traced=False)
    with pytest.raises(ValueError, match="Failing cannot be called with the example inputs: KeyError: 'batch'"):
        find_outputs(model, torch.zeros(1, 4))


class HeadFirst(Net):
    """The layer that makes the classes is declared first."""

    def __init__(self, example: Tensor | None) -> None:
        super().__init__()
        last = self.last
        del self.last
        first, norm = self.first, self.norm
        del self.first, self.norm
        self.last, self.first, self.norm = last, first, norm
        self.example_input_array = example


@FEW_SELECTED
@pytest.mark.parametrize(
    ("example", "given", "dead"),
    [(torch.zeros(2, 8), None, (8, 0)), (None, torch.zeros(2, 8), (8, 0)), (None, None, (0, 1))],
)
def test_a_fit_spares_the_layers_that_a_call_shows_to_make_the_outputs(
    example: Tensor | None, given: Tensor | None, dead: tuple[int, int], tmp_path: Path
) -> None:
    model = HeadFirst(example)
    final = 0.5 if max(dead) == 8 else 0.34
    callback = PruningCallback("ln_structured", schedule=Constant(final=final), example_inputs=given, verbose=False)
    trainer(tmp_path, callback, epochs=1).fit(model)
    assert tuple(int((layer.weight == 0).all(1).sum()) for layer in (model.first, model.last)) == dead
