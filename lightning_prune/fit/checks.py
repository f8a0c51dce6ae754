"""What may be wrong with a pruned model or a selection, in words; nothing is printed or changed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.modules.pooling import _AdaptiveAvgPoolNd, _AdaptiveMaxPoolNd, _AvgPoolNd, _MaxPoolNd
from torch.optim import Optimizer

from lightning_prune.metrics.functional import value_of
from lightning_prune.prune.sharded.channels import nonzero_channels
from lightning_prune.prune.sharded.tensors import nonzero_entries
from lightning_prune.pruner.outputs import Outputs
from lightning_prune.targets.names import listing
from lightning_prune.targets.select import Target, all_targets

_CHANNEL_BY_CHANNEL = (
    *(nn.Identity, nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU, nn.Mish),
    *(nn.Sigmoid, nn.Tanh, nn.Softplus, nn.Hardswish, nn.Hardtanh, nn.Hardsigmoid, nn.PReLU),
    *(_BatchNorm, _DropoutNd, _AvgPoolNd, _MaxPoolNd, _AdaptiveAvgPoolNd, _AdaptiveMaxPoolNd),
)
"""Modules whose output channel depends on the same input channel alone."""


def dead_layers(targets: Iterable[Target]) -> list[str]:
    """One message for each tensor of which nothing is left.

    Args:
        targets: Tensors to look at.

    Example:
        >>> from lightning_prune.prune import l1_unstructured
        >>> net = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
        >>> _ = l1_unstructured(net[1], "weight", amount=3)
        >>> dead_layers(all_targets(net)[::2])
        ["'1.weight' is dead: all of its 3 weights are zero"]
    """
    sizes = {t.name: t.parameter.numel() for t in targets if not nonzero_entries(value_of(t))}
    return [f"'{name}' is dead: all of its {n:,} weights are zero" for name, n in sizes.items()]


def cut_layers(model: nn.Module) -> list[str]:
    """One message for each layer that reads only channels which the layer before it no longer makes.

    It then gives the same for every input, though neither layer needs to be dead. This can be told only where the
    order of layers is known: for Linear and Conv layers that follow each other in an ``nn.Sequential``, with nothing
    but channel-by-channel modules between them (activations, batch norms, dropout, pooling).

    Args:
        model: Any module.

    Example:
        >>> from lightning_prune.prune import custom_from_mask
        >>> import torch
        >>> net = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))
        >>> _ = custom_from_mask(net[0], "weight", torch.tensor([[1, 1], [0, 0]]))
        >>> _ = custom_from_mask(net[2], "weight", torch.tensor([[0, 1], [0, 1]]))
        >>> cut_layers(net)
        ["'2' is cut off: all channels that it reads are dead in '0' before it, so its output is constant"]
    """
    return [
        f"'{name}' is cut off: all channels that it reads are dead in '{before}' before it, so its output is constant"
        for before, first, name, second in _neighbours(model)
        if not bool((_outputs(first) & _inputs(second)).any())
    ]


def narrow_selection(model: nn.Module, targets: Sequence[Target]) -> list[str]:
    """A message if less than half of a model's weights is selected: the whole stays denser than the targets say.

    Args:
        model: The model.
        targets: What is selected.

    Example:
        >>> from lightning_prune.targets.select import select
        >>> net = nn.Sequential(nn.Embedding(10, 4), nn.Linear(4, 2))
        >>> narrow_selection(net, select(net))[0]
        "only 8 of 50 weights (16.0%) are selected for pruning; the largest others: '0.weight' (40), '1.bias' (2)"
    """
    selected = {t.name for t in targets}
    others = [t for t in all_targets(model) if t.name not in selected]
    weights = sum(t.parameter.numel() for t in targets)
    whole = weights + sum(t.parameter.numel() for t in others)
    if 2 * weights >= whole:
        return []
    largest = sorted(others, key=lambda t: -t.parameter.numel())[:3]
    listing = ", ".join(f"'{t.name}' ({t.parameter.numel():,})" for t in largest)
    return [
        f"only {weights:,} of {whole:,} weights ({weights / whole:.1%}) are selected for pruning; the largest others: "
        f"{listing}"
    ]


def told_at_the_start(targets: Sequence[Target], outputs: Outputs | None) -> list[str]:
    """What a user may not expect of a selection.

    Args:
        targets: What is selected.
        outputs: What makes the model's outputs, if output channels are pruned.

    Example:
        >>> net = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
        >>> told_at_the_start(all_targets(net)[:1], Outputs(("1.weight",), traced=True))
        ["not pruned: '1.weight', whose channels are the model's outputs; name it in parameters= to prune them"]
    """
    names = {t.name for t in targets}
    told = [f"'{t.name}'" for t in targets if t.output_dim is None]
    notes = [f"selected though no layer holds them: {listing(told)}; leave them out with exclude="] if told else []
    if outputs is None or not outputs.names:
        return notes
    pruned = [f"'{name}'" for name in outputs.names if name in names]
    spared = [f"'{name}'" for name in outputs.names if name not in names]
    if pruned:
        notes.append(f"channels of {listing(pruned)} are the model's outputs, and are pruned")
    if spared and outputs.traced:
        each = "it" if len(spared) == 1 else "them"
        notes.append(
            f"not pruned: {listing(spared)}, whose channels are the model's outputs; name {each} in parameters= to "
            "prune them"
        )
    elif spared:
        notes.append(
            f"not pruned: {spared[0]}, which is declared last and so taken to make the model's outputs; name it in "
            "parameters= to prune it. If others make the outputs, exclude= those, or let a call of the model show it: "
            "example_input_array, or example_inputs="
        )
    return notes


def not_trained(targets: Iterable[Target], optimizers: Iterable[Optimizer]) -> list[str]:
    """A message if no optimizer holds some of the selected tensors: what is pruned of them is never made up for.

    Args:
        targets: What is selected.
        optimizers: All optimizers of the fit; without any there is no message.

    Example:
        >>> import torch
        >>> net = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
        >>> not_trained(all_targets(net), [torch.optim.SGD(net[0].parameters())])
        ["selected for pruning, but held by no optimizer: '1.weight'"]
    """
    optimizers = list(optimizers)
    held = {id(p) for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]}
    missing = [f"'{t.name}'" for t in targets if id(t.parameter) not in held] if optimizers else []
    return [f"selected for pruning, but held by no optimizer: {listing(missing, 5)}"] if missing else []


def _neighbours(model: nn.Module) -> Iterator[tuple[str, nn.Module, str, nn.Module]]:
    """Pairs of layers of which the second reads just the channels that the first makes, with their names."""
    for prefix, sequence in model.named_modules():
        if not isinstance(sequence, nn.Sequential):
            continue
        last: tuple[str, nn.Module] | None = None
        for slot, module in sequence.named_children():
            name = f"{prefix}.{slot}" if prefix else slot
            if _reads_channels(module):
                if last is not None and len(_outputs(last[1])) == len(_inputs(module)):
                    yield *last, name, module
                last = name, module
            elif not isinstance(module, _CHANNEL_BY_CHANNEL):
                last = None


def _reads_channels(module: nn.Module) -> bool:
    return isinstance(module, nn.Linear) or (isinstance(module, _ConvNd) and module.groups == 1)


def _outputs(layer: nn.Module) -> Tensor:
    """One bool for each channel that the layer makes: whether it depends on an input."""
    return _living(layer, int(getattr(layer, "transposed", False)))


def _inputs(layer: nn.Module) -> Tensor:
    """One bool for each channel that the layer is given: whether it reads it."""
    return _living(layer, 1 - int(getattr(layer, "transposed", False)))


def _living(layer: nn.Module, dim: int) -> Tensor:
    weight: Tensor = layer.weight  # type: ignore[assignment]
    return nonzero_channels(weight.detach(), dim)
