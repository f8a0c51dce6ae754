"""Prune LeNet-300-100 by different criteria, before its training or after it, and compare what it learns or knows.

``python examples/criteria.py`` takes scikit-learn's digits; ``--data DIR`` takes a folder with MNIST or Fashion-MNIST.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import lightning as L
import torch
from lottery_ticket import Batches, LeNet
from progress import Networks
from torch import Tensor
from torch.nn import functional as F

from lightning_prune import (
    SNIP,
    Budget,
    Criterion,
    Cubic,
    Demand,
    Fisher,
    GraSP,
    Magnitude,
    Movement,
    OneShot,
    PruningCallback,
    SynFlow,
    Taylor,
)
from lightning_prune.pruner.criteria.scorer import Scorer, masks_in_rounds
from lightning_prune.pruner.method import make_recipe
from lightning_prune.pruner.pruner import Pruner
from lightning_prune.targets.select import select

State = Mapping[str, Tensor]
AFTER = ("magnitude", "Taylor, each", "Taylor", "SNIP", "Fisher", "Fisher of images")
COLUMNS = ("dense", "random", "ERK random", "magnitude", "SNIP", "GraSP", "SynFlow", "gradual")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", metavar="DIR", help="folder with the IDX files of MNIST or Fashion-MNIST")
    parser.add_argument(
        "--zeros", type=float, nargs="+", default=[0.9, 0.95, 0.98, 0.99, 0.995], help="shares of zeros"
    )
    parser.add_argument("--ways", nargs="+", choices=COLUMNS, default=COLUMNS[1:], help="columns of the table")
    parser.add_argument("--steps", type=int, default=2000, help="steps of training for each network (default: 2000)")
    parser.add_argument("--seeds", type=int, default=1, help="repetitions (default: 1)")
    parser.add_argument("--collapse", action="store_true", help="show at which compression a layer loses all weights")
    parser.add_argument("--trained", action="store_true", help="prune trained networks, and do not train them on")
    parser.add_argument("--transfer", action="store_true", help="prune while training on from other images")
    arguments = parser.parse_args()
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")
    torch.set_num_threads(1)  # faster for so small a network
    images = Batches(arguments.data, batch_size=60, unit_range=True)
    steps, seeds = arguments.steps, range(arguments.seeds)
    if arguments.collapse:
        show_collapse(images, arguments.seeds)
    elif arguments.trained:
        trained = [fitted(LeNet, images, steps, seed).state_dict() for seed in seeds]
        table(AFTER, arguments.zeros, seeds, lambda *cell: known_after(images, trained, *cell))
    elif arguments.transfer:
        before = [fitted(Turned, images, steps, seed).state_dict() for seed in seeds]
        table(("magnitude", "movement"), arguments.zeros, seeds, lambda *cell: moved(images, before, steps, *cell))
    else:
        table(arguments.ways, arguments.zeros, seeds, lambda *cell: learnt(images, steps, *cell))


def table(
    ways: Sequence[str], shares: Sequence[float], seeds: Sequence[int], accuracy: Callable[[str, float, int], float]
) -> None:
    """Prints the mean accuracy of each way at each share of zeros, and its standard deviation over seeds."""
    print("| zeros |", " | ".join(ways), "|")
    print("|---" * (1 + len(ways)) + "|")
    networks = Networks(len(shares) * len(ways) * len(seeds))
    for zeros in shares:
        cells = []
        for way in ways:
            found = []
            for seed in seeds:
                networks.next(f"{way}, {zeros:.1%}, seed {seed}")
                found.append(100 * accuracy(way, zeros, seed))
            spread = f" ± {statistics.stdev(found):.1f}" if len(found) > 1 else ""
            cells.append(f"{statistics.mean(found):.1f}{spread}")
        print(f"| {zeros:.1%} |", " | ".join(cells), "|", flush=True)


def pruning(way: str, zeros: float, steps: int, images: Batches, seed: int) -> list[L.Callback]:
    """The callback of one column; with one shot the masks are there before the first step changes a weight."""
    if way == "dense":
        return []
    arguments: dict[str, Any] = {"scope": "global", "schedule": OneShot(zeros, unit="step"), "verbose": False}
    if way in ("random", "ERK random"):
        arguments["method"] = "random_unstructured"
        arguments["scope"] = "erk" if way == "ERK random" else "global"
    elif way == "SNIP":
        arguments["criterion"] = SNIP(loss=loss_on(*few_of_each(images, 25, seed)))
    elif way == "GraSP":
        arguments["criterion"] = GraSP(loss=loss_on(*few_of_each(images, 10, seed)), temperature=200.0)
    elif way == "SynFlow":
        arguments["criterion"] = SynFlow(example_inputs=torch.zeros(1, pixels(images)))
    elif way == "gradual":
        arguments["schedule"] = Cubic(final=zeros, begin=0, end=steps * 3 // 4, every=50, unit="step")
    arguments["scope"] = Budget(arguments["scope"], max_sparsity=1.0)
    return [PruningCallback(**arguments)]


class Turned(LeNet):
    """Sees all images mirrored at their diagonal."""

    def forward(self, images: Tensor) -> Tensor:
        return super().forward(images.transpose(-1, -2))


class Still(LeNet):
    """Has gradients, but does not move."""

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.0)


def learnt(images: Batches, steps: int, way: str, zeros: float, seed: int) -> float:
    """Test accuracy after training with one way of pruning."""
    return tested(fitted(LeNet, images, steps, seed, *pruning(way, zeros, steps, images, seed)), images)


def known_after(images: Batches, trained: Sequence[State], way: str, zeros: float, seed: int) -> float:
    """Test accuracy of a trained network right after pruning; 1,020 images are seen where gradients are needed."""
    each = way == "Fisher of images"
    batches = Batches(images.folder, batch_size=1, unit_range=True) if each else images
    steps = 1020 if each else 17
    criteria: dict[str, Criterion] = {
        "magnitude": Magnitude(),
        "Taylor, each": Taylor(batches=steps, order="each"),
        "Taylor": Taylor(batches=steps),
        "SNIP": SNIP(loss=loss_on(*few_of_each(images, 102, seed))),
        "Fisher": Fisher(batches=steps),
        "Fisher of images": Fisher(batches=steps),
    }
    schedule = OneShot(zeros, begin=steps - 1, unit="step")
    callback = PruningCallback(criterion=criteria[way], scope="global", schedule=schedule, verbose=False)
    return tested(fitted(Still, batches, steps, seed, callback, weights=trained[seed]), images)


def moved(images: Batches, before: Sequence[State], steps: int, way: str, zeros: float, seed: int) -> float:
    """Test accuracy after training on from weights that were trained on other images."""
    criterion = Movement() if way == "movement" else Magnitude()
    schedule = Cubic(final=zeros, begin=0, end=steps * 3 // 4, every=50, unit="step")
    callback = PruningCallback(criterion=criterion, scope="global", schedule=schedule, verbose=False)
    return tested(fitted(LeNet, images, steps, seed, callback, weights=before[seed]), images)


def fitted(
    kind: type[LeNet], images: Batches, steps: int, seed: int, *callbacks: L.Callback, weights: State | None = None
) -> LeNet:
    """A network after so many steps, from new weights or from those given."""
    L.seed_everything(seed, verbose=False)
    model = kind(pixels(images))
    if weights is not None:
        model.load_state_dict(weights)
    quiet(max_steps=steps, max_epochs=-1, limit_val_batches=0, callbacks=[*callbacks]).fit(model, images)
    return model


def tested(model: LeNet, images: Batches) -> float:
    return float(quiet().test(model, images, verbose=False)[0]["test_accuracy"])


def quiet(**settings: Any) -> L.Trainer:
    return L.Trainer(
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **settings,
    )


def few_of_each(images: Batches, number: int, seed: int) -> tuple[Tensor, Tensor]:
    """Some training images of each class."""
    pictures, labels = images.train[:]
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    chosen = torch.cat([order[labels[order] == label][:number] for label in labels.unique()])
    return pictures[chosen], labels[chosen]


def loss_on(pictures: Tensor, labels: Tensor) -> Callable[[L.LightningModule], Tensor]:
    def loss(model: L.LightningModule) -> Tensor:
        return F.cross_entropy(model(pictures), labels)

    return loss


def pixels(images: Batches) -> int:
    return images.test[0][0].numel()


def show_collapse(images: Batches, seeds: int) -> None:
    """How far weights can be thinned in one ranking until a layer has none left."""
    shape = torch.zeros(1, pixels(images))
    criteria: dict[str, Criterion] = {
        "magnitude": Magnitude(),
        "SNIP": SNIP(),
        "SynFlow, 1 round": SynFlow(rounds=1, example_inputs=shape),
        "SynFlow, 100 rounds": SynFlow(rounds=100, example_inputs=shape),
    }
    print("| criterion | highest compression at which each layer has a weight |")
    print("|---|---|")
    for name, criterion in criteria.items():
        found = [highest_compression(images, criterion, seed) for seed in range(seeds)]
        print(f"| {name} |", ", ".join(f"{compression:,.0f}" for compression in found), "|", flush=True)


def highest_compression(images: Batches, criterion: Criterion, seed: int) -> float:
    """By bisection over the number of weights that are left."""
    L.seed_everything(seed, verbose=False)
    model = LeNet(pixels(images))
    F.cross_entropy(model(few_of_each(images, 25, seed)[0]), few_of_each(images, 25, seed)[1]).backward()
    weights = [layer.weight for layer in (model.fc1, model.fc2, model.fc3)]
    total = sum(weight.numel() for weight in weights)
    low, high = len(weights) - 1, total
    while high - low > 1:
        middle = (low + high) // 2
        left = [int(mask.sum()) for mask in masks_at(model, criterion, 1 - middle / total)]
        low, high = (low, middle) if min(left) else (middle, high)
    return total / high


def masks_at(model: L.LightningModule, criterion: Criterion, zeros: float) -> list[Tensor]:
    """The masks of one event, without a fit."""
    recipe = make_recipe("l1_unstructured", 2, None, None).ranking(criterion)
    targets, scorer = select(model), Scorer(criterion)
    if criterion.watches == "gradients":
        scorer.observe(targets)
    pruner = Pruner(recipe, Budget("global", max_sparsity=1.0))
    masks = masks_in_rounds(pruner, scorer, model, targets, Demand(0, sparsity=zeros))
    return [mask for mask in masks if mask is not None]


if __name__ == "__main__":
    main()
