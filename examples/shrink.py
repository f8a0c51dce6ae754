"""Train a convolutional network, prune its channels, cut them out, and compare size, speed and accuracy.

``python examples/shrink.py`` trains a residual network on the handwritten digits that come with scikit-learn;
``--network vgg`` takes a plain chain of convolutions, ``--data DIR`` a folder with the IDX files of MNIST or
Fashion-MNIST. All rows of the table were trained equally long, the dense one too.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

import lightning as L
import torch
from data import Images
from digits import quiet_trainer, test_accuracy
from progress import Networks
from torch import Tensor, nn
from torch.nn import functional as F

from lightning_prune import Linear, PruningCallback, export
from lightning_prune.export import ShrinkReport

WAYS = {
    "single tensors": {"method": "ln_structured"},
    "random coupled": {"method": "random_structured", "groups": "dependency"},
    "coupled": {"method": "ln_structured", "groups": "dependency"},
}


class Block(nn.Module):
    """Two convolutions with norms around a shortcut."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(outside)
        self.conv2 = nn.Conv2d(outside, outside, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(outside)
        self.shortcut = nn.Conv2d(inside, outside, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        inner = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(inner)) + self.shortcut(x))


class Network(L.LightningModule):
    """An ordinary LightningModule; ``example_input_array`` is all that coupled channels ask of it."""

    def __init__(self, layers: nn.Module, size: int) -> None:
        super().__init__()
        self.layers = layers
        self.example_input_array = torch.zeros(1, 1, size, size)

    def forward(self, images: Tensor) -> Tensor:
        return self.layers(images)

    def training_step(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        return F.cross_entropy(self(batch[0]), batch[1])

    def validation_step(self, batch: tuple[Tensor, Tensor]) -> None:
        self.log("val_accuracy", self._accuracy(batch))

    def test_step(self, batch: tuple[Tensor, Tensor]) -> None:
        self.log("test_accuracy", self._accuracy(batch))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), 2e-3)

    def _accuracy(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        return (self(batch[0]).argmax(dim=1) == batch[1]).float().mean()


def resnet(size: int, width: int = 16) -> Network:
    """Three residual blocks."""
    layers = [nn.Conv2d(1, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    blocks = [Block(width, width, 1), Block(width, 2 * width, 2), Block(2 * width, 4 * width, 2)]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * width, 10)]
    return Network(nn.Sequential(*layers, *blocks, *head), size)


def vgg(size: int, width: int = 16) -> Network:
    """Six convolutions in a chain, and two linear layers."""
    layers: list[nn.Module] = []
    inside = 1
    for outside in (width, 2 * width, 4 * width):
        for _ in range(2):
            layers += [nn.Conv2d(inside, outside, 3, padding=1), nn.BatchNorm2d(outside), nn.ReLU()]
            inside = outside
        layers.append(nn.MaxPool2d(2))
    flat = inside * (size // 8) ** 2
    head = [nn.Flatten(), nn.Linear(flat, 4 * width), nn.ReLU(), nn.Linear(4 * width, 10)]
    return Network(nn.Sequential(*layers, *head), size)


NETWORKS = {"resnet": resnet, "vgg": vgg}


@dataclass
class Result:
    """What one network came to."""

    accuracy: float
    report: ShrinkReport
    latency: tuple[float, float]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", metavar="DIR", help="folder with the IDX files of MNIST or Fashion-MNIST")
    parser.add_argument("--network", choices=NETWORKS, default="resnet", help="what is trained (default: resnet)")
    parser.add_argument("--limit", type=int, help="train on so many images only")
    parser.add_argument("--epochs", type=int, default=6, help="epochs of training, then of pruning (default: 6)")
    parser.add_argument("--zeros", type=float, nargs="+", default=[0.75], help="shares to prune (default: 0.75)")
    parser.add_argument("--seeds", type=int, default=1, help="repetitions; the table has their means (default: 1)")
    parser.add_argument("--plot", metavar="FILE", help="write accuracy over latency as a picture (needs matplotlib)")
    args = parser.parse_args()

    results: dict[str, list[Result]] = {}
    networks = Networks(args.seeds * (2 + len(args.zeros) * len(WAYS)))
    for seed in range(args.seeds):
        for name, result in compared(args, seed, networks).items():
            results.setdefault(name, []).append(result)
    print_table(results)
    if args.plot:
        plot(results, args.plot)


def compared(args: argparse.Namespace, seed: int, networks: Networks) -> dict[str, Result]:
    """All networks of one seed, from the same trained one on."""
    L.seed_everything(seed, verbose=False)
    images = Images(args.data, limit=args.limit, batch_size=64)
    size = images.test[0][0].shape[-1]
    trained = NETWORKS[args.network](size)
    networks.next(f"dense, seed {seed}")
    quiet_trainer(args.epochs).fit(trained, images)
    networks.next(f"dense, trained as long, seed {seed}")
    dense = copy.deepcopy(trained)
    quiet_trainer(args.epochs).fit(dense, images)
    results = {"dense": measured(dense, images)}
    for zeros in args.zeros:
        for name, way in WAYS.items():
            networks.next(f"{name}, {zeros:.0%}, seed {seed}")
            model = copy.deepcopy(trained)
            schedule = Linear(final=zeros, end=max(args.epochs // 2, 1))
            quiet_trainer(args.epochs, PruningCallback(**way, schedule=schedule, verbose=False)).fit(model, images)
            results[f"{name}, {zeros:.0%}"] = measured(model, images)
    small, report = export.shrink(model)
    export.save(small, "small.safetensors")  # read again by the plain class:
    loaded = export.load(NETWORKS[args.network](size), "small.safetensors")
    print(report, f"\nread again: test accuracy {test_accuracy(loaded, images):.4f}\n")
    return results


def measured(model: Network, images: Images) -> Result:
    """Shrink a model and measure what is left."""
    small, report = export.shrink(model)
    return Result(test_accuracy(small, images), report, (milliseconds(small, 1), milliseconds(small, 64)))


def milliseconds(model: Network, batch: int, repeats: int = 10) -> float:
    """The fastest of some calls."""
    x, times = torch.randn(batch, *model.example_input_array.shape[1:]), []
    with torch.inference_mode():
        for _ in range(repeats):
            start = time.perf_counter()
            model.eval()(x)
            times.append(time.perf_counter() - start)
    return 1e3 * min(times)


def print_table(results: dict[str, list[Result]]) -> None:
    """Means over the seeds, accuracy with the smallest and largest."""
    print(f"{'':20}  accuracy (lowest to highest)  parameters  multiply-adds  file, kB  ms at 1  ms at 64")
    for name, repeated in results.items():
        sizes = [one.report.after for one in repeated]
        accuracies = [one.accuracy for one in repeated]
        print(
            f"{name:20}  {mean(accuracies):8.4f}  ({min(accuracies):.4f} to {max(accuracies):.4f})  "
            f"{mean([s.parameters for s in sizes]):10,.0f}  {mean([s.multiply_adds for s in sizes]):13,.0f}  "
            f"{mean([s.file_bytes for s in sizes]) / 1e3:8.0f}  "
            f"{mean([one.latency[0] for one in repeated]):7.2f}  {mean([one.latency[1] for one in repeated]):8.2f}"
        )


def mean(values: Sequence[float]) -> float:
    return statistics.fmean(values)


def plot(results: dict[str, list[Result]], file: str) -> None:
    """Each network as a point."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 4))
    for name, repeated in results.items():
        place = mean([one.latency[1] for one in repeated]), mean([one.accuracy for one in repeated])
        axes.scatter(*place)
        axes.annotate(name, place, xytext=(5, 3), textcoords="offset points")
    axes.set(xlabel="milliseconds for 64 images", ylabel="test accuracy")
    figure.tight_layout()
    figure.savefig(file, dpi=150)


if __name__ == "__main__":
    main()
