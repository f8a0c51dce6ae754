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

from lightning_prune.export.sparse_layers import sparse_layer
from lightning_prune.prune.whole_model import remove_all
from lightning_prune.pruner.calling import call, difference, example_inputs_of, outputs

M = TypeVar("M", bound=nn.Module)

_FASTER = 0.95  # a gain of less than a twentieth is within the spread of such measurements
_TOLERANCE = 1e-5


@dataclass(frozen=True)
class SparseLayerTime:
    """What was measured of one layer.

    Attributes:
        name: Its name in the model.
        shape: Shape of its weights.
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

    Each ``Linear`` and each 1 x 1 ``Conv2d`` with zeros is called both ways, in turns, on what it gets when the model
    is called with the example inputs; the faster one is taken, the dense one within 5 %. What is faster depends on
    shape, share of zeros, batch, number of threads and machine: measure where the copy will run, with inputs of the
    size it will get. Should the whole copy not be faster, all layers stay dense.

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
    sparse = _replaced(dense, tuple(layer.name for layer in layers if layer.chosen))
    times = _in_turns(lambda: call(dense, inputs), lambda: call(sparse, inputs), repeats)
    if times[1] > times[0] or not any(layer.chosen for layer in layers):
        layers, sparse = [replace(layer, chosen=False) for layer in layers], copy.deepcopy(dense)
        times = (times[0], times[0])
    apart = difference(outputs(dense, inputs), outputs(sparse, inputs))
    return sparse, SparseLinearReport(tuple(layers), *times, apart)


def _measured(model: nn.Module, inputs: Any, repeats: int) -> list[SparseLayerTime]:
    found: list[SparseLayerTime] = []
    hooks = []
    for name, layer in model.named_modules():
        if isinstance(layer, (nn.Linear, nn.Conv2d)) and bool((layer.weight == 0).any()):
            made = sparse_layer(layer)
            if made is not None:
                hooks.append(layer.register_forward_pre_hook(_measuring(name, made, repeats, found)))
    with torch.inference_mode():
        call(model, inputs)
    for hook in hooks:
        hook.remove()
    return found


def _measuring(name: str, sparse: nn.Module, repeats: int, found: list[SparseLayerTime]) -> Callable[..., None]:
    """A hook that measures a layer at its first call, with the inputs that it has there."""

    def measure(layer: nn.Module, arguments: tuple[Any, ...]) -> None:
        if any(done.name == name for done in found) or not arguments:
            return
        dense = layer.forward
        apart = difference([dense(*arguments)], [sparse(*arguments)])
        slow, fast = _in_turns(lambda: dense(*arguments), lambda: sparse(*arguments), repeats)
        weight: Any = layer.weight
        zeros = 1 - int(weight.count_nonzero()) / weight.numel()
        chosen = fast < _FASTER * slow and apart <= _TOLERANCE
        found.append(SparseLayerTime(name, tuple(weight.shape), zeros, slow, fast, chosen, apart))

    return measure


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


def _replaced(model: M, names: tuple[str, ...]) -> M:
    changed = copy.deepcopy(model)
    places = list(changed.named_modules(remove_duplicate=False))
    for name in names:
        layer = changed.get_submodule(name)
        made = sparse_layer(layer)
        assert made is not None
        made.eval()
        if not name:
            return made  # type: ignore[return-value]
        for place, found in places:
            if found is layer:  # shared layers have several places
                parent, _, key = place.rpartition(".")
                setattr(changed.get_submodule(parent), key, made)
    return changed
