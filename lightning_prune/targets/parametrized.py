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
        original: Full name of the parameter.
        takes_place: Whether the parameter is what the layer's tensor was, not a part of the parametrization itself.
    """

    layer: nn.Module
    tensor: str
    prefix: str
    original: str
    takes_place: bool

    @property
    def name(self) -> str:
        """Full name of the tensor that is computed."""
        return f"{self.prefix}.{self.tensor}" if self.prefix else self.tensor


class Origins:
    """Finds the origin of parameters while the modules of a model are walked through, outer ones first."""

    def __init__(self) -> None:
        self._inside: dict[int, Origin] = {}

    def enter(self, prefix: str, module: nn.Module) -> None:
        """Notes what a module computes."""
        for tensor, parametrization in _parametrizations(module):
            for part in parametrization.modules():
                self._inside[id(part)] = Origin(module, tensor, prefix, "", part is parametrization)

    def of(self, prefix: str, module: nn.Module, slot: str, full_name: str) -> Origin | None:
        """The origin of a parameter, ``None`` if it is used as it is."""
        for hook in module._forward_pre_hooks.values():
            if isinstance(hook, (WeightNorm, SpectralNorm)) and slot in [hook.name + end for end in _SUFFIXES]:
                return Origin(module, hook.name, prefix, full_name, takes_place=True)
        origin = self._inside.get(id(module))
        return origin and origin._replace(original=full_name)


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


def weight_shape(layer: nn.Module) -> tuple[int, ...]:
    """Shape of an embedding's or transposed convolution's weight, not read: that changes some parametrizations."""
    if isinstance(layer, (nn.Embedding, nn.EmbeddingBag)):
        return layer.num_embeddings, layer.embedding_dim
    assert isinstance(layer, (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d))
    return layer.in_channels, layer.out_channels // layer.groups, *layer.kernel_size


def _parametrizations(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    if is_parametrized(module):
        parametrizations = module.parametrizations
        assert isinstance(parametrizations, nn.ModuleDict)
        yield from parametrizations.items()
