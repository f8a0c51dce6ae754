"""Masks in checkpoints: bits, and state dicts of torch.nn.utils.prune and plain ones."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.utils.prune as torch_prune
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from lightning_prune.checkpoint import pack, to_dense, to_pruned, unpack
from lightning_prune.prune import l1_unstructured


@given(st.lists(st.integers(0, 7), max_size=4), st.integers(0, 2**31))
def test_bits_give_the_mask_back(shape: list[int], seed: int) -> None:
    mask = torch.rand(shape, generator=torch.Generator().manual_seed(seed)) > 0.5
    bits = pack(mask)
    assert bits.dtype == torch.uint8
    assert bits.shape == (-(-mask.numel() // 8),)
    assert torch.equal(unpack(bits, mask.shape), mask)
    assert torch.equal(unpack(bits, list(mask.shape)), mask)


def test_bits_are_row_major_whatever_the_strides() -> None:
    mask = torch.rand(4, 6, 5, 3) > 0.5
    assert torch.equal(pack(mask), pack(mask.to(memory_format=torch.channels_last)))
    assert torch.equal(pack(mask.transpose(0, 2)), pack(mask.transpose(0, 2).contiguous()))
    assert pack(torch.tensor([True] * 8 + [False, True])).tolist() == [255, 2]


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.Linear(4, 2))


def test_state_of_torch_becomes_dense() -> None:
    model = network()
    torch_prune.l1_unstructured(model[0], "weight", 0.5)
    torch_prune.random_structured(model[2], "weight", 1, dim=1)
    torch_prune.l1_unstructured(model[2], "bias", 1)
    dense = to_dense(model.state_dict())
    plain = network()
    assert set(dense) == set(plain.state_dict())
    plain.load_state_dict(dense, strict=True)
    assert torch.equal(plain[0].weight, model[0].weight)
    assert torch.equal(plain[2].weight, model[2].weight)
    assert torch.equal(plain[2].bias, model[2].bias)
    assert int((plain[0].weight == 0).sum()) == 27


def test_dense_state_becomes_one_of_a_pruned_model() -> None:
    model = network()
    l1_unstructured(model[0], "weight", 0.5)
    other = network()
    state = to_pruned(other.state_dict(), model)
    assert set(state) == set(model.state_dict())
    mask = model[0].weight_mask.clone()
    model.load_state_dict(state, strict=True)
    assert torch.equal(model[0].weight_orig, other[0].weight)
    assert torch.equal(model[0].weight_mask, mask)


def test_there_and_back() -> None:
    model = network()
    l1_unstructured(model[0], "weight", 0.5)
    dense = to_dense(model.state_dict())
    again = to_pruned(dense)
    assert set(again) == set(model.state_dict())
    assert torch.equal(again["0.weight_mask"], model[0].weight_mask)
    assert all(torch.equal(value, dense[name]) for name, value in to_dense(again).items())


def test_inf_and_nan_under_a_mask_become_zero() -> None:
    state = {"w_orig": torch.tensor([torch.inf, torch.nan, 1.0]), "w_mask": torch.tensor([0.0, 0.0, 1.0])}
    assert to_dense(state)["w"].tolist() == [0.0, 0.0, 1.0]


def test_keys_that_only_look_alike_are_kept() -> None:
    state = {"attention_mask": torch.ones(2), "x_orig": torch.ones(2), "n": 3}
    assert to_dense(state) == state
    assert list(to_dense({"a": 1, "w_orig": torch.ones(1), "w_mask": torch.ones(1), "z": 2})) == ["a", "w", "z"]


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match=r"'w_orig' has shape \(2,\), 'w_mask' \(3,\)"):
        to_dense({"w_orig": torch.ones(2), "w_mask": torch.ones(3)})
    model = network()
    l1_unstructured(model[0], "weight", 0.5)
    with pytest.raises(ValueError, match=r"no '0\.weight', which is pruned"):
        to_pruned({"2.weight": torch.ones(1)}, model)


def test_half_precision_and_complex_masks_have_a_real_dtype(tmp_path: Path) -> None:
    state = {"a": torch.tensor([[0.0, 1.0]], dtype=torch.bfloat16), "b": torch.tensor([[1.0, 2.0]])}
    pruned = to_pruned(state)
    assert pruned["a_mask"].dtype == torch.bfloat16
    assert set(pruned) == {"a_orig", "a_mask", "b"}
    torch.save(pruned, tmp_path / "state.pt")
    assert torch.equal(to_dense(torch.load(tmp_path / "state.pt", weights_only=True))["a"], state["a"])


class OldUnits(nn.Module):
    """Counts in other units since version 2."""

    _version = 2

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def _load_from_state_dict(self, state_dict, prefix, local_metadata, *args):  # type: ignore[no-untyped-def]
        if local_metadata.get("version", 1) < 2:
            state_dict[f"{prefix}linear.weight"] = state_dict[f"{prefix}linear.weight"] * 100
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *args)


def test_versions_of_modules_are_kept_both_ways() -> None:
    model, fresh = OldUnits(), OldUnits()
    torch_prune.l1_unstructured(model.linear, "weight", 5)
    state = to_dense(model.state_dict())
    fresh.load_state_dict(state)
    assert torch.equal(fresh.linear.weight, model.linear.weight)
    fresh.load_state_dict(to_dense(to_pruned(state)))
    assert torch.equal(fresh.linear.weight, model.linear.weight)


def test_tied_pruned_weights_stay_one_tensor() -> None:
    weight, mask = torch.randn(4, 4), torch.eye(4)
    pair = (("orig", weight), ("mask", mask))  # a state dict has views of the same memory
    state = {f"{name}.weight_{kind}": t.detach() for name in "ab" for kind, t in pair}
    dense = to_dense(state)
    assert dense["a.weight"] is dense["b.weight"]
    other = to_dense({**state, "b.weight_mask": 1 - mask})
    assert torch.equal(other["a.weight"] + other["b.weight"], weight)


@pytest.mark.parametrize("dtype", [torch.bool, torch.int8, torch.float8_e4m3fn, torch.float16, torch.int64])
def test_dtypes_are_kept(dtype: torch.dtype) -> None:
    weight = torch.ones(2, 2).to(dtype)
    dense = to_dense({"a_orig": weight, "a_mask": torch.eye(2).to(dtype)})["a"]
    assert dense.dtype == dtype
    assert torch.equal(dense.to(torch.float32), torch.eye(2))


def test_what_is_no_pair_of_tensors_is_kept() -> None:
    state = {
        "a_orig": torch.ones(2),
        "a_mask": "none",
        3: 4,
        "b_mask": torch.ones(1),
        "c_orig": 5,
        "c_mask": torch.ones(1),
    }
    assert to_dense(state) == state
