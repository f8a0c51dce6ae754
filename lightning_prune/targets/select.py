"""Which tensors of a model are pruned: patterns, exclusions, shared parameters counted once."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence

from torch import nn

from lightning_prune.targets.layouts import EMBEDDINGS, NORMS
from lightning_prune.targets.names import listing, matching, near
from lightning_prune.targets.parametrized import Origin, advice
from lightning_prune.targets.patterns import Pattern, Patterns, as_patterns, is_pair, show
from lightning_prune.targets.target import Target, all_targets

__all__ = ["Target", "all_targets", "describe_targets", "listing", "names_matching", "select", "select_trainable"]

_BIASES = re.compile(r"^bias|(^|_)bias(es)?(_|$)")
"""Names of biases, also of those of two or more dimensions, as attention adds to its scores."""

_NOT_WEIGHTS = re.compile(r"embed|(^|_)pos(_|$)|position|token")
"""Names of parameters that are added to activations or stand for inputs, as the places of a vision transformer."""


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
    dropped = names_matching(exclude, everything)
    names = {t.name for t in chosen} - dropped
    if not names:
        raise ValueError(
            "nothing is selected for pruning: by default that is trainable parameters of two or more dimensions, "
            f"without embeddings and norms; this model has {len(everything)} parameters"
            + (f", {len({t.name for t in chosen})} matched and were all excluded" if chosen else "")
            + advice([t.name for t in everything if t.origins and t.parameter.dim() > 1])
        )
    return [t for t in everything if t.name in names]


def names_matching(patterns: Patterns, everything: Sequence[Target]) -> set[str]:
    """Names of the tensors that any pattern matches, whether they are pruned by default or not.

    Args:
        patterns: As for :func:`select`.
        everything: The tensors.

    Raises:
        ValueError: If a pattern matches nothing (near names are listed).
        TypeError: If something is not a pattern.

    Example:
        >>> sorted(names_matching(["*.bias", "0"], all_targets(nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2)))))
        ['0.bias', '0.weight', '1.bias']
    """
    return {t.name for pattern in as_patterns(patterns) for t in _matching(pattern, list(everything))}


def select_trainable(
    model: nn.Module, parameters: Patterns, exclude: Patterns, join: bool, outputs: Collection[str] = ()
) -> tuple[list[Target], list[Target]]:
    """The tensors to prune now, and those that would be selected if they were trainable.

    Args:
        model: Any module.
        parameters: What to choose, as for :func:`select`.
        exclude: What to leave out, as for :func:`select`.
        join: Whether frozen tensors will be pruned later, so that at first there may be none.
        outputs: Tensors that are left out unless ``parameters`` choose, or nothing else is there.

    Raises:
        ValueError: As :func:`select` does.
    """
    everything = select(model, parameters, exclude, frozen=True)
    if join:
        now = {t.name for t in everything if t.parameter.requires_grad}
    else:
        now = {t.name for t in select(model, parameters, exclude)}
    if parameters is None and now - {*outputs}:
        everything = [t for t in everything if t.name not in outputs]
    return [t for t in everything if t.name in now], [t for t in everything if t.name not in now]


def layers_of(model: nn.Module, any_layout: bool = False) -> list[Target]:
    """The weights of a model's layers, trained or not, in the order in which they are declared.

    Args:
        model: Any module.
        any_layout: Also those of which it is not known which dimension holds the outputs.

    Example:
        >>> [t.name for t in layers_of(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2), nn.LayerNorm(2)))]
        ['0.weight', '2.weight']
    """
    layers = [t for t in all_targets(model) if _objection(t, frozen=True) is None]
    return [t for t in layers if any_layout or t.output_dim is not None]


def _objection(target: Target, frozen: bool) -> str | None:
    """Why a tensor is not pruned by default."""
    parameter = target.parameter
    names = [place.slot for place in target.places]
    if target.origins:
        return f"originals of a parametrization: {target.origins[0].name} is computed from it"
    if not (parameter.is_floating_point() or parameter.is_complex()):
        return str(parameter.dtype)
    if any(_BIASES.search(name) for name in names):
        return "biases"
    if any(isinstance(place.module, NORMS) for place in target.places):
        return "norms"
    if any(isinstance(place.module, EMBEDDINGS) for place in target.places):
        return _of_embedding(target)
    # a magnitude of weight_norm, a layer scale and a class token are vectors with dimensions of size 1
    flat = parameter.numel() == max(parameter.shape, default=1) and "weight" not in names
    if parameter.dim() < 2 or parameter.numel() == 0 or flat:
        return "vectors"
    if any(_NOT_WEIGHTS.search(name) for name in names) or (target.output_dim is None and parameter.shape[0] == 1):
        return "embeddings and other parameters that are not weights"
    return None if frozen or parameter.requires_grad else "frozen ones"


def _of_embedding(target: Target) -> str:
    name = next(place.name for place in target.places if isinstance(place.module, EMBEDDINGS))
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
    if isinstance(pattern, str):
        meant = {*matching(pattern, [name for t in everything for name in t.aliases])}
        found = [t for t in everything if meant.intersection(t.aliases)]
    else:
        found = [t for t in everything if _fits(pattern, t)]
    if not found:
        raise ValueError(f"{show(pattern)} matches no parameter of the model; {_hint(pattern, everything)}")
    return found


def _hint(pattern: Pattern, everything: Sequence[Target]) -> str:
    """What may have been meant by a pattern that matches nothing."""
    computed = [(p.origin, p.name) for t in everything for p in t.places if p.origin and _computes(p.origin, pattern)]
    if computed:
        name = computed[0][0].name
        sources = [source for origin, source in computed if origin.name == name]
        return f"{name} is computed by a parametrization, from {' and '.join(sources)}"
    names = [name for t in everything for name in t.aliases]
    close = near(pattern, names) if isinstance(pattern, str) else []
    return f"near names: {', '.join(close)}" if close else f"the parameters are {listing(names)}"


def _computes(origin: Origin, pattern: Pattern) -> bool:
    if isinstance(pattern, str):
        return bool(matching(pattern, [origin.name]))
    return isinstance(pattern, tuple) and origin.layer is pattern[0] and origin.tensor == pattern[1]


def _fits(pattern: Pattern, target: Target) -> bool:
    if isinstance(pattern, re.Pattern):
        return any(pattern.search(name) for name in target.aliases)
    if isinstance(pattern, type) and issubclass(pattern, nn.Module):
        layers = [origin.layer for origin in target.origins]
        return any(isinstance(module, pattern) for module in (*(place.module for place in target.places), *layers))
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
