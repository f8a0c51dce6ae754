"""Layers as CSR where that is faster, which is measured on the machine and the inputs at hand."""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch import nn

from lightning_prune.export.sparse_choice import call_layers, replaced, sparse_layer, weights_of
from lightning_prune.prune.progress import Progress
from lightning_prune.prune.whole_model import remove_all
from lightning_prune.pruner.calling import call, difference, example_inputs_of, outputs, tensors_in

M = TypeVar("M", bound=nn.Module)

_FASTER = 0.95  # a gain of less than a twentieth is within the spread of such measurements
_TOLERANCE = 1e-5


@dataclass(frozen=True)
class SparseLayerTime:
    """What was measured of one layer.

    Attributes:
        name: Its name in the model.
        shape: Shape of its weights; of an attention, of all its projections one below the other.
        sparsity: Share of zeros.
        dense: Median time of a call in seconds, with dense weights.
        sparse: The same with the weights as CSR.
        chosen: Whether it is sparse in the copy.
        difference: Largest difference of its outputs, relative to the largest one.
    """

    name: str
    shape: tuple[int, ...]
    sparsity: float
    dense: float
    sparse: float
    chosen: bool
    difference: float


@dataclass(frozen=True)
class SparseLinearReport:
    """What was measured; prints as a table.

    Attributes:
        layers: Those that were called and have zeros.
        dense: Median time of the whole model in seconds, as it was.
        sparse: The same of the copy.
        difference: Largest difference of the model's outputs, relative to the largest one.

    Example:
        >>> layer = SparseLayerTime("fc", (512, 512), 0.95, 4e-5, 1e-5, True, 1e-7)
        >>> print(SparseLinearReport((layer,), 2e-4, 1.25e-4, 2e-7))
        layer           shape    sparsity  dense ms  sparse ms  chosen
        fc              512x512    95.00%     0.040      0.010  sparse
        whole model                           0.200      0.125  1.60 times as fast
        outputs differ by 2.0e-07 of the largest
    """

    layers: tuple[SparseLayerTime, ...]
    dense: float
    sparse: float
    difference: float

    @property
    def gain(self) -> float:
        """How many times as fast the copy is."""
        return self.dense / self.sparse

    @property
    def chosen(self) -> tuple[str, ...]:
        """The layers that are sparse in the copy."""
        return tuple(layer.name for layer in self.layers if layer.chosen)

    def __str__(self) -> str:
        """One line for each layer, then the whole model."""
        width = max([len(layer.name) for layer in self.layers] + [14])
        lines = [f"{'layer':<{width}}  shape    sparsity  dense ms  sparse ms  chosen"]
        for layer in self.layers:
            shape = "x".join(map(str, layer.shape))
            times = f"{layer.dense * 1e3:8.3f}  {layer.sparse * 1e3:9.3f}"
            word = "sparse" if layer.chosen else "dense"
            lines.append(f"{layer.name:<{width}}  {shape:<9}{layer.sparsity:8.2%}  {times}  {word}")
        times = f"{self.dense * 1e3:8.3f}  {self.sparse * 1e3:9.3f}"
        lines.append(f"{'whole model':<{width}}  {'':17}  {times}  {self.gain:.2f} times as fast")
        return "\n".join([*lines, f"outputs differ by {self.difference:.1e} of the largest"])


