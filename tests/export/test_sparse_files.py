"""Sparse files: what was saved comes back bit by bit, what is damaged is refused."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tracemalloc
from collections import Counter, OrderedDict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import safetensors
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import Tensor, nn

from lightning_prune.export import load_sparse, save_sparse
from tests.export.same import same

DTYPES = [
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex32, torch.complex64, torch.complex128),
    *(torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32, torch.uint64),
    *(torch.bool, torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz),
    # Those of newer releases of torch:
    *(getattr(torch, name) for name in ("float8_e8m0fnu", "float4_e2m1fn_x2") if hasattr(torch, name)),
]


def random_bits(dtype: torch.dtype, shape: tuple[int, ...], sparsity: float, seed: int) -> Tensor:
    """Any bit pattern that the dtype has, NaN and negative zero among them, and zeros."""
    generator = torch.Generator().manual_seed(seed)
    size = torch.Size(shape).numel()
    data = torch.randint(0, 2 if dtype == torch.bool else 256, (size, dtype.itemsize), generator=generator)
    data[torch.rand(size, generator=generator) < sparsity] = 0
    return data.to(torch.uint8).reshape(-1).view(dtype).view(shape)


def other_strides(tensor: Tensor, how: int) -> Tensor:
    if tensor.dim() < 2 or how == 0 or not tensor.numel():
        return tensor
    return tensor.transpose(0, -1) if how == 1 else tensor[:, :1].expand(-1, 3, *tensor.shape[2:])


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    shape = tuple(draw(st.lists(st.integers(0, 6), max_size=4)))
    dtype = draw(st.sampled_from(DTYPES))
    sparsity = draw(st.sampled_from([0.0, 0.5, 0.9, 1.0]))
    return other_strides(random_bits(dtype, shape, sparsity, draw(st.integers(0, 2**31))), draw(st.integers(0, 2)))


PLAIN = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=5),
    st.binary(max_size=5),
    st.complex_numbers(allow_nan=False),
    st.sampled_from([torch.float32, torch.device("cpu"), torch.Size([2, 3])]),
    st.tuples(st.integers(), st.floats()),
)
TREES = st.recursive(
    st.one_of(PLAIN, tensors()),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.one_of(st.text(max_size=4), st.integers()), inner, max_size=3),
        st.dictionaries(st.text(max_size=4), inner, max_size=3).map(OrderedDict),
    ),
    max_leaves=4,
)


@pytest.mark.filterwarnings("ignore:ComplexHalf")
@settings(max_examples=500, deadline=None)
@given(st.dictionaries(st.text(max_size=8), st.one_of(tensors(), TREES), max_size=3), st.booleans())
def test_any_state_comes_back_bit_by_bit(tmp_path_factory: Any, state: dict[str, Any], compress: bool) -> None:
    path = tmp_path_factory.getbasetemp() / "any.safetensors"
    save_sparse(state, path, compress=compress)
    assert same(load_sparse(path), state)


@pytest.mark.filterwarnings("ignore:ComplexHalf")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_is_stored_as_gaps_and_values(tmp_path: Path, dtype: torch.dtype) -> None:
    tensor = random_bits(dtype, (50, 40), 0.95, 1)
    save_sparse({"a": tensor}, tmp_path / "file", compress=False)
    assert set(load_file(tmp_path / "file")) == {"a.gaps", "a.values", "__lightning_prune__"}
    assert same(load_sparse(tmp_path / "file"), {"a": tensor})


def test_negative_zeros_and_payloads_of_nans_are_values(tmp_path: Path) -> None:
    tensor = torch.zeros(64)
    tensor[3], tensor[5] = -0.0, float("-inf")
    tensor.view(torch.int32)[7] = 0x7FC12345
    save_sparse({"a": tensor}, tmp_path / "file")
    loaded = load_sparse(tmp_path / "file")["a"]
    assert loaded.view(torch.int32)[[3, 5, 7, 8]].tolist() == [-(2**31), 0xFF800000 - 2**32, 0x7FC12345, 0]


@pytest.mark.parametrize("compress", [True, False])
def test_memory_that_is_shared_is_stored_once_and_shared_again(tmp_path: Path, compress: bool) -> None:
    shared = torch.randn(100, 100)
    save_sparse({"a": shared, "b": nn.Parameter(shared), "c": shared.t()}, tmp_path / "file", compress=compress)
    assert os.path.getsize(tmp_path / "file") < 2 * 40_000 + 2_000
    loaded = load_sparse(tmp_path / "file")
    assert loaded["a"] is loaded["b"]
    assert torch.equal(loaded["c"], shared.t())
    loaded["a"].zero_()
    assert torch.equal(loaded["c"], shared.t())


def test_expanded_tensors_take_no_room(tmp_path: Path) -> None:
    save_sparse({"a": torch.tensor([2.5]).expand(10**6, 10**6)}, tmp_path / "file")
    loaded = load_sparse(tmp_path / "file")["a"]
    assert (loaded.shape, loaded.stride(), float(loaded[5, 7])) == ((10**6, 10**6), (0, 0), 2.5)


def test_strides_of_dense_tensors_are_kept(tmp_path: Path) -> None:
    tensor = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    save_sparse({"a": tensor, "sliced": tensor[:, ::2]}, tmp_path / "file")
    loaded = load_sparse(tmp_path / "file")
    assert loaded["a"].stride() == tensor.stride()
    assert loaded["sliced"].is_contiguous()
    assert torch.equal(loaded["sliced"], tensor[:, ::2])


def test_lazy_conjugates_and_gradients(tmp_path: Path) -> None:
    tensor = torch.randn(3, 4, dtype=torch.complex64)
    save_sparse({"a": tensor.conj(), "b": tensor, "c": tensor.imag, "d": tensor.conj().imag}, tmp_path / "file")
    loaded = load_sparse(tmp_path / "file")
    assert torch.equal(loaded["a"], tensor.conj())
    assert torch.equal(loaded["b"], tensor)
    assert torch.equal(loaded["c"], tensor.imag)
    assert torch.equal(loaded["d"], -tensor.imag)


def test_a_module_with_its_versions(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(20, 20), nn.BatchNorm1d(20))
    with torch.no_grad():
        model[0].weight[:18] = 0
    save_sparse(model, tmp_path / "file")
    loaded = load_sparse(tmp_path / "file")
    assert same(loaded, model.state_dict())
    assert loaded._metadata == model.state_dict()._metadata
    assert loaded._metadata["1"] == {"version": 2}


def test_counters_sets_and_names_of_any_kind(tmp_path: Path) -> None:
    state = {
        "milestones": Counter({3: 1, 5: 2}),
        "set": {1, 2},
        "a": torch.ones(1),
        "a.values": torch.ones(2),
        "a.bits": torch.zeros(100),
        "__metadata__": torch.ones(3),
        "__lightning_prune__": torch.ones(4),
        "a\nb\ud800": torch.ones(5),
        "more": {"a.values": torch.ones(6), "a": torch.zeros(100)},
        7: torch.ones(7),
    }
    save_sparse(state, tmp_path / "file")
    assert same(load_sparse(tmp_path / "file"), state)


def test_uncompressed_dense_tensors_are_plain_safetensors(tmp_path: Path) -> None:
    state = {"weight": torch.randn(3, 4), "bias": torch.randn(3).bfloat16()}
    save_sparse(state, tmp_path / "file", compress=False)
    found = load_file(tmp_path / "file")
    assert torch.equal(found["weight"], state["weight"])
    assert torch.equal(found["bias"], state["bias"])


def test_loaded_tensors_do_not_lie_in_the_file(tmp_path: Path) -> None:
    save_sparse({"a": torch.ones(8, dtype=torch.uint8)}, tmp_path / "file", compress=False)
    loaded = load_sparse(tmp_path / "file")
    loaded["a"][0] = 7
    save_sparse({"a": torch.zeros(8, dtype=torch.uint8)}, tmp_path / "file", compress=False)
    assert loaded["a"].tolist() == [7, 1, 1, 1, 1, 1, 1, 1]


def kept_of(sparsity: float, entries: int) -> Tensor:
    """Weights of which the largest are kept, as pruning by magnitude leaves them."""
    weight = torch.randn(entries, generator=torch.Generator().manual_seed(0)) * 0.03
    if sparsity:
        weight[weight.abs() <= weight.abs().kthvalue(round(sparsity * entries)).values] = 0
    return weight


@pytest.mark.parametrize(
    ("sparsity", "most"), [(0.0, 31.65), (0.5, 14.9), (0.8, 6.2), (0.9, 3.2), (0.95, 1.6), (0.98, 0.65)]
)
def test_size_beside_the_dense_one(tmp_path: Path, sparsity: float, most: float) -> None:
    weight = kept_of(sparsity, 1_000_000)
    save_sparse({"weight": weight}, tmp_path / "file")
    assert os.path.getsize(tmp_path / "file") <= 1.03 * most / 31.65 * weight.nbytes


@pytest.mark.parametrize(("sparsity", "places"), [(0.8, 100_000 // 8), (0.99, 1_000)])
def test_size_uncompressed_is_places_and_values(tmp_path: Path, sparsity: float, places: int) -> None:
    save_sparse({"weight": kept_of(sparsity, 100_000)}, tmp_path / "file", compress=False)
    left = round((1 - sparsity) * 100_000)
    assert 0 < os.path.getsize(tmp_path / "file") - (places + 4 * left) < 1_000


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    ("value", "message"),
    [
        (
            lambda: torch.ones(2, 2).to_sparse(),
            "'layer.weight' cannot be written: it is of the layout torch.sparse_coo",
        ),
        (lambda: torch.ones(2, 2).to_sparse_csr(), "layout torch.sparse_csr"),
        (lambda: torch.ones(2, device="meta"), "on the meta device"),
        (lambda: torch.nested.nested_tensor([torch.ones(2)]), "it is nested"),
        (lambda: torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint32), "it is quantized"),
        (lambda: nn.UninitializedParameter(), "UninitializedParameter"),
        (lambda: SimpleNamespace(), "'layer.weight' is a types.SimpleNamespace"),
        (lambda: np.float64(1), "'layer.weight' is a numpy.float64"),
    ],
    ids=["coo", "csr", "meta", "nested", "quantized", "uninitialized", "object", "numpy"],
)
def test_what_cannot_be_written_is_named(tmp_path: Path, value: Any, message: str) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(ValueError, match=message):
        save_sparse({"layer": {"weight": value()}}, path)
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["file"]


def test_values_that_hold_themselves_are_refused(tmp_path: Path) -> None:
    state: dict[str, Any] = {"a": torch.ones(1)}
    state["self"] = state
    with pytest.raises(ValueError, match="hold themselves"):
        save_sparse(state, tmp_path / "file")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"there is no file '.*gone'"):
        load_sparse(tmp_path / "gone")


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "file"
    torch.save({"a": torch.ones(1)}, path)
    with pytest.raises(ValueError, match="not a safetensors file"):
        load_sparse(path)
    safetensors.torch.save_file({"a": torch.ones(1)}, path)
    with pytest.raises(ValueError, match="a safetensors file that save_sparse did not write"):
        load_sparse(path)


def damaged(data: bytes, how: random.Random) -> bytes:
    """One of several damages that a file may suffer."""
    kind = how.randrange(4)
    changed = bytearray(data)
    if kind == 0:
        changed[how.randrange(len(data))] ^= 1 << how.randrange(8)
    elif kind == 1:
        del changed[how.randrange(len(data)) :]
    elif kind == 2:
        changed += bytes(how.randrange(1, 50))
    else:
        start = how.randrange(len(data) - 64)
        changed[start : start + 64] = how.randbytes(64)
    return bytes(changed)


@pytest.mark.parametrize("compress", [True, False])
def test_damaged_files_are_refused_before_memory_is_taken(tmp_path: Path, compress: bool) -> None:
    save_sparse({"a": kept_of(0.99, 500_000), "b": torch.randn(20), "epoch": 3}, tmp_path / "good", compress=compress)
    good = (tmp_path / "good").read_bytes()
    load_sparse(tmp_path / "good")
    for seed in range(150):
        bad = damaged(good, random.Random(seed))
        (tmp_path / "bad").write_bytes(bad)
        tracemalloc.start()
        with pytest.raises(ValueError, match=r"'.*bad'"):
            load_sparse(tmp_path / "bad")
        assert tracemalloc.get_traced_memory()[1] < 2 * len(good)
        tracemalloc.stop()


def table_changed(path: Path, change: Any) -> None:
    """Writes an uncompressed file again with another table and the right checksum of it, as an attacker would."""
    import zlib

    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    begin, end = header["__lightning_prune__"]["data_offsets"]
    table = json.loads(data[8 + size :][begin:end])
    change(table)
    tensors = {k: v for k, v in load_file(path).items() if k != "__lightning_prune__"}
    text = json.dumps(table).encode()
    metadata = {**header["__metadata__"], "crc32": f"{zlib.crc32(text):08x}"}
    tensors["__lightning_prune__"] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    safetensors.torch.save_file(tensors, path, metadata)


def shape_of(shape: list[int]) -> Any:
    return lambda table: table["tensors"][0].update(shape=shape)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (shape_of([1 << 40]), r"tensor 'a': its shape \(1099511627776,\) needs 137,438,953,472 bytes of bits"),
        (shape_of([-1000]), "tensor 'a': .* is no shape"),
        (shape_of([1001]), "tensor 'a': its shape"),
        (lambda table: table["tensors"][0].update(dtype="float64"), "tensor 'a': .*of values"),
        (lambda table: table["tensors"][0].update(dtype="load"), "torch knows no dtype 'load'"),
        (lambda table: table["tensors"][0].update(order=[1]), "do not fit the shape"),
        (lambda table: table["tensors"][0].pop("bits"), "tensor 'a': its shape .* needs 4,000 bytes"),
        (lambda table: table["tensors"].pop(), "its table"),
        (lambda table: table.update(tree=["os.system", "ls"]), "'os.system' is no type of a plain value"),
        (lambda table: table.clear(), "its table"),
    ],
    ids=range(10),
)
def test_forged_tables_are_refused(tmp_path: Path, change: Any, message: str) -> None:
    path = tmp_path / "file"
    save_sparse({"a": kept_of(0.8, 1000)}, path, compress=False)
    table_changed(path, lambda table: None)
    assert load_sparse(path)["a"].count_nonzero() == 200
    table_changed(path, change)
    with pytest.raises(ValueError, match=message):
        load_sparse(path)


def test_forged_gaps_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "file"
    weight = torch.zeros(300)
    weight[299] = 1
    save_sparse({"a": weight}, path, compress=False)
    assert torch.equal(load_sparse(path)["a"], weight)
    table_changed(path, shape_of([299]))
    with pytest.raises(ValueError, match="tensor 'a': entry 299 of 299 is said to have a value"):
        load_sparse(path)


def test_memory_that_tensors_would_take_is_limited(tmp_path: Path) -> None:
    save_sparse({"small": torch.ones(3), "big": torch.zeros(10_000)}, tmp_path / "file")
    assert os.path.getsize(tmp_path / "file") < 1_000
    with pytest.raises(ValueError, match=r"would take 40,012 bytes.*allowed are 40,011; the largest is 'big'"):
        load_sparse(tmp_path / "file", max_bytes=40_011)
    assert load_sparse(tmp_path / "file", max_bytes=40_012)["big"].numel() == 10_000


@pytest.mark.parametrize("missing", ["safetensors", "zstandard"])
def test_a_missing_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(ModuleNotFoundError, match=rf"need {missing}: pip install 'lightning-prune\[export\]'"):
        save_sparse({"a": torch.ones(1)}, tmp_path / "file")
    assert os.listdir(tmp_path) == []


def test_the_package_loads_without_lightning_and_extras() -> None:
    code = (
        "import sys, lightning_prune.export as e; e.load_sparse; "
        "print([m for m in ('lightning', 'pytorch_lightning', 'safetensors', 'zstandard') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
