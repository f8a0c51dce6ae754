"""Checkpoint files: read without executing code, shown as modules, made dense."""

from __future__ import annotations

import os
import pickle
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from lightning_prune.checkpoint import to_dense

_NO_FILE = "is not a file that torch.save wrote, or it is damaged"
_STATISTICS = ("running_mean", "running_var")


def load(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Reads a file that ``torch.save`` wrote, tensors and plain values only, onto the CPU.

    Args:
        path: The file.

    Returns:
        Its contents: a state dict, or a checkpoint with one under ``"state_dict"``.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it is not such a file, holds other objects (which are not loaded, since that could run code),
            or holds no tensors.
    """
    if not os.path.isfile(path):
        raise FileNotFoundError(f"there is no file '{path}'")
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise ValueError(f"'{path}' {_refusal(error)}") from None
    except Exception as error:  # what bytes that are no file of torch lead to is anybody's guess
        raise ValueError(f"'{path}' {_NO_FILE}") from error
    if not isinstance(found, Mapping) or not any(isinstance(value, Tensor) for value in _state_of(found).values()):
        raise ValueError(
            f"'{path}' holds no state dict: wanted are tensors by name, or a Lightning checkpoint with 'state_dict'; "
            f"found was {_describe(found)}"
        )
    return dict(found)


def load_state_dict(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The state dict of a file, dense: zeros under the masks of ``torch.nn.utils.prune``.

    Args:
        path: As for :func:`load`.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: As for :func:`load`.
    """
    return to_dense(_state_of(load(path)))


def make_dense(source: str | os.PathLike[str], destination: str | os.PathLike[str], overwrite: bool = False) -> int:
    """Writes a file again without masks; everything but the state dict stays as it is.

    Args:
        source: A file with the masks of ``torch.nn.utils.prune`` or of Lightning's ``ModelPruning``.
        destination: The new file. It appears whole or not at all.
        overwrite: Whether it may exist.

    Returns:
        The number of tensors that had a mask.

    Raises:
        FileNotFoundError: If there is no such file.
        FileExistsError: If the new file exists.
        ValueError: As for :func:`load`.
    """
    if os.path.exists(destination) and not overwrite:
        raise FileExistsError(f"'{destination}' exists; choose another name or ask to overwrite it")
    found = load(source)
    pruned = _state_of(found)
    dense = to_dense(pruned)
    _save({**found, "state_dict": dense} if pruned is not found else dense, destination)
    return len(pruned) - len(dense)


def module_of(state_dict: Mapping[str, Any]) -> nn.Module:
    """A module of modules that holds the weights of a state dict as its parameters, shared ones shared, none copied.

    Args:
        state_dict: Values by full name. Integers, values that are no tensors and the running statistics of norms are
            left out.

    Example:
        >>> [name for name, _ in module_of({"0.weight": torch.ones(2, 2), "epoch": 3}).named_parameters()]
        ['0.weight']
    """
    root = nn.Module()
    shared: dict[tuple[Any, ...], nn.Parameter] = {}
    for full_name, value in state_dict.items():
        *path, name = full_name.split(".")
        if not isinstance(value, Tensor) or name in _STATISTICS:
            continue
        if not (value.is_floating_point() or value.is_complex()):
            continue
        module = root
        for part in path:
            # Not add_module: a layer may be called as a method of nn.Module is.
            module = module._modules.setdefault(part, nn.Module())  # type: ignore[assignment]
        place = (value.untyped_storage().data_ptr(), value.storage_offset(), value.shape, value.stride())
        module._parameters[name] = shared.setdefault(place, nn.Parameter(value, requires_grad=False))
    return root


def _state_of(found: Mapping[str, Any]) -> Mapping[str, Any]:
    state = found.get("state_dict")
    return state if isinstance(state, Mapping) else found


def _refusal(error: Exception) -> str:
    text = str(error)
    if "GLOBAL" not in text and "Unsupported" not in text:
        return _NO_FILE
    reason = next((line for line in text.splitlines() if "GLOBAL" in line or "Unsupported" in line), "").strip()
    return (
        "holds more than tensors and plain values, and is not loaded since that could run code in it. Save it again "
        f"without such objects (in a Lightning checkpoint often hyper-parameters). torch says: {reason}"
    )


def _describe(found: Any) -> str:
    if not isinstance(found, Mapping):
        return f"a {type(found).__name__}"
    return f"a mapping with {', '.join(map(repr, list(found)[:8])) or 'nothing in it'}"


def _save(contents: Mapping[str, Any], destination: str | os.PathLike[str]) -> None:
    folder = os.path.dirname(os.path.abspath(destination))
    temporary = os.path.join(folder, f".{os.path.basename(destination)}.{os.getpid()}.part")
    try:
        torch.save(contents, temporary)
        os.replace(temporary, destination)
    except BaseException:
        if os.path.exists(temporary):
            os.unlink(temporary)
        raise
