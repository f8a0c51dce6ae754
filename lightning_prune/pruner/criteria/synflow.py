"""SynFlow: which weights carry the flow from input to output, without data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils._pytree import tree_leaves, tree_map

from lightning_prune.pruner.criteria.base import Criterion, Watches, require_count
from lightning_prune.pruner.criteria.guard import no_trace
from lightning_prune.pruner.criteria.losses import refuse_sharded
from lightning_prune.targets.select import Target


@dataclass(frozen=True)
class SynFlow(Criterion):
    """``w dR/dw``, where R adds up the outputs of the network of absolute weights for ones (Tanaka et al. 2020).

    All parameters and buffers are replaced by their magnitudes, in eval mode and double precision. An event prunes in
    ``rounds``, after each of which scores are taken anew, with densities in geometric steps: that avoids layers without
    a weight. Of channels the scores are added up.
    Costs at the event one forward and backward for each round, and a copy of the model in double precision.

    Args:
        rounds: Rounds of an event.
        example_inputs: A tensor, or a tuple of arguments of ``forward``, of which the shapes count (and the values, of
            integers); a LightningModule's ``example_input_array`` by default.

    Example:
        >>> net = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 1, bias=False))
        >>> _ = net[0].weight.data.copy_(torch.tensor([[1.0, -2.0], [3.0, 4.0]]))
        >>> _ = net[1].weight.data.copy_(torch.tensor([[-1.0, 2.0]]))
        >>> from lightning_prune.targets.select import select
        >>> first, last = SynFlow(example_inputs=torch.zeros(1, 2)).run(net, select(net), [None, None])
        >>> first.tolist(), last.tolist()
        ([[1.0, 2.0], [6.0, 8.0]], [[3.0, 14.0]])
    """

    rounds: int = 100
    example_inputs: Any = None

    watches: ClassVar[Watches] = "model"

    def __post_init__(self) -> None:
        require_count(self, "rounds", self.rounds)

    @property
    def steps(self) -> int:
        """The rounds."""
        return self.rounds

    def __repr__(self) -> str:
        """The class and its arguments: the same in every process."""
        return f"SynFlow(rounds={self.rounds})"

    def check(self, targets: Sequence[Target]) -> None:
        """Raises ValueError if a tensor is sharded."""
        refuse_sharded("SynFlow", targets)

    def run(self, model: nn.Module, targets: Sequence[Target], alive: Sequence[Tensor | None]) -> list[Tensor]:
        """Scores of all targets from one run of the model, which leaves no trace.

        Args:
            model: The model.
            targets: The tensors.
            alive: Masks of what is left, also such as are not imposed yet.

        Returns:
            One tensor of scores for each target, in double precision.

        Raises:
            ValueError: If there are no example inputs, or a target takes no part in the output.
        """
        inputs = self._inputs(model)
        with no_trace(model, training=False):
            weights = [_positive(t.parameter, mask) for t, mask in zip(targets, alive, strict=True)]
            replaced = _magnitudes(model) | _under_all_names(targets, weights)
            flow = sum(x.sum() for x in tree_leaves(functional_call(model, replaced, inputs)) if isinstance(x, Tensor))
            assert isinstance(flow, Tensor)
            gradients = torch.autograd.grad(flow, weights, allow_unused=True)
        unused = [t.name for t, gradient in zip(targets, gradients, strict=True) if gradient is None]
        if unused:
            raise ValueError(f"SynFlow: {', '.join(unused)} takes no part in the output of forward; exclude it")
        return [(w * g).detach() for w, g in zip(weights, gradients, strict=True)]

    def _inputs(self, model: nn.Module) -> tuple[Any, ...]:
        given = self.example_inputs
        if given is None:
            given = getattr(model, "example_input_array", None)
        if given is None:
            raise ValueError("SynFlow needs example_inputs=, or a module with an example_input_array")
        device = next(model.parameters()).device
        ones: Any = tree_map(lambda x: _ones(x, device), given)
        return ones if isinstance(ones, tuple) else (ones,)


def _ones(value: Any, device: torch.device) -> Any:
    if not isinstance(value, Tensor):
        return value
    if not value.is_floating_point():
        return value.to(device)
    return torch.ones(value.shape, dtype=torch.float64, device=device)


def _positive(parameter: Tensor, alive: Tensor | None) -> Tensor:
    magnitude = parameter.detach().double().abs()
    return (magnitude if alive is None else magnitude * alive).requires_grad_()


def _magnitudes(model: nn.Module) -> dict[str, Tensor]:
    """All parameters and buffers in double precision, without signs."""
    tensors: Mapping[str, Tensor] = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    return {name: t.detach().double().abs() if t.is_floating_point() else t for name, t in tensors.items()}


def _under_all_names(targets: Sequence[Target], weights: Sequence[Tensor]) -> dict[str, Tensor]:
    return {name: weight for t, weight in zip(targets, weights, strict=True) for name in t.aliases}
