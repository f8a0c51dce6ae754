"""A parameter that can be pruned, with all places of the model that hold it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from lightning_prune.prune import attribute
from lightning_prune.prune.sharded.tensors import dead_entries
from lightning_prune.targets.layouts import inputs_first_shape, output_dim
from lightning_prune.targets.parametrized import Origin, origins


class Place(NamedTuple):
    """Where a model holds a parameter.

    Attributes:
        name: Full name in the model, such as ``"encoder.0.weight"``.
        module: What holds it.
        slot: Its name there.
        origin: If a layer computes its tensor from the parameter: of which.
    """

    name: str
    module: nn.Module
    slot: str
    origin: Origin | None = None


@dataclass(frozen=True, eq=False)
class Target:
    """A parameter that is pruned.

    Attributes:
        places: Where the model holds it; more than one if it is shared.
    """

    places: tuple[Place, ...]

    @property
    def name(self) -> str:
        """Full name in the model, such as ``"encoder.0.weight"``; of a shared parameter the first one."""
        return self.places[0].name

    @property
    def aliases(self) -> tuple[str, ...]:
        """All full names, ``name`` first."""
        return tuple(place.name for place in self.places)

    @property
    def owners(self) -> tuple[tuple[nn.Module, str], ...]:
        """All (module, attribute) pairs that hold it, each once, also those of a module that has several names."""
        return tuple({(id(p.module), p.slot): (p.module, p.slot) for p in self.places}.values())

    @property
    def origins(self) -> tuple[Origin, ...]:
        """Of which tensors it is an original, under each of its names."""
        return tuple(place.origin for place in self.places if place.origin)

    @property
    def module(self) -> nn.Module:
        """The first module that holds the parameter."""
        return self.places[0].module

    @property
    def parameter(self) -> nn.Parameter:
        """The parameter object, also while it is pruned."""
        return attribute.stored_parameter(self.module, self.places[0].slot)

    @property
    def alive(self) -> Tensor | None:
        """Boolean mask (True = kept), ``None`` while nothing is pruned."""
        return attribute.alive_mask(self.module, self.places[0].slot)

    @property
    def zeros(self) -> int:
        """Number of entries that are masked."""
        return dead_entries(self.alive)

    @property
    def output_dim(self) -> int | None:
        """The dimension of the output channels, 0 or 1; ``None`` if the layer's way to store them is not known.

        An original of a parametrization that has the shape of the layer's weight counts as that weight.
        """
        shape = tuple(self.parameter.shape)
        layers = [origin.layer for origin in self.origins if origin.takes_place]
        if layers:
            return int(any(inputs_first_shape(layer) == shape for layer in layers))
        return output_dim(self.module, shape)

    def channel_dim(self, dim: int | str) -> int:
        """The dimension along which channels are counted, from the front.

        Args:
            dim: A dimension, or ``"out"`` / ``"in"`` for that of the output or input channels: 0 and 1 for
                Linear and Conv layers, 1 and 0 for ConvTranspose and Embedding layers and others that store inputs
                first.

        Raises:
            ValueError: If it is another word, or the layer's way to store its channels is not known.
            IndexError: If the tensor has no such dimension.
        """
        shape = tuple(self.parameter.shape)
        if isinstance(dim, str):
            if dim not in ("out", "in"):
                raise ValueError(f"dim should be a number, 'out' or 'in', got {dim!r}")
            out = self.output_dim
            if out is None:
                raise ValueError(
                    f"which dimension of '{self.name}' of shape {shape} holds the outputs is not known of "
                    f"{type(self.module).__name__}: give it a callback of its own with dim=0 or dim=1, or leave it "
                    "out with exclude="
                )
            return out if dim == "out" else 1 - out
        if not -len(shape) <= dim < len(shape):
            raise IndexError(f"dim={dim} does not exist in '{self.name}' of shape {shape}")
        return dim % len(shape)


def refuse_divided(target: Target) -> None:
    """Raises ValueError if a layer divides a tensor by norms of its rows: a row of zeros would make NaN."""
    for origin in target.origins:
        if origin.divided:
            raise ValueError(
                f"'{target.name}' is divided by the norms of its rows to make '{origin.name}', so a row of zeros would "
                f"make NaN: remove the weight norm and prune '{origin.name}'"
            )


def all_targets(model: nn.Module) -> list[Target]:
    """Every parameter of a model once, with all modules that hold it."""
    places: dict[int, list[Place]] = {}
    computed = origins(model)
    for prefix, module in model.named_modules(remove_duplicate=False):
        for slot, parameter in module._parameters.items():
            if parameter is None:
                continue
            name = _plain_name(module, slot)
            full_name = f"{prefix}.{name}" if prefix else name
            _refuse_unready(module, name, full_name, parameter)
            place = Place(full_name, module, name, computed.get((prefix, slot)))
            places.setdefault(id(parameter), []).append(place)
    return [Target(tuple(held)) for held in places.values()]


def _plain_name(module: nn.Module, slot: str) -> str:
    name = slot.removesuffix("_orig")
    return name if attribute.layout_of(module, name) is attribute.Layout.DOCUMENTED else slot


def _refuse_unready(module: nn.Module, name: str, full_name: str, parameter: nn.Parameter) -> None:
    if isinstance(parameter, UninitializedParameter):
        raise ValueError(
            f"'{full_name}' has no shape yet (a lazy module before its first call): call the model once before the "
            "fit, in setup or configure_model"
        )
    foreign = name.removesuffix("_orig")
    if foreign != name and pruned_by_torch(module, foreign):
        raise ValueError(
            f"'{full_name.removesuffix('_orig')}' is pruned by torch.nn.utils.prune: call "
            f"torch.nn.utils.prune.remove(module, '{foreign}') before the fit, and keep its zeros with keep_zeros=True"
        )


def pruned_by_torch(module: nn.Module, name: str) -> bool:
    """Whether ``torch.nn.utils.prune`` itself has pruned a tensor of a module."""
    return any(getattr(hook, "_tensor_name", None) == name for hook in module._forward_pre_hooks.values())
