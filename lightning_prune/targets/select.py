"""Which tensors of a model are pruned: patterns, exclusions, shared parameters counted once."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.parameter import UninitializedParameter

from lightning_prune.prune import attribute
from lightning_prune.prune.sharded.tensors import dead_entries
from lightning_prune.targets.parametrized import Origin, Origins, advice, weight_shape
from lightning_prune.targets.patterns import Pattern, Patterns, as_patterns, is_pair, show

_NORMS = (_NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)
_EMBEDDINGS = (nn.Embedding, nn.EmbeddingBag)
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


@dataclass(frozen=True, eq=False)
class Target:
    """A parameter that is pruned.

    Attributes:
        name: Full name in the model, such as ``"encoder.0.weight"``; of a shared parameter the first one.
        owners: All (module, attribute) pairs that hold it; more than one if it is shared.
        aliases: All full names, ``name`` first.
        holders: The module that holds it under each of these names.
        origins: If a layer computes its tensor from the parameter: of which, under each of its names.
    """

    name: str
    owners: tuple[tuple[nn.Module, str], ...]
    aliases: tuple[str, ...]
    holders: tuple[nn.Module, ...] = ()
    origins: tuple[Origin, ...] = ()

    @property
    def module(self) -> nn.Module:
        """The first module that holds the parameter."""
        return self.owners[0][0]

    @property
    def parameter(self) -> nn.Parameter:
        """The parameter object, also while it is pruned."""
        return attribute.stored_parameter(*self.owners[0])

    @property
    def alive(self) -> Tensor | None:
        """Boolean mask (True = kept), ``None`` while nothing is pruned."""
        return attribute.alive_mask(*self.owners[0])

    @property
    def zeros(self) -> int:
        """Number of entries that are masked."""
        return dead_entries(self.alive)

    def channel_dim(self, dim: int | str) -> int:
        """The dimension along which channels are counted, from the front.

        Args:
            dim: A dimension, or ``"out"`` / ``"in"`` for that of the output or input channels: 0 and 1 for
                Linear and Conv layers and what is not known, 1 and 0 for ConvTranspose and Embedding layers. An
                original of a parametrization that has the shape of the layer's weight counts as that weight.

        Raises:
            ValueError: If it is another word.
            IndexError: If the tensor has no such dimension.
        """
        if isinstance(dim, str):
            if dim not in ("out", "in"):
                raise ValueError(f"dim should be a number, 'out' or 'in', got {dim!r}")
            swapped = isinstance(self.module, _TRANSPOSED + _EMBEDDINGS) or self._stands_for_swapped_weight()
            return int(swapped) if dim == "out" else 1 - int(swapped)
        rank = self.parameter.dim()
        if not -rank <= dim < rank:
            raise IndexError(f"dim={dim} does not exist in '{self.name}' of shape {tuple(self.parameter.shape)}")
        return dim % rank

    def _stands_for_swapped_weight(self) -> bool:
        layers = [origin.layer for origin in self.origins if origin.takes_place]
        return any(
            isinstance(layer, _TRANSPOSED + _EMBEDDINGS) and self.parameter.shape == weight_shape(layer)
            for layer in layers
        )


def select(
    model: nn.Module, parameters: Patterns = None, exclude: Patterns = None, frozen: bool = False
) -> list[Target]:
    """The tensors of a model that are to be pruned, in the order of ``named_parameters()``.

    By default: every trainable parameter of two or more dimensions that is not an embedding, a bias or a norm's, nor,
    unless it is called ``weight``, a vector with dimensions of size 1, nor an original of a parametrization
    (``weight_norm``, ``spectral_norm``, ``orthogonal``), whose zeros are not zeros of the weight computed from it.
    Patterns choose among those; an exact name, a (module, name) pair or a predicate chooses any parameter.

    Args:
        model: Any module.
        parameters: What to choose, all by default: a name, a glob on names (``"backbone.*"``), the name of a
            module (and all in it), a compiled regular expression (``search`` on names), a module or a type of
            modules, a (module, name) pair, a predicate ``f(name, parameter) -> bool``, or an iterable of these.
        exclude: What to leave out, as for ``parameters``.
        frozen: Also parameters that do not require gradients.

    Returns:
        One target per parameter object.

    Raises:
        ValueError: If a pattern matches nothing (near names are listed), or nothing is left to prune.
        TypeError: If something is not a pattern.

    Example:
        >>> net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
        >>> [target.name for target in select(net)]
        ['0.weight', '2.weight']
        >>> [target.name for target in select(net, parameters=["0.*", "2.bias"], exclude="1.*")]
        ['0.weight', '2.bias']
    """
    everything = all_targets(model)
    chosen = [t for t in everything if _objection(t, frozen) is None] if parameters is None else []
    for pattern in as_patterns(parameters):
        chosen += _matches(pattern, everything, frozen)
    dropped = {t.name for pattern in as_patterns(exclude) for t in _matching(pattern, everything)}
    names = {t.name for t in chosen} - dropped
    if not names:
        raise ValueError(
            "nothing is selected for pruning: by default that is trainable parameters of two or more dimensions, "
            f"without embeddings and norms; this model has {len(everything)} parameters"
            + (f", {len({t.name for t in chosen})} matched and were all excluded" if chosen else "")
            + advice([t.name for t in everything if t.origins and t.parameter.dim() > 1])
        )
    return [t for t in everything if t.name in names]


def select_trainable(
    model: nn.Module, parameters: Patterns, exclude: Patterns, join: bool
) -> tuple[list[Target], list[Target]]:
    """The tensors to prune now, and those that would be selected if they were trainable.

    Args:
        model: Any module.
        parameters: What to choose, as for :func:`select`.
        exclude: What to leave out, as for :func:`select`.
        join: Whether frozen tensors will be pruned later, so that at first there may be none.

    Raises:
        ValueError: As :func:`select` does.
    """
    everything = select(model, parameters, exclude, frozen=True)
    if join:
        now = {t.name for t in everything if t.parameter.requires_grad}
    else:
        now = {t.name for t in select(model, parameters, exclude)}
    return [t for t in everything if t.name in now], [t for t in everything if t.name not in now]


def all_targets(model: nn.Module) -> list[Target]:
    """Every parameter of a model once, with all modules that hold it."""
    owners: dict[int, dict[tuple[int, str], tuple[nn.Module, str]]] = {}
    aliases: dict[int, list[str]] = {}
    holders: dict[int, list[nn.Module]] = {}
    origins: dict[int, list[Origin]] = {}
    computed = Origins()
    for prefix, module in model.named_modules(remove_duplicate=False):
        computed.enter(prefix, module)
        for slot, parameter in module._parameters.items():
            if parameter is None:
                continue
            name = _plain_name(module, slot)
            full_name = f"{prefix}.{name}" if prefix else name
            _refuse_unready(module, name, full_name, parameter)
            key, origin = id(parameter), computed.of(prefix, module, slot, full_name)
            owners.setdefault(key, {})[id(module), name] = (module, name)
            aliases.setdefault(key, []).append(full_name)
            holders.setdefault(key, []).append(module)
            origins.setdefault(key, []).extend([origin] if origin else [])
    return [
        Target(
            aliases[key][0], tuple(owners[key].values()), tuple(aliases[key]), tuple(holders[key]), tuple(origins[key])
        )
        for key in owners
    ]


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
    hooks = module._forward_pre_hooks.values()
    if foreign != name and any(getattr(hook, "_tensor_name", None) == foreign for hook in hooks):
        raise ValueError(
            f"'{full_name.removesuffix('_orig')}' is pruned by torch.nn.utils.prune: call "
            f"torch.nn.utils.prune.remove(module, '{foreign}') before the fit, and keep its zeros with keep_zeros=True"
        )


def _objection(target: Target, frozen: bool) -> str | None:
    """Why a tensor is not pruned by default."""
    parameter = target.parameter
    names = [name for _, name in target.owners]
    if target.origins:
        return f"originals of a parametrization: {target.origins[0].name} is computed from it"
    if not (parameter.is_floating_point() or parameter.is_complex()):
        return str(parameter.dtype)
    if any(name.startswith("bias") for name in names):
        return "biases"
    if any(isinstance(module, _NORMS) for module, _ in target.owners):
        return "norms"
    if any(isinstance(module, _EMBEDDINGS) for module, _ in target.owners):
        return _of_embedding(target)
    # a magnitude of weight_norm, a layer scale and a class token are vectors with dimensions of size 1
    flat = parameter.numel() == max(parameter.shape, default=1) and "weight" not in names
    if parameter.dim() < 2 or parameter.numel() == 0 or flat:
        return "vectors"
    return None if frozen or parameter.requires_grad else "frozen ones"


def _of_embedding(target: Target) -> str:
    name = next(a for a, module in zip(target.aliases, target.holders, strict=True) if isinstance(module, _EMBEDDINGS))
    others = [alias for alias in target.aliases if alias != name]
    return f"embeddings: {listing(others, 3)} is shared with {name}" if others else "embeddings"


def _matches(pattern: Pattern, everything: list[Target], frozen: bool) -> list[Target]:
    """What a pattern chooses: exactly named tensors as they are, of others the ones pruned by default."""
    found = _matching(pattern, everything)
    if _names_exactly(pattern, found):
        return found
    eligible = [t for t in found if _objection(t, frozen) is None]
    if not eligible:
        reasons = [f"{t.name} ({_objection(t, frozen)})" for t in found]
        raise ValueError(
            f"{show(pattern)} matches only tensors that are not pruned by default: {listing(reasons)}. Give their "
            "exact names, pairs or a predicate to prune them all the same."
        )
    return eligible


def _names_exactly(pattern: Pattern, found: Sequence[Target]) -> bool:
    if isinstance(pattern, str):
        return any(pattern in t.aliases for t in found)
    return isinstance(pattern, tuple) or (callable(pattern) and not isinstance(pattern, (type, nn.Module)))


def _matching(pattern: Pattern, everything: list[Target]) -> list[Target]:
    found = [t for t in everything if _fits(pattern, t)]
    if not found:
        raise ValueError(f"{show(pattern)} matches no parameter of the model; {_hint(pattern, everything)}")
    return found


def _hint(pattern: Pattern, everything: Sequence[Target]) -> str:
    """What may have been meant by a pattern that matches nothing."""
    origins = [origin for t in everything for origin in t.origins if _computes(origin, pattern)]
    if origins:
        sources = [origin.original for origin in origins if origin.name == origins[0].name]
        return f"{origins[0].name} is computed by a parametrization, from {' and '.join(sources)}"
    names = [name for t in everything for name in t.aliases]
    near = difflib.get_close_matches(pattern, names, n=3, cutoff=0.4) if isinstance(pattern, str) else []
    return f"near names: {', '.join(near)}" if near else f"the parameters are {listing(names)}"


def _computes(origin: Origin, pattern: Pattern) -> bool:
    if isinstance(pattern, str):
        return fnmatchcase(origin.name, pattern)
    return isinstance(pattern, tuple) and origin.layer is pattern[0] and origin.tensor == pattern[1]


def _fits(pattern: Pattern, target: Target) -> bool:
    if isinstance(pattern, str):
        return any(fnmatchcase(name, pattern) or name.startswith(f"{pattern}.") for name in target.aliases)
    if isinstance(pattern, re.Pattern):
        return any(pattern.search(name) for name in target.aliases)
    if isinstance(pattern, type) and issubclass(pattern, nn.Module):
        layers = [origin.layer for origin in target.origins]
        return any(isinstance(module, pattern) for module in (*target.holders, *layers))
    if isinstance(pattern, nn.Module):
        return any(module is owner for module in pattern.modules() for owner, _ in target.owners)
    if is_pair(pattern):
        return any(module is pattern[0] and name == pattern[1] for module, name in target.owners)  # type: ignore[index]
    if callable(pattern) and not isinstance(pattern, type):
        return bool(pattern(target.name, target.parameter))
    raise TypeError(
        "parameters are chosen by names, globs, regular expressions, modules, module types, (module, name) pairs or "
        f"predicates f(name, parameter), got {show(pattern)} of type {type(pattern).__name__}"
    )


def describe_targets(targets: Iterable[Target]) -> list[str]:
    """Names and shapes, in words that are the same in every process."""
    return [f"{t.name} {tuple(t.parameter.shape)}" for t in targets]


def listing(names: Sequence[str], limit: int = 8) -> str:
    """The first names, and how many more there are."""
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more
