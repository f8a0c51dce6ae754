"""Models that torch.nn.utils.prune has pruned."""

import torch
import torch.nn.utils.prune as torch_prune
from torch import nn

from lightning_prune.prune import (
    effective_parameters,
    is_pruned,
    l1_unstructured,
    pruned_tensors,
    remove,
    remove_all,
    sparsity,
)
from tests.prune.modules import linear, zeros


def pruned_by_torch() -> nn.Sequential:
    model = nn.Sequential(linear([[1.0, 2.0], [3.0, 4.0]]), linear([[5.0, 6.0]]))
    nn.init.ones_(model[0].bias), nn.init.ones_(model[1].bias)
    torch_prune.l1_unstructured(model[0], "weight", 3)
    return model


def test_what_the_forward_sees_is_counted_and_listed() -> None:
    model = pruned_by_torch()
    assert sparsity(model) == 3 / 9
    assert list(effective_parameters(model)) == ["0.bias", "0.weight", "1.weight", "1.bias"]
    with torch.no_grad():
        model[0].weight_orig.add_(1)  # the attribute holds what the last forward read
    assert effective_parameters(model)["0.weight"].tolist() == [[0, 0], [0, 5]]
    assert pruned_tensors(model)["0.weight"].tolist() == [[False, False], [False, True]]


def test_it_is_removed_alone_and_with_all_else() -> None:
    model = pruned_by_torch()
    parameter = model[0].weight_orig
    assert remove(model[0], "weight").weight is parameter
    assert parameter.tolist() == [[0, 0], [0, 4]]
    model = pruned_by_torch()
    l1_unstructured(model[0], "bias", 1)
    l1_unstructured(model[1], "weight", 1)
    remove_all(model)
    assert not is_pruned(model)
    assert sorted(model.state_dict()) == ["0.bias", "0.weight", "1.bias", "1.weight"]
    assert [zeros(model[0].weight), zeros(model[0].bias), zeros(model[1].weight)] == [3, 1, 1]
