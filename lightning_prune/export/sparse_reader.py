"""A sparse file, looked at before memory is taken for what it says it holds."""

from __future__ import annotations

import contextlib
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lightning_prune.export.extras import zstandard
from lightning_prune.export.packing import Bytes, Layout, Split, from_planes, join_zeros, most_places, tensor_of
from lightning_prune.export.sparse_writer import FORMAT, TABLE
from lightning_prune.export.tree import decode


@dataclass(frozen=True)
class Entry:
    """What the table says of one tensor.

    Attributes:
        name: Its path in what was saved.
        layout: What it is.
        values: Name, codec and checksum of its values.
        coding: How places of values are given: ``"bits"``, ``"gaps"``, or nothing if all values are stored.
        places: Name, codec and checksum of the places.
    """

    name: str
    layout: Layout
    values: tuple[str, str, int]
    coding: str = ""
    places: tuple[str, str, int] = ("", "raw", 0)


def read(file: Any, path: str, device: torch.device, max_bytes: int) -> dict[str, Any]:
    """The contents of a file of this format.

    Args:
        file: The open safetensors file.
        path: Its name, for messages.
        device: Where its tensors shall be.
        max_bytes: The most memory that its tensors may take.

    Raises:
        ValueError: If it is not of this format, is damaged, or takes more memory.
    """
    table = _table(file, path)
    entries = []
    for plain in table["tensors"]:
        with _about(plain.get("name"), path):
            entries.append(_entry(plain))
    for entry in entries:
        with _about(entry.name, path):
            _check(file, entry)
    _require_room(entries, path, max_bytes)
    tensors = []
    for entry in entries:
        with _about(entry.name, path):
            tensors.append(_tensor(file, entry).to(device))
    with _about(None, path):
        return decode(table["tree"], tensors.__getitem__)  # type: ignore[no-any-return]


@contextlib.contextmanager
def _about(name: str | None, path: str) -> Iterator[None]:
    """Says of which tensor, or of the table, an error is: whatever bytes that fit their checksum may lead to."""
    try:
        yield
    except (ModuleNotFoundError, MemoryError):
        raise
    except Exception as error:
        what = "its table" if name is None else f"tensor '{name}'"
        raise ValueError(f"'{path}' is damaged, {what}: {error}") from error


def _entry(plain: dict[str, Any]) -> Entry:
    coding = next((word for word in ("bits", "gaps") if word in plain), "")
    places = (tuple(plain[coding]),) if coding else ()
    return Entry(plain["name"], Layout.from_json(plain), tuple(plain["values"]), coding, *places)


def _table(file: Any, path: str) -> dict[str, Any]:
    metadata = file.metadata() or {}
    if metadata.get("format") != FORMAT or TABLE not in file.keys():  # noqa: SIM118, not a mapping
        raise ValueError(f"'{path}' is a safetensors file that save_sparse did not write")
    if metadata.get("version") != "1":
        raise ValueError(f"'{path}' is of version {metadata.get('version')!r}; this release reads version 1")
    with _about(None, path):
        data = _bytes(file, (TABLE, metadata["table"], int(metadata["crc32"], 16)))
        most = max(1 << 24, 100 * len(data))
        text = _decompressed(data, None, most) if metadata["table"] == "zstd" else data
        table = json.loads(bytes(text).decode("utf-8", "surrogatepass"))
        if not (isinstance(table, dict) and isinstance(table["tensors"], list) and "tree" in table):
            raise ValueError("the table is none")
        return table


def _require_room(entries: list[Entry], path: str, max_bytes: int) -> None:
    total = sum(entry.layout.nbytes for entry in entries)
    if total > max_bytes:
        largest = max(entries, key=lambda entry: entry.layout.nbytes)
        raise ValueError(
            f"the tensors of '{path}' would take {total:,} bytes of memory, allowed are {max_bytes:,}; the largest is "
            f"'{largest.name}' of shape {largest.layout.shape}"
        )


def _check(file: Any, entry: Entry) -> None:
    """Looks at all bytes of a tensor before memory is taken for the first one."""
    parts = (entry.values, entry.places) if entry.coding else (entry.values,)
    for part in parts:
        _bytes(file, part)
    values, nbytes, shape = _size(file, entry.values), entry.layout.nbytes, entry.layout.shape
    if not entry.coding and values != nbytes:
        raise ValueError(f"its shape {shape} needs {nbytes:,} bytes, there are {values:,}")
    if entry.coding:
        places, most = _size(file, entry.places), most_places(entry.coding, entry.layout, values)
        if places > most or values > nbytes or (entry.coding == "bits" and places < most):
            raise ValueError(
                f"its shape {shape} needs {most:,} bytes of {entry.coding} and at most {nbytes:,} of values, there are "
                f"{places:,} and {values:,}"
            )


def _size(file: Any, part: tuple[str, str, int]) -> int:
    """Bytes of a part once it is decompressed, as its frame says."""
    data = _bytes(file, part, check=False)
    return zstandard().frame_content_size(data.data) if part[1] == "zstd" else len(data)


def _tensor(file: Any, entry: Entry) -> Tensor:
    layout = entry.layout
    values = _contents(file, entry.values, layout.dtype.itemsize)
    if entry.coding:
        values = join_zeros(Split(_contents(file, entry.places, 1), entry.coding, values), layout)
    elif entry.values[1] == "raw" or not values.flags.writeable:
        values = values.copy()  # what lies in the file changes and goes with it
    return tensor_of(layout, values)


def _contents(file: Any, part: tuple[str, str, int], itemsize: int) -> Bytes:
    data = _bytes(file, part, check=False)
    if part[1] == "raw":
        return data
    size = _size(file, part)
    planes = _decompressed(data, size, size)
    return from_planes(planes, itemsize) if itemsize > 1 else planes


def _bytes(file: Any, part: tuple[str, str, int], check: bool = True) -> Bytes:
    """Bytes of the file, mapped, not copied."""
    name, codec, crc32 = part
    if name not in file.keys():  # noqa: SIM118, not a mapping
        raise ValueError(f"the file has no part '{name}'")
    if codec not in ("raw", "zstd"):
        raise ValueError(f"'{codec}' is no codec of this format")
    data: Bytes = file.get_tensor(name).contiguous().reshape(-1).view(torch.uint8).numpy()
    if check and zlib.crc32(data.data) != crc32:
        raise ValueError(f"the checksum of '{name}' is wrong")
    return data


def _decompressed(data: Bytes, size: int | None, most: int) -> Bytes:
    says = zstandard().frame_content_size(data.data)
    if says < 0 or says > most or (size is not None and says != size):
        raise ValueError(f"{says:,} compressed bytes, wanted are {most:,}")
    return np.frombuffer(zstandard().ZstdDecompressor().decompress(data), dtype=np.uint8)
