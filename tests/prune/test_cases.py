"""Situations E1 to E15 that users met: training, copies, loading, refused calls, ranking."""

import copy
import io
import pickle
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lightning_prune.prune import (
    L1Unstructured,
    custom_from_mask,
    global_unstructured,
    identity,
    is_pruned,
    l1_unstructured,
    ln_structured,
    random_structured,
    random_unstructured,
    remove,
    remove_all,
    sparsity,
)
from tests.prune.modules import LeNet, ReadsChild, assert_refused, history, linear, stored, train_step, zeros


def fresh(layer: nn.Linear) -> None:
    """Straight after pruning."""


def after_forward(layer: nn.Linear) -> None:
    layer.train()(torch.randn(2, 4))


def after_backward(layer: nn.Linear) -> None:
    layer(torch.randn(2, 4)).sum().backward()


class OwnState(nn.Linear):
    """Cannot be pickled but for its own ``__getstate__``."""

    def __init__(self) -> None:
        super().__init__(4, 3)
        self.generator = (i for i in range(3))

    def __getstate__(self) -> dict[str, object]:
        return {key: value for key, value in self.__dict__.items() if key != "generator"}

    def __setstate__(self, state: dict[str, object]) -> None:
        super().__setstate__(state)
        self.generator = None


class OwnReduce(nn.Linear):
    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (4, 3), self.__dict__


class NewArguments(nn.Linear):
    def __new__(cls, *, size: int) -> "NewArguments":
        return super().__new__(cls)

    def __init__(self, size: int) -> None:
        super().__init__(size, 3)

    def __getnewargs_ex__(self) -> tuple[tuple[()], dict[str, int]]:
        return (), {"size": 4}


