"""Train LeNet-300-100 sparse from its first step: with fixed masks, with weights that come back, and pruned gradually.

``python examples/sparse_from_scratch.py`` takes scikit-learn's digits; ``--data DIR`` takes a folder with MNIST or
Fashion-MNIST.
"""

from __future__ import annotations

import argparse
import logging
import warnings
from collections.abc import Callable
from pathlib import Path
from statistics import mean, stdev

import lightning as L
import torch
from lottery_ticket import Batches, LeNet
from progress import Networks

from lightning_prune import SET, Constant, Cubic, PruningCallback, Regrow, RigL

Way = Callable[[float], list[PruningCallback]]


def constant(regrow: Regrow | None) -> Way:
    """The same sparsity from the first step, by random masks."""
    method = "random_unstructured" if regrow is None else "l1_unstructured"
    return lambda zeros: [
        PruningCallback(method, schedule=Constant(final=zeros), scope="erk", regrow=regrow, verbose=False)
    ]


def gradual(regrow: Regrow | None = None) -> Way:
    """From a dense network to the same sparsity, by magnitude."""
    return lambda zeros: [
        PruningCallback(
            schedule=Cubic(final=zeros, end=0.75, every=20, unit="fraction"),
            scope="global",
            regrow=regrow,
            verbose=False,
        )
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", metavar="DIR", help="folder with the IDX files of MNIST or Fashion-MNIST")
    parser.add_argument("--zeros", type=float, nargs="+", default=[0.9, 0.95, 0.98], help="default: 0.9 0.95 0.98")
    parser.add_argument("--steps", type=int, default=600, help="steps of training (default: 600)")
    parser.add_argument("--every", type=int, help="steps between updates (default: 100, or a 30th of the training)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0], help="default: 0")
    parser.add_argument("--ways", nargs="+", metavar="NAME", help="only these columns of the table")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="where to draw the accuracies")
    args = parser.parse_args()

    every = args.every or min(100, max(1, args.steps // 30))
    ways: dict[str, Way] = {
        "static": constant(None),
        "SET": constant(SET(every=every)),
        "RigL": constant(RigL(every=every)),
        "RigL, window": constant(RigL(every=every, window=max(1, every // 2))),
        "gradual": gradual(),
        "gradual and RigL": gradual(RigL(every=every)),
        "dense": lambda zeros: [],
    }
    ways = {name: ways[name] for name in args.ways or ways}
    images = Batches(args.data, batch_size=60, unit_range=True)
    print(f"| zeros | {' | '.join(ways)} | explored by RigL |\n|{'---|' * (len(ways) + 2)}")
    means: dict[str, list[float]] = {name: [] for name in ways}
    networks = Networks(len(args.zeros) * len(ways) * len(args.seeds))
    for zeros in args.zeros:
        cells, explored = [], 0.0
        for name, way in ways.items():
            runs = []
            for seed in args.seeds:
                networks.next(f"{name}, {zeros:.1%}, seed {seed}")
                runs.append(trained(way(zeros), images, args.steps, seed))
            means[name].append(mean(accuracy for accuracy, _ in runs))
            cells.append(summary([accuracy for accuracy, _ in runs]))
            explored = mean(share for _, share in runs) if name == "RigL" else explored
        print(f"| {zeros:.1%} | {' | '.join(cells)} | {explored:.1%} |", flush=True)
    if args.plot is not None:
        draw(args.plot, args.zeros, means)


def trained(pruning: list[PruningCallback], images: Batches, steps: int, seed: int) -> tuple[float, float]:
    """Test accuracy in percent of a new network, and the share of its weights that was ever unmasked."""
    L.seed_everything(seed, verbose=False)
    network = LeNet(images.test[0][0].numel())
    trainer = quiet_trainer(steps, pruning)
    trainer.fit(network, train_dataloaders=images.train_dataloader())
    accuracy = trainer.test(network, images.test_dataloader(), verbose=False)[0]["test_accuracy"]
    regrowth = pruning[0].regrowth if pruning else None
    return 100 * accuracy, 0.0 if regrowth is None else regrowth.explored


def quiet_trainer(steps: int, callbacks: list[PruningCallback]) -> L.Trainer:
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", ".*does not have many workers.*")  # the data lies in memory
    warnings.filterwarnings("ignore", ".*LeafSpec.*is deprecated.*")  # between Lightning and torch
    warnings.filterwarnings("ignore", ".*you defined a `validation_step`.*")
    torch.set_num_threads(1)  # faster for so small a network
    return L.Trainer(
        max_steps=steps,
        callbacks=list(callbacks),
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )


def summary(values: list[float]) -> str:
    return f"{mean(values):.2f}" + (f" ± {stdev(values):.2f}" if len(values) > 1 else "")


def draw(file: Path, zeros: list[float], means: dict[str, list[float]]) -> None:
    import matplotlib.pyplot as plt

    figure, ax = plt.subplots()
    for name, values in means.items():
        ax.plot([100 * share for share in zeros], values, marker="o", label=name)
    ax.set(xlabel="zeros in %", ylabel="test accuracy in %")
    ax.legend()
    figure.savefig(file, dpi=150)


if __name__ == "__main__":
    main()
