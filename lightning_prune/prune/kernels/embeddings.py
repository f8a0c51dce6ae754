"""What embeddings need besides a masked read: gradients of rows alone, and rows of a bounded norm."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from lightning_prune.prune.kernels.masking import masked


def masked_rows(tensor: Tensor, mask: Tensor) -> Tensor:
    """``where(mask, tensor, 0)`` whose gradient may be sparse: masked rows of a row-sparse gradient.

    Args:
        tensor: Any tensor.
        mask: Boolean, or 0 and 1; its shape.

    Example:
        >>> weight, mask = torch.ones(3, 2, requires_grad=True), torch.tensor([[1, 0]] * 3)
        >>> torch.nn.functional.embedding(torch.tensor([2]), masked_rows(weight, mask), sparse=True).sum().backward()
        >>> weight.grad.to_dense().tolist()
        [[0.0, 0.0], [0.0, 0.0], [1.0, 0.0]]
    """
    return cast(Tensor, _MaskedRows.apply(tensor, mask))  # type: ignore[no-untyped-call]


class _MaskedRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, mask: Tensor) -> Tensor:
        ctx.save_for_backward(mask)
        return masked(tensor, mask)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (mask,) = ctx.saved_tensors
        if not gradient.is_sparse:
            return masked(gradient, mask), None
        gradient = gradient.coalesce()
        rows = gradient.indices()
        values = torch.where(mask[rows[0]] != 0, gradient.values(), 0)
        return torch.sparse_coo_tensor(rows, values, gradient.shape, is_coalesced=True, check_invariants=False), None


@torch.no_grad()
def renorm_rows(parameter: Tensor, mask: Tensor, rows: Tensor, max_norm: float, norm_type: float) -> None:
    """Shortens rows of a parameter, in place, whose masked values have a norm above the bound.

    Args:
        parameter: Two dimensions.
        mask: Boolean, its shape.
        rows: Numbers of the rows, in any shape and order.
        max_norm: The bound.
        norm_type: The p of the norm.

    Example:
        >>> weight = torch.tensor([[3.0, 4.0], [6.0, 8.0]])
        >>> renorm_rows(weight, torch.tensor([[True, True], [True, False]]), torch.tensor([1]), 3.0, 2.0)
        >>> weight.tolist()
        [[3.0, 4.0], [3.0, 4.0]]
    """
    rows = torch.unique(rows)
    norms = torch.linalg.vector_norm(masked(parameter[rows], mask[rows]), norm_type, dim=1)
    # a little shorter than the bound, as torch's own: the lookup finds nothing to do then
    factors = torch.where(norms > max_norm, max_norm / (norms + 1e-7), 1)
    parameter[rows] *= factors[:, None].to(parameter.dtype)