def by_torch_save(module: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def assert_equal_and_independent(layer: nn.Linear, other: nn.Linear) -> None:
    before = layer.weight.detach().clone()
    assert is_pruned(other)
    assert torch.equal(other.weight, before)
    assert torch.equal(other.weight_mask, layer.weight_mask)
    assert [repr(m) for m in history(other)] == [repr(m) for m in history(layer)]
    train_step(other, torch.randn(5, 4))
    l1_unstructured(other, "weight", 2)
    assert torch.equal(layer.weight, before)
    assert zeros(other.weight) == 8
    assert len(history(other)) == len(history(layer)) + 1
    assert not torch.equal(stored(other), stored(layer))
    parameter = stored(other)
    assert remove(other, "weight").weight is parameter


@pytest.mark.parametrize("what", [fresh, after_forward, after_backward])
def test_e01_deepcopy(keep_name: bool, what: Callable[[nn.Linear], None]) -> None:
    layer = l1_unstructured(nn.Linear(4, 3), "weight", 6, keep_name=keep_name)
    what(layer)
    assert_equal_and_independent(layer, copy.deepcopy(layer))


@pytest.mark.parametrize("make", [OwnState, lambda: OwnReduce(4, 3), lambda: NewArguments(size=4)])
@pytest.mark.parametrize("copied", [copy.deepcopy, by_torch_save])
def test_e01_e02_modules_that_say_how_they_are_copied(keep_name: bool, make: Callable, copied: Callable) -> None:
    layer = l1_unstructured(make(), "weight", 6, keep_name=keep_name)
    other = copied(layer)
    assert type(remove(copied(layer), "weight")) is type(make())
    assert_equal_and_independent(layer, other)


@pytest.mark.parametrize("what", [fresh, after_backward])
def test_e02_torch_save(keep_name: bool, what: Callable[[nn.Linear], None]) -> None:
    layer = l1_unstructured(nn.Linear(4, 3), "weight", 6, keep_name=keep_name)
    what(layer)
    assert_equal_and_independent(layer, by_torch_save(layer))


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_e02_pickle_protocols(keep_name: bool, protocol: int) -> None:
    layer = l1_unstructured(nn.Linear(4, 3), "weight", 6, keep_name=keep_name)
    assert_equal_and_independent(layer, pickle.loads(pickle.dumps(layer, protocol)))


def test_e02_shared_memory(keep_name: bool) -> None:
    layer = l1_unstructured(nn.Linear(4, 3), "weight", 6, keep_name=keep_name)
    layer.share_memory()
    assert layer.weight_mask.is_shared()
    assert stored(layer).is_shared()
    assert zeros(layer.weight) == 6


def test_e03_attention_output_projection(keep_name: bool) -> None:
    attention = nn.MultiheadAttention(8, 2)
    l1_unstructured(attention.out_proj, "weight", 0.5, keep_name=keep_name)
    x = torch.randn(3, 2, 8)
    for _ in range(3):
        before = stored(attention.out_proj).detach().clone()
        train_step(attention, x, x, x)
        assert torch.equal(stored(attention.out_proj).grad != 0, attention.out_proj.weight_mask.bool())
        assert not torch.equal(stored(attention.out_proj), before)
        assert zeros(attention.out_proj.weight) == 32


def test_e03_a_child_whose_weight_is_read_without_a_call(keep_name: bool) -> None:
    model = ReadsChild()
    l1_unstructured(model.qkv, "weight", 10, keep_name=keep_name)
    for _ in range(3):
        before = model.qkv.weight.detach().clone()
        train_step(model, torch.randn(5, 4))
        assert not torch.equal(model.qkv.weight, before)
        assert torch.equal(model.qkv.weight != 0, before != 0)


def test_e03_encoder_layer_and_its_fast_path(keep_name: bool) -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0)
    pairs = [(layer.self_attn, "in_proj_weight"), (layer.self_attn.out_proj, "weight"), (layer.linear1, "weight")]
    global_unstructured(pairs, L1Unstructured, amount=0.5, keep_name=keep_name)
    x = torch.randn(3, 5, 8)
    train_step(layer, x)
    slow = layer(x)
    layer.eval()
    with torch.no_grad():
        fast = layer(x)
    dense = remove_all(copy.deepcopy(layer))
    torch.testing.assert_close(fast, slow)
    assert torch.equal(dense.train()(x), slow)
    assert sum(zeros(getattr(module, name)) for module, name in pairs) == round(0.5 * 384)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_e04_recurrent_layers(keep_name: bool, kind: type[nn.RNNBase]) -> None:
    rnn = kind(3, 4, num_layers=2, bidirectional=True)
    names = [name for name, _ in rnn.named_parameters()]
    parameters = list(rnn.parameters())
    x = torch.randn(5, 2, 3)
    for name in ("weight_hh_l0", "weight_ih_l1_reverse"):
        l1_unstructured(rnn, name, 0.5, keep_name=keep_name)
    assert [name.removesuffix("_orig") for name, _ in rnn.named_parameters()] == names
    for _ in range(2):
        before = rnn.weight_hh_l0.detach().clone()
        train_step(rnn, x)
        assert not torch.equal(rnn.weight_hh_l0, before)
        assert torch.equal(rnn.weight_hh_l0 != 0, before != 0)
    rnn.double()
    plain = kind(3, 4, num_layers=2, bidirectional=True).double()
    plain.load_state_dict({name: getattr(rnn, name).detach() for name in names})
    assert torch.equal(rnn(x.double())[0], plain(x.double())[0])
    assert torch.equal(copy.deepcopy(rnn)(x.double())[0], plain(x.double())[0])
    assert copy.deepcopy(rnn).to("meta").weight_hh_l0.is_meta
    remove_all(rnn)
    assert type(rnn) is kind
    assert [name for name, _ in rnn.named_parameters()] == names
    assert all(a is b for a, b in zip(rnn.parameters(), parameters, strict=True))
    assert torch.equal(rnn(x.double())[0], plain(x.double())[0])
    train_step(rnn, x.double())
    with torch.no_grad():
        parameters[0].zero_()
    assert not torch.equal(rnn(x.double())[0], plain(x.double())[0])


