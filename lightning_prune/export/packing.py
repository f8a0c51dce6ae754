"""One tensor as bytes: the bits of where it is not zero and the values left, or all values."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

Bytes = npt.NDArray[np.uint8]

_WORDS = {1: "u1", 2: "u2", 4: "u4", 8: "u8", 16: "c16"}
_PLAIN = (Tensor, nn.Parameter, nn.Buffer)


@dataclass(frozen=True)
class Layout:
    """What a tensor is apart from its bytes.

    Attributes:
        dtype: Its dtype.
        shape: Its shape.
        order: Its dimensions by falling stride: how its bytes follow each other.
        expanded: Dimensions of which one entry is stored, for all others are the same memory.
    """

    dtype: torch.dtype
    shape: tuple[int, ...]
    order: tuple[int, ...]
    expanded: tuple[int, ...] = ()

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """The shape that is stored."""
        return tuple(1 if dim in self.expanded else size for dim, size in enumerate(self.shape))

    @property
    def entries(self) -> int:
        """The number of entries that are stored."""
        return math.prod(self.stored_shape)

    @property
    def nbytes(self) -> int:
        """The bytes that the tensor takes in memory."""
        return self.entries * self.dtype.itemsize

    @property
    def natural(self) -> bool:
        """Whether the stored bytes are the tensor's, row by row."""
        return not self.expanded and self.order == tuple(range(len(self.shape)))

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        plain: dict[str, Any] = {"dtype": str(self.dtype).removeprefix("torch."), "shape": list(self.shape)}
        if self.order != tuple(range(len(self.shape))):
            plain["order"] = list(self.order)
        return {**plain, "expanded": list(self.expanded)} if self.expanded else plain

    @classmethod
    def from_json(cls, plain: dict[str, Any]) -> Layout:
        """From plain values.

        Raises:
            ValueError: If they are no layout.
        """
        dtype, shape = getattr(torch, str(plain.get("dtype")), None), plain.get("shape")
        if not isinstance(dtype, torch.dtype) or dtype.itemsize not in _WORDS:
            raise ValueError(f"torch knows no dtype {plain.get('dtype')!r}")
        if not (isinstance(shape, list) and all(type(size) is int and size >= 0 for size in shape)):
            raise ValueError(f"{shape!r} is no shape")
        order, expanded = plain.get("order", list(range(len(shape)))), plain.get("expanded", [])
        if sorted(order) != list(range(len(shape))) or not set(expanded) <= set(order):
            raise ValueError(f"order {order!r} or expanded dimensions {expanded!r} do not fit the shape {shape!r}")
        return cls(dtype, tuple(shape), tuple(order), tuple(expanded))


def require_plain(tensor: Tensor) -> None:
    """Refuses tensors that are more than an array of entries.

    Raises:
        ValueError: If it is sparse, quantized, nested, on the meta device, or of a subclass (as sharded tensors are).
    """
    kind = next(
        (
            word
            for word, found in (
                (f"of the class {type(tensor).__name__}", type(tensor) not in _PLAIN),
                ("on the meta device, without values", tensor.is_meta),
                ("nested", tensor.is_nested),
                (f"of the layout {tensor.layout}", tensor.layout != torch.strided),
                ("quantized", tensor.is_quantized),
            )
            if found
        ),
        None,
    )
    if kind is not None:
        raise ValueError(f"it is {kind}; only plain dense tensors can be written")


def flat_bytes(tensor: Tensor) -> tuple[Layout, Bytes]:
    """A tensor's layout, and its bytes in the order of its memory.

    Args:
        tensor: Any strided tensor, on any device.

    Returns:
        The layout, and the bytes, which may be the tensor's own memory.

    Raises:
        ValueError: If it is sparse, quantized, nested, on the meta device, or of a subclass (as sharded tensors are).

    Example:
        >>> layout, flat = flat_bytes(torch.tensor([[1, 2], [3, 4]], dtype=torch.uint8).t())
        >>> layout.order, flat.tolist()
        ((1, 0), [1, 2, 3, 4])
    """
    require_plain(tensor)
    values = tensor.detach().resolve_conj().resolve_neg()
    expanded = tuple(d for d in range(values.dim()) if values.stride(d) == 0 and values.shape[d] > 1)
    for dim in expanded:
        values = values.narrow(dim, 0, 1)
    order = tuple(range(values.dim()))
    if not values.is_contiguous():
        by_stride = tuple(sorted(order, key=values.stride, reverse=True))
        order = by_stride if values.permute(by_stride).is_contiguous() else order
    flat = values.permute(order).contiguous().cpu().as_strided((values.numel(),), (1,)).view(torch.uint8).numpy()
    return Layout(tensor.dtype, tuple(tensor.shape), order, expanded), flat


def tensor_of(layout: Layout, flat: Bytes) -> Tensor:
    """The tensor that :func:`flat_bytes` made bytes of.

    Args:
        layout: What it gave.
        flat: What it gave, as memory that the tensor may keep.
    """
    stored = [layout.stored_shape[dim] for dim in layout.order]
    back = [layout.order.index(dim) for dim in range(len(layout.order))]
    if not len(flat):
        return torch.empty(stored, dtype=layout.dtype).permute(back)
    values = torch.from_numpy(flat).view(layout.dtype).view(stored).permute(back)
    return values.expand(layout.shape) if layout.expanded else values


