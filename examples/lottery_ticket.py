"""Find lottery tickets in LeNet-300-100, and compare them with the same masks on other initial weights.

``python examples/lottery_ticket.py`` takes scikit-learn's digits; ``--data DIR`` takes a folder with MNIST or
Fashion-MNIST. Stopped and started again it goes on where it was.
"""

from __future__ import annotations

import argparse
import logging
import warnings
from pathlib import Path
from typing import Any

import lightning as L
import torch
from data import Images
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler, SequentialSampler

from lightning_prune import Budget, LotteryTicket, Rewind


class LeNet(L.LightningModule):
    """LeNet-300-100 with Glorot's initial weights: an ordinary LightningModule."""

    def __init__(self, pixels: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(pixels, 300)
        self.fc2 = nn.Linear(300, 100)
        self.fc3 = nn.Linear(100, 10)
        for layer in (self.fc1, self.fc2, self.fc3):
            nn.init.xavier_normal_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(self, images: Tensor) -> Tensor:
        x = F.relu(self.fc1(images.flatten(1)))
        return self.fc3(F.relu(self.fc2(x)))

    def training_step(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        images, labels = batch
        return F.cross_entropy(self(images), labels)

    def validation_step(self, batch: tuple[Tensor, Tensor]) -> None:
        images, labels = batch
        self.log("val_loss", F.cross_entropy(self(images), labels), batch_size=len(labels))

    def test_step(self, batch: tuple[Tensor, Tensor]) -> None:
        images, labels = batch
        accuracy = (self(images).argmax(dim=1) == labels).float().mean()
        self.log("test_accuracy", accuracy, batch_size=len(labels))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=1.2e-3, fused=True)


class Batches(Images):
    """The images in batches that are taken from memory at once, not image by image."""

    def train_dataloader(self) -> DataLoader[Any]:
        return batches(self.train, RandomSampler(self.train), self.batch_size)

    def val_dataloader(self) -> DataLoader[Any]:
        return batches(self.validation, SequentialSampler(self.validation), 5000)

    def test_dataloader(self) -> DataLoader[Any]:
        return batches(self.test, SequentialSampler(self.test), 5000)


def batches(data: Dataset[Any], sampler: Any, size: int) -> DataLoader[Any]:
    return DataLoader(data, sampler=BatchSampler(sampler, size, drop_last=False), batch_size=None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", metavar="DIR", help="folder with the IDX files of MNIST or Fashion-MNIST")
    parser.add_argument("--rounds", type=int, default=12, help="how often to prune (default: 12)")
    parser.add_argument("--steps", type=int, default=500, help="steps of training for each network (default: 500)")
    parser.add_argument("--seeds", type=int, default=1, help="repetitions (default: 1)")
    parser.add_argument("--rewind", type=int, default=0, metavar="STEP", help="step to rewind to (default: 0)")
    parser.add_argument("--controls", nargs="*", default=["reinit"], help="control runs (default: reinit)")
    parser.add_argument("--out", type=Path, default=Path("lottery_ticket"), help="where to write everything")
    args = parser.parse_args()

    images = Batches(args.data, batch_size=60, unit_range=True)
    pixels = images.test[0][0].numel()
    experiment = LotteryTicket(
        lambda: LeNet(pixels),
        lambda level: quiet_trainer(args.steps),
        images,
        rounds=args.rounds,
        amount=0.2,
        scope=Budget(overrides={"fc3.weight": 0.1}),
        rewind=Rewind(step=args.rewind),
        controls=args.controls,
        seeds=range(args.seeds),
        directory=args.out,
    )
    results = experiment.run()
    print(f"\n{results}\n\n{results.text('early_stopping_step')}")
    figure, _ = results.plot()
    figure.savefig(args.out / "accuracy.png", dpi=150)


def quiet_trainer(steps: int) -> L.Trainer:
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", ".*does not have many workers.*")  # the data lies in memory
    warnings.filterwarnings("ignore", ".*LeafSpec.*is deprecated.*")  # between Lightning and torch
    torch.set_num_threads(1)  # faster for so small a network
    return L.Trainer(
        max_steps=steps,
        val_check_interval=100,
        check_val_every_n_epoch=None,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )


if __name__ == "__main__":
    main()