def sparse_linear(model: M, example_inputs: Any = None, *, repeats: int = 15) -> tuple[M, SparseLinearReport]:
    """A copy in which layers that are faster as CSR hold only the weights left.

    Each ``Linear``, each 1 x 1 ``Conv2d`` and each ``MultiheadAttention`` with zeros is called both ways, in turns, on
    what it gets when the model is called with the example inputs; the faster one is taken, the dense one within 5 %.
    What is faster depends on shape, share of zeros, batch, number of threads and machine: measure where the copy will
    run, with inputs of the size it will get. Should the whole copy not be faster, all layers stay dense. On a terminal
    a line says how far it is.

    The copy is for inference: it can be pickled, and its ``state_dict`` loads into another copy with the same zeros.
    ``torch.export`` and ONNX know no CSR and get an error that says so.

    Args:
        model: Any module on the CPU, dense, pruned or with its pruning made permanent; it stays as it is.
        example_inputs: What it is called with: a tensor, a tuple or list of arguments, or a mapping of them by name;
            a LightningModule's ``example_input_array`` by default.
        repeats: How often each layer and the model are called either way.

    Returns:
        The copy, in evaluation mode, and what was measured.

    Raises:
        ValueError: If there are no inputs, or the model is not on the CPU.

    Example:
        >>> net = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
        >>> fast, report = sparse_linear(net, torch.ones(1, 8))
        >>> report.layers  # no zeros, nothing to measure
        ()
    """
    device = next((p.device.type for p in model.parameters()), "cpu")
    if device != "cpu":
        raise ValueError(f"the model is on '{device}'; sparse layers are for a CPU, and measured there: move it there")
    inputs = example_inputs_of(model, example_inputs)
    dense = remove_all(copy.deepcopy(model)).eval()
    layers = _measured(dense, inputs, repeats)
    sparse = replaced(dense, [layer.name for layer in layers if layer.chosen])
    times = _in_turns(lambda: call(dense, inputs), lambda: call(sparse, inputs), repeats)
    if times[1] > times[0] or not any(layer.chosen for layer in layers):
        layers, sparse = [replace(layer, chosen=False) for layer in layers], copy.deepcopy(dense)
        times = (times[0], times[0])
    apart = difference(outputs(dense, inputs), outputs(sparse, inputs))
    return sparse, SparseLinearReport(tuple(layers), *times, apart)


def _measured(dense: nn.Module, inputs: Any, repeats: int) -> list[SparseLayerTime]:
    """What was measured of each layer at its first call, in the order of calls."""
    found: dict[str, SparseLayerTime] = {}
    model = copy.deepcopy(dense)
    call_layers(model, lambda module: True)
    pairs = {
        name: (layer, made)
        for name, layer in model.named_modules()
        if any(bool((weight == 0).any()) for weight in weights_of(layer)) and (made := sparse_layer(layer)) is not None
    }

    def measuring(name: str, sparse: nn.Module) -> Callable[..., None]:
        def measure(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if name not in found:
                progress.at(len(found), name)
                found[name] = _time_of(name, layer, sparse, lambda way: way(*args, **kwargs), repeats)

        return measure

    with Progress("timing layers", len(pairs)) as progress, torch.inference_mode():
        for name, (layer, sparse) in pairs.items():
            layer.register_forward_pre_hook(measuring(name, sparse), with_kwargs=True)
        call(model, inputs)
    return list(found.values())


def _time_of(
    name: str, layer: nn.Module, sparse: nn.Module, called: Callable[[Callable[..., Any]], Any], repeats: int
) -> SparseLayerTime:
    dense = layer.forward
    apart = difference(tensors_in(called(dense)), tensors_in(called(sparse)))
    slow, fast = _in_turns(lambda: called(dense), lambda: called(sparse), repeats)
    weights = weights_of(layer)
    entries = sum(weight.numel() for weight in weights)
    zeros = 1 - sum(int(weight.count_nonzero()) for weight in weights) / entries
    shape = (sum(weight.shape[0] for weight in weights), *weights[0].shape[1:])
    return SparseLayerTime(name, shape, zeros, slow, fast, fast < _FASTER * slow and apart <= _TOLERANCE, apart)


def _in_turns(one: Callable[[], Any], two: Callable[[], Any], repeats: int) -> tuple[float, float]:
    """Median times of two ways, taken in turns so that what else the machine does meets both."""
    times: tuple[list[float], list[float]] = ([], [])
    with torch.inference_mode():
        for _ in range(repeats + 1):
            for way, taken in zip((one, two), times, strict=True):
                start = time.perf_counter()
                way()
                taken.append(time.perf_counter() - start)
    return statistics.median(times[0][1:]), statistics.median(times[1][1:])