@dataclass(frozen=True)
class Split:
    """A tensor without its zeros.

    Attributes:
        places: Where there are values.
        coding: How: ``"bits"`` (entry ``i`` is bit ``i % 8`` of byte ``i // 8``), or ``"gaps"``: a byte ``b`` under 255
            stands for ``b`` zeros and a value, 255 for so many zeros.
        values: The bytes of the values.
    """

    places: Bytes
    coding: str
    values: Bytes


def split_zeros(flat: Bytes, itemsize: int) -> Split | None:
    """A tensor's bytes without its zeros, where that is smaller.

    A zero is an entry all bits of which are zero: ``-0.0`` is a value. Places are bits or gaps, whatever is smaller:
    gaps where less than 12 % of the entries are left. Compressed, both are close to the entropy of their kind.

    Args:
        flat: The bytes.
        itemsize: Bytes in an entry.

    Returns:
        Places and values; ``None`` if they take at least as much as all entries.

    Example:
        >>> split = split_zeros(np.array([0, 0, 5, 0, 0, 0, 0, 7], dtype=np.uint8), 1)
        >>> split.places.tolist(), split.coding, split.values.tolist()
        ([132], 'bits', [5, 7])
    """
    keep = _nonzero(flat, itemsize)
    entries, left = len(keep), int(np.count_nonzero(keep))
    bits, gaps = -(-entries // 8), left + entries // 255
    if min(bits, gaps) + left * itemsize >= len(flat):
        return None
    places = np.flatnonzero(keep)
    values = flat.view(_WORDS[itemsize])[places].view(np.uint8)
    if gaps < bits:
        return Split(_to_gaps(places), "gaps", values)
    return Split(np.packbits(keep, bitorder="little"), "bits", values)


def join_zeros(split: Split, layout: Layout) -> Bytes:
    """The bytes that :func:`split_zeros` took apart.

    Raises:
        ValueError: If places and values do not fit each other.
    """
    word = _WORDS[layout.dtype.itemsize]
    places: npt.NDArray[np.integer[Any]]
    if split.coding == "bits":
        # By numbers, not by a mask: masks are several times slower where about half of the entries are kept.
        places = np.flatnonzero(np.unpackbits(split.places, count=layout.entries, bitorder="little").view(np.bool_))
    else:
        places = _from_gaps(split.places)
    left = len(places)
    if left and places[-1] >= layout.entries:
        raise ValueError(f"entry {places[-1]} of {layout.entries} is said to have a value")
    if left * layout.dtype.itemsize != len(split.values):
        raise ValueError(f"{left} entries are said to have values, and there are {len(split.values)} bytes of values")
    flat = np.zeros(layout.entries, dtype=word)
    flat[places] = split.values.view(word)
    return flat.view(np.uint8)


def most_places(coding: str, layout: Layout, values: int) -> int:
    """The most bytes that places take.

    Args:
        coding: As in :class:`Split`.
        layout: That of the tensor.
        values: Bytes of its values.

    Raises:
        ValueError: If there is no such coding.
    """
    if coding == "bits":
        return -(-layout.entries // 8)
    if coding == "gaps":
        return values // layout.dtype.itemsize + layout.entries // 255
    raise ValueError(f"'{coding}' is no coding of this format")


def _to_gaps(places: npt.NDArray[np.intp]) -> Bytes:
    full, rest = np.divmod(np.diff(places, prepend=-1) - 1, 255)
    gaps = np.full(len(places) + int(full.sum()), 255, dtype=np.uint8)
    gaps[np.cumsum(full + 1) - 1] = rest
    return gaps


def _from_gaps(gaps: Bytes) -> npt.NDArray[np.int64]:
    ends = gaps < 255
    passed: npt.NDArray[np.int64] = np.cumsum(gaps.astype(np.int64) + ends)[ends] - 1
    return passed


def to_planes(flat: Bytes, itemsize: int) -> Bytes:
    """All first bytes, then all second ones and so on: the exponents of floats lie together and compress.

    Example:
        >>> to_planes(np.array([1, 2, 3, 4], dtype=np.uint8), 2).tolist()
        [1, 3, 2, 4]
    """
    return np.ascontiguousarray(flat.reshape(-1, itemsize).T).reshape(-1)


def from_planes(planes: Bytes, itemsize: int) -> Bytes:
    """The bytes that :func:`to_planes` sorted."""
    flat = np.empty((len(planes) // itemsize, itemsize), dtype=np.uint8)
    for place, plane in enumerate(planes.reshape(itemsize, -1)):
        flat[:, place] = plane
    return flat.reshape(-1)


def _nonzero(flat: Bytes, itemsize: int) -> npt.NDArray[np.bool_]:
    if itemsize == 16:
        return np.asarray((flat.view(np.uint64).reshape(-1, 2) != 0).any(axis=1), dtype=np.bool_)
    return np.asarray(flat.view(_WORDS[itemsize]) != 0, dtype=np.bool_)
