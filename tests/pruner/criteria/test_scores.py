"""Each criterion equals a loop over entries with derivatives by hand."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from lightning_prune.pruner.budgets import Budget
from lightning_prune.pruner.criteria import (
    SNIP,
    Activation,
    Criterion,
    Fisher,
    GradientCriterion,
    GraSP,
    Magnitude,
    Movement,
    SynFlow,
    Taylor,
    as_criterion,
)
from lightning_prune.pruner.criteria.guard import no_trace
from lightning_prune.pruner.criteria.scorer import Scorer, masks_in_rounds
from lightning_prune.pruner.method import make_recipe
from lightning_prune.pruner.pruner import Pruner
from lightning_prune.schedules.plan import Demand
from lightning_prune.targets.select import Target, select

DTYPES = [torch.float32, torch.float64]


def network(dtype: torch.dtype = torch.float64) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2)).to(dtype)


def batches(dtype: torch.dtype, n: int = 3) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    inputs = [torch.randn(6, 4, generator=generator, dtype=torch.float64).to(dtype) for _ in range(n)]
    return [(x, x.abs().argmax(1) % 2) for x in inputs]


def loss(net: nn.Module, batch: tuple[Tensor, Tensor], temperature: float = 1.0) -> Tensor:
    return nn.functional.cross_entropy(net(batch[0]) / temperature, batch[1])


def of_all(net: nn.Module) -> Tensor:
    """The loss over all batches."""
    return torch.stack([loss(net, batch) for batch in batches(next(net.parameters()).dtype)]).mean()


def by_hand(net: nn.Sequential, batch: tuple[Tensor, Tensor]) -> list[Tensor]:
    """Gradients of the weights by the chain rule, in double precision."""
    x, y = batch[0].double(), batch[1]
    layers = [net[0], net[2], net[4]]
    w, b = [layer.weight.detach().double() for layer in layers], [layer.bias.detach().double() for layer in layers]
    hidden = [x]
    for i in (0, 1):
        hidden.append(torch.tanh(hidden[-1] @ w[i].T + b[i]))
    logits = hidden[-1] @ w[2].T + b[2]
    delta = (logits.softmax(1) - nn.functional.one_hot(y, 2).double()) / len(x)
    found = [delta.T @ hidden[2]]
    for i in (1, 0):
        delta = (delta @ w[i + 1]) * (1 - hidden[i + 1] ** 2)
        found.insert(0, delta.T @ hidden[i])
    return found


def observed(criterion: Criterion, net: nn.Sequential, dtype: torch.dtype) -> list[Tensor]:
    scorer, targets = Scorer(criterion), select(net)
    for batch in batches(dtype):
        net.zero_grad()
        loss(net, batch).backward()
        scorer.observe(targets)
    return scorer.scores(net, targets)


def entries(weights: list[Tensor], gradients: list[list[Tensor]], formula: Any) -> list[Tensor]:
    """The scores, entry by entry."""
    found = []
    for i, weight in enumerate(weights):
        scores = torch.empty_like(weight)
        for place in np.ndindex(*weight.shape):
            scores[place] = formula(float(weight[place]), [float(g[i][place]) for g in gradients])
        found.append(scores)
    return found


FORMULAS: dict[str, tuple[Criterion, Any]] = {
    "magnitude": (Magnitude(), lambda w, g: w),  # ranked by its magnitude
    "taylor": (Taylor(batches=3), lambda w, g: abs(w * sum(g) / 3)),
    "taylor of each": (Taylor(batches=3, order="each"), lambda w, g: sum(abs(w * x) for x in g) / 3),
    "snip": (SNIP(batches=3), lambda w, g: abs(w * sum(g) / 3)),
    "snip of a loss": (SNIP(loss=of_all), lambda w, g: abs(w * sum(g) / 3)),
    "fisher": (Fisher(batches=3), lambda w, g: w * w * sum(x * x for x in g) / 3 / 2),
    "movement": (Movement(), lambda w, g: -sum(w * x for x in g)),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FORMULAS)
def test_scores_from_gradients(name: str, dtype: torch.dtype) -> None:
    criterion, formula = FORMULAS[name]
    net = network(dtype)
    weights = [net[i].weight.detach().double() for i in (0, 2, 4)]
    wanted = entries(weights, [by_hand(net, batch) for batch in batches(dtype)], formula)
    for found, exact in zip(observed(criterion, net, dtype), wanted, strict=True):
        assert torch.allclose(found.double(), exact, rtol=1e-5, atol=1e-6 if dtype is torch.float32 else 1e-12)


@pytest.mark.parametrize("dtype", DTYPES)
def test_grasp_is_weights_times_hessian_times_gradient(dtype: torch.dtype) -> None:
    net, batch, temperature = network(dtype), batches(dtype)[0], 2.0
    targets = select(net)
    criterion = GraSP(
        loss=lambda model: nn.functional.cross_entropy(model(batch[0]), batch[1]), temperature=temperature
    )
    found = Scorer(criterion).scores(net, targets)
    exact = network(torch.float64)
    exact.load_state_dict({name: value.double() for name, value in net.state_dict().items()})
    weights = [exact[i].weight for i in (0, 2, 4)]
    double = (batch[0].double(), batch[1])
    gradients = torch.autograd.grad(loss(exact, double, temperature), weights, create_graph=True)
    g = torch.cat([x.flatten() for x in gradients])
    rows = [
        torch.cat([h.flatten() for h in torch.autograd.grad(g[i], weights, retain_graph=True)]) for i in range(len(g))
    ]
    product = torch.tensor([sum(float(row[j]) * float(g[j].detach()) for j in range(len(g))) for row in rows])
    wanted = torch.cat([w.detach().flatten() for w in weights]) * product
    assert torch.allclose(torch.cat([s.flatten() for s in found]).double(), wanted.double(), rtol=1e-4, atol=1e-6)


def test_synflow_adds_up_the_paths_through_a_weight() -> None:
    net = nn.Sequential(*(nn.Linear(a, b, bias=False) for a, b in ((3, 4), (4, 2), (2, 3))))
    found = Scorer(SynFlow(rounds=1, example_inputs=torch.zeros(1, 3))).scores(net, select(net))
    first, second, third = (layer.weight.detach().abs().double() for layer in net)
    sums = [torch.zeros_like(w) for w in (first, second, third)]
    for i, j, k, end in np.ndindex(3, 4, 2, 3):
        path = float(first[j, i] * second[k, j] * third[end, k])
        sums[0][j, i] += path
        sums[1][k, j] += path
        sums[2][end, k] += path
    assert all(torch.allclose(a, b, atol=1e-12) for a, b in zip(found, sums, strict=True))


def test_synflow_sees_masks_that_are_not_imposed_and_magnitudes_of_norms() -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).eval()
    with torch.no_grad():
        net[1].weight.copy_(torch.tensor([-1.0, 2.0, -3.0, 1.0]))
        net[1].running_mean.fill_(-0.5)
    targets = select(net)
    masks = [torch.rand(t.parameter.shape) > 0.5 for t in targets]
    criterion = SynFlow(example_inputs=torch.zeros(1, 3))
    found = Scorer(criterion).scores(net, targets, masks)
    twin = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).double().eval()
    twin.load_state_dict({k: v.abs().double() if v.is_floating_point() else v for k, v in net.state_dict().items()})
    for layer, mask in zip((twin[0], twin[2]), masks, strict=True):
        layer.weight.data.mul_(mask)
    twin(torch.ones(1, 3, dtype=torch.float64)).sum().backward()
    wanted = [twin[i].weight.detach() * twin[i].weight.grad for i in (0, 2)]
    assert all(torch.allclose(a, b, atol=1e-12) for a, b in zip(found, wanted, strict=True))


@pytest.mark.parametrize(
    "layer", [nn.Linear(4, 3), nn.Conv2d(4, 6, 3, groups=2), nn.ConvTranspose1d(4, 2, 3)], ids=["linear", "conv", "up"]
)
def test_activation_is_weight_times_norm_of_its_input(layer: nn.Module) -> None:
    spatial = layer.weight.dim() - 2
    inputs = [torch.randn(5, 4, *[6] * spatial) for _ in range(2)]
    targets, scorer = select(layer), Scorer(Activation())
    scorer.open(targets)
    for x in inputs:
        layer(x)
    layer.eval()(inputs[0])  # validation is not counted
    scorer.close()
    layer.train()(inputs[0])
    norms = torch.cat(inputs).movedim(1, 0).flatten(1).double().norm(dim=1)
    wanted = torch.empty_like(layer.weight, dtype=torch.float64)
    for place in np.ndindex(*layer.weight.shape):
        if isinstance(layer, nn.Conv2d):
            feature = place[1] + 2 * (place[0] // 3)
        else:
            feature = place[0] if isinstance(layer, nn.ConvTranspose1d) else place[1]
        wanted[place] = abs(float(layer.weight[place].detach())) * norms[feature]
    assert torch.allclose(scorer.scores(layer, targets)[0].double(), wanted, rtol=1e-5)


def test_a_function_and_a_subclass_of_ones_own() -> None:
    class Saliency(GradientCriterion):
        def score(self, weight: Tensor, seen: Tensor) -> Tensor:
            return (weight + seen).abs()

    def inverse(targets: Any) -> list[Tensor]:
        return [1 / t.parameter for t in targets]

    net = network()
    gradients = [sum(g[i] for g in [by_hand(net, b) for b in batches(torch.float64)]) / 3 for i in range(3)]
    found = observed(Saliency(batches=3), net, torch.float64)
    for scores, layer, gradient in zip(found, (net[0], net[2], net[4]), gradients, strict=True):
        assert torch.allclose(scores, (layer.weight + gradient).abs())
    criterion = as_criterion(inverse)
    assert torch.equal(Scorer(criterion).scores(net, select(net))[0], 1 / net[0].weight)
    assert str(criterion).startswith("Function(test_a_function")
    assert "0x" not in str(criterion)


class Given(GradientCriterion):
    """Adds up what it is given, as it is."""

    def __init__(self, which: int) -> None:
        object.__setattr__(self, "which", which)
        object.__setattr__(self, "batches", 2)

    def term(self, weight: Tensor, gradient: Tensor) -> Tensor:
        return (weight, gradient)[self.which].view(-1).view(weight.shape)

    def score(self, weight: Tensor, seen: Tensor) -> Tensor:
        return seen


@pytest.mark.parametrize("which", [0, 1], ids=["weight", "gradient"])
def test_a_term_that_is_the_weight_or_the_gradient_is_not_written_into(which: int) -> None:
    layer = nn.Linear(3, 2, bias=False)
    gradient, weight = torch.randn(2, 3), layer.weight.detach().clone()
    layer.weight.grad = gradient.clone()
    scorer = Scorer(Given(which))
    for _ in range(2):
        scorer.observe(select(layer))
    assert torch.equal(layer.weight, weight)
    assert torch.equal(layer.weight.grad, gradient)
    assert torch.equal(scorer.scores(layer, select(layer))[0], (weight, gradient)[which])


def test_what_was_seen_goes_on_after_a_restart() -> None:
    net, targets, first, last = network(), [], Scorer(Taylor(batches=3)), Scorer(Taylor(batches=3))
    targets = select(net)
    for i, batch in enumerate(batches(torch.float64)):
        net.zero_grad()
        loss(net, batch).backward()
        first.observe(targets)
        if i == 1:
            last.load_state_dict(first.state_dict(targets), targets)
        elif i == 2:
            last.observe(targets)
    assert all(torch.equal(a, b) for a, b in zip(first.scores(net, targets), last.scores(net, targets), strict=True))
    first.forget()
    assert first.state_dict() == {}


def test_scores_that_cannot_be_ranked_are_refused_by_name() -> None:
    net = network()
    targets = select(net)
    with pytest.raises(ValueError, match=r"'0\.weight': SNIP\(batches=1\) has seen no gradient of it"):
        Scorer(SNIP()).scores(net, targets)
    scorer = Scorer(SNIP())
    scorer.observe(targets, [torch.full((5, 4), torch.inf), torch.ones(4, 5), torch.ones(2, 4)])
    with pytest.raises(ValueError, match=r"'0\.weight': 20 scores of SNIP\(batches=1\) are inf or NaN"):
        scorer.scores(net, targets)
    with pytest.raises(ValueError, match="SynFlow needs example_inputs="):
        Scorer(SynFlow()).scores(net, targets)
    with pytest.raises(ValueError, match="knows the inputs of weights of Linear and Conv layers only"):
        Activation().check(select(nn.LSTM(2, 2)))


def random_recipe() -> Any:
    return make_recipe("random_unstructured", 2, None, None)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: as_criterion("tailor"), ValueError, "criterion='tailor' is unknown; known are magnitude, taylor"),
        (lambda: as_criterion("grasp"), ValueError, "needs data"),
        (lambda: as_criterion(Taylor), TypeError, "should be a name"),
        (lambda: Taylor(batches=0), ValueError, "Taylor: batches should be a whole number from 1 on, got 0"),
        (lambda: SynFlow(rounds=1.5), ValueError, "rounds should be a whole number"),
        (lambda: GraSP(), ValueError, "GraSP needs loss="),
        (lambda: SNIP(loss=3), TypeError, "SNIP: loss should be a function of the model"),
        (lambda: SNIP(batches=2, loss=of_all), ValueError, "SNIP: batches=2 counts batches of training"),
        (lambda: Taylor(order="sum"), ValueError, "order"),
        (
            lambda: make_recipe("random_unstructured", 2, None, None).ranking(SNIP()),
            ValueError,
            "no scores",
        ),
    ],
)
def test_arguments_that_are_refused(make: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make()


class Noisy(nn.Module):
    """Everything that a run of a model can leave behind."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)
        self.drop = nn.Dropout(0.5)
        self.logged: list[str] = []

    def log(self, name: str) -> None:
        self.logged.append(name)

    def forward(self, x: Tensor) -> Tensor:
        self.log("forward")
        random.random()
        np.random.rand()
        return self.last(self.drop(self.norm(self.first(x))))


