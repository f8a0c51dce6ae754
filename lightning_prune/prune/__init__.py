"""The pruning engine: masks and reparameterization for plain PyTorch modules.

It has the public API of ``torch.nn.utils.prune`` and knows nothing of Lightning.
"""

from lightning_prune.prune.amounts import compute_nparams_to_prune, validate_pruning_amount
from lightning_prune.prune.base import BasePruningMethod, PruningContainer
from lightning_prune.prune.functional import (
    custom_from_mask,
    global_unstructured,
    identity,
    is_pruned,
    l1_unstructured,
    ln_blocks,
    ln_structured,
    n_m_structured,
    random_structured,
    random_unstructured,
    remove,
)
from lightning_prune.prune.methods import (
    CustomFromMask,
    Identity,
    L1Unstructured,
    LnStructured,
    RandomStructured,
    RandomUnstructured,
)
from lightning_prune.prune.patterned import LnBlocks, NMStructured
from lightning_prune.prune.torch_helpers import _compute_norm as _compute_norm
from lightning_prune.prune.torch_helpers import _compute_nparams_toprune as _compute_nparams_toprune
from lightning_prune.prune.torch_helpers import _validate_pruning_amount as _validate_pruning_amount
from lightning_prune.prune.torch_helpers import _validate_pruning_amount_init as _validate_pruning_amount_init
from lightning_prune.prune.torch_helpers import _validate_pruning_dim as _validate_pruning_dim
from lightning_prune.prune.torch_helpers import _validate_structured_pruning as _validate_structured_pruning
from lightning_prune.prune.whole_model import effective_parameters, pruned_tensors, remove_all, sparsity

__all__ = [
    "BasePruningMethod",
    "CustomFromMask",
    "Identity",
    "L1Unstructured",
    "LnBlocks",
    "LnStructured",
    "NMStructured",
    "PruningContainer",
    "RandomStructured",
    "RandomUnstructured",
    "compute_nparams_to_prune",
    "custom_from_mask",
    "effective_parameters",
    "global_unstructured",
    "identity",
    "is_pruned",
    "l1_unstructured",
    "ln_blocks",
    "ln_structured",
    "n_m_structured",
    "pruned_tensors",
    "random_structured",
    "random_unstructured",
    "remove",
    "remove_all",
    "sparsity",
    "validate_pruning_amount",
]
