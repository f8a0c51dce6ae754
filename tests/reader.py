"""What a reader of the README and of the guides has: their snippets, a model, data."""

import ast
import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning as L
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

ROOT = Path(__file__).parents[1]

Names = dict[str, Any]
Check = Callable[[Names, Callable[[], None]], None]


class Screen(io.StringIO):
    """A terminal that keeps what is written."""

    def isatty(self) -> bool:
        return True


def text(page: str) -> str:
    return (ROOT / page).read_text()


def blocks(page: str, language: str) -> list[str]:
    """The snippets of a page in a language, in their order."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text(page), re.M | re.S)


class Backbone(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 16, 3, padding=1)
        self.norm = nn.BatchNorm2d(16)
        self.downsample = nn.Sequential(nn.Conv2d(4, 16, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.conv(x)) + self.downsample(x)


class MyModel(L.LightningModule):
    def __init__(self, lr: float = 0.05) -> None:
        super().__init__()
        self.lr = lr
        self.stem = nn.Conv2d(1, 4, 3)
        self.backbone = Backbone()
        self.head = nn.Linear(16, 10)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.backbone(self.stem(images)).relu().mean(dim=(2, 3)))

    def training_step(self, batch: list[Tensor]) -> Tensor:
        return nn.functional.cross_entropy(self(batch[0]), batch[1])

    def validation_step(self, batch: list[Tensor]) -> None:
        self.log("val_loss", self.training_step(batch))

    def test_step(self, batch: list[Tensor]) -> None:
        self.log("test_accuracy", (self(batch[0]).argmax(dim=1) == batch[1]).float().mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), self.lr, momentum=0.9)


SIZES = {"stem.weight": 36, "backbone.conv.weight": 576, "backbone.downsample.0.weight": 64, "head.weight": 160}
TOTAL = sum(SIZES.values())


def some_data() -> TensorDataset:
    torch.manual_seed(0)
    return TensorDataset(torch.randn(8, 1, 6, 6), torch.arange(8))


def names_of(page: str) -> Names:
    """All that the snippets of a page import, and what a reader brings."""
    torch.manual_seed(0)
    loader = DataLoader(some_data(), batch_size=4)
    names: Names = {"torch": torch, "MyModel": MyModel, "model": MyModel(), "datamodule": loader, "loader": loader}
    names["images"] = torch.randn(1, 1, 6, 6)
    for block in blocks(page, "python"):
        imports = [node for node in ast.parse(block).body if isinstance(node, ast.Import | ast.ImportFrom)]
        exec(compile(ast.Module(imports, []), page, "exec"), names)
    return names


def fit(names: Names, *others: L.Callback, **limits: Any) -> dict[str, int]:
    """Fits the model with the recipe's callback and returns the zeros of its weights."""
    trainer = L.Trainer(**{"max_epochs": 30, **limits}, callbacks=[names["pruning"], *others], **quiet())
    trainer.fit(names["model"], names["datamodule"])
    return zeros(names["model"])


def quiet() -> dict[str, Any]:
    return {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}


def zeros(model: nn.Module) -> dict[str, int]:
    return {name: int((model.get_parameter(name) == 0).sum()) for name in SIZES}
