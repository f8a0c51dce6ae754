"""The models that are trained: an MLP, a small convnet, a transformer; with inputs of the shape they take."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Workload(NamedTuple):
    """A model and its batch."""

    name: str
    make: Callable[[], nn.Module]
    shape: tuple[int, ...]

    def batch(self) -> Tensor:
        return torch.randn(self.shape)


def mlp() -> nn.Module:
    """784-300-100-10: 266,200 weights."""
    return nn.Sequential(nn.Linear(784, 300), nn.ReLU(), nn.Linear(300, 100), nn.ReLU(), nn.Linear(100, 10))


def convnet() -> nn.Module:
    """Three convolutions for 32 x 32 images: 94,304 weights."""
    return nn.Sequential(
        *(nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(64, 128, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        nn.Linear(128, 10),
    )


class Block(nn.Module):
    """A pre-norm transformer layer whose modules are all called, which torch's pruning needs."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norms[0](x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        x = x + self.out(attended)
        return x + self.down(F.gelu(self.up(self.norms[1](x))))


def transformer() -> nn.Module:
    """Six layers, d = 512, 8 heads: 18.9 million weights."""
    return nn.Sequential(*(Block(512, 8) for _ in range(6)))


MLP_60 = Workload("MLP, batch 60", mlp, (60, 784))
MLP_512 = Workload("MLP, batch 512", mlp, (512, 784))
CONVNET = Workload("convnet, batch 64", convnet, (64, 3, 32, 32))
TRANSFORMER = Workload("transformer, 8 x 64 tokens", transformer, (8, 64, 512))