def test_runs_leave_no_trace() -> None:
    net = Noisy()
    net.last.eval()
    net(torch.ones(3, 4)).sum().backward()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    gradients = {name: (p.grad, p.grad.clone()) for name, p in net.named_parameters()}
    states = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()
    modes, buffers = [m.training for m in net.modules()], [id(b) for b in net.buffers()]
    targets = select(net)
    for criterion in (
        GraSP(loss=lambda model: model(torch.randn(5, 4)).square().mean()),
        SNIP(loss=lambda model: model(torch.randn(5, 4)).square().mean()),
        SynFlow(rounds=3, example_inputs=torch.zeros(1, 4)),
    ):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            Scorer(criterion).scores(net, targets)
            assert torch.is_autocast_enabled("cpu")
    with no_trace(net, training=True):
        net(torch.ones(3, 4)).sum().backward()
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert all(p.grad is gradients[n][0] and torch.equal(p.grad, gradients[n][1]) for n, p in net.named_parameters())
    assert torch.equal(torch.get_rng_state(), states[0])
    assert np.array_equal(np.random.get_state()[1], states[1])
    assert random.getstate() == states[2]
    assert [m.training for m in net.modules()] == modes
    assert [id(b) for b in net.buffers()] == buffers
    assert net.logged == ["forward"]
    assert "log" not in vars(net)


