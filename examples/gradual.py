"""Compare gradual with one-shot pruning: the same dense networks, the same zeros, the same number of epochs.

``python examples/gradual.py`` takes scikit-learn's digits; ``--data DIR`` takes a folder with MNIST or Fashion-MNIST.
"""

from __future__ import annotations

import argparse
import copy
from statistics import mean, stdev

import lightning as L
from data import Images
from digits import ConvNet, quiet_trainer, test_accuracy
from progress import Networks

from lightning_prune import Cubic, OneShot, PruningCallback, Schedule

SPARSITIES = (0.90, 0.95, 0.98)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", metavar="DIR", help="folder with the IDX files of MNIST or Fashion-MNIST")
    parser.add_argument("--limit", type=int, help="train on so many images only")
    parser.add_argument("--epochs", type=int, default=15, help="epochs of training, then of pruning (default: 15)")
    parser.add_argument("--seeds", type=int, default=3, help="number of networks (default: 3)")
    args = parser.parse_args()

    images = Images(args.data, args.limit)
    progress = Networks(args.seeds * (2 + 2 * len(SPARSITIES)))
    networks = []
    for seed in range(args.seeds):
        progress.next(f"dense, seed {seed}")
        networks.append(dense_network(seed, images, args.epochs))

    def accuracies(schedule: Schedule | None) -> list[float]:
        found = []
        for seed, network in enumerate(networks):
            progress.next(f"{schedule}, seed {seed}")
            found.append(pruned_accuracy(network, schedule, images, args.epochs))
        return found

    print(f"test accuracy, mean ± standard deviation of {args.seeds} seeds\n")
    print("| zeros | one-shot | cubic |")
    print("|---|---|---|")
    for final in SPARSITIES:
        one_shot, cubic = accuracies(OneShot(final)), accuracies(Cubic(final=final, end=2 * args.epochs // 3))
        print(f"| {100 * final:.0f} % | {summary(one_shot)} | {summary(cubic)} |", flush=True)
    dense = summary(accuracies(None))
    print(f"| none | {dense} | {dense} |")


def dense_network(seed: int, images: Images, epochs: int) -> ConvNet:
    L.seed_everything(seed, verbose=False)
    network = ConvNet()
    quiet_trainer(epochs).fit(network, images)
    return network


def pruned_accuracy(network: ConvNet, schedule: Schedule | None, images: Images, epochs: int) -> float:
    """Test accuracy of a copy of the network after training it on, pruned by a schedule or dense."""
    L.seed_everything(0, verbose=False)
    network = copy.deepcopy(network)
    pruning = [] if schedule is None else [PruningCallback(schedule=schedule, scope="global")]
    quiet_trainer(epochs, *pruning).fit(network, images)
    return test_accuracy(network, images)


def summary(values: list[float]) -> str:
    spread = stdev(values) if len(values) > 1 else 0.0
    return f"{mean(values):.4f} ± {spread:.4f}"


if __name__ == "__main__":
    main()
