"""Situations E16 to E29 that users met: layouts of memory, dtypes, history, tools around the model."""

import copy
import gc
import pickle
from collections.abc import Callable, Iterator
from itertools import pairwise

import pytest
import torch
import torch._dynamo
import torch.nn.utils.prune as torch_prune
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounter
from torch.func import functional_call, grad, vmap
from torch.utils.checkpoint import checkpoint

from lightning_prune.prune import (
    BasePruningMethod,
    L1Unstructured,
    custom_from_mask,
    global_unstructured,
    identity,
    is_pruned,
    l1_unstructured,
    ln_structured,
    pruned_tensors,
    random_structured,
    random_unstructured,
    remove,
    remove_all,
    sparsity,
)
from lightning_prune.prune.attribute import Layout
from lightning_prune.prune.base import apply_method
from tests.prune.modules import LeNet, ReadsChild, assert_refused, history, linear, stored, train_step, zeros

METHODS: list[Callable[..., nn.Module]] = [
    lambda m, **k: l1_unstructured(m, "weight", 0.5, **k),
    lambda m, **k: random_unstructured(m, "weight", 0.5, **k),
    lambda m, **k: ln_structured(m, "weight", 0.5, n=2, dim=0, **k),
    lambda m, **k: random_structured(m, "weight", 0.5, dim=1, **k),
    lambda m, **k: custom_from_mask(m, "weight", torch.arange(m.weight.numel()).view(m.weight.shape) % 2, **k),
    lambda m, **k: global_unstructured([(m, "weight")], L1Unstructured, amount=0.5, **k) or m,
]


def test_e16_structured_on_a_bias(keep_name: bool) -> None:
    layer = nn.Linear(4, 4)
    for call in (
        lambda: ln_structured(layer, "bias", 0.5, n=2, dim=0, keep_name=keep_name),
        lambda: random_structured(layer, "bias", 0.5, dim=0, keep_name=keep_name),
    ):
        assert_refused(layer, call, ValueError, "Linear.bias", "at least two dimensions", "with an unstructured method")


@pytest.mark.parametrize("method", METHODS)
def test_e17_channels_last(keep_name: bool, method: Callable) -> None:
    plain, conv = (nn.Conv2d(4, 6, 3) for _ in range(2))
    conv.load_state_dict(plain.state_dict())
    conv.to(memory_format=torch.channels_last)
    for module in (plain, conv):
        torch.manual_seed(1)
        method(module, keep_name=keep_name)
    assert zeros(conv.weight) == zeros(plain.weight) == 108
    last = {"memory_format": torch.channels_last}
    assert conv.weight.is_contiguous(**last)
    train_step(conv, torch.randn(2, 4, 8, 8))
    assert remove(conv, "weight").weight.is_contiguous(**last)
    assert zeros(conv.weight) == 108


@pytest.mark.parametrize("method", METHODS[:1] + METHODS[2:3] + METHODS[4:])
def test_e17_channels_last_masks_are_those_of_contiguous_weights(keep_name: bool, method: Callable) -> None:
    plain, conv = (nn.Conv2d(4, 6, 3) for _ in range(2))
    conv.load_state_dict(plain.state_dict())
    conv.to(memory_format=torch.channels_last)
    for module in (plain, conv):
        method(module, keep_name=keep_name)
    assert torch.equal(conv.weight_mask, plain.weight_mask)
    plain.to(memory_format=torch.channels_last)
    assert plain.weight.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(conv.weight, plain.weight)


@pytest.mark.parametrize("method", METHODS)
def test_e17_transposed_weight(keep_name: bool, method: Callable) -> None:
    layer = nn.Linear(6, 4)
    layer.weight = nn.Parameter(torch.randn(6, 4).t())
    strides = layer.weight.stride()
    method(layer, keep_name=keep_name)
    assert zeros(layer.weight) == 12
    assert layer.weight.stride() == strides
    assert remove(layer, "weight").weight.stride() == strides


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("method", METHODS)
def test_e18_dtypes(keep_name: bool, method: Callable, dtype: torch.dtype) -> None:
    layer = method(nn.Linear(6, 4).to(dtype), keep_name=keep_name)
    assert layer.weight.dtype is dtype
    assert layer.weight_mask.dtype is (torch.bool if keep_name else dtype)
    assert zeros(layer.weight) == 12


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.half, torch.double])
def test_e18_conversion_after_pruning(keep_name: bool, dtype: torch.dtype) -> None:
    layer = l1_unstructured(nn.Linear(6, 4), "weight", 0.5, keep_name=keep_name)
    alive = layer.weight != 0
    layer.to(dtype)
    assert layer.weight.dtype is dtype
    assert layer.weight_mask.dtype is (torch.bool if keep_name else dtype)
    assert torch.equal(layer.weight != 0, alive)
    l1_unstructured(layer, "weight", 0.5)
    assert zeros(layer.weight) == 18


