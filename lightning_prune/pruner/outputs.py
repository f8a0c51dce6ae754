"""Which tensors make a model's outputs, whose channels are classes or values that somebody asked for."""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node

from lightning_prune.prune.sharded.tensors import is_sharded
from lightning_prune.prune.whole_model import remove_all
from lightning_prune.pruner.calling import call, example_inputs_of, tensors_in
from lightning_prune.targets.layouts import EMBEDDINGS
from lightning_prune.targets.select import Target, all_targets, layers_of


@dataclass(frozen=True)
class Outputs:
    """What makes a model's outputs.

    Attributes:
        names: Full names of the tensors.
        traced: Whether a call of the model has shown it; else the layer that is declared last is taken for it.
    """

    names: tuple[str, ...]
    traced: bool


def find_outputs(model: nn.Module, example_inputs: Any = None) -> Outputs:
    """The tensors whose channels are outputs of a model: nothing with weights lies behind them.

    They are found by a call of a copy in evaluation mode, from the outputs back to the nearest layers: several for
    models with several heads, and for those whose outputs are sums. Without inputs to call the model with, or if it
    cannot be called, it is the layer that is declared last.

    Args:
        model: Any module; it stays as it is.
        example_inputs: A tensor, a tuple or list of arguments, or a mapping of them by name; a LightningModule's
            ``example_input_array`` by default.

    Raises:
        ValueError: If inputs are given that the model cannot be called with.

    Example:
        >>> class Heads(nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.a, self.b, self.body = nn.Linear(3, 2), nn.Linear(3, 1), nn.Linear(4, 3)
        ...
        ...     def forward(self, x):
        ...         x = self.body(x)
        ...         return self.a(x).softmax(1), self.b(x)
        >>> find_outputs(Heads(), torch.zeros(1, 4)), find_outputs(Heads())
        (Outputs(names=('a.weight', 'b.weight'), traced=True), Outputs(names=('body.weight',), traced=False))
    """
    known = example_inputs is not None or getattr(model, "example_input_array", None) is not None
    if known and not any(is_sharded(p) for p in model.parameters()):
        try:
            names = _traced(model, example_inputs)
        except Exception as error:  # any of the user's own forward
            if example_inputs is not None:
                raise ValueError(
                    f"{type(model).__name__} cannot be called with the example inputs: {type(error).__name__}: {error}"
                ) from error
            names = None
        if names is not None:
            return Outputs(names, traced=True)
    return Outputs(tuple(t.name for t in layers_of(model)[-1:]), traced=False)


def _traced(model: nn.Module, example_inputs: Any) -> tuple[str, ...] | None:
    probe = remove_all(copy.deepcopy(model)).eval()
    for parameter in probe.parameters():
        parameter.requires_grad_(parameter.is_floating_point() or parameter.is_complex())
    made: dict[Node, nn.Module] = {}  # the layers by what they leave for the backward
    called: set[nn.Module] = set()

    def note(module: nn.Module, inputs: Any, output: Any) -> None:
        called.add(module)
        for tensor in tensors_in(output):
            if tensor.grad_fn is not None:
                made.setdefault(tensor.grad_fn, module)  # that of the innermost one, which returns first

    for module in probe.modules():
        module.register_forward_hook(note)
    devices = {p.device.index for p in probe.parameters() if p.is_cuda}
    with torch.random.fork_rng([d for d in devices if d is not None]), torch.enable_grad():
        found = tensors_in(call(probe, example_inputs_of(probe, example_inputs)))
    layers = {t.name for t in layers_of(probe, any_layout=True)}
    using = [t for t in all_targets(probe) if t.name in layers or any(isinstance(m, EMBEDDINGS) for m, _ in t.owners)]
    held = {module: _held(module, called, using) for module in {*made.values()}}
    nearest = _nearest(found, {node: module for node, module in made.items() if held[module]})
    names = {held[module][-1].name for module in nearest}
    return tuple(t.name for t in layers_of(probe) if t.name in names) if nearest else None


def _held(module: nn.Module, called: Collection[nn.Module], using: Sequence[Target]) -> list[Target]:
    """The weights that a call of a module uses itself, without calling modules inside it; none of one that calls.

    The weights of an embedding may be those of a layer behind it, too.
    """
    inside = set(module.modules())
    if isinstance(module, EMBEDDINGS) or any(child in called for child in inside - {module}):
        return []
    return [t for t in using if any(owner in inside for owner, _ in t.owners)]


def _nearest(outputs: Iterable[Tensor], made: dict[Node, nn.Module]) -> set[nn.Module]:
    """The modules that are met first on the ways back from outputs."""
    found: set[nn.Module] = set()
    seen: set[Node] = set()
    waiting = [tensor.grad_fn for tensor in outputs if tensor.grad_fn is not None]
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        if node in made:
            found.add(made[node])
        else:
            waiting += [before for before, _ in node.next_functions if before is not None]
    return found
