"""The masked value, zeros in place and the search for them: every kernel gives what ``torch.where`` gives."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from lightning_prune.prune.kernels import masking
from lightning_prune.prune.kernels.masking import ZeroWriter, masked, write_zeros, zero_under

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
DTYPES = [*FLOATS, torch.complex64, torch.complex128]
SPECIAL = (0.0, -0.0, math.inf, -math.inf, math.nan, 1e-45, -1e-40, 3.4e38, 1.0, -2.5)


@pytest.fixture(params=[(4, 1), (4, 2), (2**18, 1)], ids=["large", "large, two threads", "small"], autouse=True)
def piece(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Tensors of the tests are large, and cut into pieces of 4, or small."""
    piece, threads = request.param
    before = torch.get_num_threads()
    monkeypatch.setattr(masking, "_PIECE", piece)
    torch.set_num_threads(threads)
    yield piece
    torch.set_num_threads(before)


def values(dtype: torch.dtype, shape: tuple[int, ...] = (6, 5)) -> Tensor:
    """Numbers of all kinds, special ones under masks and elsewhere."""
    special = torch.tensor(SPECIAL, dtype=torch.float64).to(dtype)
    return torch.where(
        torch.rand(shape) < 0.5, special[torch.randint(len(SPECIAL), shape)], torch.randn(shape).to(dtype)
    )


def expected(tensor: Tensor, mask: Tensor) -> Tensor:
    return torch.where(mask.bool(), tensor, 0)


def assert_same_bits(got: Tensor, wanted: Tensor) -> None:
    assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape)
    assert torch.equal(got.reshape(-1).view(torch.uint8), wanted.reshape(-1).view(torch.uint8))


def masks(tensor: Tensor) -> list[Tensor]:
    keep = torch.rand(tensor.shape) < 0.5
    return [keep, keep.to(tensor.real.dtype if tensor.is_complex() else tensor.dtype)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(6, 5), (), (0,), (3, 0), (7,), (2, 3, 2, 2)])
