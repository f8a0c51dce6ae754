"""Checkpoint files of any kind: read without executing code, shown as modules, written again."""

from __future__ import annotations

import contextlib
import copy
import os
import pickle
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO

import torch
from torch import Tensor, nn

from lightning_prune.checkpoint import to_dense
from lightning_prune.export import safetensors_format
from lightning_prune.export.finding import Found, Keys, find_state_dict, state_dicts
from lightning_prune.export.packing import flat_bytes, require_plain
from lightning_prune.export.sparse_files import is_sparse_file, load_sparse, opened, save_sparse
from lightning_prune.export.writing import replacing

_NO_FILE = "is not a file that torch.save wrote, or it is damaged"
_STATISTICS = ("running_mean", "running_var")
_DEEPEST = 100  # modules in modules; torch walks through them by recursion


def load(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Reads a checkpoint, tensors and plain values only, onto the CPU.

    Args:
        path: A file that ``torch.save``, :func:`lightning_prune.export.save_sparse` or safetensors wrote, or the folder
            of a distributed checkpoint, of which the model's state dict is read.

    Returns:
        Its contents: a state dict, or a checkpoint with one in it.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it is not such a file, holds other objects (which are not loaded, since that could run code),
            or holds no state dict.
        MemoryError: If there is not enough memory.
    """
    with _about(path):
        found = _read(path)
        find_state_dict(found)
    return found  # type: ignore[no-any-return]


def load_state_dict(path: str | os.PathLike[str]) -> Found:
    """The state dict of a checkpoint, dense: zeros under the masks of ``torch.nn.utils.prune``.

    Args:
        path: As for :func:`load`.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: As for :func:`load`, and if a tensor is not a plain dense one.
    """
    found = find_state_dict(load(path))
    with _about(path):
        for name, value in found.state.items():
            if isinstance(value, Tensor):
                _require_own_memory(name, value)
    return Found(to_dense(found.state), found.keys, found.others)


@dataclass(frozen=True)
class Converted:
    """What :func:`make_dense` did.

    Attributes:
        masks: How many tensors had a mask.
        keys: The keys that lead to the state dicts that had some; of one without masks, to the one that was found.
    """

    masks: int
    keys: tuple[Keys, ...]


def make_dense(
    source: str | os.PathLike[str], destination: str | os.PathLike[str], overwrite: bool = False
) -> Converted:
    """Writes a checkpoint again without masks, as ``torch.save`` does; everything but state dicts stays as it is.

    Args:
        source: A file as for :func:`load`: with the masks of ``torch.nn.utils.prune`` or of Lightning's
            ``ModelPruning`` in one or several state dicts, or without.
        destination: The new file, of safetensors if its name ends so. It appears whole or not at all.
        overwrite: Whether it may exist.

    Raises:
        FileNotFoundError: If there is no such file.
        FileExistsError: If the new file exists.
        ValueError: As for :func:`load`.
        OSError: If the new file cannot be written.
    """
    require_new(destination, overwrite)
    contents, masks, keys = load(source), 0, []
    for path, state in list(state_dicts(contents)) or [((), contents)]:
        dense = to_dense(state)
        if len(dense) < len(state):
            contents, masks = _with(contents, path, dense), masks + len(state) - len(dense)
            keys.append(path)
    save(contents, destination)
    return Converted(masks, tuple(keys) or (find_state_dict(contents).keys,))


def make_sparse(source: str | os.PathLike[str], destination: str | os.PathLike[str], overwrite: bool = False) -> Found:
    """Writes a checkpoint again by :func:`lightning_prune.export.save_sparse`.

    Args:
        source: A file as for :func:`load`.
        destination: The new file. It appears whole or not at all.
        overwrite: Whether it may exist.

    Returns:
        The state dict that was found in it.

    Raises:
        FileNotFoundError: If there is no such file.
        FileExistsError: If the new file exists.
        ValueError: As for :func:`load`.
        OSError: If the new file cannot be written.
    """
    require_new(destination, overwrite)
    contents = load(source)
    save_sparse(contents, destination)
    return find_state_dict(contents)


def require_new(destination: str | os.PathLike[str], overwrite: bool) -> None:
    """Refuses a file that exists, a link to one too, unless it may be overwritten.

    Raises:
        FileExistsError: If it exists.
    """
    if os.path.exists(destination) and not overwrite:
        raise FileExistsError(f"'{os.fspath(destination)}' exists; choose another name or ask to overwrite it")


def save(contents: Mapping[str, Any], destination: str | os.PathLike[str]) -> None:
    """Writes by ``torch.save``, or by safetensors to a name that ends in ``.safetensors``, whole or not at all.

    Raises:
        ValueError: If safetensors cannot hold the contents.
        OSError: If the file cannot be written.
    """
    if os.fspath(destination).endswith(".safetensors"):
        _save_safetensors(contents, destination)
        return
    with replacing(destination) as temporary, open(temporary, "wb") as file:
        remembering = _Remembering(file)
        torch.save(contents, remembering)  # type: ignore[arg-type]
        if remembering.error is not None:
            raise remembering.error


def module_of(state_dict: Mapping[str, Any]) -> nn.Module:
    """A module of modules that holds the weights of a state dict as its parameters, shared ones shared, none copied.

    Args:
        state_dict: Values by full name. Integers, values that are no tensors and the running statistics of norms are
            left out. Floats of a byte, of which torch counts no zeros, become 32-bit ones.

    Example:
        >>> [name for name, _ in module_of({"0.weight": torch.ones(2, 2), "epoch": 3}).named_parameters()]
        ['0.weight']
    """
    root = nn.Module()
    shared: dict[tuple[Any, ...], nn.Parameter] = {}
    for full_name, value in state_dict.items():
        *path, name = str(full_name).split(".", _DEEPEST)
        if not isinstance(value, Tensor) or name in _STATISTICS:
            continue
        if not (value.is_floating_point() or value.is_complex()):
            continue
        module = root
        for part in path:
            # Not add_module: a layer may be called as a method of nn.Module is.
            module = module._modules.setdefault(part, nn.Module())  # type: ignore[assignment]
        place = (value.untyped_storage().data_ptr(), value.storage_offset(), value.shape, value.stride(), value.dtype)
        if place not in shared:
            shared[place] = nn.Parameter(value.float() if value.dtype.itemsize == 1 else value, requires_grad=False)
        module._parameters[name] = shared[place]
    return root


@contextlib.contextmanager
def _about(path: str | os.PathLike[str]) -> Iterator[None]:
    """Says of which file an error is."""
    name = f"'{os.fspath(path)}'"
    try:
        yield
    except ValueError as error:
        raise ValueError(str(error) if str(error).startswith(name) else f"{name} {error}") from None


def _read(path: str | os.PathLike[str]) -> Any:
    if os.path.isdir(path):
        return _read_folder(path)
    if not os.path.isfile(path):
        raise FileNotFoundError(f"there is no file '{os.fspath(path)}'")
    if _is_safetensors(path):
        return load_sparse(path) if is_sparse_file(path) else _read_safetensors(path)
    _require_no_archive(path)
    if not _is_pickle_or_archive(path):
        raise ValueError(_NO_FILE)
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise ValueError(_refusal(error)) from None
    except (OSError, MemoryError):
        raise
    except Exception as error:  # what bytes that are no file of torch lead to is anybody's guess
        if "allocate memory" in str(error) or "not enough memory" in str(error):
            raise MemoryError(f"there is not enough memory for '{os.fspath(path)}'") from None
        raise ValueError(_NO_FILE) from error


def _is_pickle_or_archive(path: str | os.PathLike[str]) -> bool:
    """Whether a file begins as all files of ``torch.save`` do, the old kind and the new one."""
    with open(path, "rb") as file:
        return file.read(2) in (b"PK", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")


def _read_folder(path: str | os.PathLike[str]) -> dict[str, Any]:
    from lightning_prune.export.folders import is_distributed, load_folder

    if not is_distributed(path):
        raise ValueError("is a folder, and not a distributed checkpoint: it has no file '.metadata'")
    return load_folder(path)


def _is_safetensors(path: str | os.PathLike[str]) -> bool:
    with open(path, "rb") as file:
        start = file.read(9)
    return start[8:] == b"{" and int.from_bytes(start[:8], "little") < os.path.getsize(path)


def _read_safetensors(path: str | os.PathLike[str]) -> dict[str, Any]:
    with opened(path) as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118, not a mapping


def _require_no_archive(path: str | os.PathLike[str]) -> None:
    """Torch stores tensors as they are: a zip file that is larger inside is none of its files."""
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
    except (zipfile.BadZipFile, ValueError, NotImplementedError):
        return
    inside, outside = sum(entry.file_size for entry in entries), os.path.getsize(path)
    if inside > outside:
        raise ValueError(f"has {outside:,} bytes and {inside:,} when it is unpacked; torch.save compresses nothing")
    if any(entry.filename.endswith("/constants.pkl") for entry in entries):
        raise ValueError("is a TorchScript archive, a program; save its state_dict() with torch.save")


def _require_own_memory(name: str, value: Tensor) -> None:
    try:
        require_plain(value)
    except ValueError as error:
        raise ValueError(f"has a tensor '{name}' of which no zeros can be counted: {error}") from None
    size, memory = value.numel() * value.dtype.itemsize, value.untyped_storage().nbytes()
    if size > memory:
        raise ValueError(
            f"has a tensor '{name}' of shape {tuple(value.shape)} that is expanded: {memory:,} bytes stand for {size:,}"
        )


def _save_safetensors(contents: Mapping[str, Any], destination: str | os.PathLike[str]) -> None:
    others = [name for name, value in contents.items() if not isinstance(value, Tensor)]
    if others:
        raise ValueError(f"safetensors files hold tensors only, and '{others[0]}' is none; choose another name")
    parts = {}
    for name, value in contents.items():
        layout, flat = flat_bytes(value.contiguous())
        if layout.dtype not in safetensors_format.DTYPES:
            raise ValueError(f"safetensors files hold no {layout.dtype}, which '{name}' is of; choose another name")
        parts[name] = (layout.dtype, layout.shape, flat)
    with replacing(destination) as temporary, open(temporary, "wb") as file:
        safetensors_format.write(file, parts, {"format": "pt"})


def _with(contents: Mapping[str, Any], keys: Keys, state: Mapping[str, Any]) -> Any:
    """The contents with another state dict at a place; nothing is changed."""
    if not keys:
        return state
    changed: Any = copy.copy(contents)
    place = next(key for key in contents if str(key) == keys[0])
    changed[place] = _with(contents[place], keys[1:], state)
    return changed


class _Remembering:
    """A file that remembers the error of a write: torch ends the process where it may not go on."""

    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        self.error: OSError | None = None

    def write(self, data: bytes) -> int:
        """Writes, as long as that works."""
        if self.error is None:
            try:
                self.file.write(data)
            except OSError as error:
                self.error = error
        return len(data)

    def flush(self) -> None:
        """Writes what waits."""
        try:
            self.file.flush()
        except OSError as error:
            self.error = self.error or error


def _refusal(error: Exception) -> str:
    text = str(error)
    if "GLOBAL" not in text and "Unsupported" not in text:
        return _NO_FILE
    reason = next((line for line in text.splitlines() if "GLOBAL" in line or "Unsupported" in line), "").strip()
    return (
        "holds more than tensors and plain values, and is not loaded since that could run code in it. Save it again "
        f"without such objects (in a Lightning checkpoint often hyper-parameters). torch says: {reason}"
    )
