"""Layers become sparse where that was measured to be faster, with the same outputs."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lightning_prune.export import load_sparse, save_sparse, sparse_linear, sparse_models
from lightning_prune.export.sparse_attention import SparseAttention
from lightning_prune.export.sparse_choice import sparse_layer
from lightning_prune.export.sparse_layers import SparseConv1x1, SparseLinear
from lightning_prune.prune import l1_unstructured


class Net(nn.Module):
    """Two linear layers, one of them used twice, and 1 x 1 and 3 x 3 convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 1, stride=2)
        self.conv3 = nn.Conv2d(16, 16, 3, padding=1, bias=False)
        self.fc1 = nn.Linear(16, 64, bias=False)
        self.fc2 = nn.Linear(64, 64)
        self.again = self.fc2

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.conv3(F.relu(self.conv1(x)))).mean(dim=(2, 3))
        return self.again(F.relu(self.fc2(F.relu(self.fc1(x)))))


@pytest.fixture
def net() -> Net:
    torch.manual_seed(0)
    net = Net()
    for layer in (net.conv1, net.conv3, net.fc1, net.fc2):
        with torch.no_grad():
            layer.weight[torch.rand_like(layer.weight) < 0.9] = 0
    return net


def times(monkeypatch: pytest.MonkeyPatch, *pairs: tuple[float, float]) -> None:
    """Says what is measured: first of each layer in the order of calls, then of the whole model."""
    measured = iter(pairs)
    monkeypatch.setattr(sparse_models, "_in_turns", lambda one, two, repeats: next(measured))


INPUTS = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(1))


