"""Pairs and scores of global pruning that are taken or refused, and messages that tell which layer."""

import pytest
import torch
import torch.nn.utils.prune as torch_prune
from torch import Tensor, nn

from lightning_prune.prune import BasePruningMethod, L1Unstructured, global_unstructured
from tests.prune.modules import assert_refused, linear


class Halves(BasePruningMethod):
    PRUNING_TYPE = "unstructured"

    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        return torch.where(t == 3, 0.5, 1.0)


class SmallGradients(BasePruningMethod):
    """Keeps what has a gradient above one."""

    PRUNING_TYPE = "unstructured"

    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        return (t.grad > 1).to(default_mask.dtype)


def test_a_pair_may_be_a_list(keep_name: bool) -> None:
    layers = [linear([[1.0, 4.0]]), linear([[2.0, 3.0]])]
    pairs = [[layers[0], "weight"], (layers[1], "weight"), [layers[1], "weight"]]
    global_unstructured(pairs, L1Unstructured, amount=2, keep_name=keep_name)
    assert [layer.weight.tolist() for layer in layers] == [[[0, 4]], [[0, 3]]]


def test_scores_that_nothing_would_use_are_refused(keep_name: bool) -> None:
    net = nn.Sequential(linear([[1.0, 4.0]]), linear([[2.0, 3.0]]))
    pairs = [(net[0], "weight"), (net[1], "weight")]
    for key, error, message in [
        ((net[0], "wieght"), ValueError, "Linear.wieght, which is not among the 2 pairs"),
        ((net[1], "bias"), ValueError, "Linear.bias, which is not among the 2 pairs"),
        ("weight", TypeError, "should be (module, name) pairs, got 'weight'"),
        (net[0], TypeError, "should be (module, name) pairs, got Linear"),
    ]:
        scores = {key: torch.ones(1, 2)}
        call = lambda s=scores: global_unstructured(  # noqa: E731
            pairs, L1Unstructured, importance_scores=s, amount=1, keep_name=keep_name
        )
        assert_refused(net, call, error, message)


def test_scores_by_any_owner_of_a_shared_parameter_are_used(keep_name: bool) -> None:
    first, second = linear([[1.0, 4.0]]), linear([[0.0, 0.0]])
    second.weight = first.weight
    pairs = [(first, "weight"), (second, "weight")]
    scores = {(second, "weight"): torch.tensor([[9.0, 1.0]])}
    global_unstructured(pairs, L1Unstructured, importance_scores=scores, amount=1, keep_name=keep_name)
    assert [first.weight.tolist(), second.weight.tolist()] == [[[1, 0]], [[1, 0]]]


def test_messages_number_the_layer(keep_name: bool) -> None:
    net = nn.Sequential(*(linear([[1.0, 2.0]]) for _ in range(5)))
    pairs = [(layer, "weight") for layer in net]
    with torch.no_grad():
        net[3].weight[0, 1] = 3

    message = "the mask of Halves for Linear.weight (pair 4 of 5) should hold only 0 and 1, got 1 other values"
    assert_refused(net, lambda: global_unstructured(pairs, Halves, keep_name=keep_name), ValueError, message)
    with torch.no_grad():
        net[3].weight[0, 1] = torch.nan
    with pytest.raises(ValueError, match=r"Linear.weight \(pair 4 of 5\): 1 of 2 entries are NaN"):
        global_unstructured(pairs, L1Unstructured, amount=1, keep_name=keep_name)


def test_a_method_sees_the_gradients_of_what_is_left_of_all_tensors(keep_name: bool) -> None:
    layers = [linear([[1.0, 2.0]]), linear([[3.0, 4.0]])]
    for layer, gradient in zip(layers, ([[2.0, 0.5]], [[0.5, 3.0]]), strict=True):
        layer.weight.grad = torch.tensor(gradient)
    for _ in range(2):
        global_unstructured([(layer, "weight") for layer in layers], SmallGradients, keep_name=keep_name)
    assert [layer.weight.tolist() for layer in layers] == [[[1, 0]], [[0, 4]]]


def test_a_module_whose_class_takes_no_subclass_stops_it_before_the_others_change(keep_name: bool) -> None:
    class Final(type):
        def __new__(cls, name: str, bases: tuple, namespace: dict) -> type:
            if any(isinstance(base, Final) for base in bases):
                raise TypeError("no subclasses")
            return super().__new__(cls, name, bases, namespace)

    class Closed(nn.Linear, metaclass=Final):
        pass

    net = nn.Sequential(nn.Linear(2, 2), Closed(2, 2))
    pairs = [(layer, "weight") for layer in net]
    for method in (L1Unstructured, torch_prune.L1Unstructured):
        call = lambda m=method: global_unstructured(pairs, m, amount=1, keep_name=keep_name)  # noqa: E731
        assert_refused(net, call, TypeError, "Closed.weight: Closed cannot have masked attributes: no subclasses")
