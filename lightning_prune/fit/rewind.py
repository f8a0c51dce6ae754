"""Rewinding: snapshots of a training state, going back to one, and re-initialisation.

Weights rewound to an early point of training and trained again with their mask are a lottery ticket (Frankle & Carbin
2019; Frankle et al. 2020 for points after the start). Rewinding only the learning rate (Renda et al. 2020) keeps the
trained weights and repeats the optimizer's and the schedule's course.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from lightning_prune.prune import attribute
from lightning_prune.prune.kernels.randomness import seeded
from lightning_prune.prune.sharded.slices import Slice, aside, for_parameter, put_back
from lightning_prune.prune.sharded.tensors import is_sharded, whole

What = Literal["weights", "learning_rate", "all"]


@dataclass(frozen=True)
class Rewind:
    """Go back to an earlier point of the fit after each pruning event.

    Args:
        epoch: Back to the state at the start of this epoch.
        step: Back to the state before this optimizer step (as ``global_step`` counts), instead of an epoch.
        what: ``"weights"``: weights, buffers, optimizers and learning-rate schedulers. ``"learning_rate"``: only
            optimizers and schedulers. ``"all"``: as ``"weights"``, and the random states of torch, NumPy and Python.

    Raises:
        ValueError: If not exactly one of ``epoch`` and ``step`` is given, or one is negative.

    Example:
        >>> Rewind(step=500).reached(epoch=0, step=499), Rewind(step=500).reached(epoch=1, step=500)
        (False, True)
    """

    epoch: int | None = None
    step: int | None = None
    what: What = "weights"

    def __post_init__(self) -> None:
        if (self.epoch is None) == (self.step is None):
            raise ValueError(f"rewinding goes to an epoch or to a step, got epoch={self.epoch} and step={self.step}")
        if (self.epoch or 0) < 0 or (self.step or 0) < 0:
            raise ValueError(f"rewinding goes to an epoch or step >= 0, got {self}")
        if self.what not in ("weights", "learning_rate", "all"):
            raise ValueError(f"what should be 'weights', 'learning_rate' or 'all', got {self.what!r}")

    def reached(self, epoch: int, step: int) -> bool:
        """Whether training is at the point, or past it."""
        return step >= self.step if self.step is not None else epoch >= (self.epoch or 0)


@dataclass(frozen=True)
class Reinit:
    """Re-initialise all weights after each pruning event, and start optimizers and schedulers afresh.

    The control of lottery tickets: the same mask, other initial values. Every module that holds parameters draws them
    by its ``reset_parameters``.

    Args:
        seed: Seed of the new values; every event draws others from it.
    """

    seed: int = 0
    what: ClassVar[What] = "weights"

    def reached(self, epoch: int, step: int) -> bool:
        """Optimizers and schedulers go back to the start of the fit."""
        return True


@dataclass
class Snapshot:
    """A training state on the CPU, as tensors and plain types.

    Attributes:
        model: Parameters and buffers by name, of split ones this rank's slices; empty if only the learning rate is
            rewound.
        optimizers: State of each optimizer.
        schedulers: State of each learning-rate scheduler.
        rng: Random states, empty unless they are rewound.
    """

    model: dict[str, Tensor | Slice]
    optimizers: list[dict[str, Any]]
    schedulers: list[dict[str, Any]]
    rng: dict[str, Any]

    @classmethod
    def take(cls, model: nn.Module, optimizers: Sequence[Optimizer], schedulers: Sequence[Any], what: What) -> Snapshot:
        """Copies a training state.

        Args:
            model: The model, pruned or not.
            optimizers: Its optimizers.
            schedulers: Its learning-rate schedulers.
            what: What is to be rewound.
        """
        values = {} if what == "learning_rate" else {name: _on_cpu(tensor) for name, tensor in _tensors(model)}
        return cls(
            values,
            [_on_cpu(optimizer.state_dict()) for optimizer in optimizers],
            [_on_cpu(scheduler.state_dict()) for scheduler in schedulers],
            _rng_states() if what == "all" else {},
        )

    @torch.no_grad()
    def restore(self, model: nn.Module, optimizers: Sequence[Optimizer], schedulers: Sequence[Any]) -> None:
        """Puts the state back, by copy into the tensors that are there. Masks are not touched.

        Args:
            model: The model of the snapshot.
            optimizers: As many as in the snapshot.
            schedulers: As many as in the snapshot.

        Raises:
            ValueError: If an optimizer has other parameter groups than in the snapshot, a scheduler is of another kind,
                or a tensor has another shape; nothing is changed then.
        """
        self._require_same_groups(optimizers)
        self._require_same_schedulers(schedulers)
        self._require_same_tensors(model)
        for name, tensor in _tensors(model) if self.model else ():
            put_back(tensor, self.model[name])
        for optimizer, state in zip(optimizers, self.optimizers, strict=True):
            optimizer.load_state_dict(_state_for(optimizer, state))
        for scheduler, state in zip(schedulers, self.schedulers, strict=True):
            scheduler.load_state_dict(copy.deepcopy(state))
        _set_rng_states(self.rng)

    def _require_same_groups(self, optimizers: Sequence[Optimizer]) -> None:
        now = [[len(group["params"]) for group in optimizer.param_groups] for optimizer in optimizers]
        then = [[len(group["params"]) for group in state["param_groups"]] for state in self.optimizers]
        if now != then:
            raise ValueError(
                f"the parameter groups of the optimizers have {now} parameters, they had {then} at the point to go "
                "back to: parameters that join an optimizer during the fit cannot be rewound, except to a point "
                "after that"
            )

    def _require_same_schedulers(self, schedulers: Sequence[Any]) -> None:
        now = [sorted(scheduler.state_dict()) for scheduler in schedulers]
        then = [sorted(state) for state in self.schedulers]
        if now != then:
            kinds = ", ".join(type(scheduler).__name__ for scheduler in schedulers) or "none"
            raise ValueError(
                f"the learning-rate schedulers ({kinds}) are not those of the point to go back to: another callback, "
                "such as StochasticWeightAveraging, has replaced them; end the plan before it does"
            )

    def _require_same_tensors(self, model: nn.Module) -> None:
        now = {name: tensor.shape for name, tensor in _tensors(model)} if self.model else {}
        wrong = [name for name, tensor in self.model.items() if now.get(name) != tensor.shape]
        wrong += [name for name in now if name not in self.model]
        if wrong:
            raise ValueError(
                f"'{wrong[0]}' has another shape than at the point to go back to, or was not there, or is gone: layers "
                "that change during the fit cannot be rewound"
            )

    def state_dict(self) -> dict[str, Any]:
        """The snapshot for a checkpoint, with whole tensors; every rank has to call it."""
        return {key: _mapped(value, _whole) for key, value in vars(self).items()}

    @classmethod
    def from_state_dict(cls, state: Mapping[str, Any]) -> Snapshot:
        """The snapshot of a checkpoint."""
        return cls(state["model"], state["optimizers"], state["schedulers"], state["rng"])


class Rewinder:
    """Takes the snapshot when the point is reached, and goes back to it after events.

    Args:
        rewind: Where to go back to, or ``None`` for nowhere.
    """

    def __init__(self, rewind: Rewind | Reinit | None) -> None:
        self.rewind = rewind
        self.snapshot: Snapshot | None = None

    def check(self, model: nn.Module) -> None:
        """Refuses a model that cannot be re-initialised, if it is to be; see :func:`require_reinitializable`."""
        if isinstance(self.rewind, Reinit):
            require_reinitializable(model)

    def check_optimizers(self, optimizers: Sequence[Optimizer]) -> None:
        """Refuses optimizers of whose state each rank holds a part that is of no use to another.

        Raises:
            ValueError: Naming the class of the optimizer.
        """
        parted = [type(o).__name__ for o in optimizers if hasattr(o, "consolidate_state_dict")]
        if self.rewind is not None and parted:
            raise ValueError(
                f"{parted[0]} keeps a part of its state on each rank, which has to be put together before it can be "
                f"kept for {self.rewind}: leave rewind= out, or use 'ddp' with an ordinary optimizer, or fully_shard"
            )

    def watch(
        self, epoch: int, step: int, model: nn.Module, optimizers: Sequence[Optimizer], schedulers: Sequence[Any]
    ) -> None:
        """Takes the snapshot if this is the first time at the point or past it."""
        if self.rewind is not None and self.snapshot is None and self.rewind.reached(epoch, step):
            self.snapshot = Snapshot.take(model, optimizers, schedulers, self.rewind.what)

    def go_back(self, model: nn.Module, optimizers: Sequence[Optimizer], schedulers: Sequence[Any], event: int) -> bool:
        """Goes back after an event.

        Args:
            model: The model.
            optimizers: Its optimizers.
            schedulers: Its learning-rate schedulers.
            event: Number of the event, by which re-initialisations differ.

        Returns:
            False if the point is still ahead.
        """
        if self.rewind is None:
            return True
        if self.snapshot is None:
            return False
        self.snapshot.restore(model, optimizers, schedulers)
        if isinstance(self.rewind, Reinit):
            reinitialize(model, self.rewind.seed * 1_000_003 + event)
        return True

    def state_dict(self) -> dict[str, Any]:
        """The snapshot for a checkpoint."""
        return {} if self.snapshot is None else self.snapshot.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Puts the snapshot of a checkpoint back."""
        self.snapshot = Snapshot.from_state_dict(state) if state else None