def test_values_are_those_of_where_to_the_bit(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tensor = values(dtype, shape)
    for mask in masks(tensor):
        assert_same_bits(masked(tensor, mask), expected(tensor, mask))
        for write in (write_zeros, ZeroWriter()):
            written = tensor.clone()
            write(written, mask.bool())
            assert_same_bits(written, expected(tensor, mask))


@settings(max_examples=100, deadline=None)
@given(data=st.data(), dtype=st.sampled_from(FLOATS), size=st.integers(1, 40))
def test_any_bits(data: st.DataObject, dtype: torch.dtype, size: int) -> None:
    """Also NaNs with a payload come through, as they were or as zeros."""
    width = dtype.itemsize
    raw = data.draw(st.binary(min_size=width * size, max_size=width * size))
    tensor = torch.frombuffer(bytearray(raw), dtype=dtype)
    keep = torch.tensor(data.draw(st.lists(st.booleans(), min_size=size, max_size=size)))
    for write in (write_zeros, ZeroWriter()):
        written = tensor.clone()
        write(written, keep)
        assert_same_bits(written, expected(tensor, keep))
    assert torch.equal(masked(tensor, keep), expected(tensor, keep)) or bool(tensor[keep].isnan().any())
    assert zero_under(tensor, keep) == (int(tensor[~keep].count_nonzero()) == 0)


@pytest.mark.parametrize("dtype", FLOATS)
def test_gradients_are_zero_under_the_mask_even_for_inf_and_nan(dtype: torch.dtype) -> None:
    for index in range(2):
        tensor = torch.randn(6, 5, dtype=dtype, requires_grad=True)
        mask = masks(tensor)[index]
        gradient = values(dtype)
        masked(tensor, mask).backward(gradient)
        assert tensor.grad is not None
        assert_same_bits(tensor.grad, expected(gradient, mask))


@pytest.mark.parametrize("index", [0, 1], ids=["bool", "float"])
def test_derivatives_of_every_order_and_mode(index: int) -> None:
    tensor = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    mask = masks(tensor)[index]

    def cubed(x: Tensor) -> Tensor:
        return masked(x, mask) ** 3

    assert torch.autograd.gradcheck(cubed, tensor, check_forward_ad=True, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(cubed, tensor)


Transform = Callable[[Callable[[Tensor], Tensor]], Callable[[Tensor], Any]]
TRANSFORMS: dict[str, Transform] = {
    "grad": torch.func.grad,
    "vmap of grad": lambda f: torch.func.vmap(torch.func.grad(f)),
    "jacfwd": torch.func.jacfwd,
    "hessian": torch.func.hessian,
    "vmap of hessian": lambda f: torch.func.vmap(torch.func.hessian(f)),
    "jvp": lambda f: lambda x: torch.func.jvp(f, (x,), (torch.ones_like(x),))[1],
    "make_fx": lambda f: lambda x: make_fx(f)(x)(x),
    "compile": lambda f: torch.compile(f, fullgraph=True, backend="aot_eager"),
    "jit trace": lambda f: lambda x: torch.jit.trace(f, x, check_trace=False)(x),  # type: ignore[no-untyped-call]
    "autocast": lambda f: torch.autocast("cpu", torch.bfloat16)(f),
}


@pytest.mark.parametrize("index", [0, 1], ids=["bool", "float"])
@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms(name: str, index: int) -> None:
    batch = torch.randn(2, 4, 3)
    mask = masks(batch[0])[index]
    x = batch if name.startswith("vmap") else batch[0]
    got = TRANSFORMS[name](lambda t: masked(t, mask).pow(3).sum())(x)
    wanted = TRANSFORMS[name](lambda t: expected(t, mask).pow(3).sum())(x)
    assert torch.equal(got, wanted)


def test_on_the_meta_device() -> None:
    value = masked(torch.empty(3, 4, device="meta"), torch.empty(3, 4, device="meta", dtype=torch.bool))
    assert (value.device.type, value.shape) == ("meta", (3, 4))


@pytest.mark.parametrize("mask_too", [True, False])
def test_the_format_of_memory_is_kept(mask_too: bool) -> None:
    tensor = values(torch.float32, (4, 3, 2, 2)).to(memory_format=torch.channels_last)
    mask = torch.rand(4, 3, 2, 2) < 0.5
    mask = mask.to(memory_format=torch.channels_last) if mask_too else mask
    got, wanted, other = masked(tensor, mask), expected(tensor, mask), tensor.clone()
    write_zeros(tensor, mask)
    ZeroWriter()(other, mask)
    for result in (got, tensor, other):
        assert_same_bits(result, wanted)
        assert result.stride() == (12, 1, 6, 3)


def test_the_imaginary_part_of_a_conjugate() -> None:
    tensor, mask = torch.randn(6, 5, dtype=torch.complex64).conj().imag, torch.rand(6, 5) < 0.5
    assert tensor.is_neg()
    wanted = torch.where(mask, tensor, 0)
    assert torch.equal(masked(tensor, mask), wanted)
    weight = torch.ones(6, 5, requires_grad=True)
    masked(weight, mask).backward(tensor)
    assert torch.equal(weight.grad, wanted)
    assert not zero_under(tensor, mask)
    write_zeros(tensor, mask)
    assert torch.equal(tensor, wanted)
    assert zero_under(tensor, mask)


def test_gradients_that_share_memory() -> None:
    tensor = torch.ones(6, 5, requires_grad=True)
    mask = torch.rand(6, 5) < 0.5
    masked(tensor, mask).sum().backward()  # the gradient of a sum is one number, seen 30 times
    assert torch.equal(tensor.grad, mask.float())


def test_the_result_can_be_written_into() -> None:
    tensor = torch.ones(6, 5, requires_grad=True)
    mask = torch.rand(6, 5) < 0.5
    masked(tensor, mask).mul_(3).sum().backward()
    assert torch.equal(tensor.grad, 3 * mask.float())
    assert torch.equal(tensor, torch.ones(6, 5))


def test_a_mask_of_another_dtype_does_not_change_that_of_the_value() -> None:
    value = masked(torch.ones(2, dtype=torch.bfloat16), torch.tensor([1.0, 0.0]))
    assert_same_bits(value, torch.tensor([1.0, 0.0], dtype=torch.bfloat16))


@pytest.mark.parametrize("mask_too", [True, False])
def test_strides_of_dimensions_of_size_one_are_kept(mask_too: bool) -> None:
    """Convolutions choose their kernel, and so how they round, by them."""
    weight = torch.randn(4, 1, 3, 3).to(memory_format=torch.channels_last)
    mask = torch.rand(4, 1, 3, 3) < 0.5
    mask = mask.to(memory_format=torch.channels_last) if mask_too else mask
    assert masked(weight, mask).stride() == weight.stride()
    assert torch.equal(masked(weight, mask), torch.where(mask, weight, 0))


def test_a_writer_sees_another_mask_and_other_numbers() -> None:
    write, mask, other = ZeroWriter(), torch.tensor([True, False, True, False]), torch.tensor([False, True, True, True])
    for dtype in (*FLOATS, torch.float32):
        for alive in (mask, other, mask):
            written = torch.full((4,), math.inf, dtype=dtype)
            write(written, alive)
            assert torch.equal(written != 0, alive)
    mask.logical_not_()
    written = torch.ones(4)
    write(written, mask)
    assert written.tolist() == [0, 1, 0, 1]


@pytest.mark.parametrize("write", [write_zeros, ZeroWriter()])
def test_writing_into_shared_memory_is_refused(write: Callable[[Tensor, Tensor], None]) -> None:
    with pytest.raises(RuntimeError, match="more than one element"):
        write(torch.ones(1).expand(3, 4), torch.rand(3, 4) < 0.5)


@pytest.mark.parametrize("write", [write_zeros, ZeroWriter()])
def test_writing_inside_of_transforms(write: Callable[[Tensor, Tensor], None]) -> None:
    mask = torch.rand(4, 3) < 0.5

    def sparse(x: Tensor) -> Tensor:
        x = x.clone()
        write(x, mask)
        return x

    batch = torch.randn(2, 4, 3)
    assert torch.equal(torch.func.vmap(sparse)(batch), torch.where(mask, batch, 0))
    assert torch.equal(make_fx(sparse)(batch[0])(batch[1]), torch.where(mask, batch[1], 0))


def test_modes_around_parts_of_a_step() -> None:
    """What a checkpointed forward saves does not depend on a mode."""
    weight, mask = torch.randn(6, 5, requires_grad=True), torch.rand(6, 5) < 0.5
    for numbers in (mask, mask.float()):
        weight.grad = None
        value = checkpoint(lambda w, m: masked(w, m) ** 2, weight, numbers, use_reentrant=False)
        with FlopCounterMode(display=False):
            value.sum().backward()
        assert torch.equal(weight.grad, torch.where(mask, 2 * weight, 0))


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("write", [write_zeros, ZeroWriter()])
def test_writing_is_seen_by_autograd(write: Callable[[Tensor, Tensor], None], mode: Callable[[], Any]) -> None:
    weight = torch.ones(6, requires_grad=True)
    loss = (weight * weight).sum()
    with mode():
        write(weight, torch.arange(6) < 3)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize("hidden", [1e-45, -1.0, math.inf, math.nan])
@pytest.mark.parametrize("place", [0, 13, 29])
def test_a_hidden_number_is_found_wherever_it_is(hidden: float, place: int) -> None:
    tensor, mask = torch.ones(30), torch.arange(30) % 2 == 1 - place % 2
    write_zeros(tensor, mask)
    assert zero_under(tensor, mask)
    tensor[place] = -0.0
    assert zero_under(tensor, mask)
    tensor[place] = hidden
    assert not zero_under(tensor, mask)
    assert not zero_under(tensor.view(5, 6).t(), mask.view(5, 6).t())


@pytest.mark.parametrize("mode", [torch.no_grad, torch.enable_grad])
def test_tangents_are_masked_whether_or_not_gradients_are_recorded(mode: Callable[[], Any]) -> None:
    tensor, tangent, mask = torch.randn(6, 5), torch.randn(6, 5), torch.rand(6, 5) < 0.5
    with forward_ad.dual_level(), mode():
        value, derivative = forward_ad.unpack_dual(masked(forward_ad.make_dual(tensor, tangent), mask))
        assert torch.equal(value, expected(tensor, mask))
        assert torch.equal(derivative, expected(tangent, mask))


def test_what_is_kept_of_a_mask_follows_the_mask() -> None:
    tensor, mask = torch.arange(1.0, 31.0).view(6, 5), torch.ones(6, 5, dtype=torch.bool)
    for row in range(6):
        mask[row] = False
        assert torch.equal(masked(tensor, mask), torch.where(mask, tensor, 0))
        assert torch.equal(masked(tensor.double(), mask), torch.where(mask, tensor.double(), 0))


def test_what_is_kept_of_a_mask_dies_with_it(piece: int) -> None:
    before, mask = len(masking._known), torch.ones(6, 5, dtype=torch.bool)
    masked(torch.ones(6, 5), mask)
    assert len(masking._known) == before + (piece > 4)
    del mask
    assert len(masking._known) == before


def test_a_first_read_in_inference_mode_or_with_fake_tensors_leaves_training_alone() -> None:
    for mode in (torch.inference_mode(), FakeTensorMode(allow_non_fake_inputs=True)):
        tensor, mask = torch.ones(6, 5, requires_grad=True), torch.rand(6, 5) < 0.5
        with mode:
            masked(tensor, mask)
        masked(tensor, mask).sum().backward()
        assert torch.equal(tensor.grad, mask.float())
