"""The functions of ``torch.nn.utils.prune``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import torch
import torch.nn.utils.prune as torch_prune
from torch import Tensor, nn

from lightning_prune.prune import attribute
from lightning_prune.prune.base import BasePruningMethod, find_hook
from lightning_prune.prune.checks import require_pruned
from lightning_prune.prune.foreign import is_foreign, remove_foreign
from lightning_prune.prune.global_pruning import global_masks as global_masks
from lightning_prune.prune.global_pruning import global_unstructured as global_unstructured
from lightning_prune.prune.methods import (
    CustomFromMask,
    Identity,
    L1Unstructured,
    LnStructured,
    RandomStructured,
    RandomUnstructured,
)
from lightning_prune.prune.patterned import LnBlocks, NMStructured

M = TypeVar("M", bound=nn.Module)


def identity(module: M, name: str, *, keep_name: bool = False) -> M:
    """Installs the pruning reparameterization with a mask of ones.

    Args:
        module: Module that holds the parameter.
        name: Name of the parameter.
        keep_name: Leave the parameter registered as ``name`` (the callback layout).

    Returns:
        The module, modified in place.

    Raises:
        AttributeError: If the module has no such attribute.
        TypeError: If it is not a parameter.

    Example:
        >>> identity(nn.Linear(2, 3), "bias").bias_mask
        tensor([1., 1., 1.])
    """
    Identity.apply(module, name, keep_name=keep_name)
    return module


def random_unstructured(
    module: M,
    name: str,
    amount: int | float,
    generator: torch.Generator | None = None,
    *,
    keep_name: bool = False,
) -> M:
    """Prunes single entries at random.

    Args:
        module: Module that holds the parameter.
        name: Name of the parameter.
        amount: Fraction in [0, 1] of the entries still unpruned (rounded half to even), or a count.
        generator: Source of randomness; torch's global one, so ``torch.manual_seed``, by default.
        keep_name: Leave the parameter registered as ``name`` (the callback layout).

    Returns:
        The module, modified in place.

    Raises:
        AttributeError: If the module has no such attribute.
        TypeError: If it is not a parameter, or the amount is not a number.
        ValueError: If the amount is out of range or more than is left.

    Example:
        >>> layer = random_unstructured(nn.Linear(2, 3), "weight", amount=1)
        >>> int((layer.weight_mask == 0).sum())
        1
    """
    RandomUnstructured.apply(module, name, amount=amount, generator=generator, keep_name=keep_name)
    return module


def l1_unstructured(
    module: M,
    name: str,
    amount: int | float,
    importance_scores: Tensor | None = None,
    *,
    signed: bool = False,
    keep_name: bool = False,
) -> M:
    """Prunes the entries of smallest absolute value.

    A fraction is one of the entries still unpruned: three rounds of 0.5 prune 0.5, 0.75 and 0.875 of the
    tensor. A fraction of a small tensor can round to nothing: 10 % of 4 entries is 0, in every round.

    Args:
        module: Module that holds the parameter.
        name: Name of the parameter.
        amount: Fraction in [0, 1] of the entries still unpruned (rounded half to even), or a count.
        importance_scores: Scores of the parameter's shape to rank by, by absolute value; the parameter by default.
        signed: Rank by the scores themselves, negative ones first, instead of by their absolute values.
        keep_name: Leave the parameter registered as ``name`` (the callback layout).

    Returns:
        The module, modified in place.

    Raises:
        AttributeError: If the module has no such attribute.
        TypeError: If it is not a parameter, or the amount is not a number.
        ValueError: If the amount is out of range or more than is left, or the scores have another shape or are NaN.

    Example:
        >>> layer = nn.Linear(4, 2)
        >>> [round(sparsity, 3) for sparsity in
        ...  (float((l1_unstructured(layer, "weight", 0.5).weight_mask == 0).float().mean()) for _ in range(3))]
        [0.5, 0.75, 0.875]
    """
    L1Unstructured.apply(
        module, name, amount=amount, signed=signed, importance_scores=importance_scores, keep_name=keep_name
    )
    return module


def random_structured(
    module: M,
    name: str,
    amount: int | float,
    dim: int,
    generator: torch.Generator | None = None,
    *,
    keep_name: bool = False,
) -> M:
    """Prunes whole channels at random.

    Args:
        module: Module that holds the parameter.
        name: Name of the parameter, of two or more dimensions.
        amount: Fraction in [0, 1] of the channels that still have an unpruned entry, or a count of channels.
        dim: Dimension that counts the channels: output channels are dim 0 of Linear and Conv layers and dim 1
            of ConvTranspose layers. Negative ones count from the end.
        generator: Source of randomness; torch's global one, so ``torch.manual_seed``, by default.
        keep_name: Leave the parameter registered as ``name`` (the callback layout).

    Returns:
        The module, modified in place.

    Raises:
        AttributeError: If the module has no such attribute.
        TypeError: If it is not a parameter, or the amount is not a number.
        IndexError: If the tensor has no such dimension.
        ValueError: If the amount is out of range or more than is left, or the tensor has one dimension.

    Example:
        >>> layer = random_structured(nn.Linear(5, 3), "weight", amount=2, dim=1)
        >>> int((layer.weight_mask.sum(dim=0) == 0).sum())
        2
    """
    RandomStructured.apply(module, name, amount=amount, dim=dim, generator=generator, keep_name=keep_name)
    return module


def ln_structured(
    module: M,
    name: str,
    amount: int | float,
    n: int | float | str,
    dim: int,
    importance_scores: Tensor | None = None,
    *,
    keep_name: bool = False,
) -> M:
    """Prunes the channels of smallest Ln norm.

    Args:
        module: Module that holds the parameter.
        name: Name of the parameter, of two or more dimensions.
        amount: Fraction in [0, 1] of the channels that still have an unpruned entry, or a count of channels.
        n: Norm: a positive number, ``inf``, ``-inf``, ``"fro"`` or ``"nuc"``; or ``"sum"``, the plain sum, for scores
            that have signs: the smallest go first.
        dim: Dimension that counts the channels: output channels are dim 0 of Linear and Conv layers and dim 1
            of ConvTranspose layers. Negative ones count from the end.
        importance_scores: Scores of the parameter's shape to take the norms of; the parameter by default.
        keep_name: Leave the parameter registered as ``name`` (the callback layout).

    Returns:
        The module, modified in place.

    Raises:
        AttributeError: If the module has no such attribute.
        TypeError: If it is not a parameter, or the amount is not a number.
        IndexError: If the tensor has no such dimension.
        ValueError: If the amount is out of range or more than is left, the tensor has one dimension, the norm is
            not one of those above, or the scores have another shape or are NaN.

    Example:
        >>> layer = nn.Linear(2, 3)
        >>> _ = layer.weight.data.copy_(torch.tensor([[3.0, 4.0], [1.0, 1.0], [2.0, 0.0]]))
        >>> ln_structured(layer, "weight", amount=1, n=2, dim=0).weight_mask
        tensor([[1., 1.],
                [0., 0.],
                [1., 1.]])
    """
    LnStructured.apply(
        module, name, amount=amount, n=n, dim=dim, importance_scores=importance_scores, keep_name=keep_name
    )
    return module


def n_m_structured(
    module: M,
    name: str,
    n: int = 2,
    m: int = 4,
    dim: int = 1,
    amount: int | float | None = None,
    importance_scores: Tensor | None = None,
    *,
    signed: bool = False,
    keep_name: bool = False,
) -> M:
    """Keeps ``n`` of each ``m`` entries in a row, those of largest magnitude.

    Args:
        module: Module that holds the parameter.
        name: Name of the parameter.
        n: Entries that are left of each group.
        m: Entries of a group: consecutive ones along ``dim``.
        dim: Dimension along which groups lie: 1 is that of the inputs of Linear and Conv layers.
        amount: Fraction in [0, 1] of the entries still unpruned, or a count, to go a part of the way: all groups lose
            one before any loses a second. All that ``n`` of ``m`` allow by default.
        importance_scores: Scores of the parameter's shape to rank by; the parameter by default.
        signed: Rank by the scores themselves, negative ones first, instead of by their magnitudes.
        keep_name: Leave the parameter registered as ``name`` (the callback layout).

    Returns:
        The module, modified in place.

    Raises:
        AttributeError: If the module has no such attribute.
        TypeError: If it is not a parameter.
        IndexError: If the tensor has no such dimension.
        ValueError: If the dimension is no multiple of ``m``, or the amount asks for more than may go.

    Example:
        >>> layer = nn.Linear(4, 1)
        >>> _ = layer.weight.data.copy_(torch.tensor([[1.0, -4.0, 3.0, 2.0]]))
        >>> n_m_structured(layer, "weight", n=2, m=4).weight_mask
        tensor([[0., 1., 1., 0.]])
    """
    NMStructured.apply(
        module, name, n, m, dim, amount, signed, importance_scores=importance_scores, keep_name=keep_name
    )
    return module


def ln_blocks(
    module: M,
    name: str,
    amount: int | float,
    block: Sequence[int] = (4, 1),
    n: int | float | str = 2,
    importance_scores: Tensor | None = None,
    *,
    keep_name: bool = False,
) -> M:
    """Prunes the blocks of smallest Ln norm.

    Args:
        module: Module that holds the parameter.
        name: Name of the parameter, of two or more dimensions.
        amount: Fraction in [0, 1] of the blocks that still have an unpruned entry, or a count of blocks.
        block: Size of a block. Two numbers count along the rows and columns of the tensor as a matrix (its first
            dimension by all others); as many as the tensor has dimensions count along these.
        n: Norm: a positive number, ``inf``, ``-inf``, or ``"sum"`` for the plain sum of scores with signs.
        importance_scores: Scores of the parameter's shape to take the norms of; the parameter by default.
        keep_name: Leave the parameter registered as ``name`` (the callback layout).

    Returns:
        The module, modified in place.

    Raises:
        AttributeError: If the module has no such attribute.
        TypeError: If it is not a parameter, or the amount is not a number.
        ValueError: If the shape is no multiple of the block, or the amount is out of range or more than is left.

    Example:
        >>> layer = nn.Linear(2, 2)
        >>> _ = layer.weight.data.copy_(torch.tensor([[3.0, 1.0], [4.0, 1.0]]))
        >>> ln_blocks(layer, "weight", amount=1, block=(2, 1)).weight_mask
        tensor([[1., 0.],
                [1., 0.]])
    """
    LnBlocks.apply(module, name, amount, block, n, importance_scores=importance_scores, keep_name=keep_name)
    return module


def custom_from_mask(module: M, name: str, mask: Tensor | Sequence[Any], *, keep_name: bool = False) -> M:
    """Prunes what a mask says, besides what is pruned already.

    Args:
        module: Module that holds the parameter.
        name: Name of the parameter.
        mask: 0 and 1 (or bool), shape of the parameter, 1 = kept; moved to the parameter's device.
        keep_name: Leave the parameter registered as ``name`` (the callback layout).

    Returns:
        The module, modified in place.

    Raises:
        AttributeError: If the module has no such attribute.
        TypeError: If it is not a parameter.
        ValueError: If the mask has another shape, or holds values other than 0 and 1.

    Example:
        >>> layer = custom_from_mask(nn.Linear(5, 3), "bias", mask=[0, 1, 0])
        >>> layer.bias_mask
        tensor([0., 1., 0.])
    """
    CustomFromMask.apply(module, name, mask=mask, keep_name=keep_name)
    return module


def is_pruned(module: nn.Module) -> bool:
    """Whether the module or any module in it is pruned, by this package or by torch.

    Args:
        module: Any module.

    Returns:
        True if a tensor is masked, or a pruning method is among the forward pre-hooks.

    Example:
        >>> layer = nn.Linear(5, 7)
        >>> is_pruned(layer), is_pruned(random_unstructured(layer, "weight", amount=0.2))
        (False, True)
    """
    return bool(torch_prune.is_pruned(module)) or any(attribute.masked_names(m) for m in module.modules())


def remove(module: M, name: str) -> M:
    """Makes the pruning of a tensor permanent: a plain parameter again, with zeros where it was pruned.

    It is the same parameter object, back under its name and in its old place among the parameters. A tensor that
    ``torch.nn.utils.prune`` has pruned is removed as torch does it.

    Args:
        module: Module that holds the pruned tensor.
        name: Name of the tensor.

    Returns:
        The module, modified in place.

    Raises:
        ValueError: If the tensor is not pruned.

    Example:
        >>> layer = remove(l1_unstructured(nn.Linear(4, 2), "weight", amount=6), "weight")
        >>> int((layer.weight == 0).sum()), list(layer.state_dict())
        (6, ['weight', 'bias'])
    """
    if isinstance(module, nn.Module) and is_foreign(module, name):
        remove_foreign(module, name)
        return module
    require_pruned(module, name)
    found = find_hook(module, name)
    if found is not None and isinstance(found[1], BasePruningMethod):
        found[1].remove(module)
    else:
        attribute.detach(module, name)
    if found is not None:
        module._forward_pre_hooks.pop(found[0], None)
    return module
