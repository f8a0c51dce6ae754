"""Parameters from which a layer computes its weight, by ``torch.nn.utils.parametrize`` or what came before it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from torch import nn
from torch.nn.utils.parametrize import is_parametrized
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

_SUFFIXES = ("_g", "_v", "_orig")


class Origin(NamedTuple):
    """What a parameter is an original of.

    Attributes:
        layer: The layer whose tensor is computed.
        tensor: The name of that tensor in the layer, such as ``"weight"``.
        prefix: The layer's name in the model.
        takes_place: Whether the parameter is what the layer's tensor was, not a part of the parametrization itself.
        divided: Whether the tensor is the parameter over the norm of its rows, as a direction of ``weight_norm``.
    """

    layer: nn.Module
    tensor: str
    prefix: str
    takes_place: bool
    divided: bool = False

    @property
    def name(self) -> str:
        """Full name of the tensor that is computed."""
        return f"{self.prefix}.{self.tensor}" if self.prefix else self.tensor


def origins(model: nn.Module) -> dict[tuple[str, str], Origin]:
    """The origin of each parameter of a model that is not used as it is, by the names of its module and its slot."""
    inside = dict(_parts(model))
    found = {}
    for prefix, module in model.named_modules(remove_duplicate=False):
        for slot, _ in module._parameters.items():
            origin = _of_hook(module, slot, prefix) or inside.get(id(module))
            if origin:
                divided = origin.divided and slot in ("original1", f"{origin.tensor}_v")
                found[prefix, slot] = origin._replace(divided=divided)
    return found


def _parts(model: nn.Module) -> Iterator[tuple[int, Origin]]:
    for prefix, module in model.named_modules(remove_duplicate=False):
        for tensor, parametrization in _parametrizations(module):
            divided = any(type(part).__name__ == "_WeightNorm" for part in parametrization.children())
            for part in parametrization.modules():
                yield id(part), Origin(module, tensor, prefix, part is parametrization, divided)


def _of_hook(module: nn.Module, slot: str, prefix: str) -> Origin | None:
    for hook in module._forward_pre_hooks.values():
        if isinstance(hook, (WeightNorm, SpectralNorm)) and slot in [hook.name + end for end in _SUFFIXES]:
            return Origin(module, hook.name, prefix, True, isinstance(hook, WeightNorm))
    return None


def advice(originals: Sequence[str]) -> str:
    """What to do where nothing else is left to prune."""
    if not originals:
        return ""
    names = ", ".join(originals[:4]) + (", ..." if len(originals) > 4 else "")
    return (
        f"; {len(originals)} of them are originals of a parametrization, whose zeros are not zeros of the weight: "
        f"{names}; make weights of them first, with torch.nn.utils.parametrize.remove_parametrizations or, for the "
        "older kind, torch.nn.utils.remove_weight_norm and remove_spectral_norm"
    )


def _parametrizations(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    if is_parametrized(module):
        parametrizations = module.parametrizations
        assert isinstance(parametrizations, nn.ModuleDict)
        yield from parametrizations.items()