def critical(net: nn.Module, criterion: Criterion, total: int) -> float:
    """The share left of the smallest tensor at one weight for each."""
    recipe = make_recipe("l1_unstructured", 2, None, None).ranking(criterion)
    pruner = Pruner(recipe, Budget("global", max_sparsity=1.0))
    demand = Demand(0, sparsity=1 - 3 / total)
    masks = masks_in_rounds(pruner, Scorer(criterion), net, select(net), demand)
    return min(int(mask.sum()) for mask in masks if mask is not None)


def test_rounds_of_synflow_leave_a_weight_in_each_layer() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Linear(20, 30, bias=False), nn.ReLU(), nn.Linear(30, 10, bias=False), nn.Linear(10, 5, bias=False)
    )
    inputs = torch.zeros(1, 20)
    assert critical(net, SynFlow(rounds=100, example_inputs=inputs), 950) == 1
    assert critical(net, SynFlow(rounds=1, example_inputs=inputs), 950) == 0
    assert critical(net, Magnitude(), 950) == 0


def test_rounds_meet_demands_exactly() -> None:
    net = network(torch.float32)
    targets: list[Target] = select(net)
    pruner = Pruner(make_recipe("l1_unstructured", 2, None, None), Budget("global"))
    scorer = Scorer(SynFlow(rounds=7, example_inputs=torch.zeros(1, 4)))
    for demand, wanted in ((Demand(0, sparsity=0.7), round(0.7 * 48)), (Demand(0, amount=11), 11)):
        masks = masks_in_rounds(pruner, scorer, net, targets, demand)
        assert sum(int((~mask).sum()) for mask in masks if mask is not None) == wanted
