"""Which pruning method is used, and with which arguments."""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch.nn.utils.prune as torch_prune

from lightning_prune.prune.amounts import canonical_amount
from lightning_prune.prune.arguments import one_of
from lightning_prune.prune.kernels.norms import order_of
from lightning_prune.prune.masks import AnyMethod
from lightning_prune.prune.methods import L1Unstructured, LnStructured, RandomStructured, RandomUnstructured
from lightning_prune.prune.patterned import LnBlocks, NMStructured
from lightning_prune.pruner.granularity import NM, Blocks, Channels, Granularity, Weights

Method = str | type[AnyMethod] | Callable[..., AnyMethod]

_NAMED: dict[str, type[AnyMethod]] = {
    "l1_unstructured": L1Unstructured,
    "random_unstructured": RandomUnstructured,
    "ln_structured": LnStructured,
    "random_structured": RandomStructured,
    "n_m": NMStructured,
    "ln_blocks": LnBlocks,
}
_OURS: dict[Any, type[AnyMethod]] = {
    torch_prune.L1Unstructured: L1Unstructured,
    torch_prune.RandomUnstructured: RandomUnstructured,
    torch_prune.LnStructured: LnStructured,
    torch_prune.RandomStructured: RandomStructured,
}


class Ranked(Protocol):
    """What a method has to know of scores."""

    @property
    def signed(self) -> bool:
        """Whether they are ranked with their signs."""
        ...

    @property
    def norm(self) -> int | float | str | None:
        """The order of the norm over a unit, ``"sum"``, or ``None`` for the method's own."""
        ...


@dataclass(frozen=True)
class Recipe:
    """A pruning method class with its fixed arguments.

    Attributes:
        cls: The class of the method, of this package, torch or the user's own.
        kwargs: Arguments that are the same for every tensor and event.
        dim: Dimension of the channels for structured methods, or along which N:M groups lie: a number, ``"out"`` or
            ``"in"``.
        amount: How much an event prunes, if that came with the method.
    """

    cls: type[AnyMethod]
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    dim: int | str = "out"
    amount: int | float | None = None

    @property
    def granularity(self) -> Granularity:
        """What the method prunes as one."""
        if issubclass(self.cls, NMStructured | LnBlocks):
            return _patterned(self.make(0, 1), self.dim)
        if getattr(self.cls, "PRUNING_TYPE", None) != "structured":
            return Weights()
        own = "dim" not in _parameters(self.cls)
        return Channels(int(getattr(self.make(0), "dim", 0)) if own else self.dim)

    @property
    def signed(self) -> bool:
        """Whether scores are ranked with their signs."""
        return bool(self.kwargs.get("signed", False)) or self.kwargs.get("n") == "sum"

    @property
    def takes_amount(self) -> bool:
        """Whether the method can be told how much to prune."""
        return self.takes("amount")

    def takes(self, name: str) -> bool:
        """Whether the method has an argument of this name."""
        return name in _parameters(self.cls)

    def amount_or(self, amount: int | float | None) -> int | float | None:
        """The amount that came with the method, or another one.

        Args:
            amount: One given beside the method, ``None`` = none.

        Raises:
            ValueError: If both are given, or it is out of range.
            TypeError: If it is no number.
        """
        if amount is None:
            return self.amount
        if self.amount is not None:
            raise ValueError(f"amount={amount!r} is given, and amount={self.amount!r} to the method: give one")
        return canonical_amount(amount)

    def ranking(self, criterion: Ranked) -> Recipe:
        """The same method for the scores of a criterion.

        Args:
            criterion: Says whether scores have signs, and how those of a unit become one.

        Raises:
            ValueError: If the method reads no scores, or none with signs.
        """
        signed, norm = criterion.signed, criterion.norm
        taken = _parameters(self.cls)
        if issubclass(self.cls, RandomUnstructured | RandomStructured):
            raise ValueError(f"{self.cls.__name__} reads no scores: leave criterion={criterion} out")
        units = isinstance(self.granularity, Channels | Blocks)
        if units and "n" in taken and norm is not None:
            return replace(self, kwargs={**self.kwargs, "n": norm})
        if not signed or (units and norm == "sum"):
            return self
        if units or "signed" not in taken:
            raise ValueError(
                f"{self.cls.__name__} ranks magnitudes, but scores of {criterion} have signs: use 'l1_unstructured', "
                "'n_m', 'ln_structured' or 'ln_blocks'"
            )
        return replace(self, kwargs={**self.kwargs, "signed": True})

    def make(self, amount: int | float | None, dim: int | None = None) -> AnyMethod:
        """A method for one event.

        Args:
            amount: Passed on if the method takes one.
            dim: Passed on if the method takes one and none is fixed.
        """
        given = {"amount": amount, "dim": dim}
        wanted = {name: value for name, value in given.items() if value is not None and name in _parameters(self.cls)}
        return self.cls(**{**self.kwargs, **wanted})

    @property
    def prunes_outputs(self) -> bool:
        """Whether whole output channels go."""
        return isinstance(self.granularity, Channels) and self.granularity.along in ("out", 0)

    def __str__(self) -> str:
        """In words that are the same in every process."""
        arguments = [f"{key}={_words(value)}" for key, value in sorted(self.kwargs.items())]
        arguments += [f"dim={self.dim!r}"] if "dim" in _parameters(self.cls) else []
        return f"{self.cls.__name__}({', '.join(arguments)})"


