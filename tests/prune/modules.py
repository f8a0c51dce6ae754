"""Modules that the tests of the engine prune, and what a refused call must leave as it was."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lightning_prune.prune import BasePruningMethod


class LeNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 6, 5)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.fc1 = nn.Linear(16 * 5 * 5, 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.conv1(x)), (2, 2))
        x = F.max_pool2d(F.relu(self.conv2(x)), 2).flatten(1)
        return self.fc3(F.relu(self.fc2(F.relu(self.fc1(x)))))

    def tensors(self) -> list[tuple[nn.Module, str]]:
        return [(m, "weight") for m in (self.conv1, self.conv2, self.fc1, self.fc2, self.fc3)]


class ReadsChild(nn.Module):
    """As some vision transformers: the child's weight is read, the child is never called."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(4, 6)
        self.own = nn.Parameter(torch.randn(6, 6))
        self.head = nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(F.linear(x, self.qkv.weight, self.qkv.bias) @ self.own))

    def tensors(self) -> list[tuple[nn.Module, str]]:
        return [(self.qkv, "weight"), (self, "own"), (self.head, "weight")]


class EveryOther(BasePruningMethod):
    """The user's own method of the pruning tutorial."""

    PRUNING_TYPE = "unstructured"

    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        mask = default_mask.clone()
        mask.view(-1)[::2] = 0
        return mask


def linear(rows: list[list[float]]) -> nn.Linear:
    layer = nn.Linear(len(rows[0]), len(rows))
    layer.weight = nn.Parameter(torch.tensor(rows))
    return layer


def stored(module: nn.Module, name: str = "weight") -> nn.Parameter:
    """The parameter that an optimizer has."""
    parameters = dict(module.named_parameters(recurse=False))
    return parameters.get(f"{name}_orig", parameters.get(name))


def zeros(tensor: Tensor) -> int:
    return tensor.numel() - int(tensor.count_nonzero())


def history(module: nn.Module, name: str = "weight") -> list[BasePruningMethod]:
    hooks = [h for h in module._forward_pre_hooks.values() if getattr(h, "_tensor_name", None) == name]
    assert len(hooks) == 1
    return list(hooks[0]) if hasattr(hooks[0], "__iter__") else hooks


def snapshot(module: nn.Module) -> dict[str, Any]:
    """All that a call could change, comparable with ``==``."""
    state = {}
    for prefix, child in module.named_modules():
        state[prefix] = {
            "class": type(child),
            "attributes": sorted(child.__dict__),
            "parameters": [(name, id(p)) for name, p in child._parameters.items()],
            "buffers": list(child._buffers),
            "values": {key: value.tolist() for key, value in child.state_dict().items()},
            "masks": {key: value.tolist() for key, value in child.__dict__.get("_kept_masks", {}).items()},
            "hooks": [(key, repr(hook)) for key, hook in child._forward_pre_hooks.items()],
        }
    return state


def assert_refused(module: nn.Module, call: Callable[[], object], error: type[Exception], *words: str) -> None:
    """The call raises this very error, its message has the words, and nothing changed."""
    before, random_state = snapshot(module), torch.get_rng_state()
    with pytest.raises(error) as raised:
        call()
    assert type(raised.value) is error
    for word in words:
        assert word in str(raised.value)
    assert snapshot(module) == before
    assert torch.equal(torch.get_rng_state(), random_state)


def train_step(module: nn.Module, *inputs: Tensor, lr: float = 0.1) -> None:
    output = module(*inputs)
    output = output[0] if isinstance(output, tuple) else output
    module.zero_grad()
    output.square().sum().backward()
    torch.optim.SGD(module.parameters(), lr).step()
