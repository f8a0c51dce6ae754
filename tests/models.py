"""Small models and data that the tests share."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback, Checkpoint
from torch import Tensor, nn
from torch.utils.data import DataLoader, Subset, TensorDataset

from lightning_prune import PruningCallback

OPTIMIZERS: dict[str, Any] = {
    "SGD": functools.partial(torch.optim.SGD, lr=0.05, momentum=0.9, weight_decay=0.01),
    "AdamW": functools.partial(torch.optim.AdamW, lr=0.01, weight_decay=0.1),
}


def random_data(n: int = 32, features: int = 8, classes: int = 3, seed: int = 0) -> TensorDataset:
    """Inputs from a normal distribution, labels by their first entries."""
    x = torch.randn(n, features, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(x, x[:, :classes].argmax(dim=1))


@functools.cache
def digits() -> TensorDataset:
    """scikit-learn's 1,797 digits in random order: (1, 8, 8) in [0, 1], and their classes."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    order = torch.randperm(1797, generator=torch.Generator().manual_seed(0))
    images = torch.tensor(bunch.images, dtype=torch.float32).div(16).unsqueeze(1)
    return TensorDataset(images[order], torch.tensor(bunch.target)[order])


def digits_loader(first: int, last: int, batch_size: int = 64) -> DataLoader[Any]:
    return DataLoader(Subset(digits(), range(first, last)), batch_size=batch_size)


class Net(L.LightningModule):
    """Linear(8, 16), BatchNorm, Linear(16, 3): 128 + 48 = 176 weights in matrices."""

    def __init__(self, optimizer: Callable[..., torch.optim.Optimizer] | None = None, batch_size: int = 8) -> None:
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.norm = nn.BatchNorm1d(16)
        self.last = nn.Linear(16, 3)
        self.make = optimizer or functools.partial(torch.optim.SGD, lr=0.1)
        self.lr = 0.1
        self.batch_size = batch_size

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.relu(self.norm(self.first(x.to(self.first.bias.dtype)))))

    def loss(self, batch: Any) -> Tensor:
        return nn.functional.cross_entropy(self(batch[0]), batch[1])

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return self.loss(batch)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", self.loss(batch))

    def test_step(self, batch: Any, batch_idx: int) -> None:
        self.log("test_loss", self.loss(batch))

    def predict_step(self, batch: Any, batch_idx: int) -> Tensor:
        return self(batch[0])

    def configure_optimizers(self) -> Any:
        return self.make(self.parameters())

    def train_dataloader(self) -> DataLoader[Any]:
        return DataLoader(random_data(), batch_size=self.batch_size)

    def val_dataloader(self) -> DataLoader[Any]:
        return DataLoader(random_data(16, seed=1), batch_size=8)

    test_dataloader = predict_dataloader = val_dataloader


def net(seed: int = 0, **kwargs: Any) -> Net:
    """A :class:`Net` with weights from a seed."""
    torch.manual_seed(seed)
    return Net(**kwargs)


class DigitsNet(Net):
    """A convolutional classifier of :func:`digits`; 72 + 1152 + 640 = 1864 weights in kernels and matrices."""

    def __init__(self) -> None:
        super().__init__(functools.partial(torch.optim.Adam, lr=5e-3))
        self.first = nn.Conv2d(1, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.second = nn.Conv2d(8, 16, 3, padding=1, stride=2)
        self.last = nn.Linear(16 * 4, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.first(x)))
        x = nn.functional.max_pool2d(torch.relu(self.second(x)), 2)
        return self.last(x.flatten(1))

    def train_dataloader(self) -> DataLoader[Any]:
        return digits_loader(0, 1200)

    def val_dataloader(self) -> DataLoader[Any]:
        return digits_loader(1200, 1500, batch_size=300)

    def test_dataloader(self) -> DataLoader[Any]:
        return digits_loader(1500, 1797, batch_size=297)

    def accuracy(self) -> float:
        """On the test digits."""
        x, y = next(iter(self.test_dataloader()))
        with torch.no_grad():
            return float((self.eval()(x).argmax(dim=1) == y).float().mean())


def trainer(root: Path, *callbacks: Callback, epochs: int = 3, **kwargs: Any) -> L.Trainer:
    """A quiet Trainer on the CPU."""
    settings: dict[str, Any] = {
        "accelerator": "cpu",
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "enable_checkpointing": any(isinstance(callback, Checkpoint) for callback in callbacks),
        "max_epochs": epochs,
        "default_root_dir": root,
    }
    return L.Trainer(callbacks=list(callbacks), **{**settings, **kwargs})


class Recorder(PruningCallback):
    """Notes each event: its time, the epoch, the step, and the number of zeros after it."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, verbose=False, **kwargs)
        self.seen: list[tuple[int, int, int, int]] = []

    def on_pruned(self, trainer: L.Trainer, pl_module: L.LightningModule, event: Any) -> None:
        self.seen.append((event.demand.time, trainer.current_epoch, trainer.global_step, event.zeros))


def zeros(module: nn.Module, *names: str) -> int:
    """Zeros in the named parameters of a plain module; by default in those of two or more dimensions."""
    parameters = dict(module.named_parameters())
    chosen = names or [name for name, p in parameters.items() if p.dim() > 1]
    return sum(int((parameters[name] == 0).sum()) for name in chosen)


def is_plain(module: nn.Module) -> bool:
    """Whether nothing of pruning is left but zeros: classes, hooks and names are the original ones."""
    return not any(
        hasattr(m, "_masked_base")
        or m._forward_pre_hooks
        or any(n.endswith(("_orig", "_mask")) for n in m.state_dict())
        for m in module.modules()
    )
