"""Sparsity, sizes and masks of models, as functions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from torch import Tensor, nn

from lightning_prune.prune.checks import naming
from lightning_prune.prune.sharded.tensors import nonzero_entries
from lightning_prune.targets.patterns import Patterns
from lightning_prune.targets.select import Target, all_targets, select

Masks = nn.Module | Mapping[str, Tensor]


class Counts(NamedTuple):
    """Entries of a tensor, and how many of them are zero."""

    zeros: int
    weights: int


def chosen(model: nn.Module, parameters: Patterns = None, exclude: Patterns = None) -> list[Target]:
    """All parameters of a model once; with patterns what :func:`~lightning_prune.targets.select.select` chooses.

    Frozen ones too.

    Args:
        model: Any module.
        parameters: What to choose; ``"*"`` is all that is pruned by default. All parameters if ``None``.
        exclude: What to leave out.

    Raises:
        ValueError: If a pattern matches nothing.
    """
    if parameters is None and exclude is None:
        return all_targets(model)
    return select(model, parameters, exclude, frozen=True)


def value_of(target: Target) -> Tensor:
    """The tensor as the forward sees it, detached."""
    module, name = target.owners[0]
    value: Tensor = getattr(module, name)
    return value.detach()


def count_zeros(model: nn.Module, parameters: Patterns = None, exclude: Patterns = None) -> dict[str, Counts]:
    """Zeros and entries of the chosen tensors, by their full names.

    Args:
        model: Any module.
        parameters: Which tensors, as for :func:`sparsity`.
        exclude: Which tensors not.

    Raises:
        ValueError: If a pattern matches nothing.

    Example:
        >>> from lightning_prune.prune import l1_unstructured
        >>> count_zeros(l1_unstructured(nn.Linear(3, 2), "weight", amount=4), "weight")
        {'weight': Counts(zeros=4, weights=6)}
    """
    counts = {}
    for target in chosen(model, parameters, exclude):
        value = value_of(target)
        with naming(f"'{target.name}'"):
            counts[target.name] = Counts(value.numel() - nonzero_entries(value), value.numel())
    return counts


def sparsity(model: nn.Module, parameters: Patterns = None, exclude: Patterns = None) -> float:
    """Share of zeros, ``zeros / weights``, over a model or a part of it.

    Args:
        model: Any module: dense, pruned, or with its pruning made permanent.
        parameters: Which tensors: names, globs, regular expressions, module types, (module, name) pairs, predicates
            or several of these, as for :class:`lightning_prune.PruningCallback`; ``"*"`` is all that is pruned by
            default. All parameters if neither this nor ``exclude`` is given.
        exclude: Which tensors not.

    Returns:
        A number in [0, 1]; shared tensors count once; 0.0 where there are no weights.

    Raises:
        ValueError: If a pattern matches nothing.

    Example:
        >>> from lightning_prune.prune import l1_unstructured
        >>> net = l1_unstructured(nn.Linear(3, 2), "weight", amount=4)
        >>> sparsity(net), round(sparsity(net, "weight"), 4)
        (0.5, 0.6667)
    """
    return _share(_total(count_zeros(model, parameters, exclude)))


def sparsity_per_tensor(model: nn.Module, parameters: Patterns = None, exclude: Patterns = None) -> dict[str, float]:
    """Share of zeros of each tensor, by its full name.

    Args:
        model: Any module.
        parameters: Which tensors, as for :func:`sparsity`.
        exclude: Which tensors not.

    Raises:
        ValueError: If a pattern matches nothing.

    Example:
        >>> from lightning_prune.prune import l1_unstructured
        >>> sparsity_per_tensor(l1_unstructured(nn.Linear(4, 2), "weight", amount=4))
        {'weight': 0.5, 'bias': 0.0}
    """
    return {name: _share(counts) for name, counts in count_zeros(model, parameters, exclude).items()}


def nonzero_parameters(model: nn.Module, parameters: Patterns = None, exclude: Patterns = None) -> int:
    """Number of weights that are not zero.

    Args:
        model: Any module.
        parameters: Which tensors, as for :func:`sparsity`.
        exclude: Which tensors not.

    Raises:
        ValueError: If a pattern matches nothing.

    Example:
        >>> from lightning_prune.prune import l1_unstructured
        >>> nonzero_parameters(l1_unstructured(nn.Linear(3, 2), "weight", amount=4))
        4
    """
    zeros, weights = _total(count_zeros(model, parameters, exclude))
    return weights - zeros


def compression_rate(model: nn.Module, parameters: Patterns = None, exclude: Patterns = None) -> float:
    """Number of weights over number of nonzero weights: 10.0 at a sparsity of 0.9.

    It is the "compression ratio" of Blalock et al., "What is the State of Neural Network Pruning?" (MLSys 2020); a
    sparse file also needs the positions of its weights.

    Args:
        model: Any module.
        parameters: Which tensors, as for :func:`sparsity`.
        exclude: Which tensors not.

    Returns:
        1.0 or more; infinite if all weights are zero.

    Raises:
        ValueError: If a pattern matches nothing.

    Example:
        >>> from lightning_prune.prune import l1_unstructured
        >>> compression_rate(l1_unstructured(nn.Linear(3, 2), "weight", amount=4))
        2.0
    """
    zeros, weights = _total(count_zeros(model, parameters, exclude))
    return weights / (weights - zeros) if weights > zeros else float("inf") if weights else 1.0


def masks_of(model: nn.Module, parameters: Patterns = None, exclude: Patterns = None) -> dict[str, Tensor]:
    """A copy of the masks of a model, to compare them with later ones.

    Args:
        model: Any module.
        parameters: Which tensors, as for :func:`sparsity`; all that are pruned by default if neither this nor
            ``exclude`` is given.
        exclude: Which tensors not.

    Returns:
        Boolean tensors by full name, True = kept: the mask where a tensor is pruned, else where it is not zero.

    Raises:
        ValueError: If a pattern matches nothing.

    Example:
        >>> from lightning_prune.prune import l1_unstructured
        >>> {name: int(mask.sum()) for name, mask in masks_of(l1_unstructured(nn.Linear(3, 2), "weight", 4)).items()}
        {'weight': 2}
    """
    targets = select(model, parameters, exclude, frozen=True)
    return {t.name: value_of(t) != 0 if t.alive is None else t.alive.clone() for t in targets}


class Agreement(NamedTuple):
    """How two sets of masks agree: numbers of entries, and the numbers expected of independent masks."""

    intersection: int
    union: int
    entries: int
    expected_intersection: float
    expected_union: float


def compare_masks(first: Masks, second: Masks) -> Agreement:
    """Compares two sets of masks entry by entry.

    Args:
        first: A model or masks by name (True or nonzero = kept).
        second: Another one, of the same names and shapes.

    Returns:
        Sums over all tensors. Expected are ``n * a * b`` and ``n * (a + b - a * b)`` for a tensor of ``n`` entries
        of which the masks keep the shares ``a`` and ``b``, wherever they lie.

    Raises:
        ValueError: If names or shapes differ, or there is nothing to compare.
    """
    left, right = _as_masks(first), _as_masks(second)
    _check_alike(left, right)
    return Agreement(*(sum(parts) for parts in zip(*(_agreement(left[n], right[n]) for n in left), strict=True)))


def mask_overlap(first: Masks, second: Masks, adjusted: bool = False) -> float:
    """Intersection over union of what two sets of masks keep.

    Args:
        first: A model, or masks by name such as :func:`masks_of` gives them.
        second: Another one of the same tensors.
        adjusted: Give ``(overlap - chance) / (1 - chance)`` with :func:`chance_overlap`: 1 for equal masks, about 0
            for independent ones, negative for masks that avoid each other.

    Returns:
        ``|first and second| / |first or second|``; 1.0 if both keep nothing.

    Raises:
        ValueError: If names or shapes differ.

    Example:
        >>> import torch
        >>> first, second = torch.tensor([True, True, False, False]), torch.tensor([True, False, True, False])
        >>> round(mask_overlap({"weight": first}, {"weight": second}), 4)
        0.3333
        >>> mask_overlap({"weight": first}, {"weight": second}, adjusted=True)
        0.0
    """
    agreement = compare_masks(first, second)
    overlap, chance = _ratio(agreement.intersection, agreement.union), _chance(agreement)
    return adjust(overlap, chance) if adjusted else overlap


def chance_overlap(first: Masks, second: Masks) -> float:
    """Overlap to be expected of independent masks that keep as much of each tensor as these do.

    Args:
        first: A model or masks by name.
        second: Another one of the same tensors.

    Returns:
        ``sum n a b / sum n (a + b - a b)`` over tensors of ``n`` entries of which the masks keep the shares ``a`` and
        ``b``: the ratio of the expected intersection to the expected union.

    Raises:
        ValueError: If names or shapes differ.

    Example:
        >>> import torch
        >>> round(chance_overlap({"w": torch.tensor([1, 1, 0, 0])}, {"w": torch.tensor([1, 0, 1, 0])}), 4)
        0.3333
    """
    return _chance(compare_masks(first, second))


def mask_churn(before: Masks, after: Masks) -> float:
    """Share of mask entries that changed, either way.

    Args:
        before: A model or masks by name.
        after: Another one of the same tensors.

    Returns:
        ``|before xor after| / entries`` in [0, 1].

    Raises:
        ValueError: If names or shapes differ.

    Example:
        >>> import torch
        >>> mask_churn({"w": torch.tensor([1, 1, 0, 0])}, {"w": torch.tensor([1, 0, 1, 0])})
        0.5
    """
    agreement = compare_masks(before, after)
    return (agreement.union - agreement.intersection) / agreement.entries


def adjust(overlap: float, chance: float) -> float:
    """An overlap on the scale from chance (0) to equality (1); 1.0 where chance alone makes masks equal."""
    return (overlap - chance) / (1 - chance) if chance < 1 else 1.0


def _chance(agreement: Agreement) -> float:
    return _ratio(agreement.expected_intersection, agreement.expected_union)


def _ratio(intersection: float, union: float) -> float:
    return intersection / union if union else 1.0


def _agreement(first: Tensor, second: Tensor) -> Agreement:
    second = second.to(first.device)
    entries, kept, also = first.numel(), nonzero_entries(first), nonzero_entries(second)
    both = nonzero_entries(first & second)
    expected = kept * also / entries if entries else 0.0
    return Agreement(both, kept + also - both, entries, expected, kept + also - expected)


def _as_masks(masks: Masks) -> dict[str, Tensor]:
    return masks_of(masks) if isinstance(masks, nn.Module) else {name: mask != 0 for name, mask in masks.items()}


def _check_alike(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> None:
    if not first and not second:
        raise ValueError("there are no masks to compare")
    for name in (*first, *second):
        shapes = [tuple(masks[name].shape) if name in masks else None for masks in (first, second)]
        if shapes[0] != shapes[1]:
            words = ["missing" if shape is None else f"of shape {shape}" for shape in shapes]
            raise ValueError(
                f"masks of the same tensors are compared, but '{name}' is {words[0]} in the first "
                f"and {words[1]} in the second; choose the same with masks_of(model, parameters)"
            )


def _total(counts: Mapping[str, Counts]) -> Counts:
    return Counts(sum(c.zeros for c in counts.values()), sum(c.weights for c in counts.values()))


def _share(counts: Counts) -> float:
    return counts.zeros / counts.weights if counts.weights else 0.0
