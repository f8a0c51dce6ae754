"""Memory for masks, and masks in other dtypes."""

import numpy as np
import pytest
import torch

from lightning_prune.prune.kernels.arrays import Scratch, as_bool, as_numbers, empty_like, is_binary

LARGE = {  # 4 MiB of booleans and more, for which the memory is another one
    "rows": torch.empty(2100, 2000),
    "transposed": torch.empty(2000, 2100).T,
    "channels last": torch.empty(60, 30, 50, 50).contiguous(memory_format=torch.channels_last),
    "one row": torch.empty(1, 4_200_000),
    "vector": torch.empty(4_200_000),
    "a part": torch.empty(2100, 4000)[:, ::2],
    "expanded": torch.empty(1, 2100, 1).expand(2, 2100, 1000),
    "small": torch.empty(3, 4),
    "a number": torch.empty(()),
}


@pytest.mark.parametrize("name", LARGE)
@pytest.mark.parametrize("dtype", [torch.bool, torch.float32])
def test_memory_like_a_tensor(name: str, dtype: torch.dtype) -> None:
    like = LARGE[name]
    made, wanted = empty_like(like, dtype), torch.empty_like(like, dtype=dtype)
    assert (made.shape, made.stride(), made.dtype) == (wanted.shape, wanted.stride(), dtype)
    assert made.fill_(1).sum() == like.numel()
    assert made._base is None


def test_memory_like_a_parameter_takes_no_gradient() -> None:
    for size in (3, 4_200_000):
        assert not empty_like(torch.nn.Parameter(torch.ones(size)), torch.float32).requires_grad


@pytest.mark.parametrize(
    "dtype", [torch.bool, torch.uint8, torch.int16, torch.int64, torch.float16, torch.bfloat16, torch.float32]
)
def test_masks_in_other_dtypes(dtype: torch.dtype) -> None:
    mask = torch.tensor([[True, False, True], [False, False, True]])
    for there in (mask, mask.T, mask[:, ::2]):
        numbers = as_numbers(there, dtype)
        assert numbers.dtype is dtype
        assert torch.equal(numbers, there.to(dtype))
        assert torch.equal(as_bool(numbers), there)


@pytest.mark.parametrize("dtype", [torch.int64, torch.bfloat16, torch.float32])
def test_masks_of_other_values_are_told_from_binary_ones(dtype: torch.dtype) -> None:
    for shape in ((), (3,), (70_000, 2), (2, 70_000)):
        mask = (torch.rand(shape) < 0.5).to(dtype)
        assert is_binary(mask)
        mask.view(-1)[-1] = 2
        assert not is_binary(mask)
    assert is_binary(torch.empty(0, 3, dtype=dtype))
    assert not is_binary(torch.tensor([0.0, torch.nan]))


def test_a_mask_with_gradient_or_signs() -> None:
    assert as_bool(torch.ones(2, requires_grad=True)).tolist() == [True, True]
    negative = torch.tensor([1 + 1j, 1 + 0j]).conj().imag
    assert negative.is_neg()
    assert as_bool(negative).tolist() == [True, False]


def test_scratch_has_the_memory_format_of_what_is_computed() -> None:
    scratch = Scratch()
    for t in (torch.randn(4, 6), torch.randn(6, 4).T, torch.randn(2, 3, 4, 5).permute(0, 2, 3, 1), torch.ones(())):
        array = t.numpy()
        out = scratch.like(array, torch.float32, "magnitude")
        assert out.shape == array.shape
        assert np.argsort(out.strides, kind="stable").tolist() == np.argsort(array.strides, kind="stable").tolist()
        assert np.array_equal(np.absolute(array, out=out), abs(array))
    assert scratch.like(torch.ones(3).numpy(), torch.float32, "magnitude").base is out.base
    assert scratch.like(torch.empty(3, device="meta"), torch.bool, "magnitude") is None
