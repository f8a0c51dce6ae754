"""Gradients averaged over some optimizer steps, by the names of their tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch import Tensor

from lightning_prune.prune.sharded.tensors import cut, local, split_like, whole


class Means:
    """Sums and numbers of what was added since it was last forgotten; of split tensors this rank's part.

    Example:
        >>> import torch
        >>> means = Means()
        >>> for value in (1.0, 4.0):
        ...     means.add("weight", torch.tensor([value]))
        >>> means.of("weight")
        tensor([2.5000])
    """

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}
        self._counts: dict[str, int] = {}

    def add(self, name: str, value: Tensor) -> None:
        """Adds a value to those of a name; it is copied."""
        if name in self._sums:
            self._sums[name] += value
        else:
            self._sums[name] = value.clone()
        self._counts[name] = self._counts.get(name, 0) + 1

    def of(self, name: str) -> Tensor:
        """The mean of what was added."""
        return self._sums[name] / self._counts[name]

    def forget(self, names: Iterable[str]) -> None:
        """Begins anew."""
        for name in names:
            self._sums.pop(name, None)
            self._counts.pop(name, None)

    def state_later(self, parameters: Mapping[str, Tensor]) -> Callable[[], dict[str, Any]]:
        """What gives all that resuming needs, when every rank is there.

        Args:
            parameters: How the tensors are split.
        """
        counts, sums = dict(self._counts), {name: total.clone() for name, total in self._sums.items()}

        def state() -> dict[str, Any]:
            wholes = {n: whole(split_like(total, parameters[n].detach())).cpu() for n, total in sums.items()}
            return {"counts": counts, "sums": wholes} if sums else {}

        return state

    def load_state_dict(self, state: Mapping[str, Any], parameters: Mapping[str, Tensor]) -> None:
        """Puts the sums back.

        Args:
            state: What :meth:`state_later` gives, perhaps with more.
            parameters: How the tensors are split, and where they are.
        """
        sums = {n: total for n, total in state.get("sums", {}).items() if n in parameters}
        self._counts = {n: state["counts"][n] for n in sums}
        self._sums = {
            n: local(cut(total.to(parameters[n].device), parameters[n].detach())).clone() for n, total in sums.items()
        }
