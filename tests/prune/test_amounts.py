from functools import partial

import numpy as np
import pytest
import torch

from lightning_prune.prune import compute_nparams_to_prune, validate_pruning_amount
from lightning_prune.prune.amounts import canonical_amount

of_nine = partial(partial, tensor_size=9)


@pytest.mark.parametrize(
    ("amount", "size", "count"),
    [(0, 7, 0), (1, 7, 1), (7, 7, 7), (0.0, 7, 0), (1.0, 7, 7), (0.5, 10, 5), (0.2, 6, 1), (0.1, 4, 0)],
)
def test_nparams(amount: float, size: int, count: int) -> None:
    assert compute_nparams_to_prune(amount, size) == count


def test_halves_are_rounded_to_even() -> None:
    assert [compute_nparams_to_prune(0.5, size) for size in (1, 3, 5, 7)] == [0, 2, 2, 4]


@pytest.mark.parametrize("scalar", [0.5, np.float32(0.5), np.float64(0.5), np.array(0.5), torch.tensor(0.5)])
def test_fractional_scalars(scalar: object) -> None:
    assert canonical_amount(scalar) == 0.5
    assert type(canonical_amount(scalar)) is float


@pytest.mark.parametrize("scalar", [3, np.int64(3), np.uint8(3), np.array(3), torch.tensor(3)])
def test_counting_scalars(scalar: object) -> None:
    assert canonical_amount(scalar) == 3
    assert type(canonical_amount(scalar)) is int


@pytest.mark.parametrize(
    "wrong",
    [True, np.bool_(True), torch.tensor(True), None, "0.5", [0.5], 1j, torch.tensor([0.5]), np.array([1, 2])],
    ids=repr,
)
def test_what_is_no_number_is_a_type_error(wrong: object) -> None:
    for function in (canonical_amount, of_nine(validate_pruning_amount), of_nine(compute_nparams_to_prune)):
        with pytest.raises(TypeError, match=r"fraction \(float in \[0, 1\]\) or a count"):
            function(wrong)


@pytest.mark.parametrize("wrong", [-1, -0.1, 1.5, 1.0000001, float("nan"), float("inf"), torch.tensor(-2)], ids=repr)
def test_what_is_out_of_range_is_a_value_error(wrong: float) -> None:
    for function in (canonical_amount, of_nine(validate_pruning_amount), of_nine(compute_nparams_to_prune)):
        with pytest.raises(ValueError, match="amount as a"):
            function(wrong)


def test_a_count_may_be_all_that_is_left_but_not_more() -> None:
    validate_pruning_amount(16, 16)
    validate_pruning_amount(0, 0)
    with pytest.raises(ValueError, match="amount=17 is more than the 16 units that are left"):
        validate_pruning_amount(17, 16)