def test_e05_reading_after_a_step_gives_current_values(keep_name: bool) -> None:
    layer = l1_unstructured(nn.Linear(8, 8), "weight", 0.25, keep_name=keep_name)
    train_step(layer, torch.randn(4, 8), lr=5.0)
    current = stored(layer).detach() * layer.weight_mask
    assert torch.equal(layer.weight, current)
    left = current.abs().masked_fill(~layer.weight_mask.bool(), torch.inf)
    l1_unstructured(layer, "weight", 16)
    assert set((layer.weight_mask == 0).flatten().nonzero().flatten().tolist()) == set(
        (current == 0).flatten().nonzero().flatten().tolist() + left.flatten().argsort()[:16].tolist()
    )


def test_e06_loading_then_pruning_ranks_what_was_loaded(keep_name: bool) -> None:
    layer = l1_unstructured(linear([[1.0, 2.0, 3.0, 4.0]]), "weight", 1, keep_name=keep_name)
    other = l1_unstructured(linear([[0.5, 9.0, 8.0, 7.0]]), "weight", 1, keep_name=keep_name)
    layer.load_state_dict(other.state_dict())
    l1_unstructured(layer, "weight", 1)
    assert layer.weight.tolist() == [[0, 9, 8, 0]]


@pytest.mark.parametrize("assign", [False, True])
def test_e06_loading_by_assignment_stays_masked(keep_name: bool, assign: bool) -> None:
    layer = l1_unstructured(linear([[1.0, 2.0, 3.0, 4.0]]), "weight", 2, keep_name=keep_name)
    state = {key: torch.full_like(value, 5.0) for key, value in layer.state_dict().items() if "mask" not in key}
    layer.load_state_dict(state, strict=False, assign=assign)
    assert layer.weight.tolist() == [[0, 0, 5, 5]]
    train_step(layer, torch.ones(1, 4))
    assert zeros(layer.weight) == 2


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"amount": 1.5}, ValueError, "got 1.5"),
        ({"amount": 1000}, ValueError, "amount=1000 is more than the 12 units"),
        ({"amount": 1, "importance_scores": torch.ones(3)}, ValueError, "(4, 4) of Linear.weight, got (3,)"),
    ],
)
def test_e07_a_refused_second_call(keep_name: bool, arguments: dict, error: type[Exception], message: str) -> None:
    layer = l1_unstructured(nn.Linear(4, 4), "weight", 4, keep_name=keep_name)
    assert_refused(layer, lambda: l1_unstructured(layer, "weight", **arguments), error, message)
    before = stored(layer).detach().clone()
    train_step(layer, torch.randn(3, 4))
    assert not torch.equal(stored(layer), before)
    assert zeros(layer.weight) == 4
    assert [repr(method) for method in history(layer)] == ["L1Unstructured(amount=4)"]
    remove(layer, "weight")
    assert zeros(layer.weight) == 4


@pytest.mark.filterwarnings("ignore:.*deprecated.*")
def test_e08_what_cannot_be_pruned(keep_name: bool) -> None:
    without, lstm, lazy = nn.Linear(2, 2, bias=False), nn.LSTM(2, 2), nn.LazyLinear(3)
    for module, name, error, message in [
        (without, "bias", TypeError, "Linear.bias is None"),
        (lstm, "bias", TypeError, "LSTM.bias is not a parameter but a bool; parameters of this module: weight_ih_l0"),
        (nn.BatchNorm1d(2), "running_mean", TypeError, "BatchNorm1d.running_mean is not a parameter but a Tensor"),
        (torch.compile(nn.Linear(2, 2)), "weight", TypeError, "a wrapper, such as torch.compile's"),
        (nn.utils.parametrizations.weight_norm(nn.Linear(2, 2)), "weight", TypeError, "is parametrized: prune"),
    ]:
        assert_refused(module, lambda m=module, n=name: identity(m, n, keep_name=keep_name), error, message)
    assert lstm.bias is True
    with pytest.raises(TypeError, match="prune before scripting"):
        identity(torch.jit.ScriptModule(), "weight", keep_name=keep_name)
    with pytest.raises(ValueError, match=r"LazyLinear.weight has no shape yet .*: call it once, then prune"):
        identity(lazy, "weight", keep_name=keep_name)
    lazy(torch.ones(1, 5))
    assert l1_unstructured(lazy, "weight", 5, keep_name=keep_name).weight.shape == (3, 5)


