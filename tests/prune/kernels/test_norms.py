import math

import pytest
import torch
from torch import Tensor

from lightning_prune.prune.kernels import norms
from lightning_prune.prune.kernels.norms import channel_norms

INF = math.inf
ORDERS: list[float | str] = [0.5, 1, 2, 3, 2.5, "fro", INF, -INF]
TENSORS = {
    "matrix": torch.Size([30, 20]),
    "conv": torch.Size([8, 6, 3, 5]),
    "one row": torch.Size([1, 300]),
    "one column": torch.Size([300, 1]),
    "many": torch.Size([40, 2, 50]),
}


def by_torch(t: Tensor, n: float | str, dim: int) -> Tensor:
    order = 2.0 if isinstance(n, str) else n
    found: Tensor = torch.linalg.vector_norm(t.abs().double().movedim(dim, 0).flatten(1), order, dim=1)
    return found


@pytest.fixture(params=[16, 1 << 17], ids=["many blocks", "one block"])
def _blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(norms, "_BLOCK", request.param)


@pytest.mark.usefixtures("_blocks")
@pytest.mark.parametrize("n", ORDERS)
@pytest.mark.parametrize("name", TENSORS)
def test_norms_are_those_of_torch(name: str, n: float | str) -> None:
    t = torch.randn(TENSORS[name])
    for dim in range(-t.dim(), t.dim()):
        found = channel_norms(t, n, dim)
        assert found.dtype == torch.float32
        torch.testing.assert_close(found.double(), by_torch(t, n, dim), rtol=1e-5, atol=0)


@pytest.mark.usefixtures("_blocks")
@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16, torch.complex64, torch.complex128])
def test_dtypes(dtype: torch.dtype) -> None:
    t = torch.randn(8, 6, 5, dtype=dtype)
    double = dtype in (torch.float64, torch.complex128)
    for n in ORDERS:
        for dim in range(3):
            found = channel_norms(t, n, dim)
            assert found.dtype == (torch.float64 if double else torch.float32)
            tolerance = 1e-13 if double else 1e-5
            torch.testing.assert_close(found.double(), by_torch(t, n, dim), rtol=tolerance, atol=0)


@pytest.mark.usefixtures("_blocks")
def test_strides() -> None:
    base = torch.randn(8, 6, 4, 10)
    for t in (base.contiguous(memory_format=torch.channels_last), base.transpose(0, 3), base[:, ::2, :, 1:]):
        for n in ORDERS:
            for dim in range(4):
                torch.testing.assert_close(channel_norms(t, n, dim).double(), by_torch(t, n, dim), rtol=1e-5, atol=0)


def test_values() -> None:
    t = torch.tensor([[3.0, -4.0], [0.0, 2.0]], requires_grad=True)
    assert channel_norms(t, 2, 0).tolist() == [5.0, 2.0]
    assert channel_norms(t, 1, 1).tolist() == [3.0, 6.0]
    assert channel_norms(t, INF, 0).tolist() == [4.0, 2.0]
    assert channel_norms(t, -INF, -1).tolist() == [0.0, 2.0]
    assert channel_norms(torch.tensor([[3 + 4j, 0j]]), 1, 1).tolist() == [5.0, 0.0]
    assert not channel_norms(t, 2, 0).requires_grad
    assert t.tolist() == [[3.0, -4.0], [0.0, 2.0]]


def test_half_precision_stays_finite() -> None:
    t = torch.full((2, 10_000), 6e4, dtype=torch.float16)
    expected = float(t[0, 0]) * 100
    assert channel_norms(t, 2, 0).tolist() == pytest.approx([expected] * 2, rel=1e-5)
    assert channel_norms(t.t(), 2, 1).tolist() == pytest.approx([expected] * 2, rel=1e-5)


def test_channels_without_entries_have_norm_zero() -> None:
    assert channel_norms(torch.empty(3, 0), 2, 0).tolist() == [0.0, 0.0, 0.0]
    assert channel_norms(torch.empty(3, 0), INF, 0).tolist() == [0.0, 0.0, 0.0]
    assert channel_norms(torch.empty(3, 0), INF, 1).tolist() == []


def test_nuclear_norm_of_unfolded_slices() -> None:
    t = torch.randn(5, 4, 3, 2)
    for dim in range(4):
        slices = [part.flatten(1) for part in t.unbind(dim)]
        expected = torch.stack([torch.linalg.matrix_norm(part, "nuc") for part in slices])
        torch.testing.assert_close(channel_norms(t, "nuc", dim), expected)
    eyes = torch.eye(3).expand(2, 3, 3)
    assert channel_norms(eyes, "nuc", 0).tolist() == pytest.approx([3.0, 3.0])
    assert channel_norms(eyes.bfloat16(), "nuc", 0).tolist() == pytest.approx([3.0, 3.0])


def test_nuclear_norm_of_a_vector_is_its_length() -> None:
    assert channel_norms(torch.tensor([[3.0, 4.0], [0.0, 2.0]]), "nuc", 0).tolist() == [5.0, 2.0]


@pytest.mark.parametrize("n", [0, -1, -2.5, math.nan, "l2", "inf", "", True, None, [2]], ids=repr)
def test_what_is_no_order_is_refused(n: object) -> None:
    with pytest.raises(ValueError, match="give a positive number, inf, -inf, 'fro' or 'nuc'"):
        channel_norms(torch.ones(2, 2), n, 0)  # type: ignore[arg-type]


@pytest.mark.parametrize("dim", [2, -3])
def test_a_dim_out_of_range_is_refused(dim: int) -> None:
    with pytest.raises(IndexError, match=rf"dim={dim} is out of range for a tensor of shape \(2, 5\)"):
        channel_norms(torch.ones(2, 5), 2, dim)


@pytest.mark.parametrize("shape", [(), (3,)])
def test_too_few_dimensions_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="2 or more dimensions"):
        channel_norms(torch.ones(shape), 2, 0)


@pytest.mark.usefixtures("_blocks")
@pytest.mark.parametrize("name", TENSORS)
def test_masked_entries_count_as_zeros(name: str) -> None:
    t = torch.randn(TENSORS[name])
    alive = torch.rand(t.shape) < 0.5
    there = torch.where(alive, t, torch.nan)
    for n in [*ORDERS, "nuc"]:
        for dim in range(t.dim()):
            wanted = channel_norms(torch.where(alive, t, 0), n, dim)
            assert torch.equal(channel_norms(there, n, dim, alive), wanted)


@pytest.mark.usefixtures("_blocks")
def test_masks_of_other_strides() -> None:
    t = torch.randn(8, 6, 4, 4).contiguous(memory_format=torch.channels_last)
    alive = torch.rand(t.shape) < 0.5
    for dim in range(4):
        wanted = channel_norms(torch.where(alive, t, 0), 2, dim)
        torch.testing.assert_close(channel_norms(t, 2, dim, alive), wanted, rtol=1e-6, atol=0)
