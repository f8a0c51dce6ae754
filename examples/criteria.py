"""Prune LeNet-300-100 before its training by different criteria, and compare what it learns.

``python examples/criteria.py`` takes scikit-learn's digits; ``--data DIR`` takes a folder with MNIST or Fashion-MNIST.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import warnings
from collections.abc import Callable
from typing import Any

import lightning as L
import torch
from lottery_ticket import Batches, LeNet
from torch import Tensor
from torch.nn import functional as F

from lightning_prune import SNIP, Budget, Criterion, Cubic, Demand, GraSP, Magnitude, OneShot, PruningCallback, SynFlow
from lightning_prune.pruner.criteria.scorer import Scorer, masks_in_rounds
from lightning_prune.pruner.method import make_recipe
from lightning_prune.pruner.pruner import Pruner
from lightning_prune.targets.select import select

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
    arguments = parser.parse_args()
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")
    torch.set_num_threads(1)  # faster for so small a network
    images = Batches(arguments.data, batch_size=60, unit_range=True)
    if arguments.collapse:
        show_collapse(images, arguments.seeds)
        return
    print("| zeros |", " | ".join(arguments.ways), "|")
    print("|---" * (1 + len(arguments.ways)) + "|")
    for zeros in arguments.zeros:
        cells = []
        for way in arguments.ways:
            found = [100 * accuracy(images, way, zeros, arguments.steps, seed) for seed in range(arguments.seeds)]
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


def accuracy(images: Batches, way: str, zeros: float, steps: int, seed: int) -> float:
    """Test accuracy after training with one way of pruning."""
    L.seed_everything(seed, verbose=False)
    trainer = L.Trainer(
        max_steps=steps,
        max_epochs=-1,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        limit_val_batches=0,
        callbacks=pruning(way, zeros, steps, images, seed),
    )
    model = LeNet(pixels(images))
    trainer.fit(model, images)
    return float(trainer.test(model, images, verbose=False)[0]["test_accuracy"])


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