def require_reinitializable(model: nn.Module) -> None:
    """Raises unless every module that holds parameters can draw them anew.

    Raises:
        TypeError: Naming the modules without ``reset_parameters``.
    """
    stubborn = [
        f"'{name}' ({type(module).__name__})" if name else f"the model itself ({type(module).__name__})"
        for name, module in model.named_modules()
        if any(p is not None for p in module._parameters.values()) and _resetter(module) is None
    ]
    if stubborn:
        raise TypeError(
            f"re-initialisation needs reset_parameters() on every module with parameters; without it: "
            f"{', '.join(stubborn)}"
        )


def reinitialize(model: nn.Module, seed: int) -> None:
    """Draws all parameters anew, children before parents; masks are not touched.

    Args:
        model: A model, pruned or not, that :func:`require_reinitializable` accepts.
        seed: Seed of the new values; the global random state is left as it was.
    """
    with seeded(seed, model.parameters()):
        for module in reversed(list(model.modules())):
            reset = _resetter(module)
            if reset is not None:
                with attribute.unmasked(module), _whole_parameters(module):
                    reset()


@contextmanager
def _whole_parameters(module: nn.Module) -> Iterator[None]:
    """Within it a module has whole parameters in place of split ones; what is written into them is kept.

    So the same numbers are drawn as in one process.
    """
    split = [(m, name, p) for m in module.modules() for name, p in m._parameters.items() if is_sharded(p)]
    for owner, name, parameter in split:
        owner._parameters[name] = nn.Parameter(whole(parameter.detach()), requires_grad=parameter.requires_grad)
    try:
        yield
    finally:
        for owner, name, parameter in split:
            drawn = owner._parameters[name]
            owner._parameters[name] = cast(nn.Parameter, parameter)
            if drawn is not None:
                put_back(parameter, drawn.detach())