def test_e08_a_lazy_module_with_one_parameter_that_has_a_shape(keep_name: bool) -> None:
    lazy = nn.LazyLinear(3)
    lazy.bias = nn.Parameter(torch.ones(3))
    with pytest.raises(ValueError, match="has no shape yet"):
        identity(lazy, "bias", keep_name=keep_name)
    assert type(lazy) is nn.LazyLinear


def test_e08_names_that_are_taken(keep_name: bool) -> None:
    for taken in ("weight_orig", "weight_mask"):
        layer = nn.Linear(2, 2)
        layer.register_buffer(taken, torch.ones(1))
        assert_refused(layer, lambda m=layer: identity(m, "weight", keep_name=keep_name), ValueError, f"{taken} exists")


def test_e09_global_pairs(keep_name: bool) -> None:
    model = LeNet()
    total = sum(module.weight.numel() for module, _ in model.tensors())
    global_unstructured((pair for pair in model.tensors() * 2), L1Unstructured, amount=0.5, keep_name=keep_name)
    assert sum(zeros(module.weight) for module, _ in model.tensors()) == round(0.5 * total)
    dense = LeNet()
    for parameters, error, message in [
        ([], ValueError, "holds no (module, name) pair"),
        (iter(()), ValueError, "holds no (module, name) pair"),
        (dense.parameters(), TypeError, "pairs such as (model.conv1, 'weight'), got an item of type Parameter"),
        ([(dense.conv1, "weight", 1)], TypeError, "got an item of type tuple"),
        (dense, TypeError, "got LeNet"),
    ]:
        call = lambda p=parameters: global_unstructured(p, L1Unstructured, amount=1, keep_name=keep_name)  # noqa: E731
        assert_refused(dense, call, error, message)


def test_e10_one_ranking_over_dtypes(keep_name: bool) -> None:
    narrow, wide = linear([[1.0, 5.0, 0.25]]).bfloat16(), linear([[2.0, 0.5, 6.0, 0.125]])
    global_unstructured([(narrow, "weight"), (wide, "weight")], L1Unstructured, amount=4, keep_name=keep_name)
    assert narrow.weight.tolist() == [[0, 5, 0]]
    assert wide.weight.tolist() == [[2, 0, 6, 0]]
    assert narrow.weight.dtype is torch.bfloat16


def test_e11_a_fraction_is_of_what_is_left(keep_name: bool) -> None:
    layer = nn.Linear(16, 16, bias=False)
    reached = [sparsity(l1_unstructured(layer, "weight", 0.5, keep_name=keep_name)) for _ in range(3)]
    assert reached == [0.5, 0.75, 0.875]
    assert "0.5, 0.75 and 0.875" in l1_unstructured.__doc__


def test_e12_ties_go_in_row_major_order(keep_name: bool) -> None:
    layer = l1_unstructured(linear([[2.0] * 3] * 4), "weight", 0.5, keep_name=keep_name)
    assert layer.weight.tolist() == [[0] * 3] * 2 + [[2] * 3] * 2


def test_e12_global_ties_go_by_tensor(keep_name: bool) -> None:
    pairs = [(linear([[-1.0, 1.0]]), "weight"), (linear([[1.0, -1.0]]), "weight")]
    global_unstructured(pairs, L1Unstructured, amount=3, keep_name=keep_name)
    assert [module.weight.tolist() for module, _ in pairs] == [[[0, 0]], [[0, -1]]]


@pytest.mark.parametrize(
    ("amount", "count"),
    [
        (0, 0),
        (1, 1),
        (0.0, 0),
        (1.0, 8),
        (np.float32(0.5), 4),
        (np.int64(3), 3),
        (torch.tensor(0.25), 2),
        (np.array(3), 3),
    ],
)
def test_e13_amounts(keep_name: bool, amount: float, count: int) -> None:
    for function in (l1_unstructured, random_unstructured):
        assert zeros(function(nn.Linear(4, 2), "weight", amount, keep_name=keep_name).weight) == count


