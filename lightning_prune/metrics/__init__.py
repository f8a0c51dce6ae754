"""What pruning did to a model, as numbers: functions, and torchmetrics metrics of the same quantities.

All of them see a model as its forward does, so they work alike on dense models, on pruned ones in any layout, and on
models whose pruning was made permanent.
"""

from lightning_prune.metrics.counts import CompressionRate, NonzeroParameters, Sparsity, SparsityPerTensor
from lightning_prune.metrics.flops import EffectiveFLOPs, FLOPs, effective_flops
from lightning_prune.metrics.functional import (
    chance_overlap,
    compression_rate,
    mask_churn,
    mask_overlap,
    masks_of,
    nonzero_parameters,
    sparsity,
    sparsity_per_tensor,
)
from lightning_prune.metrics.overlap import MaskChurn, MaskOverlap

__all__ = [
    "CompressionRate",
    "EffectiveFLOPs",
    "FLOPs",
    "MaskChurn",
    "MaskOverlap",
    "NonzeroParameters",
    "Sparsity",
    "SparsityPerTensor",
    "chance_overlap",
    "compression_rate",
    "effective_flops",
    "mask_churn",
    "mask_overlap",
    "masks_of",
    "nonzero_parameters",
    "sparsity",
    "sparsity_per_tensor",
]
