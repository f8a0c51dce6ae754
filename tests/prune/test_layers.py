"""Layers of torch that read, convert or replace weights in ways of their own."""

import copy

import pytest
import torch
import torch._dynamo
from torch import nn

from lightning_prune.prune import (
    L1Unstructured,
    global_unstructured,
    l1_unstructured,
    ln_structured,
    random_structured,
    remove,
    remove_all,
)
from tests.prune.modules import ReadsChild, stored, train_step, zeros


def test_attention_output_projection(keep_name: bool) -> None:
    attention = nn.MultiheadAttention(8, 2)
    l1_unstructured(attention.out_proj, "weight", 0.5, keep_name=keep_name)
    x = torch.randn(3, 2, 8)
    for _ in range(3):
        before = stored(attention.out_proj).detach().clone()
        train_step(attention, x, x, x)
        assert torch.equal(stored(attention.out_proj).grad != 0, attention.out_proj.weight_mask.bool())
        assert not torch.equal(stored(attention.out_proj), before)
        assert zeros(attention.out_proj.weight) == 32


def test_a_child_whose_weight_is_read_without_a_call(keep_name: bool) -> None:
    model = ReadsChild()
    l1_unstructured(model.qkv, "weight", 10, keep_name=keep_name)
    for _ in range(3):
        before = model.qkv.weight.detach().clone()
        train_step(model, torch.randn(5, 4))
        assert not torch.equal(model.qkv.weight, before)
        assert torch.equal(model.qkv.weight != 0, before != 0)


def test_encoder_layer_and_its_fast_path(keep_name: bool) -> None:
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
def test_recurrent_layers(keep_name: bool, kind: type[nn.RNNBase]) -> None:
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


def test_reading_after_a_step_gives_current_values(keep_name: bool) -> None:
    layer = l1_unstructured(nn.Linear(8, 8), "weight", 0.25, keep_name=keep_name)
    train_step(layer, torch.randn(4, 8), lr=5.0)
    current = stored(layer).detach() * layer.weight_mask
    assert torch.equal(layer.weight, current)
    left = current.abs().masked_fill(~layer.weight_mask.bool(), torch.inf)
    l1_unstructured(layer, "weight", 16)
    assert set((layer.weight_mask == 0).flatten().nonzero().flatten().tolist()) == set(
        (current == 0).flatten().nonzero().flatten().tolist() + left.flatten().argsort()[:16].tolist()
    )


@pytest.mark.parametrize(("layer", "shape"), [(nn.ConvTranspose2d(3, 5, 2), 5), (nn.ConvTranspose1d(3, 4, 2), 4)])
def test_output_channels_of_transposed_convolutions(keep_name: bool, layer: nn.Module, shape: int) -> None:
    layer = copy.deepcopy(layer)
    nn.init.zeros_(layer.bias)
    ln_structured(layer, "weight", 2, n=1, dim=1, keep_name=keep_name)
    output = layer(torch.randn(1, 3, *[4] * (layer.weight.dim() - 2)))
    assert output.shape[1] == shape
    assert int((output.flatten(2) == 0).all(dim=2).sum()) == 2
    for function in (ln_structured, random_structured):
        assert "dim 1 of ConvTranspose layers" in " ".join(function.__doc__.split())


@pytest.mark.filterwarnings("ignore:.*deprecated.*")
def test_dynamic_quantization(keep_name: bool) -> None:
    model, x = nn.Sequential(nn.Linear(8, 4)), torch.randn(2, 8)
    l1_unstructured(model[0], "weight", 16, keep_name=keep_name)
    before = torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, torch.qint8)
    assert torch.equal(before(x), model(x))  # a pruned layer stays in floating point
    after = torch.ao.quantization.quantize_dynamic(remove_all(model), {nn.Linear}, torch.qint8)
    assert int((after[0].weight().int_repr() == 0).sum()) >= 16
    torch.testing.assert_close(after(x), model(x), atol=0.05, rtol=0.05)


def test_fusion_of_convolution_and_norm(keep_name: bool) -> None:
    conv, norm, x = nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), torch.randn(4, 2, 6, 6)
    norm(conv(x))
    l1_unstructured(conv, "weight", 20, keep_name=keep_name)
    conv.eval(), norm.eval()
    for prepared in (conv, remove(copy.deepcopy(conv), "weight")):
        fused = nn.utils.fuse_conv_bn_eval(prepared, norm)
        torch.testing.assert_close(fused(x), norm(conv(x)), atol=1e-5, rtol=1e-4)
        assert zeros(fused.weight) == 20