def test_e18_meta(keep_name: bool) -> None:
    layer = l1_unstructured(nn.Linear(6, 4), "weight", 0.5, keep_name=keep_name).to("meta")
    assert layer.weight.is_meta
    assert layer(torch.ones(2, 6, device="meta")).shape == (2, 4)
    assert remove(layer, "weight").weight.is_meta
    never = identity(nn.Linear(6, 4, device="meta"), "weight", keep_name=keep_name)
    assert never.weight.is_meta


def test_e19_custom_masks(keep_name: bool) -> None:
    layer = nn.Linear(2, 2)
    for mask, message in [
        (torch.tensor([[1.0, 0.5], [1, 1]]), "only 0 and 1, got 1 other values such as 0.5"),
        (torch.tensor([[1, 2], [2, 1]]), "only 0 and 1, got 2 other values such as 2"),
        (torch.tensor([[1, torch.nan], [0, 1]]), "only 0 and 1"),
        (torch.ones(2), "(2, 2) of the tensor, got (2,)"),
        (torch.ones(1, 2), "(2, 2) of the tensor, got (1, 2)"),
    ]:
        call = lambda m=mask: custom_from_mask(layer, "weight", m, keep_name=keep_name)  # noqa: E731
        assert_refused(layer, call, ValueError, "Linear.weight", message)


