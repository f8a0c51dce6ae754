"""Layers that hold the weights left as compressed sparse rows (CSR), for inference."""

from __future__ import annotations

import operator
import warnings
from typing import Any, cast

import torch
from torch import Tensor, nn

_NO_EXPORT = (
    "torch cannot export CSR tensors: export the dense model, before sparse_linear, or put "
    "SparseLinear.to_dense() back in place of the layer"
)


class _Rows(nn.Module):
    """A matrix as plain tensors: those of a CSR layout can be neither copied nor saved by torch."""

    rows: Tensor
    columns: Tensor
    values: Tensor

    def __init__(self, matrix: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.shape = (matrix.shape[0], matrix.shape[1])
        with warnings.catch_warnings():
            warnings.filterwarnings(
                "ignore", ".*Sparse CSR tensor support is in beta.*"
            )  # of it only a product is used
            compressed = matrix.detach().to_sparse_csr()
        index = torch.int32 if matrix.numel() < 2**31 else torch.int64
        self.register_buffer("rows", compressed.crow_indices().to(index))
        self.register_buffer("columns", compressed.col_indices().to(index))
        self.register_buffer("values", compressed.values().clone())  # not a view of a CSR tensor
        self.bias = None if bias is None else nn.Parameter(bias.detach().clone(), requires_grad=False)
        self._made: tuple[tuple[Tensor, ...], Tensor] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """All but the tensor that copies and pickles cannot hold."""
        return {**self.__dict__, "_made": None}

    def matrix(self) -> Tensor:
        """The matrix in torch's CSR layout, in the memory of the three tensors; made again where those are others."""
        held = (self.rows, self.columns, self.values)
        if self._made is None or any(map(operator.is_not, held, self._made[0])):
            with torch.inference_mode(False), torch.no_grad():
                self._made = (held, torch.sparse_csr_tensor(*held, self.shape, check_invariants=False))
        return self._made[1]

    def times(self, right: Tensor) -> Tensor:
        """The product with a dense vector or matrix, and the bias added to it, or to its columns."""
        exporting = getattr(torch.compiler, "is_exporting", bool)  # older releases, such as 2.6, do not have it
        if exporting() or torch.jit.is_tracing():  # type: ignore[attr-defined, no-untyped-call]
            raise RuntimeError(_NO_EXPORT)
        product, bias = self.matrix() @ right, self.bias
        return product if bias is None else product.add_(bias if right.dim() == 1 else bias.unsqueeze(1))

    def extra_repr(self) -> str:
        """Shape and number of values."""
        return f"{self.shape[1]}, {self.shape[0]}, values={self.values.numel()}, bias={self.bias is not None}"


class SparseLinear(_Rows):
    """``torch.nn.Linear`` with its weights as CSR, for inference on a CPU.

    Args:
        linear: The layer; its zeros are left out.

    Shape:
        ``(*, in_features)`` to ``(*, out_features)``.

    Raises:
        RuntimeError: Where it is traced by ``torch.export`` or for ONNX, which know no CSR.

    Example:
        >>> layer = nn.Linear(3, 2)
        >>> with torch.no_grad():
        ...     _ = layer.weight[:, 1:].zero_()
        >>> SparseLinear(layer)
        SparseLinear(3, 2, values=2, bias=True)
        >>> x = torch.randn(5, 4, 3)
        >>> torch.allclose(SparseLinear(layer)(x), layer(x), atol=1e-6)
        True
    """

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__(linear.weight, linear.bias)
        self.in_features, self.out_features = linear.in_features, linear.out_features

    @property
    def weight(self) -> Tensor:
        """The dense weights, made anew at each read."""
        return self.matrix().to_dense()

    def forward(self, inputs: Tensor) -> Tensor:
        """The layer's outputs."""
        if inputs.numel() == self.in_features > 0:  # torch has a faster way for a vector
            return self.times(inputs.reshape(-1)).view(*inputs.shape[:-1], self.out_features)
        flat = inputs.reshape(-1, self.in_features)
        return self.times(flat.t()).t().reshape(*inputs.shape[:-1], self.out_features)

    def to_dense(self) -> nn.Linear:
        """The layer as it was."""
        linear = nn.Linear(self.in_features, self.out_features, self.bias is not None, device="meta")
        return cast(nn.Linear, _filled(linear, self.weight, self.bias))


class SparseConv1x1(_Rows):
    """``torch.nn.Conv2d`` of 1 x 1 kernels, one group and no padding, with its weights as CSR, for inference on a CPU.

    Args:
        conv: The layer; its zeros are left out.

    Shape:
        ``(N, C, H, W)`` or ``(C, H, W)``, as for ``torch.nn.Conv2d``.

    Raises:
        RuntimeError: As for :class:`SparseLinear`.

    Example:
        >>> layer = nn.Conv2d(3, 2, 1, stride=2)
        >>> x = torch.randn(5, 3, 4, 6)
        >>> torch.allclose(SparseConv1x1(layer)(x), layer(x), atol=1e-6)
        True
    """

    def __init__(self, conv: nn.Conv2d) -> None:
        super().__init__(conv.weight.flatten(1), conv.bias)
        self.stride = (int(conv.stride[0]), int(conv.stride[1]))

    @property
    def weight(self) -> Tensor:
        """The dense weights, made anew at each read."""
        return self.matrix().to_dense()[:, :, None, None]

    def forward(self, inputs: Tensor) -> Tensor:
        """The layer's outputs."""
        if inputs.dim() == 3:
            return self.forward(inputs.unsqueeze(0)).squeeze(0)
        taken = inputs[:, :, :: self.stride[0], :: self.stride[1]].transpose(0, 1)
        product = self.times(taken.reshape(self.shape[1], -1))
        return product.view(self.shape[0], *taken.shape[1:]).transpose(0, 1)

    def to_dense(self) -> nn.Conv2d:
        """The layer as it was."""
        conv = nn.Conv2d(self.shape[1], self.shape[0], 1, self.stride, bias=self.bias is not None, device="meta")
        return cast(nn.Conv2d, _filled(conv, self.weight, self.bias))


def is_1x1(conv: nn.Conv2d) -> bool:
    """Whether a convolution is a product of its weights and each pixel, as :class:`SparseConv1x1` computes it."""
    return tuple(conv.kernel_size) == (1, 1) and conv.groups == 1 and conv.padding in (0, (0, 0), "valid")


def _filled(layer: nn.Module, weight: Tensor, bias: Tensor | None) -> nn.Module:
    state: dict[str, Any] = {"weight": weight} if bias is None else {"weight": weight, "bias": bias}
    layer.load_state_dict(state, assign=True)
    return layer
