"""Layers become sparse where that was measured to be faster, with the same outputs."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lightning_prune.export import load_sparse, save_sparse, sparse_linear, sparse_models
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
    assert [sparse_models.sparse_layer(layer) for layer in model] == [None, None, None]


def test_attention_reads_its_projections_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    attention = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    for name in ("linear1", "linear2"):
        with torch.no_grad():
            attention.get_submodule(name).weight[:, 1:] = 0
    times(monkeypatch, *[(1.0, 0.5)] * 4)
    x = torch.randn(2, 3, 8)
    copy, _ = sparse_linear(attention, x)
    with torch.inference_mode():
        assert torch.allclose(copy(x), attention(x), atol=1e-5)
    assert torch.allclose(copy(x), attention(x), atol=1e-5)


def test_a_model_elsewhere_and_no_inputs_are_refused(net: Net) -> None:
    with pytest.raises(ValueError, match="the model is on 'meta'"):
        sparse_linear(net.to("meta"), INPUTS)
    with pytest.raises(ValueError, match="example_inputs"):
        sparse_linear(nn.Linear(2, 2))