@pytest.fixture
def only_new_objects() -> Iterator[None]:
    """Hides all objects that are there already from the garbage collector."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def live_bytes() -> int:
    gc.collect()
    tensors = [o for o in gc.get_objects() if type(o) in (Tensor, nn.Parameter)]
    return sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}.values())


def rounds_of(function: Callable, layer: nn.Module, count: int) -> tuple[int, int]:
    for _ in range(count):
        function(layer)
    return live_bytes(), len(pickle.dumps(layer))


@pytest.mark.usefixtures("only_new_objects")
@pytest.mark.parametrize(
    "function",
    [
        lambda layer: l1_unstructured(layer, "weight", 1),
        lambda layer: random_unstructured(layer, "weight", 0.01, generator=torch.Generator().manual_seed(1)),
        lambda layer: custom_from_mask(layer, "weight", torch.rand(40, 40) < 0.99),
        lambda layer: apply_method(
            torch_prune.CustomFromMask(torch.rand(40, 40) < 0.99), layer, "weight", None, Layout.KEPT
        ),
        lambda layer: global_unstructured([(layer, "weight")], L1Unstructured, amount=1),
    ],
)
def test_e20_rounds_keep_memory_and_file_size(keep_name: bool, function: Callable) -> None:
    layer = identity(nn.Linear(40, 40), "weight", keep_name=keep_name)
    memory, size = rounds_of(function, layer, 3)
    more_memory, more_size = rounds_of(function, layer, 50)
    assert len(history(layer)) == 54
    assert memory >= 40 * 40 * 5
    assert more_memory <= memory
    assert more_size <= size + 50 * 40  # a few bytes a round for methods that cannot be compared; a mask has 1600


def test_e20_four_hundred_rounds_stay_readable(keep_name: bool) -> None:
    layer = nn.Linear(40, 40)
    for _ in range(400):
        l1_unstructured(layer, "weight", 0.005, keep_name=keep_name)
    (hook,) = layer._forward_pre_hooks.values()
    assert len(hook) == 400
    assert repr(hook) == "PruningContainer(400 x L1Unstructured(amount=0.005))"
    assert len(pickle.dumps(hook)) < 1000


def test_e20_a_small_layer_pins_nothing_of_the_model(keep_name: bool) -> None:
    model = LeNet()
    global_unstructured(model.tensors(), L1Unstructured, amount=0.5, keep_name=keep_name)
    alone = len(pickle.dumps(model.conv1))
    assert alone < 2 * 4 * (150 + 150 + 6) + 3000


def test_e21_a_fraction_of_a_small_tensor(keep_name: bool) -> None:
    layer = nn.Linear(4, 1)
    for _ in range(10):
        l1_unstructured(layer, "weight", 0.1, keep_name=keep_name)
    assert zeros(layer.weight) == 0
    assert "10 % of 4 entries is 0, in every round" in " ".join(l1_unstructured.__doc__.split())


def test_e22_whole_models(keep_name: bool) -> None:
    model = LeNet()
    total = sum(parameter.numel() for parameter in model.parameters())
    global_unstructured(model.tensors(), L1Unstructured, amount=1000, keep_name=keep_name)
    assert list(pruned_tensors(model)) == ["conv1.weight", "conv2.weight", "fc1.weight", "fc2.weight", "fc3.weight"]
    assert sparsity(model) == pytest.approx(1000 / total)
    assert list(remove_all(model).state_dict()) == list(LeNet().state_dict())
    assert not is_pruned(model)


@pytest.mark.parametrize("strict", [False, True])
def test_e23_states_of_the_other_kind_name_the_helper(strict: bool) -> None:
    documented, kept = LeNet(), LeNet()
    l1_unstructured(documented.conv1, "weight", 0.5)
    l1_unstructured(kept.conv1, "weight", 0.5, keep_name=True)
    with pytest.raises(
        RuntimeError, match=r"'conv1.weight' is pruned in this module .*lightning_prune.checkpoint.to_pruned"
    ):
        documented.load_state_dict(LeNet().state_dict(), strict=strict)
    with pytest.raises(RuntimeError, match=r"'conv1.weight_orig' and .*lightning_prune.checkpoint.to_dense"):
        kept.load_state_dict(documented.state_dict(), strict=strict)


def test_e23_the_kept_layout_loads_dense_states_both_ways() -> None:
    model, dense = LeNet(), LeNet()
    l1_unstructured(model.conv1, "weight", 0.5, keep_name=True)
    with torch.no_grad():
        model.conv1._parameters["weight"].add_(1)
    dense.load_state_dict(model.state_dict())
    assert zeros(dense.conv1.weight) == 75
    model.load_state_dict(LeNet().state_dict())
    assert zeros(model.conv1.weight) == 75


def test_e24_hooks_of_users_stay_in_order(keep_name: bool) -> None:
    layer, calls = nn.Linear(4, 4), []
    layer.register_forward_pre_hook(lambda *_: calls.append("a"))
    l1_unstructured(layer, "weight", 1, keep_name=keep_name)
    layer.register_forward_pre_hook(lambda *_: calls.append("b"))
    layer.register_forward_hook(lambda *_: calls.append("c"))
    order = list(layer._forward_pre_hooks)
    for _ in range(3):
        l1_unstructured(layer, "weight", 1)
        random_unstructured(layer, "bias", 1, keep_name=keep_name)
    assert list(layer._forward_pre_hooks)[:3] == order
    layer(torch.ones(1, 4))
    remove_all(layer)(torch.ones(1, 4))
    assert calls == ["a", "b", "c"] * 2


class Threshold(torch_prune.BasePruningMethod):
    """Written for torch; gives masks of the dtype that it is asked for."""

    PRUNING_TYPE = "unstructured"

    def __init__(self, threshold: float, dtype: torch.dtype) -> None:
        self.threshold, self.dtype = threshold, dtype

    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        return (t.abs() > self.threshold).to(self.dtype)


class OurThreshold(Threshold, BasePruningMethod):
    pass


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.float64, torch.float32])
@pytest.mark.parametrize("method", [Threshold, OurThreshold])
def test_e25_methods_of_users_compose_with_ours(keep_name: bool, method: type, dtype: torch.dtype) -> None:
    layout = Layout.KEPT if keep_name else Layout.DOCUMENTED
    layer = linear([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    apply_method(method(1.5, dtype), layer, "weight", None, layout)
    ln_structured(layer, "weight", 1, n=2, dim=1)
    apply_method(method(4.5, dtype), layer, "weight", None, layout)
    assert layer.weight.tolist() == [[0, 0, 0], [0, 5, 6]]
    assert layer.weight_mask.dtype is (torch.bool if keep_name else torch.float32)
    assert [type(m).__name__ for m in history(layer)] == [method.__name__, "LnStructured", method.__name__]
    assert len(pickle.dumps(layer)) > 0
    train_step(layer, torch.ones(1, 3))
    assert zeros(torch_prune.remove(layer, "weight").weight) == 4


def prune_all(model: ReadsChild, keep_name: bool) -> None:
    global_unstructured(model.tensors(), L1Unstructured, amount=0.3, keep_name=keep_name)


def test_e26_compile_recompiles_at_most_once_per_pruning(keep_name: bool) -> None:
    torch._dynamo.reset()
    model, x, counter = ReadsChild(), torch.randn(3, 4), CompileCounter()
    compiled = torch.compile(model, backend=counter, fullgraph=True)
    assert torch.equal(compiled(x), model(x))
    counts = [counter.frame_count]
    for _ in range(4):
        prune_all(model, keep_name)
        output = compiled(x)
        assert torch.equal(output, model(x))
        output.sum().backward()
        compiled(x)
        counts.append(counter.frame_count)
    assert [b - a for a, b in pairwise(counts)] == [1, 1, 0, 0]
    remove_all(model)
    assert torch.equal(compiled(x), model(x))
    assert counter.frame_count <= counts[-1] + 1


def test_e26_compiled_backward_is_the_eager_one(keep_name: bool) -> None:
    torch._dynamo.reset()
    model, x = ReadsChild(), torch.randn(3, 4)
    prune_all(model, keep_name)
    compiled = torch.compile(copy.deepcopy(model), backend="aot_eager", fullgraph=True)
    for runs in (model, compiled):
        runs(x).square().sum().backward()
    expected = [parameter.grad for parameter in model.parameters()]
    torch.testing.assert_close([parameter.grad for parameter in compiled.parameters()], expected)


@pytest.mark.parametrize("strict", [False, True])
def test_e26_export(keep_name: bool, strict: bool) -> None:
    model, x = ReadsChild(), torch.randn(3, 4)
    prune_all(model, keep_name)
    program = torch.export.export(model, (x,), strict=strict)
    torch.testing.assert_close(program.module()(x), model(x))


def test_e26_fx(keep_name: bool) -> None:
    model, x = ReadsChild(), torch.randn(3, 4)
    prune_all(model, keep_name)
    graph = torch.fx.symbolic_trace(model)
    assert torch.equal(graph(x), model(x))
    assert graph.head.weight.count_nonzero() == model.head.weight.count_nonzero()


def test_e26_fx_graphs_train_the_same_parameters(keep_name: bool) -> None:
    model, x = ReadsChild(), torch.randn(3, 4)
    prune_all(model, keep_name)
    graph = torch.fx.symbolic_trace(model)
    for runs in (model, graph):
        train_step(runs, x)
    assert {id(parameter) for parameter in graph.parameters()} == {id(parameter) for parameter in model.parameters()}
    torch.testing.assert_close(graph(x), model(x))


def test_e26_functional_call_grad_and_vmap(keep_name: bool) -> None:
    layer = l1_unstructured(linear([[1.0, 2.0, 3.0]]), "weight", 1, keep_name=keep_name)
    name = "weight" if keep_name else "weight_orig"
    replaced = {name: torch.tensor([[10.0, 20.0, 30.0]]), "bias": torch.zeros(1)}
    assert functional_call(layer, replaced, torch.ones(1, 3)).tolist() == [[50]]
    rows = torch.eye(3).view(3, 1, 3)
    gradients = grad(lambda p: functional_call(layer, p, torch.ones(1, 3)).sum())(replaced)
    assert gradients[name].tolist() == [[0, 1, 1]]
    per_sample = vmap(grad(lambda p, row: functional_call(layer, p, row).sum()), (None, 0))(replaced, rows)
    assert per_sample[name].tolist() == [[[0, 0, 0]], [[0, 1, 0]], [[0, 0, 1]]]


@pytest.mark.parametrize("reentrant", [False, True])
def test_e26_activation_checkpointing(keep_name: bool, reentrant: bool) -> None:
    model, x = ReadsChild(), torch.randn(3, 4, requires_grad=True)
    prune_all(model, keep_name)
    plain = copy.deepcopy(model)
    checkpoint(model, x, use_reentrant=reentrant).sum().backward()
    plain(x).sum().backward()
    for a, b in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(a.grad, b.grad)


def test_e26_double_backward(keep_name: bool) -> None:
    layer = l1_unstructured(nn.Linear(3, 1), "weight", 1, keep_name=keep_name)
    x = torch.randn(4, 3, requires_grad=True)
    (slope,) = torch.autograd.grad(layer(x).square().sum(), x, create_graph=True)
    slope.square().sum().backward()
    assert torch.equal(stored(layer).grad != 0, layer.weight_mask.bool())


@pytest.mark.parametrize(("layer", "shape"), [(nn.ConvTranspose2d(3, 5, 2), 5), (nn.ConvTranspose1d(3, 4, 2), 4)])
def test_e27_output_channels_of_transposed_convolutions(keep_name: bool, layer: nn.Module, shape: int) -> None:
    layer = copy.deepcopy(layer)
    nn.init.zeros_(layer.bias)
    ln_structured(layer, "weight", 2, n=1, dim=1, keep_name=keep_name)
    output = layer(torch.randn(1, 3, *[4] * (layer.weight.dim() - 2)))
    assert output.shape[1] == shape
    assert int((output.flatten(2) == 0).all(dim=2).sum()) == 2
    for function in (ln_structured, random_structured):
        assert "dim 1 of ConvTranspose layers" in " ".join(function.__doc__.split())


@pytest.mark.filterwarnings("ignore:.*deprecated.*")
def test_e28_dynamic_quantization(keep_name: bool) -> None:
    model, x = nn.Sequential(nn.Linear(8, 4)), torch.randn(2, 8)
    l1_unstructured(model[0], "weight", 16, keep_name=keep_name)
    before = torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, torch.qint8)
    assert torch.equal(before(x), model(x))  # a pruned layer stays in floating point
    after = torch.ao.quantization.quantize_dynamic(remove_all(model), {nn.Linear}, torch.qint8)
    assert int((after[0].weight().int_repr() == 0).sum()) >= 16
    torch.testing.assert_close(after(x), model(x), atol=0.05, rtol=0.05)


def test_e28_fusion_of_convolution_and_norm(keep_name: bool) -> None:
    conv, norm, x = nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), torch.randn(4, 2, 6, 6)
    norm(conv(x))
    l1_unstructured(conv, "weight", 20, keep_name=keep_name)
    conv.eval(), norm.eval()
    for prepared in (conv, remove(copy.deepcopy(conv), "weight")):
        fused = nn.utils.fuse_conv_bn_eval(prepared, norm)
        torch.testing.assert_close(fused(x), norm(conv(x)), atol=1e-5, rtol=1e-4)
        assert zeros(fused.weight) == 20


def test_e29_complex_weights(keep_name: bool) -> None:
    layer = nn.Linear(2, 2, dtype=torch.complex64)
    layer.weight = nn.Parameter(torch.tensor([[3 + 4j, 4 + 0j], [1 + 1j, 0 + 1.2j]]))
    l1_unstructured(layer, "weight", 1, keep_name=keep_name)
    assert layer.weight.tolist() == [[3 + 4j, 4], [1 + 1j, 0]]
    assert layer.weight_mask.dtype is (torch.bool if keep_name else torch.float32)
    ln_structured(layer, "weight", 1, n=2, dim=1)
    assert layer.weight.tolist() == [[3 + 4j, 0], [1 + 1j, 0]]
    layer(torch.ones(1, 2, dtype=torch.complex64)).abs().sum().backward()
    assert torch.equal(stored(layer).grad != 0, layer.weight_mask.bool())
    assert remove(layer, "weight").weight.tolist() == [[3 + 4j, 0], [1 + 1j, 0]]
