"""Floating-point operations of a forward pass, and how many of them are left without the zeros.

They are counted by ``torch.utils.flop_counter.FlopCounterMode``: matrix products, convolutions and attention, two
operations for each multiply-add. In a product with a parameter, or with a part of one, a multiply-add is left for each
weight that is not zero: the operations of that call are multiplied by the density of just the entries it reads.
Products of activations (the scores of attention) stay as they are. Zeros in activations are not looked at, so what
follows from a dead channel in the next layer is not counted as saved.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from lightning_prune.metrics.base import PruningMetric
from lightning_prune.prune.sharded.tensors import is_sharded
from lightning_prune.prune.whole_model import remove_all

Inputs = Tensor | tuple[Any, ...]


class FLOPs(NamedTuple):
    """Operations of one forward pass.

    Attributes:
        effective: Without multiply-adds with weights that are zero.
        dense: With all of them.
    """

    effective: int
    dense: int


def effective_flops(model: nn.Module, inputs: Inputs) -> FLOPs:
    """Floating-point operations of one forward pass, all and those with nonzero weights.

    Args:
        model: Any module. A copy runs in evaluation mode, without gradients; the module stays as it is.
        inputs: What it is called with: a tensor or a tuple of arguments, on the model's device.

    Returns:
        Both numbers. A theoretical count, not a speed: dense kernels multiply by zeros as well. Weights that the
        forward changes before it uses them (casts under autocast, weight norms) count as dense.

    Raises:
        ValueError: If a parameter is split over ranks.

    Example:
        >>> from lightning_prune.prune import l1_unstructured
        >>> layer = l1_unstructured(nn.Linear(8, 4), "weight", amount=24)  # 8 of 32 weights left
        >>> effective_flops(layer, torch.ones(10, 8))
        FLOPs(effective=160, dense=640)
    """
    for name, parameter in model.named_parameters():
        if is_sharded(parameter):
            raise ValueError(
                f"'{name}' is split over ranks, and its operations are those of a whole tensor: load a checkpoint into "
                "the plain model and count there"
            )
    plain = remove_all(copy.deepcopy(model)).eval()
    memory = {p.untyped_storage().data_ptr() for p in plain.parameters() if p.numel()}
    dense: list[int] = []
    counter = FlopCounterMode(display=False)
    counter.flop_registry = {op: _scaled(f, memory, dense) for op, f in counter.flop_registry.items()}
    with _basic_kernels(), torch.no_grad(), counter:
        plain(*inputs) if isinstance(inputs, tuple) else plain(inputs)
    return FLOPs(counter.get_total_flops(), sum(dense))


def _scaled(formula: Callable[..., int], memory: set[int], dense: list[int]) -> Callable[..., int]:
    """A formula that multiplies by the density of operands that lie in the memory of parameters."""

    def count(*args: Any, out_val: Any = None, **kwargs: Any) -> int:
        flops = formula(*args, out_val=out_val, **kwargs)
        dense.append(flops)
        for operand in args:
            if isinstance(operand, Tensor) and operand.dim() > 1 and operand.untyped_storage().data_ptr() in memory:
                flops = flops * int(operand.count_nonzero()) // operand.numel()
        return flops

    return count


@contextmanager
def _basic_kernels() -> Iterator[None]:
    """Fused kernels off: their products are then seen one by one, those of recurrent layers and attention too."""
    fast = torch.backends.mha.get_fastpath_enabled()
    onednn = torch.backends.mkldnn.enabled
    with ExitStack() as stack:
        stack.callback(torch.backends.mha.set_fastpath_enabled, fast)
        stack.callback(setattr, torch.backends.mkldnn, "enabled", onednn)
        torch.backends.mha.set_fastpath_enabled(False)
        torch.backends.mkldnn.enabled = False  # type: ignore[assignment]
        stack.enter_context(torch.backends.cudnn.flags(enabled=False))
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        yield


class EffectiveFLOPs(PruningMetric):
    """Operations of a forward pass with nonzero weights; see :func:`effective_flops`.

    Args:
        relative: Give the share of the dense model's operations instead of their number.
        kwargs: Arguments of ``torchmetrics.Metric``.

    Example:
        >>> from lightning_prune.prune import l1_unstructured
        >>> layer = l1_unstructured(nn.Linear(8, 4), "weight", amount=24)
        >>> EffectiveFLOPs()(layer, torch.ones(10, 8)), EffectiveFLOPs(relative=True)(layer, torch.ones(10, 8))
        (tensor(160), tensor(0.2500))
    """

    higher_is_better = False
    plot_lower_bound = 0.0
    effective: Tensor
    dense: Tensor
    models: Tensor

    def __init__(self, relative: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.relative = relative
        for name in ("effective", "dense", "models"):
            self.add_state(name, torch.tensor(0), dist_reduce_fx="sum")

    def update(self, model: nn.Module, inputs: Inputs) -> None:
        """Counts the operations of a model.

        Args:
            model: Any module.
            inputs: A tensor or a tuple of arguments; by name (``inputs=``) in a ``MetricCollection``.
        """
        effective, dense = effective_flops(model, inputs)
        self.effective, self.dense, self.models = self.effective + effective, self.dense + dense, self.models + 1

    def compute(self) -> Tensor:
        """Operations of a forward pass, int64, over several the mean, rounded down; or their share in [0, 1]."""
        if self.relative:
            return self.effective / self.dense.clamp(min=1)
        return self.effective // self.models.clamp(min=1)
