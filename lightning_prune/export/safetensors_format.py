"""Writes safetensors files straight into an open file.

The package's own writer makes a temporary file of its own, which stays where the process is killed. The format: the
size of the header in 8 bytes, the header as JSON, padded by spaces to a multiple of 8, the tensors' bytes without gaps.
See https://github.com/huggingface/safetensors#format.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import BinaryIO

import torch

from lightning_prune.export.packing import Bytes

DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.complex64: "C64",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint64: "U64",
    torch.uint32: "U32",
    torch.uint16: "U16",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
"""The names that the format has for dtypes."""

Part = tuple[torch.dtype, Sequence[int], Bytes]
"""Dtype, shape and bytes of a tensor."""


def write(file: BinaryIO, parts: Mapping[str, Part], metadata: Mapping[str, str]) -> None:
    """Writes a file.

    Args:
        file: Where to, open for writing.
        parts: The tensors by name, their dtypes among :data:`DTYPES`.
        metadata: What the header says beside them.

    Raises:
        OSError: If it cannot be written.
    """
    # The widest entries first: so all begin where their dtype may begin in memory.
    order = sorted(parts, key=lambda name: -parts[name][0].itemsize)
    header: dict[str, object] = {"__metadata__": dict(metadata)}
    end = 0
    for name in order:
        dtype, shape, data = parts[name]
        header[name] = {"dtype": DTYPES[dtype], "shape": list(shape), "data_offsets": [end, end + len(data)]}
        end += len(data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    file.write(len(text).to_bytes(8, "little") + text)
    for name in order:
        file.write(parts[name][2].data)
