"""Metrics that count the zeros of a model."""

from __future__ import annotations

import zlib
from typing import Any

import torch
from torch import Tensor, nn

from lightning_prune.metrics.base import PruningMetric
from lightning_prune.metrics.functional import count_zeros
from lightning_prune.targets.patterns import Patterns


class _Counting(PruningMetric):
    """Adds up zeros and weights, tensor by tensor, over all models it is shown.

    ``compute`` is over all updates since the last ``reset`` and over all processes, as in torchmetrics; calling the
    metric gives the value of the model it is called with.

    Args:
        parameters: Which tensors, as for :func:`lightning_prune.metrics.sparsity`.
        exclude: Which tensors not.
        kwargs: Arguments of ``torchmetrics.Metric``.
    """

    zeros: Tensor
    weights: Tensor
    models: Tensor
    selection: Tensor

    def __init__(self, parameters: Patterns = None, exclude: Patterns = None, **kwargs: Any) -> None:
        for value in (parameters, exclude):
            if isinstance(value, nn.Module):
                raise TypeError(
                    f"{type(self).__name__} is made without a model and then called with it: "
                    f"{type(self).__name__}()(model); to choose a module of the model give its name"
                )
        super().__init__(**kwargs)
        self.parameter_patterns, self.exclude = parameters, exclude
        self.names: list[str] = []
        self.add_state("zeros", torch.tensor(0), dist_reduce_fx="sum")
        self.add_state("weights", torch.tensor(0), dist_reduce_fx="sum")
        self.add_state("models", torch.tensor(0), dist_reduce_fx="sum")
        # MetricCollection merges metrics whose states are equal: this one tells other selections of equal size apart.
        self.add_state("selection", torch.tensor(0), dist_reduce_fx="max")

    def update(self, model: nn.Module) -> None:
        """Counts the zeros of a model.

        Args:
            model: Any module: dense, pruned, or with its pruning made permanent.

        Raises:
            ValueError: If the tensors are not those of the model counted before.
        """
        counts = count_zeros(model, self.parameter_patterns, self.exclude)
        if self.names not in ([], list(counts)):
            new = sorted({*counts} ^ {*self.names}) or list(counts)
            raise ValueError(f"this metric counts models with the same tensors; only one of two has {', '.join(new)}")
        self.names = list(counts)
        # A scalar before the first update becomes a vector with one entry for each tensor.
        self.zeros = self.zeros + torch.tensor([c.zeros for c in counts.values()], device=self.device)
        self.weights = self.weights + torch.tensor([c.weights for c in counts.values()], device=self.device)
        self.models = self.models + 1
        self.selection = self.selection.new_tensor(zlib.crc32("\n".join(self.names).encode()))


class Sparsity(_Counting):
    """Share of zeros over a model or a part of it; see :func:`lightning_prune.metrics.sparsity`.

    Args:
        parameters: Which tensors; all of the model by default.
        exclude: Which tensors not.
        kwargs: Arguments of ``torchmetrics.Metric``.

    Example:
        >>> from torch import nn
        >>> from lightning_prune.prune import l1_unstructured
        >>> metric = Sparsity()
        >>> metric(l1_unstructured(nn.Linear(3, 2), "weight", amount=4))
        tensor(0.5000)
        >>> metric(nn.Linear(3, 2)), metric.compute()
        (tensor(0.), tensor(0.2500))
    """

    plot_lower_bound = 0.0
    plot_upper_bound = 1.0

    def compute(self) -> Tensor:
        """Zeros over weights, a scalar in [0, 1]."""
        return self.zeros.sum() / self.weights.sum().clamp(min=1)


class SparsityPerTensor(_Counting):
    """Share of zeros of each tensor; see :func:`lightning_prune.metrics.sparsity_per_tensor`.

    Args:
        parameters: Which tensors; all of the model by default.
        exclude: Which tensors not.
        prefix: What keys begin with, as in ``"sparsity/0.weight"``.
        kwargs: Arguments of ``torchmetrics.Metric``.

    Example:
        >>> from torch import nn
        >>> from lightning_prune.prune import l1_unstructured
        >>> SparsityPerTensor(prefix="")(l1_unstructured(nn.Linear(4, 2), "weight", amount=4))
        {'weight': tensor(0.5000), 'bias': tensor(0.)}
    """

    plot_lower_bound = 0.0
    plot_upper_bound = 1.0

    def __init__(
        self, parameters: Patterns = None, exclude: Patterns = None, prefix: str = "sparsity/", **kwargs: Any
    ) -> None:
        super().__init__(parameters, exclude, **kwargs)
        self.prefix = prefix

    def compute(self) -> dict[str, Tensor]:
        """Zeros over weights by the full name of the tensor, scalars in [0, 1]; empty before the first update."""
        if not self.zeros.dim():
            return {}
        shares = self.zeros / self.weights.clamp(min=1)
        return {f"{self.prefix}{name}": share for name, share in zip(self.names, shares, strict=True)}


class NonzeroParameters(_Counting):
    """Number of weights that are not zero; see :func:`lightning_prune.metrics.nonzero_parameters`.

    Args:
        parameters: Which tensors; all of the model by default.
        exclude: Which tensors not.
        kwargs: Arguments of ``torchmetrics.Metric``.

    Example:
        >>> from torch import nn
        >>> from lightning_prune.prune import l1_unstructured
        >>> NonzeroParameters()(l1_unstructured(nn.Linear(3, 2), "weight", amount=4))
        tensor(4)
    """

    plot_lower_bound = 0.0

    def compute(self) -> Tensor:
        """Nonzero weights of a model, int64; over several models their mean, rounded down."""
        return (self.weights - self.zeros).sum() // self.models.clamp(min=1)


class CompressionRate(_Counting):
    """Weights over nonzero weights; see :func:`lightning_prune.metrics.compression_rate`.

    Args:
        parameters: Which tensors; all of the model by default.
        exclude: Which tensors not.
        kwargs: Arguments of ``torchmetrics.Metric``.

    Example:
        >>> from torch import nn
        >>> from lightning_prune.prune import l1_unstructured
        >>> CompressionRate()(l1_unstructured(nn.Linear(3, 2), "weight", amount=4))
        tensor(2.)
    """

    higher_is_better = True
    plot_lower_bound = 1.0

    def compute(self) -> Tensor:
        """A scalar of 1 or more; infinite if all weights are zero, 1 if there are none."""
        weights = self.weights.sum()
        return weights / (weights - self.zeros.sum()) if weights else torch.ones((), device=self.device)
