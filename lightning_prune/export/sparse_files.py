"""Small files of pruned models: packed bits and the values left, in a safetensors file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from lightning_prune.export import safetensors_format
from lightning_prune.export.extras import safetensors
from lightning_prune.export.sparse_reader import read
from lightning_prune.export.sparse_writer import FORMAT, Writer
from lightning_prune.export.writing import replacing


def save_sparse(
    model_or_state_dict: nn.Module | Mapping[str, Any], path: str | os.PathLike[str], *, compress: bool = True
) -> None:
    """Writes a state dict, or a whole checkpoint, so that its zeros take little room.

    A tensor is stored as one bit per entry and the entries that are not zero, wherever that is smaller than the tensor;
    the file is a safetensors file. At 32-bit weights that is ``(1 / 32 + 1 - sparsity)`` of the dense size before
    compression. Sharing is kept for tensors that are the same memory; those that only overlap are stored one by one.
    The file appears whole or not at all, and replaces one that is there.

    Args:
        model_or_state_dict: A module (its ``state_dict()`` is written), or a mapping of tensors and plain values,
            nested in any way, such as a Lightning checkpoint.
        path: The file.
        compress: Whether to compress bits and values with zstd. Otherwise dense tensors are ordinary entries of the
            file under their own names, which any reader of safetensors understands.

    Raises:
        ValueError: If a value is neither a plain dense tensor, nor one quantized to bytes with one scale (as those of
            ``quantize_dynamic`` are), nor a plain value. Nothing was written then.
        OSError: If the file cannot be written; what was there is there still.
        ModuleNotFoundError: If the extra ``export`` is not installed.

    Example:
        >>> import tempfile
        >>> path = os.path.join(tempfile.mkdtemp(), "model.safetensors")
        >>> weight = torch.zeros(1000)
        >>> weight[7] = -1.5
        >>> save_sparse({"weight": weight}, path)
        >>> os.path.getsize(path) < 1000, torch.equal(load_sparse(path)["weight"], weight)
        (True, True)
    """
    safetensors()  # who can write a file shall be able to read it
    state = model_or_state_dict.state_dict() if isinstance(model_or_state_dict, nn.Module) else model_or_state_dict
    contents = Writer.of(state, compress)
    with replacing(path) as temporary, open(temporary, "wb") as file:
        safetensors_format.write(file, contents.parts, contents.metadata)


def load_sparse(
    path: str | os.PathLike[str], *, device: torch.device | str = "cpu", max_bytes: int | None = None
) -> dict[str, Any]:
    """Reads what :func:`save_sparse` wrote, bit by bit the same.

    Nothing is unpickled. Checksums and sizes are looked at before memory is taken for tensors.

    Args:
        path: The file.
        device: Where the tensors shall be.
        max_bytes: The most memory that the tensors may take; that of the machine by default.

    Returns:
        The state dict or the checkpoint. Tensors that were the same memory are the same tensor.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it is not such a file, is damaged (the message names the tensor), or its tensors would take more
            memory than allowed.
        ModuleNotFoundError: If the extra ``export`` is not installed.
    """
    with opened(path) as file:
        return read(file, os.fspath(path), torch.device(device), _memory() if max_bytes is None else max_bytes)


def is_sparse_file(path: str | os.PathLike[str]) -> bool:
    """Whether :func:`save_sparse` wrote a file, by its first bytes."""
    with open(path, "rb") as file:
        size = int.from_bytes(file.read(8), "little")
        start = file.read(min(size, 4096))
    return start.startswith(b"{") and f'"{FORMAT}"'.encode() in start


def opened(path: str | os.PathLike[str]) -> Any:
    """A safetensors file, its header checked, none of its tensors read.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it is not a safetensors file, or is damaged.
    """
    open_safely = safetensors().safe_open
    if not os.path.isfile(path):
        raise FileNotFoundError(f"there is no file '{os.fspath(path)}'")
    try:
        return open_safely(path, framework="pt", device="cpu")
    except Exception as error:  # safetensors has one class for all errors, and lets others through
        raise ValueError(f"'{os.fspath(path)}' is not a safetensors file, or it is damaged: {error}") from None


def _memory() -> int:
    """The memory of this machine in bytes."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # not a Unix
        return 1 << 40
