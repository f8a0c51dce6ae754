"""Checkpoints that are folders: what several devices wrote together, read on one without executing code."""

from __future__ import annotations

import io
import os
import pickle
import warnings
from typing import Any

import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta, TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load

from lightning_prune.export.finding import find_state_dict

_MODULES = ("torch.distributed.checkpoint.metadata", "torch.distributed.checkpoint.filesystem")
_NAMES = (
    *(("torch", "Size"), ("torch", "device"), ("torch.serialization", "_get_layout"), ("collections", "OrderedDict")),
    *(("pathlib", "PosixPath"), ("pathlib", "Path"), ("pathlib", "WindowsPath"), ("pathlib", "PurePosixPath")),
)


def is_distributed(path: str | os.PathLike[str]) -> bool:
    """Whether a path is a folder that ``torch.distributed.checkpoint`` wrote."""
    return os.path.isfile(os.path.join(path, ".metadata"))


def load_folder(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Reads the model's state dict of a distributed checkpoint onto the CPU of this process.

    Optimizer states and all other tensors stay on the disk.

    Args:
        path: The folder.

    Returns:
        The state dict in the nesting it was found in.

    Raises:
        ValueError: If the folder is damaged, holds no state dict, or its index holds anything but an index.
    """
    reader = _Reader(path)
    metadata = reader.read_metadata()
    keys = {name: tuple(map(str, found)) for name, found in (metadata.planner_data or {}).items()}
    tree: dict[str, Any] = {}
    for name, stored in metadata.state_dict_metadata.items():
        _put(tree, keys.get(name, (name,)), _empty(stored))
    found = find_state_dict(tree)
    wanted = {
        name: torch.empty(stored.size, dtype=stored.properties.dtype)
        for name, stored in metadata.state_dict_metadata.items()
        if isinstance(stored, TensorStorageMetadata) and keys.get(name, (name,))[: len(found.keys)] == found.keys
    }
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*torch.distributed is disabled.*")  # that is what one process is
            load(wanted, storage_reader=reader, no_dist=True)
    except CheckpointException as error:
        (reason, _), *_ = error.failures.values()
        raise ValueError(f"is damaged: {type(reason).__name__}: {reason}") from error
    result: dict[str, Any] = {}
    for name, value in wanted.items():
        _put(result, keys.get(name, (name,)), value)
    return result


class _Reader(FileSystemReader):
    """Reads the index, which is a pickle, without calling what it names."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        with open(os.path.join(self.path, ".metadata"), "rb") as file:
            try:
                found = _Unpickler(io.BytesIO(file.read())).load()
            except ValueError:
                raise
            except Exception as error:  # whatever damaged bytes lead to
                raise ValueError(f"has a damaged index: {error}") from error
        if not isinstance(found, Metadata):
            raise ValueError(f"has an index that is a {type(found).__name__}")
        found.storage_meta = found.storage_meta or StorageMeta()
        found.storage_meta.load_id = self.load_id
        return found


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if module == "torch" and isinstance(getattr(torch, name, None), (torch.dtype, torch.layout)):
            return getattr(torch, name)
        allowed = (module, name) in _NAMES or (module in _MODULES and "." not in name and _is_record(module, name))
        if not allowed:
            raise ValueError(f"has an index that names {module}.{name}, which could run code, and is not loaded")
        return super().find_class(module, name)


def _is_record(module: str, name: str) -> bool:
    """Whether a name is that of a class of torch's own index, not of something that its module imports."""
    found = getattr(__import__(module, fromlist=[name]), name, None)
    return isinstance(found, type) and found.__module__ == module and not issubclass(found, FileSystemReader)


def _empty(stored: Any) -> Any:
    if isinstance(stored, TensorStorageMetadata):
        return torch.empty(stored.size, dtype=stored.properties.dtype, device="meta")
    return None


def _put(tree: dict[str, Any], keys: tuple[str, ...], value: Any) -> None:
    *path, last = keys
    for key in path:
        tree = tree.setdefault(key, {})
    tree[last] = value