def _resetter(module: nn.Module) -> Any:
    return getattr(module, "reset_parameters", None) or getattr(module, "_reset_parameters", None)


def _tensors(model: nn.Module) -> Iterable[tuple[str, Tensor]]:
    yield from model.named_parameters()
    yield from model.named_buffers()


def _on_cpu(value: Any) -> Any:
    """A copy of a state with its tensors on the CPU."""
    return _mapped(value, lambda leaf: aside(leaf) if isinstance(leaf, Tensor) else copy.deepcopy(leaf))


def _whole(leaf: Any) -> Any:
    return leaf.whole() if isinstance(leaf, Slice) else leaf


def _mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """A state with each tensor and plain value changed."""
    if isinstance(value, dict):
        copied = copy.copy(value)  # of the same type: MultiStepLR has a Counter
        for key, item in value.items():
            copied[key] = _mapped(item, change)
        return copied
    if isinstance(value, (list, tuple)):
        return type(value)(_mapped(item, change) for item in value)
    return change(value)


def _state_for(optimizer: Optimizer, state: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of an optimizer's state, with tensors split like the parameters that they belong to."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    entries = {
        index: {key: for_parameter(value, parameters[index]) for key, value in entry.items()}
        for index, entry in state.get("state", {}).items()
    }
    return {**copy.deepcopy({key: value for key, value in state.items() if key != "state"}), "state": entries}


def _rng_states() -> dict[str, Any]:
    name, keys, position, has_gauss, gauss = np.random.get_state()
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        "numpy": [name, torch.from_numpy(np.asarray(keys, dtype=np.int64)), position, has_gauss, gauss],
        "python": random.getstate(),
    }


def _set_rng_states(states: Mapping[str, Any]) -> None:
    if not states:
        return
    torch.set_rng_state(states["torch"])
    if states["cuda"]:
        torch.cuda.set_rng_state_all(states["cuda"])
    name, keys, *rest = states["numpy"]
    np.random.set_state((name, keys.numpy().astype(np.uint32), *rest))
    version, internal, gauss = states["python"]
    random.setstate((version, tuple(internal), gauss))
