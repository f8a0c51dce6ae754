import gc
import warnings

import pytest
import torch
from torch import nn

from lightning_prune.prune import L1Unstructured, global_unstructured, l1_unstructured, remove, ties
from tests.prune.modules import linear


def tied() -> tuple[nn.Embedding, nn.Linear]:
    embedding, head = nn.Embedding(4, 2), nn.Linear(2, 4)
    head.weight = embedding.weight
    return embedding, head


def test_a_twin_is_named_when_one_of_two_is_pruned(keep_name: bool) -> None:
    embedding, head = tied()
    with pytest.warns(UserWarning, match=r"Linear.weight is the parameter of Embedding.weight too"):
        l1_unstructured(head, "weight", 3, keep_name=keep_name)
    assert int((embedding.weight == 0).sum()) == 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        l1_unstructured(head, "weight", 1)  # said already
        l1_unstructured(embedding, "weight", 1, keep_name=keep_name)  # the twin is masked itself
    remove(head, "weight")
    assert int((head.weight == 0).sum()) == 4


def test_twins_that_are_pruned_together_are_nothing_to_warn_of(keep_name: bool) -> None:
    embedding, head = tied()
    pairs = [(embedding, "weight"), (head, "weight")]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        global_unstructured(pairs, L1Unstructured, amount=3, keep_name=keep_name)
    third = nn.Linear(2, 4)
    third.weight = nn.Parameter(torch.ones(4, 2))
    fourth = linear([[1.0]])
    fourth.extra = third.weight
    with pytest.warns(UserWarning, match=r"Linear.weight is the parameter of Linear.extra too"):
        global_unstructured([(third, "weight")], L1Unstructured, amount=1, keep_name=keep_name)


def test_optimizers_are_no_twins(keep_name: bool) -> None:
    layer = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(layer.parameters(), 0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        l1_unstructured(layer, "weight", 1, keep_name=keep_name)
    assert optimizer.param_groups[0]["params"][0] is layer.weight_orig


def test_a_parameter_that_one_module_holds_alone_is_not_searched_for(
    keep_name: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ties, "_modules", lambda one: pytest.fail("all objects were asked"))
    gc.collect()
    l1_unstructured(nn.Linear(2, 2), "weight", 1, keep_name=keep_name)
