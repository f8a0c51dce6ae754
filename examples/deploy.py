"""What zeros are worth: a network pruned to 95 %, as a small file, with sparse layers, and with int8 weights.

``python examples/deploy.py`` takes the handwritten digits that come with scikit-learn;
``--data DIR`` takes a folder with the IDX files of MNIST or Fashion-MNIST instead.
Needs the extra ``export``: ``pip install 'lightning-prune[examples,export]'``.
"""

from __future__ import annotations

import argparse
import copy
import os
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import lightning as L
import torch
from data import Images
from digits import ConvNet, quiet_trainer, test_accuracy
from torch import Tensor, nn

from lightning_prune import Cubic, PruningCallback
from lightning_prune.export import load_sparse, save_sparse, sparse_linear


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", metavar="DIR", help="folder with the IDX files of MNIST or Fashion-MNIST")
    parser.add_argument("--epochs", type=int, default=15, help="epochs of training with pruning (default: 15)")
    args = parser.parse_args()

    L.seed_everything(0, verbose=False)
    images = Images(args.data)
    model = ConvNet()
    pruning = PruningCallback(schedule=Cubic(final=0.95, end=2 * args.epochs // 3), scope="global", verbose=False)
    quiet_trainer(args.epochs, pruning).fit(model, images)
    model.eval()
    one = images.test[:1][0]

    print(f"{'':24} {'bytes':>8} {'ms per image':>13} {'test accuracy':>14}")
    row("dense, torch.save", file_size(torch.save, model.state_dict()), model, one, images)
    row("compressed, save_sparse", file_size(save_sparse, model.state_dict()), reloaded(model), one, images)
    sparse, report = sparse_linear(model, one)
    row("sparse layers", file_size(save_sparse, sparse.state_dict()), sparse, one, images)
    small = int8(model)
    row("int8, compressed", file_size(save_sparse, int8_values(small)), small, one, images)
    print(f"\nlayers that were measured:\n{report}")


def row(name: str, size: int, model: L.LightningModule, one: Tensor, images: Images) -> None:
    print(f"{name:24} {size:8,} {milliseconds(model, one):13.3f} {test_accuracy(model, images):14.4f}", flush=True)


def file_size(save: Callable[[Any, str], None], state: Mapping[str, Any]) -> int:
    """The bytes that a state takes in a file."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model")
        save(state, path)
        return os.path.getsize(path)


def reloaded(model: ConvNet) -> ConvNet:
    """A new model with the weights of a compressed file."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model.safetensors")
        save_sparse(model, path)
        fresh = ConvNet()
        fresh.load_state_dict(load_sparse(path))
    return fresh.eval()


def int8(model: ConvNet) -> ConvNet:
    """A copy whose linear layers have weights of one byte; zeros stay zeros."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*deprecated.*")  # torch points to torchao, another package
        return torch.ao.quantization.quantize_dynamic(copy.deepcopy(model), {nn.Linear}, dtype=torch.qint8)


def int8_values(model: nn.Module) -> dict[str, Tensor | float]:
    """All that has to be kept of a quantized model: bytes and scales, and what stayed 32-bit."""
    kept: dict[str, Tensor | float] = {}
    for name, layer in model.named_children():
        if isinstance(layer, torch.ao.nn.quantized.dynamic.Linear):
            kept |= {f"{name}.weight": layer.weight().int_repr(), f"{name}.scale": layer.weight().q_scale()}
            kept[f"{name}.bias"] = layer.bias().detach()
        else:
            kept |= {f"{name}.{key}": value for key, value in layer.state_dict().items()}
    return kept


def milliseconds(model: nn.Module, inputs: Tensor) -> float:
    """The median time of a call."""
    times = []
    with torch.inference_mode():
        for _ in range(200):
            start = time.perf_counter()
            model(inputs)
            times.append(time.perf_counter() - start)
    return 1e3 * statistics.median(times)


if __name__ == "__main__":
    main()
