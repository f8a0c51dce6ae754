"""Sizes and loading times of sparse files, and what sparse layers gain: ``python -m tests.benchmarks.files``.

One thread. Times are processor times, taken in turns; ratios are medians.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lightning_prune.export import load_sparse, save_sparse, sparse_linear


class Block(nn.Module):
    """A transformer's block that calls its four linear layers."""

    def __init__(self, width: int, hidden: int, heads: int = 8) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        qkv = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).movedim(-3, 0).transpose(-2, -3)
        attended = F.scaled_dot_product_attention(*qkv).transpose(-2, -3).flatten(-2)
        x = x + self.out(attended)
        return x + self.down(F.gelu(self.up(self.norm2(x))))


def resnet18_state(scale: int) -> dict[str, Tensor]:
    """Tensors of the shapes that ResNet-18 has, random as after initialization; ``scale`` divides its widths."""
    widths = [width // scale for width in (64, 128, 256, 512)]
    state = {"conv1.weight": torch.randn(widths[0], 3, 7, 7)}
    before = widths[0]
    for number, width in enumerate(widths, 1):
        for block in range(2):
            name = f"layer{number}.{block}"
            state[f"{name}.conv1.weight"] = torch.randn(width, before, 3, 3)
            state[f"{name}.conv2.weight"] = torch.randn(width, width, 3, 3)
            if before != width:
                state[f"{name}.downsample.0.weight"] = torch.randn(width, before, 1, 1)
            for norm in ("bn1", "bn2"):
                for key in ("weight", "bias", "running_mean", "running_var"):
                    state[f"{name}.{norm}.{key}"] = torch.randn(width)
            before = width
    state["fc.weight"] = torch.randn(1000 // scale, widths[-1])
    return {name: 0.03 * value for name, value in state.items()}


def prune_largest_kept(tensors: list[Tensor], sparsity: float) -> None:
    """Zeros by magnitude in each tensor."""
    for tensor in tensors:
        if sparsity:
            threshold = tensor.abs().flatten().kthvalue(max(1, round(sparsity * tensor.numel()))).values
            tensor[tensor.abs() <= threshold] = 0


def seconds(action: Callable[[], object], repeats: int) -> list[float]:
    """Processor times of an action."""
    times = []
    for _ in range(repeats):
        start = time.process_time()
        action()
        times.append(time.process_time() - start)
    return times


def file_rows(folder: Path, scale: int, repeats: int) -> list[str]:
    """One line for each share of zeros."""
    lines = ["| zeros | torch.save, bytes | save_sparse, bytes | share | uncompressed | load, times torch.load |"]
    lines.append("|---|---|---|---|---|---|")
    for sparsity in (0.0, 0.5, 0.8, 0.9, 0.95, 0.99):
        torch.manual_seed(0)
        state = resnet18_state(scale)
        prune_largest_kept([value for value in state.values() if value.dim() > 1], sparsity)
        dense, small, plain = folder / "dense", folder / "small", folder / "plain"
        torch.save(state, dense)
        save_sparse(state, small)
        save_sparse(state, plain, compress=False)
        loaded = load_sparse(small)
        if not all(torch.equal(loaded[name], value) for name, value in state.items()):
            raise RuntimeError("what was loaded is not what was saved")
        pairs = [
            (seconds(lambda path=small: load_sparse(path), 1)[0], seconds(lambda path=dense: torch.load(path), 1)[0])
            for _ in range(repeats)
        ]
        sizes = [os.path.getsize(path) for path in (dense, small, plain)]
        ratio = statistics.median(one / two for one, two in pairs)
        share = f"{sizes[1] / sizes[0]:.1%} | {sizes[2] / sizes[0]:.1%}"
        lines.append(f"| {sparsity:.0%} | {sizes[0]:,} | {sizes[1]:,} | {share} | {ratio:.1f} |")
    return lines


def transformers(blocks: int, width: int, hidden: int) -> dict[str, Callable[[], nn.Module]]:
    """Ways to write the same transformer."""
    return {
        "linear layers": lambda: nn.Sequential(*(Block(width, hidden) for _ in range(blocks))),
        "nn.TransformerEncoder": lambda: nn.TransformerEncoder(
            nn.TransformerEncoderLayer(width, 8, hidden, batch_first=True), blocks
        ),
    }


def prune_matrices(model: nn.Module, sparsity: float) -> None:
    """Zeros by magnitude, the same share of all matrices."""
    with torch.no_grad():
        prune_largest_kept([parameter for parameter in model.parameters() if parameter.dim() > 1], sparsity)


def layer_rows(blocks: int, width: int, hidden: int, tokens: tuple[int, ...], repeats: int) -> list[str]:
    """One line for each way, share of zeros and number of tokens."""
    lines = [
        "| transformer | zeros | tokens | layers made sparse | dense, ms | sparse, ms | times as fast |",
        "|---|---|---|---|---|---|---|",
    ]
    for way, make in transformers(blocks, width, hidden).items():
        for sparsity in (0.8, 0.9, 0.95):
            torch.manual_seed(0)
            model = make().eval()
            prune_matrices(model, sparsity)
            for count in tokens:
                _, report = sparse_linear(model, torch.randn(1, count, width), repeats=repeats)
                made = f"{len(report.chosen)} of {len(report.layers)}"
                times = f"{report.dense * 1e3:.2f} | {report.sparse * 1e3:.2f} | {report.gain:.2f}"
                lines.append(f"| {way} | {sparsity:.0%} | {count} | {made} | {times} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="tiny models, to see that it runs")
    quick = parser.parse_args().quick
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        print("\n".join(file_rows(Path(folder), 8 if quick else 1, 2 if quick else 7)), flush=True)
    sizes = (1, 64, 128, (1, 8), 2) if quick else (6, 512, 2048, (1, 8, 64, 512), 7)
    print("\n" + "\n".join(layer_rows(*sizes)))


if __name__ == "__main__":
    main()
