"""The helpers of ``torch.nn.utils.prune`` by their own names, for methods written for it with the import replaced."""

from __future__ import annotations

from torch import Tensor

from lightning_prune.prune.amounts import canonical_amount, compute_nparams_to_prune, validate_pruning_amount
from lightning_prune.prune.checks import require_channels
from lightning_prune.prune.kernels.norms import channel_norms


def _validate_pruning_amount_init(amount: int | float) -> None:
    """Raises unless an amount is a fraction in [0, 1] or a count; TypeError for what is no number, else ValueError."""
    canonical_amount(amount)


def _validate_pruning_amount(amount: int | float, tensor_size: int) -> None:
    """Raises ValueError if a count is more than there is; see :func:`validate_pruning_amount`."""
    validate_pruning_amount(amount, tensor_size)


def _compute_nparams_toprune(amount: int | float, tensor_size: int) -> int:
    """The number of units to prune; see :func:`compute_nparams_to_prune`."""
    return compute_nparams_to_prune(amount, tensor_size)


def _validate_structured_pruning(t: Tensor) -> None:
    """Raises ValueError unless a tensor has channels: two dimensions or more."""
    require_channels(t, 0)


def _validate_pruning_dim(t: Tensor, dim: int) -> None:
    """Raises IndexError if a tensor has no such dimension."""
    if not -t.dim() <= dim < t.dim():
        raise IndexError(f"dim={dim} does not exist in a tensor of shape {tuple(t.shape)}")


def _compute_norm(t: Tensor, n: int | float | str, dim: int) -> Tensor:
    """The Ln norm of each channel along ``dim``."""
    return channel_norms(t, n, dim)
