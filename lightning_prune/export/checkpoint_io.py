"""A Trainer's checkpoints as sparse files."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.plugins.io import TorchCheckpointIO
from lightning.pytorch.utilities import rank_zero_warn

from lightning_prune.export.extras import safetensors, zstandard
from lightning_prune.export.sparse_files import is_sparse_file, load_sparse, save_sparse
from lightning_prune.prune.warning import PruningWarning


class SparseCheckpointIO(TorchCheckpointIO):
    """Writes checkpoints by :func:`lightning_prune.export.save_sparse`: ``Trainer(plugins=[SparseCheckpointIO()])``.

    Pruned weights are zeros in the optimizer's states too, so all of a checkpoint shrinks. Resuming reads both these
    files and ordinary ones, to the last bit the same. ``LightningModule.load_from_checkpoint`` asks no plugins: it
    reads what ``python -m lightning_prune dense IN OUT`` makes of such a file.

    A checkpoint that holds more than tensors and plain values (often hyper-parameters that are objects), and one for a
    remote folder, is written as usual, the first with a warning.

    Args:
        compress: As for :func:`lightning_prune.export.save_sparse`.

    Raises:
        ModuleNotFoundError: If the extra ``export`` is not installed.

    Example:
        >>> SparseCheckpointIO().compress
        True
    """

    def __init__(self, compress: bool = True) -> None:
        super().__init__()
        safetensors()
        zstandard()  # before a fit, not at its first checkpoint
        self.compress = compress

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any | None = None) -> None:
        """Writes a checkpoint, whole or not at all.

        Args:
            checkpoint: Its contents.
            path: The file; missing folders are made.
            storage_options: None, as for Lightning's own.

        Raises:
            TypeError: If there are ``storage_options``.
            OSError: If the file cannot be written.
        """
        if storage_options is not None or _is_remote(path):
            super().save_checkpoint(checkpoint, path, storage_options)
            return
        os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
        try:
            save_sparse(checkpoint, path, compress=self.compress)
        except ValueError as error:
            message = f"'{os.fspath(path)}' is written as an ordinary checkpoint: {error}"
            rank_zero_warn(message, category=PruningWarning)
            super().save_checkpoint(checkpoint, path)

    def load_checkpoint(
        self,
        path: str | Path,
        map_location: Any | None = None,
        weights_only: bool | None = None,
    ) -> dict[str, Any]:
        """Reads a checkpoint of either kind.

        Args:
            path: The file.
            map_location: As for ``torch.load``; of a sparse file all tensors were on the CPU.
            weights_only: As for ``torch.load``; a sparse file holds nothing else.

        Raises:
            FileNotFoundError: If there is no such file.
            ValueError: If a sparse file is damaged.
        """
        if _is_remote(path) or not os.path.isfile(path) or not is_sparse_file(path):
            # Lightning before 2.6 does not know the argument, and asks for nothing by it.
            asked = {} if weights_only is None else {"weights_only": weights_only}
            return super().load_checkpoint(path, map_location, **asked)
        return load_sparse(path, device=_device(map_location))


def _device(map_location: Any) -> torch.device:
    if isinstance(map_location, Mapping):
        map_location = map_location.get("cpu", "cpu")
    return torch.device("cpu" if map_location is None or callable(map_location) else map_location)


def _is_remote(path: str | os.PathLike[str]) -> bool:
    return "://" in os.fspath(path)