def _patterned(method: AnyMethod, dim: int | str) -> Granularity:
    if isinstance(method, NMStructured):
        return NM(method.n, method.m, dim)
    assert isinstance(method, LnBlocks)
    return Blocks(method.block)


def make_recipe(
    method: Method, n: int | float | str, dim: int | str | None, kwargs: Mapping[str, Any] | None
) -> Recipe:
    """The recipe that some arguments of the callback describe.

    Args:
        method: A name, a class of pruning methods or its import path (``"package.module.Class"``), or a
            ``functools.partial`` of one.
        n: The norm, for methods that take one, or how many of each m stay.
        dim: The channels' dimension for structured methods, or along which N:M groups lie; ``kwargs`` may hold another
            one. ``None``: output channels, and groups of inputs.
        kwargs: More arguments of the method.

    Raises:
        ValueError: If the name is unknown or an argument is missing.
        TypeError: If it is not a pruning method or does not take an argument.
    """
    cls, fixed = _resolve(method)
    given = {**fixed, **(kwargs or {})}
    accepted = _parameters(cls)
    unknown = [key for key in given if key not in accepted]
    if unknown and not any(p.kind is p.VAR_KEYWORD for p in accepted.values()):
        raise TypeError(
            f"{cls.__name__} does not take {', '.join(unknown)}; its arguments are {', '.join(accepted) or 'none'}"
        )
    if "n" in accepted:
        given.setdefault("n", n)
    missing = [name for name in _required(accepted) if name not in (*given, "amount", "dim")]
    if missing:
        raise ValueError(f"{cls.__name__} needs {', '.join(missing)}: give it in method_kwargs or by functools.partial")
    amount, dim = given.pop("amount", None), given.pop("dim", dim)
    if dim is None:
        dim = "in" if issubclass(cls, NMStructured) else "out"
    if isinstance(dim, str):
        one_of("dim", dim, ("out", "in"))
    recipe = Recipe(cls, given, dim, None if amount is None else canonical_amount(amount))
    if issubclass(cls, NMStructured | LnBlocks):
        _ = recipe.granularity  # refuses numbers that are none
    if issubclass(cls, LnStructured) and given["n"] != "sum":
        order_of(given["n"])
    return recipe


def _resolve(method: Method) -> tuple[type[AnyMethod], dict[str, Any]]:
    if isinstance(method, str):
        return _resolve(_imported(method)) if "." in method else (_named(method), {})
    if isinstance(method, functools.partial):
        if method.args:
            raise TypeError(f"give the arguments of {method.func!r} by name, got {method.args!r} by position")
        cls, fixed = _resolve(method.func)
        return cls, {**fixed, **method.keywords}
    if isinstance(method, type) and issubclass(method, torch_prune.BasePruningMethod):
        return _OURS.get(method, method), {}
    raise TypeError(
        "method should be a name, a subclass of BasePruningMethod (of lightning_prune.prune or "
        f"torch.nn.utils.prune) or a functools.partial of one, got {method!r}"
    )


def _required(parameters: Mapping[str, inspect.Parameter]) -> list[str]:
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [name for name, p in parameters.items() if p.default is p.empty and p.kind in named]


def _named(name: str) -> type[AnyMethod]:
    if name not in _NAMED:
        raise ValueError(
            f"method={name!r} is unknown; known are {', '.join(_NAMED)}, or give a class or its import path"
        )
    return _NAMED[name]


def _imported(path: str) -> Any:
    """What an import path such as ``"package.module.Class"`` names."""
    module, _, name = path.rpartition(".")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"method={path!r} cannot be imported: {error}") from error


def _words(value: Any) -> str:
    """A value in words that are the same in every process: no addresses."""
    if isinstance(value, (str, int, float, bool, type(None))):
        return repr(value)
    return str(getattr(value, "__qualname__", type(value).__qualname__))


@functools.lru_cache(maxsize=64)
def _parameters(cls: type[AnyMethod]) -> dict[str, inspect.Parameter]:
    """What the constructor takes, with what it passes on to that of its base by ``**kwargs``."""
    found: dict[str, inspect.Parameter] = {}
    for base in cls.__mro__[:-1]:
        if "__init__" not in vars(base):
            continue
        own = dict(list(inspect.signature(vars(base)["__init__"]).parameters.items())[1:])  # without self
        found = {**own, **found}
        if not any(p.kind is p.VAR_KEYWORD for p in own.values()):
            break
    return found
