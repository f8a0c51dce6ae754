import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from lightning_prune.metrics import effective_flops
from lightning_prune.prune import custom_from_mask, l1_unstructured, remove_all
from lightning_prune.prune.attribute import Layout, erase
from lightning_prune.prune.base import impose
from lightning_prune.prune.methods import CustomFromMask


def test_layers_by_hand():
    model = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 25, 10))
    l1_unstructured(model[0], "weight", amount=54)  # half of 108
    l1_unstructured(model[3], "weight", amount=900)  # nine tenths of 1000
    conv, linear = 2 * 2 * 25 * 108, 2 * 2 * 1000
    assert effective_flops(model, torch.randn(2, 3, 5, 5)) == (conv // 2 + linear // 10, conv + linear)


@pytest.mark.parametrize("layout", list(Layout))
def test_every_layout_and_removed_models_give_the_same(layout):
    model = nn.Linear(8, 4)
    impose(CustomFromMask(None), model, "weight", torch.arange(32).view(4, 8) % 4 == 0, layout)
    erase(model, "weight")
    assert effective_flops(model, torch.ones(3, 8)) == (2 * 3 * 8, 2 * 3 * 32)
    assert effective_flops(remove_all(model), torch.ones(3, 8)) == (2 * 3 * 8, 2 * 3 * 32)


def test_a_shared_layer_counts_each_call():
    layer = l1_unstructured(nn.Linear(4, 4), "weight", amount=4)
    assert effective_flops(nn.Sequential(layer, layer), torch.ones(1, 4)) == (2 * 24, 2 * 32)


@pytest.mark.parametrize(
    ("cell", "factor"), [(nn.LSTM, 4), (nn.GRU, 3), (nn.RNN, 1)], ids=lambda v: getattr(v, "__name__", "")
)
def test_recurrent_layers(cell, factor):
    model = cell(4, 8)
    custom_from_mask(model, "weight_hh_l0", torch.arange(64 * factor).view(8 * factor, 8) % 4 == 0)
    inputs, recurrent = 4 * 8 * factor, 8 * 8 * factor
    steps = 2 * 3 * 2  # two operations, three steps, a batch of two
    assert effective_flops(model, torch.randn(3, 2, 4)) == (
        steps * (inputs + recurrent // 4),
        steps * (inputs + recurrent),
    )


def test_attention_scores_stay_dense_and_parts_of_a_weight_count_by_themselves():
    model = nn.MultiheadAttention(8, 2, batch_first=True, bias=False)
    queries_only = torch.ones(24, 8, dtype=torch.bool)
    queries_only[8:] = False
    custom_from_mask(model, "in_proj_weight", queries_only)
    custom_from_mask(model.out_proj, "weight", torch.eye(8, dtype=torch.bool))
    query, memory = torch.randn(1, 5, 8), torch.randn(1, 7, 8)
    scores = 2 * (2 * 2 * 5 * 7 * 4)  # two products of two heads
    effective, dense = effective_flops(model, (query, memory, memory))
    assert dense == 2 * (5 * 64 + 2 * 7 * 64 + 5 * 64) + scores
    assert effective == 2 * (5 * 64 + 0 + 5 * 8) + scores


def test_the_dense_number_is_that_of_torch():
    model = nn.Sequential(nn.Conv1d(2, 4, 3), nn.Flatten(), nn.Linear(12, 5))
    inputs = torch.randn(2, 2, 5)
    with FlopCounterMode(display=False) as counter:
        model(inputs)
    assert effective_flops(model, inputs) == (counter.get_total_flops(),) * 2


def test_the_model_stays_as_it_is():
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout()).train()
    l1_unstructured(model[0], "weight", amount=4)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    random = torch.get_rng_state()
    effective_flops(model, torch.randn(8, 4, generator=torch.Generator().manual_seed(0)))
    assert model.training
    assert torch.equal(random, torch.get_rng_state())
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    assert torch.backends.mkldnn.enabled
    assert torch.backends.mha.get_fastpath_enabled()
