"""Train a residual network, prune its channels, cut them out, and compare size, speed and accuracy.

``python examples/shrink.py`` takes the handwritten digits that come with scikit-learn;
``--data DIR`` takes a folder with the IDX files of MNIST or Fashion-MNIST instead.
"""

from __future__ import annotations

import argparse
import copy
import time
from dataclasses import dataclass

import lightning as L
import torch
from data import Images
from digits import quiet_trainer, test_accuracy
from torch import Tensor, nn
from torch.nn import functional as F

from lightning_prune import Linear, PruningCallback, export
from lightning_prune.export import ShrinkReport

WAYS = {
    "single tensors": {"method": "ln_structured"},
    "coupled": {"method": "ln_structured", "groups": "dependency"},
    "random coupled": {"method": "random_structured", "groups": "dependency"},
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


class ResNet(L.LightningModule):
    """An ordinary LightningModule; ``example_input_array`` is all that coupled channels ask of it."""

    def __init__(self, size: int = 8, width: int = 16) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU())
        self.blocks = nn.Sequential(Block(width, width, 1), Block(width, 2 * width, 2), Block(2 * width, 4 * width, 2))
        self.head = nn.Linear(4 * width, 10)
        self.example_input_array = torch.zeros(1, 1, size, size)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.blocks(self.stem(images)).mean(dim=(2, 3)))

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


@dataclass
class Result:
    """One line of the table."""

    name: str
    accuracy: float
    report: ShrinkReport
    latency: tuple[float, float]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", metavar="DIR", help="folder with the IDX files of MNIST or Fashion-MNIST")
    parser.add_argument("--limit", type=int, help="train on so many images only")
    parser.add_argument("--epochs", type=int, default=6, help="epochs of training, then of pruning (default: 6)")
    parser.add_argument("--zeros", type=float, default=0.75, help="share of weights to prune (default: 0.75)")
    parser.add_argument("--plot", metavar="FILE", help="write accuracy over latency as a picture (needs matplotlib)")
    args = parser.parse_args()

    L.seed_everything(0, verbose=False)
    images = Images(args.data, limit=args.limit, batch_size=64)
    size = images.test[0][0].shape[-1]
    dense = ResNet(size)
    quiet_trainer(args.epochs).fit(dense, images)
    results = [measured("dense", dense, images)]
    for name, way in WAYS.items():
        model = copy.deepcopy(dense)
        schedule = Linear(final=args.zeros, end=args.epochs // 2)
        quiet_trainer(args.epochs, PruningCallback(**way, schedule=schedule, verbose=False)).fit(model, images)
        results.append(measured(name, model, images))
        if name == "coupled":
            small, report = export.shrink(model)
            export.save(small, "small.safetensors")  # read again by the plain class:
            loaded = export.load(ResNet(size), "small.safetensors")
            print(report, f"\nread again: test accuracy {test_accuracy(loaded, images):.4f}\n")
    print_table(results)
    if args.plot:
        plot(results, args.plot)


def measured(name: str, model: ResNet, images: Images) -> Result:
    """Shrink a model and measure what is left."""
    small, report = export.shrink(model)
    latency = (milliseconds(small, 1), milliseconds(small, 64))
    return Result(name, test_accuracy(small, images), report, latency)


def milliseconds(model: ResNet, batch: int, repeats: int = 10) -> float:
    """The fastest of some calls."""
    x, times = torch.randn(batch, *model.example_input_array.shape[1:]), []
    with torch.inference_mode():
        for _ in range(repeats):
            start = time.perf_counter()
            model.eval()(x)
            times.append(time.perf_counter() - start)
    return 1e3 * min(times)


def print_table(results: list[Result]) -> None:
    print(f"{'':15} accuracy  parameters  multiply-adds  file, kB  ms at 1  ms at 64")
    for one in results:
        after = one.report.after
        print(
            f"{one.name:15} {one.accuracy:8.4f}  {after.parameters:10,}  {after.multiply_adds:13,}  "
            f"{after.file_bytes / 1e3:8.0f}  {one.latency[0]:7.2f}  {one.latency[1]:8.2f}"
        )


def plot(results: list[Result], file: str) -> None:
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 4))
    for one in results:
        axes.scatter(one.latency[1], one.accuracy)
        axes.annotate(one.name, (one.latency[1], one.accuracy), xytext=(5, 3), textcoords="offset points")
    axes.set(xlabel="milliseconds for 64 images", ylabel="test accuracy")
    figure.tight_layout()
    figure.savefig(file, dpi=150)


if __name__ == "__main__":
    main()
