"""What zeros are worth: files and models made of pruned ones.

A name is imported when it is first used: neither Lightning nor an extra (``export``, ``shrink``) is needed before.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lightning_prune.export.checkpoint_io import SparseCheckpointIO
    from lightning_prune.export.shrink_channels import shrink
    from lightning_prune.export.shrink_files import load, save
    from lightning_prune.export.shrink_report import ShrinkReport
    from lightning_prune.export.sparse_files import load_sparse, save_sparse
    from lightning_prune.export.sparse_models import sparse_linear

_HOMES = {
    "ShrinkReport": "shrink_report",
    "SparseCheckpointIO": "checkpoint_io",
    "load": "shrink_files",
    "load_sparse": "sparse_files",
    "save": "shrink_files",
    "save_sparse": "sparse_files",
    "sparse_linear": "sparse_models",
    "shrink": "shrink_channels",
}

__all__ = [
    "ShrinkReport",
    "SparseCheckpointIO",
    "load",
    "load_sparse",
    "save",
    "save_sparse",
    "shrink",
    "sparse_linear",
]


def __getattr__(name: str) -> Any:
    """Imports a public name when it is first used."""
    if name not in _HOMES:
        raise AttributeError(f"module 'lightning_prune.export' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"lightning_prune.export.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """All public names."""
    return sorted({*globals(), *__all__})
