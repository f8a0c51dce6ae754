"""GraSP: which weights the flow of gradients needs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from lightning_prune.pruner.criteria.base import Criterion, Watches
from lightning_prune.pruner.criteria.guard import no_trace
from lightning_prune.pruner.criteria.losses import Loss, gradients_of, refuse_sharded, wanting_gradients
from lightning_prune.targets.select import Target


@dataclass(frozen=True)
class GraSP(Criterion):
    """``w (H g)`` with its sign: what removing a weight takes from the norm of the gradient (Wang et al. 2020).

    The paper's score is ``-w (H g)``, of which the largest go. ``g`` and ``H`` are the gradient and the Hessian of the
    loss with outputs divided by ``temperature``. Of channels the scores are added up. For one event before training.
    Costs at the event a forward, a backward and a backward through that, and two tensors of each weight's size.

    Args:
        loss: Called with the model, gives the scalar loss on data of your choice, 10 to 25 samples of a class.
        temperature: What outputs of the model's ``forward`` are divided by.

    Example:
        >>> net = nn.Linear(2, 1, bias=False)
        >>> _ = net.weight.data.copy_(torch.tensor([[1.0, 2.0]]))
        >>> from lightning_prune.targets.select import select
        >>> grasp = GraSP(loss=lambda model: model(torch.tensor([[1.0, 0.5]])).square().sum() / 2, temperature=1.0)
        >>> grasp.run(net, select(net), [None])[0]  # H = x x', g = H w: w * (H g)
        tensor([[2.5000, 2.5000]])
    """

    loss: Loss | None = None
    temperature: float = 200.0

    watches: ClassVar[Watches] = "model"
    signed: ClassVar[bool] = True
    norm: ClassVar[int | float | str | None] = "sum"

    def __post_init__(self) -> None:
        if not callable(self.loss):
            raise ValueError(f"GraSP needs loss=, a function of the model that gives a scalar, got {self.loss!r}")
        if not self.temperature > 0:
            raise ValueError(f"temperature should be above 0, got {self.temperature!r}")

    def __repr__(self) -> str:
        """The class and its arguments: the same in every process."""
        loss = getattr(self.loss, "__qualname__", type(self.loss).__qualname__)
        return f"GraSP(loss={loss}, temperature={self.temperature})"

    def check(self, targets: Sequence[Target]) -> None:
        """Raises ValueError if a tensor is sharded."""
        refuse_sharded("GraSP", targets)

    def run(self, model: nn.Module, targets: Sequence[Target], alive: Sequence[Tensor | None]) -> list[Tensor]:
        """Scores of all targets from runs of the model, which leave no trace.

        Raises:
            ValueError: If a target does not take part in the loss, or that is no scalar.
        """
        parameters = [t.parameter for t in targets]
        assert self.loss is not None
        with no_trace(model), wanting_gradients(parameters), _divided(model, self.temperature):
            gradients = gradients_of(self.loss(model), targets, "GraSP", create_graph=True)
            flow = torch.stack([(g.detach() * g).sum() for g in gradients]).sum()
            curved = _gradients(flow, parameters) if flow.requires_grad else [None] * len(parameters)
        products = [torch.zeros_like(p) if h is None else h for p, h in zip(parameters, curved, strict=True)]
        return [(p.detach() * h).detach() for p, h in zip(parameters, products, strict=True)]


def _gradients(value: Tensor, parameters: Sequence[Tensor]) -> list[Tensor | None]:
    return [*torch.autograd.grad(value, list(parameters), allow_unused=True)]


@contextmanager
def _divided(model: nn.Module, temperature: float) -> Iterator[None]:
    """Divides what the model's ``forward`` returns, if that is a tensor."""

    def divide(module: nn.Module, inputs: Any, output: Any) -> Any:
        return output / temperature if isinstance(output, Tensor) else output

    handle = model.register_forward_hook(divide)
    try:
        yield
    finally:
        handle.remove()
