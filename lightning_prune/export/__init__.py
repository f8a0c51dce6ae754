"""What zeros are worth: files and models made of pruned ones.

A name is imported when it is first used: neither Lightning nor the extra ``export`` is needed before.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lightning_prune.export.sparse_files import load_sparse, save_sparse

_HOMES = {
    "load_sparse": "sparse_files",
    "save_sparse": "sparse_files",
}

__all__ = ["load_sparse", "save_sparse"]


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
