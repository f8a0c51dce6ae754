"""What a sparse file holds: a table of all values, and the bytes of each tensor."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lightning_prune.export import safetensors_format
from lightning_prune.export.extras import zstandard
from lightning_prune.export.packing import Bytes, Layout, flat_bytes, require_plain, split_zeros, to_planes
from lightning_prune.export.tree import NotPlainError, encode

FORMAT = "lightning_prune.sparse"
"""Value of ``"format"`` in the metadata of these files."""

TABLE = "__lightning_prune__"
"""Name of the table in the file."""

_LEVEL = 1  # higher ones are slower and save nothing more: mantissas are noise


@dataclass(frozen=True)
class Part:
    """Bytes as they are in the file."""

    data: Bytes
    codec: str

    @property
    def crc32(self) -> int:
        """Their checksum."""
        return zlib.crc32(self.data.data)


@dataclass
class Writer:
    """Collects what the file will hold.

    Attributes:
        compress: Whether to compress.
        parts: Dtype, shape and bytes of the tensors of the safetensors file, by name.
        entries: What the table says of each tensor.
        numbers: The entries by memory.
        held: The tensors taken, so that no other one gets their memory meanwhile.
        metadata: What the header says beside the tensors.
    """

    compress: bool
    parts: dict[str, safetensors_format.Part] = field(default_factory=dict)
    entries: list[dict[str, Any]] = field(default_factory=list)
    numbers: dict[tuple[Any, ...], int] = field(default_factory=dict)
    held: list[Tensor] = field(default_factory=list)
    metadata: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, state: Mapping[str, Any], compress: bool) -> Writer:
        """The contents for a state.

        Raises:
            ValueError: If it holds something that cannot be written.
        """
        writer = cls(compress)
        table = writer._table(state)
        writer.parts[TABLE] = (torch.uint8, [len(table.data)], table.data)
        writer.metadata |= {"format": FORMAT, "version": "1", "table": table.codec, "crc32": f"{table.crc32:08x}"}
        return writer

    def _table(self, state: Mapping[str, Any]) -> Part:
        """Takes all tensors of a state, and describes it."""
        try:
            tree = encode(state if isinstance(state, dict) else dict(state), self.add)
            text = json.dumps({"tree": tree, "tensors": self.entries}, separators=(",", ":"))
        except RecursionError:
            raise NotPlainError("the values are nested too deep, or hold themselves") from None
        return self._part(np.frombuffer(text.encode("utf-8", "surrogatepass"), dtype=np.uint8))

    def add(self, name: str, tensor: Tensor) -> int:
        """Takes one tensor; gives its number, that of the first one with the same memory."""
        try:
            require_plain(tensor)
        except ValueError as error:
            raise ValueError(f"tensor '{name}' cannot be written: {error}") from None
        place = _place(tensor)
        if place in self.numbers:
            return self.numbers[place]
        self.held.append(tensor)
        layout, flat = flat_bytes(tensor)
        if layout.entries:
            self.numbers[place] = len(self.entries)
        self.entries.append({"name": name, **layout.to_json(), **self._stored(name, layout, flat)})
        return len(self.entries) - 1

    def _stored(self, name: str, layout: Layout, flat: Bytes) -> dict[str, Any]:
        itemsize = layout.dtype.itemsize
        split = split_zeros(flat, itemsize)
        if split is not None:
            return {
                split.coding: self._put(f"{name}.{split.coding}", self._part(split.places)),
                "values": self._put(f"{name}.values", self._part(split.values, itemsize)),
            }
        part = self._part(flat, itemsize)
        return {"values": self._put(name, part, layout if part.codec == "raw" else None)}

    def _part(self, data: Bytes, itemsize: int = 1) -> Part:
        if self.compress:
            planes = to_planes(data, itemsize) if itemsize > 1 else data
            small = np.frombuffer(zstandard().ZstdCompressor(level=_LEVEL).compress(planes), dtype=np.uint8)
            if len(small) < len(data):
                return Part(small, "zstd")
        return Part(data, "raw")

    def _put(self, name: str, part: Part, layout: Layout | None = None) -> list[Any]:
        """Gives the bytes a name in the file; those of whole tensors as tensors, where safetensors has such."""
        name = name.encode("utf-8", "replace").decode()
        while name in self.parts or name in (TABLE, "__metadata__"):
            name += "+"
        if layout is not None and layout.natural and layout.dtype in safetensors_format.DTYPES:
            self.parts[name] = (layout.dtype, layout.shape, part.data)
        else:
            self.parts[name] = (torch.uint8, [len(part.data)], part.data)
        return [name, part.codec, part.crc32]


def _place(tensor: Tensor) -> tuple[Any, ...]:
    """The same for tensors that are the same memory."""
    kind = (tensor.dtype, tensor.device, tensor.is_conj(), tensor.is_neg())
    return (tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), *kind)
