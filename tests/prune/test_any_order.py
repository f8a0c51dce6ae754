"""Random orders of all that can be done to a pruned module, against a plain tensor and a plain mask beside it."""

import copy
import pickle
import random
from collections.abc import Callable

import pytest
import torch
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
)
from tests.prune.modules import history

NAMES = ("weight", "bias")


class Expected:
    """What the module should hold: two tensors, two masks, the number of methods applied to each."""

    def __init__(self, module: nn.Linear) -> None:
        self.values = {name: getattr(module, name).detach().clone() for name in NAMES}
        self.masks: dict[str, Tensor] = {}
        self.rounds: dict[str, int] = {}

    def read(self, name: str) -> Tensor:
        mask = self.masks.get(name)
        return self.values[name] if mask is None else torch.where(mask, self.values[name], 0)

    def pruned(self, module: nn.Linear, name: str) -> None:
        new = getattr(module, f"{name}_mask").bool().clone()
        assert not (new & ~self.masks.get(name, torch.ones_like(new))).any()
        self.masks[name] = new
        self.rounds[name] = self.rounds.get(name, 0) + 1

    def check(self, module: nn.Linear) -> None:
        assert is_pruned(module) is bool(self.masks)
        assert (type(module) is nn.Linear) is not bool(self.masks)
        plain = [name.removesuffix("_orig") for name, _ in module.named_parameters()]
        assert plain == list(NAMES)
        for name in NAMES:
            assert torch.equal(getattr(module, name), self.read(name))
        for name, rounds in self.rounds.items():
            assert len(history(module, name)) == rounds
        assert len(module._forward_pre_hooks) == len(self.rounds)


def prune(module: nn.Linear, expected: Expected, keep_name: bool) -> nn.Linear:
    name = random.choice(NAMES)
    calls: list[Callable[[], object]] = [
        lambda: identity(module, name, keep_name=keep_name),
        lambda: l1_unstructured(module, name, random.choice([0, 1, 0.3]), keep_name=keep_name),
        lambda: random_unstructured(module, name, 0.2, keep_name=keep_name),
        lambda: custom_from_mask(module, name, torch.rand_like(expected.values[name]) < 0.9, keep_name=keep_name),
        lambda: global_unstructured([(module, name)], L1Unstructured, amount=1, keep_name=keep_name),
        lambda: ln_structured(module, name, 1, n=2, dim=0, keep_name=keep_name),
        lambda: random_structured(module, name, 0.3, dim=1, keep_name=keep_name),
    ]
    try:
        random.choice(calls)()
    except (ValueError, IndexError):  # nothing left, or no second dimension: check() sees that nothing changed
        return module
    expected.pruned(module, name)
    return module


def unprune(module: nn.Linear, expected: Expected, keep_name: bool) -> nn.Linear:
    for name in random.sample(sorted(expected.masks), k=min(1, len(expected.masks))):
        remove(module, name)
        expected.values[name] = expected.read(name)
        del expected.masks[name], expected.rounds[name]
    return module


def train(module: nn.Linear, expected: Expected, keep_name: bool) -> nn.Linear:
    module.zero_grad()
    module(torch.randn(3, 5)).square().sum().backward()
    torch.optim.SGD(module.parameters(), 0.1, weight_decay=0.1).step()
    for (_, parameter), name in zip(module.named_parameters(), NAMES, strict=True):
        mask = expected.masks.get(name)
        assert mask is None or not parameter.grad[~mask].any()
        expected.values[name] = parameter.detach().clone()
    return module


def load(module: nn.Linear, expected: Expected, keep_name: bool) -> nn.Linear:
    state = {key: value if key.endswith("_mask") else value + 1 for key, value in module.state_dict().items()}
    module.load_state_dict(state, assign=random.random() < 0.5)
    expected.values = {name: (expected.read(name) if keep_name else expected.values[name]) + 1 for name in NAMES}
    return module


def copied(module: nn.Linear, expected: Expected, keep_name: bool) -> nn.Linear:
    return random.choice([copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])(module)


def converted(module: nn.Linear, expected: Expected, keep_name: bool) -> nn.Linear:
    return module.double().float()


@pytest.mark.parametrize("seed", range(20))
def test_any_order(keep_name: bool, seed: int) -> None:
    random.seed(seed)
    torch.manual_seed(seed)
    module = nn.Linear(5, 4)
    expected = Expected(module)
    for _ in range(25):
        step = random.choice([prune, prune, prune, unprune, train, load, copied, converted])
        module = step(module, expected, keep_name)
        expected.check(module)
