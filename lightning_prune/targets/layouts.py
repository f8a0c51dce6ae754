"""Which dimension of a layer's tensors holds its output channels."""

from __future__ import annotations

from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

NORMS = (_NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)
EMBEDDINGS = (nn.Embedding, nn.EmbeddingBag)
_INPUTS_FIRST = (_ConvTransposeNd, *EMBEDDINGS)
_OUTPUTS_FIRST = (_ConvNd, nn.Linear, nn.Bilinear, nn.RNNBase, nn.RNNCellBase, nn.MultiheadAttention, *NORMS)
_OUTPUT_SIZES = ("out_features", "out_channels", "nf")
_INPUT_SIZES = ("in_features", "in_channels", "nx")


def output_dim(layer: nn.Module, shape: tuple[int, ...]) -> int | None:
    """The dimension that counts output channels, 0 or 1; ``None`` if that is not known.

    It is known of torch's layers and their subclasses, and of others that say how many inputs and outputs they have
    (``in_features`` and ``out_features``, ``in_channels`` and ``out_channels``, ``nx`` and ``nf`` of ``Conv1D`` in
    transformers, which stores inputs first), unless the two are equal.

    Args:
        layer: What holds the tensor.
        shape: Of the tensor.

    Example:
        >>> output_dim(nn.Linear(3, 4), (4, 3)), output_dim(nn.ConvTranspose1d(3, 4, 2), (3, 4, 2))
        (0, 1)
    """
    if isinstance(layer, _INPUTS_FIRST):
        return 1
    if isinstance(layer, _OUTPUTS_FIRST) or len(shape) < 2:
        return 0
    if type(layer).__name__ == "Conv1D" and shape[1] == getattr(layer, "nf", None):
        return 1
    sizes = _size(layer, _OUTPUT_SIZES), _size(layer, _INPUT_SIZES)
    if None in sizes or sizes[0] == sizes[1]:
        return None
    return 0 if shape[:2] == sizes else 1 if shape[1::-1] == sizes else None


def _size(layer: nn.Module, names: tuple[str, ...]) -> int | None:
    return next((n for name in names if isinstance(n := getattr(layer, name, None), int)), None)


def inputs_first_shape(layer: nn.Module) -> tuple[int, ...] | None:
    """Shape of a weight that has its inputs first, not read: that changes some parametrizations; else ``None``."""
    if isinstance(layer, EMBEDDINGS):
        return layer.num_embeddings, layer.embedding_dim
    if isinstance(layer, _ConvTransposeNd):
        return layer.in_channels, layer.out_channels // layer.groups, *layer.kernel_size
    return None
