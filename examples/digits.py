"""Prune a small convolutional network to 90 % zeros while it trains, and load the result without this package.

``python examples/digits.py`` takes the handwritten digits that come with scikit-learn;
``--data DIR`` takes a folder with the IDX files of MNIST or Fashion-MNIST instead.
"""

from __future__ import annotations

import argparse
import copy
import logging
import warnings

import lightning as L
import torch
from data import Images
from torch import Tensor, nn
from torch.nn import functional as F

from lightning_prune import Cubic, PruningCallback

CHECKPOINT = "digits-pruned.ckpt"


class ConvNet(L.LightningModule):
    """An ordinary LightningModule: nothing in it knows of pruning."""

    def __init__(self, learning_rate: float = 2e-3) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.conv1 = nn.Conv2d(1, 16, kernel_size=3, padding=1)
        self.conv2 = nn.Conv2d(16, 32, kernel_size=3, padding=1)
        self.linear1 = nn.Linear(32 * 4 * 4, 128)
        self.linear2 = nn.Linear(128, 10)

    def forward(self, images: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.conv1(images)), 2)
        x = F.adaptive_max_pool2d(F.relu(self.conv2(x)), 4)
        return self.linear2(F.relu(self.linear1(x.flatten(1))))

    def training_step(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        images, labels = batch
        return F.cross_entropy(self(images), labels)

    def validation_step(self, batch: tuple[Tensor, Tensor]) -> None:
        self.log("val_accuracy", self._accuracy(batch))

    def test_step(self, batch: tuple[Tensor, Tensor]) -> None:
        self.log("test_accuracy", self._accuracy(batch))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), self.hparams["learning_rate"])

    def _accuracy(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        images, labels = batch
        return (self(images).argmax(dim=1) == labels).float().mean()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", metavar="DIR", help="folder with the IDX files of MNIST or Fashion-MNIST")
    parser.add_argument("--epochs", type=int, default=15, help="epochs of training, then of pruning (default: 15)")
    args = parser.parse_args()

    L.seed_everything(0, verbose=False)
    images = Images(args.data)
    model = ConvNet()
    quiet_trainer(args.epochs).fit(model, images)
    longer = copy.deepcopy(model)  # trains without pruning for as long as the pruned one, to compare like with like
    quiet_trainer(args.epochs).fit(longer, images)
    dense = test_accuracy(longer, images)
    print(f"dense network: test accuracy {dense:.4f}\n")

    # From 0 to 90 % zeros, all layers ranked together, during the first two thirds of the epochs.
    pruning = PruningCallback("l1_unstructured", schedule=Cubic(final=0.9, end=2 * args.epochs // 3), scope="global")
    trainer = quiet_trainer(args.epochs, pruning, Progress())
    trainer.fit(model, images)
    pruned = test_accuracy(model, images)
    trainer.save_checkpoint(CHECKPOINT)

    # The checkpoint holds an ordinary model: no masks to apply, no callback to add.
    plain = ConvNet.load_from_checkpoint(CHECKPOINT, strict=True, weights_only=True)
    reloaded = test_accuracy(plain, images)

    print_zeros(plain)
    print(f"\ntest accuracy  dense {dense:.4f}  pruned {pruned:.4f}  reloaded {reloaded:.4f}")


class Progress(L.Callback):
    """Prints a line for each epoch."""

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        metrics = trainer.callback_metrics
        sparsity, accuracy = float(metrics["sparsity"]), float(metrics["val_accuracy"])
        print(f"epoch {trainer.current_epoch:2}: {sparsity:5.1%} zeros, validation accuracy {accuracy:.4f}")


def quiet_trainer(epochs: int, *callbacks: L.Callback) -> L.Trainer:
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", ".*does not have many workers.*")  # the data lies in memory
    warnings.filterwarnings("ignore", ".*LeafSpec.*is deprecated.*")  # between Lightning and torch
    torch.set_num_threads(1)  # faster for so small a network
    return L.Trainer(
        max_epochs=epochs,
        callbacks=list(callbacks),
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )


def test_accuracy(model: L.LightningModule, images: Images) -> float:
    return quiet_trainer(0).test(model, images, verbose=False)[0]["test_accuracy"]


def print_zeros(model: nn.Module) -> None:
    """Print the zeros of each weight tensor, and of all of them."""
    weights = {name: p for name, p in model.named_parameters() if p.dim() > 1}
    zeros = {name: p.numel() - int(p.count_nonzero()) for name, p in weights.items()}
    total = sum(p.numel() for p in weights.values())
    print(f"\n{'':16} {'shape':16} {'weights':>8} {'zeros':>8}")
    for name, p in weights.items():
        print(f"{name:16} {[*p.shape]!s:16} {p.numel():8} {zeros[name]:8} {zeros[name] / p.numel():7.1%}")
    print(f"{'all':33} {total:8} {sum(zeros.values()):8} {sum(zeros.values()) / total:7.1%}")


if __name__ == "__main__":
    main()