@pytest.mark.parametrize(
    ("amount", "error", "message"),
    [
        (True, TypeError, "got True of type bool"),
        (float("nan"), ValueError, "in [0.0, 1.0], got nan"),
        (-1, ValueError, "should be >= 0, got -1"),
        (-0.5, ValueError, "in [0.0, 1.0], got -0.5"),
        (1.5, ValueError, "in [0.0, 1.0], got 1.5"),
    ],
)
def test_e13_refused_amounts(keep_name: bool, amount: float, error: type[Exception], message: str) -> None:
    layer = nn.Linear(4, 2)
    calls: list[Callable[[], object]] = [
        lambda: l1_unstructured(layer, "weight", amount, keep_name=keep_name),
        lambda: random_unstructured(layer, "weight", amount, keep_name=keep_name),
        lambda: ln_structured(layer, "weight", amount, n=2, dim=0, keep_name=keep_name),
        lambda: random_structured(layer, "weight", amount, dim=0, keep_name=keep_name),
        lambda: global_unstructured([(layer, "weight")], L1Unstructured, amount=amount, keep_name=keep_name),
    ]
    for call in calls:
        assert_refused(layer, call, error, message)


def test_e14_structured_after_unstructured_and_back(keep_name: bool) -> None:
    def rounds(order: str) -> tuple[list[int], list[Tensor]]:
        layer, counts, masks = nn.Linear(8, 8), [], []
        for kind in order:
            if kind == "u":
                l1_unstructured(layer, "weight", 0.25, keep_name=keep_name)
            else:
                ln_structured(layer, "weight", 0.25, n=2, dim=0, keep_name=keep_name)
            counts.append(zeros(layer.weight))
            masks.append(layer.weight_mask.clone().bool())
        return counts, masks

    for order, first in (("usu", 16), ("sus", 16)):
        counts, masks = rounds(order)
        assert counts[0] == first
        assert all(not (later & ~earlier).any() for earlier, later in pairwise(masks))
    counts, masks = rounds("susu")
    assert counts[:2] == [16, 16 + 12]  # a quarter of 64, then a quarter of the 48 left
    assert int((~masks[2].any(dim=1)).sum()) == 2 + round(0.25 * 6)  # channels that still had an entry: 6
    assert counts[3] == counts[2] + round(0.25 * (64 - counts[2]))


@pytest.mark.parametrize("function", [ln_structured, random_structured])
def test_e15_dimensions(keep_name: bool, function: Callable) -> None:
    extra = {"n": 1} if function is ln_structured else {}
    for dim in range(4):
        conv = function(nn.Conv2d(3, 4, (2, 5)), "weight", amount=1, dim=dim - 4, keep_name=keep_name, **extra)
        others = [d for d in range(4) if d != dim]
        assert int((~conv.weight_mask.bool().any(dim=others)).sum()) == 1
    conv = nn.Conv2d(3, 4, (2, 5))
    for dim in (-5, 4, 7):
        call = lambda d=dim: function(conv, "weight", amount=1, dim=d, keep_name=keep_name, **extra)  # noqa: E731
        assert_refused(conv, call, IndexError, f"dim={dim}", "(4, 3, 2, 5)")


def test_e15_a_users_method_with_a_dim_that_does_not_exist(keep_name: bool) -> None:
    layer = custom_from_mask(linear([[1.0, 2.0]]), "weight", [[1, 1]], keep_name=keep_name)
    body = {"PRUNING_TYPE": "structured", "dim": 7, "compute_mask": lambda self, t, default_mask: default_mask}
    method = type("Mine", (L1Unstructured,), body)
    assert_refused(layer, lambda: method.apply(layer, "weight", 1), IndexError, "dim=7", "(1, 2)")
    assert F.linear(torch.ones(1, 2), layer.weight).tolist() == [[3]]
