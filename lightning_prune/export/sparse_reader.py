"""A sparse file, looked at before memory is taken for what it says it holds."""

from __future__ import annotations

import contextlib
import json
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from lightning_prune.export.extras import zstandard
from lightning_prune.export.packing import Bytes, Layout, Split, from_planes, join_zeros, most_places, tensor_of
from lightning_prune.export.sparse_writer import FORMAT, TABLE
from lightning_prune.export.tree import decode

T = TypeVar("T")

_MANY = 1 << 20  # entries from which threads pay
_THREADS = 8  # each takes memory of its own while it works


@dataclass(frozen=True)
class Stored:
    """Bytes as they lie in the file, mapped, not copied.

    Attributes:
        data: The bytes.
        codec: ``"raw"`` or ``"zstd"``.
        crc32: Their checksum, as the table says.
        name: Their name in the file.
    """

    data: Bytes
    codec: str
    crc32: int
    name: str

    @property
    def size(self) -> int:
        """Bytes once they are decompressed, as their frame says."""
        return zstandard().frame_content_size(self.data.data) if self.codec == "zstd" else len(self.data)

    def check(self) -> None:
        """Compares the checksum.

        Raises:
            ValueError: If it is wrong.
        """
        if zlib.crc32(self.data.data) != self.crc32:
            raise ValueError(f"the checksum of '{self.name}' is wrong")

    def contents(self, itemsize: int = 1) -> Bytes:
        """The bytes, decompressed."""
        if self.codec == "raw":
            return self.data
        planes = _decompressed(self.data, self.size)
        return from_planes(planes, itemsize) if itemsize > 1 else planes


@dataclass(frozen=True)
class Entry:
    """What the file says of one tensor.

    Attributes:
        name: Its path in what was saved.
        layout: What it is.
        values: Its values.
        coding: How places of values are given: ``"bits"``, ``"gaps"``, or nothing if all values are stored.
        places: The places.
    """

    name: str
    layout: Layout
    values: Stored
    coding: str = ""
    places: Stored | None = None

    def check(self) -> None:
        """Looks at all bytes before memory is taken for the first one.

        Raises:
            ValueError: If checksums or sizes are wrong.
        """
        self.values.check()
        values, nbytes, shape = self.values.size, self.layout.nbytes, self.layout.shape
        if self.places is None:
            if values != nbytes:
                raise ValueError(f"its shape {shape} needs {nbytes:,} bytes, there are {values:,}")
            return
        self.places.check()
        places, most = self.places.size, most_places(self.coding, self.layout, values)
        if places > most or values > nbytes or (self.coding == "bits" and places < most):
            raise ValueError(
                f"its shape {shape} needs {most:,} bytes of {self.coding} and at most {nbytes:,} of values, there are "
                f"{places:,} and {values:,}"
            )

    def tensor(self) -> Tensor:
        """The tensor, in memory of its own.

        Raises:
            ValueError: If places and values do not fit each other.
        """
        values = self.values.contents(self.layout.dtype.itemsize)
        if self.places is not None:
            values = join_zeros(Split(self.places.contents(), self.coding, values), self.layout)
        elif self.values.codec == "raw" or not values.flags.writeable:
            values = values.copy()  # what lies in the file changes and goes with it
        return tensor_of(self.layout, values)


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
    parts = frozenset(file.keys())
    table = _table(file, parts, path)
    entries = []
    for plain in table["tensors"]:
        with _about(plain.get("name"), path):
            entries.append(_entry(file, parts, plain))
    _each(Entry.check, entries, path)
    _require_room(entries, path, max_bytes)
    tensors = [tensor.to(device) for tensor in _each(Entry.tensor, entries, path)]
    with _about(None, path):
        return decode(table["tree"], tensors.__getitem__)  # type: ignore[no-any-return]


def _each(work: Callable[[Entry], T], entries: Sequence[Entry], path: str) -> list[T]:
    """What comes out for each entry; of large files with as many threads as torch has."""

    def one(entry: Entry) -> T:
        with _about(entry.name, path):
            return work(entry)

    threads = min(torch.get_num_threads(), _THREADS, len(entries))
    if threads < 2 or sum(entry.layout.entries for entry in entries) < _MANY:
        return [one(entry) for entry in entries]
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(one, entries))


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


def _entry(file: Any, parts: frozenset[str], plain: dict[str, Any]) -> Entry:
    values, coding = (
        _stored(file, parts, *plain["values"]),
        next((word for word in ("bits", "gaps") if word in plain), ""),
    )
    places = _stored(file, parts, *plain[coding]) if coding else None
    return Entry(plain["name"], Layout.from_json(plain), values, coding, places)


def _stored(file: Any, parts: frozenset[str], name: str, codec: str, crc32: int) -> Stored:
    if name not in parts:
        raise ValueError(f"the file has no part '{name}'")
    if codec not in ("raw", "zstd"):
        raise ValueError(f"'{codec}' is no codec of this format")
    return Stored(file.get_tensor(name).contiguous().reshape(-1).view(torch.uint8).numpy(), codec, crc32, name)


def _table(file: Any, parts: frozenset[str], path: str) -> dict[str, Any]:
    metadata = file.metadata() or {}
    if metadata.get("format") != FORMAT or TABLE not in parts:
        raise ValueError(f"'{path}' is a safetensors file that save_sparse did not write")
    if metadata.get("version") != "1":
        raise ValueError(f"'{path}' is of version {metadata.get('version')!r}; this release reads version 1")
    with _about(None, path):
        stored = _stored(file, parts, TABLE, metadata["table"], int(metadata["crc32"], 16))
        stored.check()
        most = max(1 << 24, 100 * len(stored.data))
        if stored.size > most:
            raise ValueError(f"it has {stored.size:,} bytes when it is decompressed, allowed are {most:,}")
        table = json.loads(bytes(stored.contents()).decode("utf-8", "surrogatepass"))
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


def _decompressed(data: Bytes, size: int) -> Bytes:
    if size < 0:
        raise ValueError("its frame does not say its size")
    return np.frombuffer(zstandard().ZstdDecompressor().decompress(data), dtype=np.uint8)
