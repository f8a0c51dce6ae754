"""Small plain networks of the kinds of which channels are cut."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch
from torch import Tensor, nn


class Residual(nn.Module):
    """Two convolutions with batch norms around a shortcut, as in ResNet-18."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outside)
        self.conv2 = nn.Conv2d(outside, outside, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outside)
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1 or inside != outside:
            self.shortcut = nn.Sequential(nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside))

    def forward(self, x: Tensor) -> Tensor:
        out = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x)))))
        return torch.relu(out + self.shortcut(x))


class ResNet(nn.Module):
    """ResNet-18 for small images: eight blocks at four widths."""

    def __init__(self, width: int = 8, channels: int = 3, classes: int = 10) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        widths = [width, width, 2 * width, 4 * width, 8 * width]
        blocks: list[nn.Module] = []
        for i, (inside, outside) in enumerate(itertools.pairwise(widths)):
            blocks += [Residual(inside, outside, 1 if i == 0 else 2), Residual(outside, outside, 1)]
        self.blocks = nn.Sequential(*blocks)
        self.fc = nn.Linear(8 * width, classes)

    def forward(self, x: Tensor) -> Tensor:
        out = self.blocks(torch.relu(self.bn1(self.conv1(x))))
        return self.fc(out.mean(dim=(2, 3)))


def vgg(width: int = 8, channels: int = 3, classes: int = 10, size: int = 16) -> nn.Sequential:
    """Six convolutions with biases and batch norms, three poolings, and two linear layers after a flatten."""
    layers: list[nn.Module] = []
    inside = channels
    for outside in (width, 2 * width, 4 * width):
        for _ in range(2):
            layers += [nn.Conv2d(inside, outside, 3, padding=1), nn.BatchNorm2d(outside), nn.ReLU()]
            inside = outside
        layers.append(nn.MaxPool2d(2))
    flat = inside * (size // 8) ** 2
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(flat, 4 * width), nn.ReLU(), nn.Linear(4 * width, classes))


def _separable(inside: int, outside: int, stride: int) -> list[nn.Module]:
    return [
        *(
            nn.Conv2d(inside, inside, 3, stride, padding=1, groups=inside, bias=False),
            nn.BatchNorm2d(inside),
            nn.ReLU6(),
        ),
        *(nn.Conv2d(inside, outside, 1, bias=False), nn.BatchNorm2d(outside), nn.ReLU6()),
    ]


def mobilenet(width: int = 8, channels: int = 3, classes: int = 10) -> nn.Sequential:
    """A convolution, five depthwise separable ones, pooling and a linear layer."""
    layers: list[nn.Module] = [nn.Conv2d(channels, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU6()]
    widths = [width, 2 * width, 2 * width, 4 * width, 4 * width, 8 * width]
    for i, (inside, outside) in enumerate(itertools.pairwise(widths)):
        layers += _separable(inside, outside, 2 if i % 2 == 0 else 1)
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], classes))


class UNet(nn.Module):
    """Two levels down, two up, each joined with its skip connection; transposed convolutions go up."""

    def __init__(self, width: int = 4, channels: int = 3, classes: int = 2) -> None:
        super().__init__()
        self.down1 = self.block(channels, width)
        self.down2 = self.block(width, 2 * width)
        self.bottom = self.block(2 * width, 4 * width)
        self.up2 = nn.ConvTranspose2d(4 * width, 2 * width, 2, stride=2)
        self.join2 = self.block(4 * width, 2 * width)
        self.up1 = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.join1 = self.block(2 * width, width)
        self.head = nn.Conv2d(width, classes, 1)
        self.pool = nn.MaxPool2d(2)

    @staticmethod
    def block(inside: int, outside: int) -> nn.Sequential:
        return nn.Sequential(nn.Conv2d(inside, outside, 3, padding=1), nn.BatchNorm2d(outside), nn.LeakyReLU())

    def forward(self, x: Tensor) -> Tensor:
        one = self.down1(x)
        two = self.down2(self.pool(one))
        up = self.up2(self.bottom(self.pool(two)))
        up = self.up1(self.join2(torch.cat([two, up], dim=1)))
        return self.head(self.join1(torch.cat([one, up], dim=1)))


class Encoder(nn.Module):
    """Two transformer encoder layers over features, and a head on their mean."""

    def __init__(self, width: int = 16, hidden: int = 32, features: int = 8, classes: int = 5) -> None:
        super().__init__()
        self.inside = nn.Linear(features, width)
        layer = nn.TransformerEncoderLayer(width, 2, hidden, dropout=0.0, activation="gelu", batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(self.inside(x)).mean(dim=1))


class DenseLayer(nn.Module):
    """Norm, ReLU, convolution, joined with what came in."""

    def __init__(self, inside: int, growth: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(inside)
        self.conv = nn.Conv2d(inside, growth, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.conv(torch.relu(self.norm(x)))], dim=1)


def densenet(growth: int = 4, channels: int = 3, classes: int = 10) -> nn.Sequential:
    """Two dense blocks of three layers with a transition between them."""
    inside = 2 * growth
    layers: list[nn.Module] = [nn.Conv2d(channels, inside, 3, padding=1, bias=False)]
    for block in range(2):
        for _ in range(3):
            layers.append(DenseLayer(inside, growth))
            inside += growth
        if block == 0:
            half = inside // 2
            layers += [nn.BatchNorm2d(inside), nn.ReLU(), nn.Conv2d(inside, half, 1, bias=False), nn.AvgPool2d(2)]
            inside = half
    layers += [nn.BatchNorm2d(inside), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inside, classes)]
    return nn.Sequential(*layers)


def images(batch: int = 2, channels: int = 3, size: int = 16) -> Tensor:
    return torch.randn(batch, channels, size, size, generator=torch.Generator().manual_seed(1))


def sequences(batch: int = 2, length: int = 6, features: int = 8) -> Tensor:
    return torch.randn(batch, length, features, generator=torch.Generator().manual_seed(1))


ZOO: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "resnet": (ResNet, images),
    "vgg": (vgg, images),
    "mobilenet": (mobilenet, images),
    "unet": (UNet, images),
    "encoder": (Encoder, sequences),
    "densenet": (densenet, images),
}


def trained_looking(make: Callable[[], nn.Module]) -> nn.Module:
    """A network whose norms have weights and statistics as after some training, seeded."""
    torch.manual_seed(0)
    model = make()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, std=0.3)
            module.running_mean.normal_(std=0.2)
            module.running_var.uniform_(0.5, 2.0)
    return model.eval()