def test_faster_layers_are_chosen_and_others_kept(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    times(monkeypatch, (1.0, 0.5), (1.0, 0.96), (1.0, 0.9), (5.0, 4.0))
    copy, report = sparse_linear(net, INPUTS)
    assert report.chosen == ("conv1", "fc2")
    assert [layer.name for layer in report.layers] == ["conv1", "fc1", "fc2"]
    assert isinstance(copy.conv1, SparseConv1x1)
    assert type(copy.conv3) is nn.Conv2d
    assert type(copy.fc1) is nn.Linear
    assert isinstance(copy.fc2, SparseLinear)
    assert copy.again is copy.fc2
    assert report.gain == 1.25
    assert report.layers[1].sparsity == int((net.fc1.weight == 0).sum()) / net.fc1.weight.numel()
    assert type(net.fc2) is nn.Linear
    with torch.inference_mode():
        assert torch.allclose(copy(INPUTS), net.eval()(INPUTS), rtol=1e-5, atol=1e-6)
    assert report.difference < 1e-5


def test_all_stays_dense_where_the_whole_is_not_faster(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    times(monkeypatch, (1.0, 0.5), (1.0, 0.5), (1.0, 0.5), (4.0, 4.1))
    copy, report = sparse_linear(net, INPUTS)
    assert (report.chosen, report.gain, report.difference) == ((), 1.0, 0.0)
    assert type(copy.fc2) is nn.Linear
    assert copy.fc2 is not net.fc2


def test_a_layer_whose_outputs_would_differ_stays_dense(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    times(monkeypatch, (1.0, 0.5), (5.0, 4.0))
    with torch.no_grad():
        net.fc2.weight.fill_(1)
        net.fc1.weight.fill_(1)
    inputs = INPUTS.clone()
    inputs[0, 0, 0, 0] = float("inf")  # times zero that is NaN, which CSR leaves out
    _, report = sparse_linear(net, inputs)
    assert report.chosen == ()


def test_times_are_measured() -> None:
    _, report = sparse_linear(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)), torch.ones(1, 8), repeats=2)
    assert report.layers == ()
    assert report.dense == report.sparse > 0


def test_a_pruned_model_and_the_model_itself_as_a_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = nn.Linear(8, 8)
    l1_unstructured(layer, "weight", amount=60)
    times(monkeypatch, (1.0, 0.5), (1.0, 0.5))
    copy, report = sparse_linear(layer, torch.ones(3, 8))
    assert isinstance(copy, SparseLinear)
    assert copy.values.numel() == 4
    assert torch.allclose(copy(torch.ones(8)), layer(torch.ones(8)), atol=1e-6)
    assert report.layers[0].sparsity == 60 / 64


def test_pickled_saved_and_loaded(net: Net, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    times(monkeypatch, *[(1.0, 0.5)] * 4)
    copy, _ = sparse_linear(net, INPUTS)
    again = pickle.loads(pickle.dumps(copy))
    assert torch.equal(again(INPUTS), copy(INPUTS))
    save_sparse(copy, tmp_path / "file")
    for value in again.state_dict().values():
        value.zero_()
    again.load_state_dict(load_sparse(tmp_path / "file"))
    assert torch.equal(again(INPUTS), copy(INPUTS))
    assert torch.equal(copy.fc2.weight, net.fc2.weight)
    assert torch.equal(copy.conv1.weight, net.conv1.weight)


def test_layers_become_dense_again(net: Net) -> None:
    linear, conv = SparseLinear(net.fc1).to_dense(), SparseConv1x1(net.conv1).to_dense()
    assert type(linear) is nn.Linear
    assert torch.equal(linear.weight, net.fc1.weight)
    assert linear.bias is None
    assert torch.equal(conv(INPUTS), net.conv1(INPUTS))


@pytest.mark.parametrize("shape", [(7,), (3, 7), (2, 3, 7), (0, 7)])
def test_shapes_and_strides(shape: tuple[int, ...]) -> None:
    layer = nn.Linear(7, 5)
    x = torch.randn(*shape)
    assert torch.allclose(SparseLinear(layer)(x), layer(x), atol=1e-6)
    if_columns = torch.randn(7, 4).t()
    assert torch.allclose(SparseLinear(layer)(if_columns), layer(if_columns), atol=1e-6)
    conv, picture = nn.Conv2d(3, 4, 1, stride=(1, 2), bias=False), torch.randn(3, 5, 6)
    assert torch.allclose(SparseConv1x1(conv)(picture), conv(picture), atol=1e-6)


@pytest.mark.filterwarnings("ignore")
def test_tracing_is_refused_with_the_way_out(net: Net) -> None:
    layer = SparseLinear(net.fc2).eval()
    with pytest.raises(RuntimeError, match="export the dense model, before sparse_linear"):
        torch.export.export(layer, (torch.ones(1, 64),))


def test_own_layers_and_other_kernels_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    class Doubled(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * super().forward(x)

    model = nn.Sequential(Doubled(4, 4), nn.Conv2d(1, 1, 1, padding=1), nn.Conv2d(4, 4, 1, groups=2))
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    assert [sparse_layer(layer) for layer in model] == [None, None, None]


MASKS = {
    "none": {},
    "padding": {"key_padding_mask": torch.tensor([[False] * 6, [False] * 4 + [True] * 2])},
    "causal": {"attn_mask": torch.ones(6, 6).triu(1).bool(), "is_causal": True},
    "added, for each head": {"attn_mask": torch.linspace(-1, 1, 4 * 36).view(4, 6, 6)},
    "both": {
        "attn_mask": torch.linspace(-1, 1, 36).view(6, 6),
        "key_padding_mask": torch.tensor([[0.0] * 6, [0.0] * 5 + [-5.0]]),
    },
}


@pytest.mark.parametrize("weights", [{"need_weights": False}, {}, {"average_attn_weights": False}], ids=str)
@pytest.mark.parametrize("masks", MASKS)
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_attention(masks: str, weights: dict[str, bool], batch_first: bool, bias: bool) -> None:
    torch.manual_seed(0)
    dense = nn.MultiheadAttention(8, 2, batch_first=batch_first, bias=bias).eval()
    with torch.no_grad():
        dense.in_proj_weight[:, ::2] = 0
    sparse, arguments = SparseAttention(dense), {**MASKS[masks], **weights}
    x, y, z = (torch.randn(2, 6, 8).transpose(0, 0 if batch_first else 1) for _ in range(3))
    with torch.inference_mode():
        for inputs in ((x, x, x), (x, y, y), (x, y, z)):
            expected, found = dense(*inputs, **arguments), sparse(*inputs, **arguments)
            assert torch.allclose(found[0], expected[0], atol=1e-5)
            assert (found[1] is None) == (expected[1] is None) == (weights == {"need_weights": False})
            assert all(
                torch.allclose(a, b, atol=1e-6) for a, b in zip(found[1:], expected[1:], strict=True) if a is not None
            )


def test_attention_without_a_batch_and_back() -> None:
    dense, x = nn.MultiheadAttention(8, 2, dropout=0.5).eval(), torch.randn(5, 8)
    sparse = SparseAttention(dense)
    assert torch.allclose(sparse(x, x, x)[0], dense(x, x, x)[0], atol=1e-6)
    assert torch.allclose(sparse(x, x, x)[1], dense(x, x, x)[1], atol=1e-6)
    assert torch.equal(sparse.to_dense()(x, x, x)[0], dense(x, x, x)[0])
    with pytest.raises(ValueError, match="give it"):
        sparse(x, x, x, is_causal=True)


@pytest.mark.parametrize(
    "arguments", [{"kdim": 4}, {"add_bias_kv": True}, {"add_zero_attn": True}], ids=["widths", "bias", "zero"]
)
def test_attention_of_other_kinds_stays_dense(arguments: dict[str, Any]) -> None:
    assert sparse_layer(nn.MultiheadAttention(8, 2, **arguments)) is None


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("norm_first", [True, False])
def test_a_transformer_calls_its_sparse_layers(monkeypatch: pytest.MonkeyPatch, norm_first: bool) -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=norm_first)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=not norm_first).eval()
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter[..., torch.rand(parameter.shape[-1]) < 0.7] = 0
    times(monkeypatch, *[(1.0, 0.5)] * 7)
    x, padding = torch.randn(2, 3, 8), torch.tensor([[False, False, False], [False, False, True]])
    copy, report = sparse_linear(encoder, {"src": x, "src_key_padding_mask": padding})
    assert report.chosen == tuple(
        f"layers.{i}.{name}" for i in range(2) for name in ("self_attn", "linear1", "linear2")
    )
    assert report.layers[0].shape == (32, 8)
    called = []
    for name in report.chosen:
        copy.get_submodule(name).register_forward_hook(lambda module, *_, name=name: called.append(name))
    monkeypatch.setattr(SparseLinear, "weight", property(lambda self: pytest.fail("dense weights were made")))
    with torch.inference_mode():
        expected, found = (net(x, src_key_padding_mask=padding) for net in (encoder, copy))
    assert torch.allclose(found[~padding], expected[~padding], atol=1e-5)
    assert called == list(report.chosen)


def test_matrices_are_made_once_and_again_when_their_values_are_others(net: Net) -> None:
    layer, x = SparseLinear(net.fc2), torch.randn(3, 64)
    with torch.inference_mode():
        expected = layer(x)
    made = layer.matrix()
    assert layer.matrix() is made
    assert torch.equal(layer(x.requires_grad_()), expected)
    layer.values.mul_(2)
    assert layer.matrix() is made
    assert torch.allclose(layer(x) - net.fc2.bias, 2 * (expected - net.fc2.bias), atol=1e-5)
    assert layer.double().matrix().dtype == torch.float64
    assert torch.allclose(layer(x[:1].double()), layer(x.double())[:1])


def test_a_model_elsewhere_and_no_inputs_are_refused(net: Net) -> None:
    with pytest.raises(ValueError, match="the model is on 'meta'"):
        sparse_linear(net.to("meta"), INPUTS)
    with pytest.raises(ValueError, match="example_inputs"):
        sparse_linear(nn.Linear(2, 2))
