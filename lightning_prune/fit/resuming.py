"""What is saved of a pruning, found again, and compared with what goes on from it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from lightning_prune.fit.run import STATE_VERSION
from lightning_prune.fit.settings import Settings
from lightning_prune.fit.values import differences, short


@dataclass(frozen=True)
class Saved:
    """The state of a pruning that a checkpoint holds.

    Attributes:
        state: What ``state_dict`` of a session gave.
    """

    state: Mapping[str, Any]


class Later(Mapping[str, Any]):
    """A state that is put together when it is first read: then all ranks have to read it.

    Args:
        make: Gives the state.
    """

    def __init__(self, make: Callable[[], Mapping[str, Any]]) -> None:
        self._make: Callable[[], Mapping[str, Any]] | None = make
        self._made: Mapping[str, Any] = {}

    def _state(self) -> Mapping[str, Any]:
        if self._make is not None:
            self._made, self._make = self._make(), None
        return self._made

    def __getitem__(self, key: str) -> Any:
        return self._state()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._state())

    def __len__(self) -> int:
        return len(self._state())


@dataclass(frozen=True)
class Kept(Saved):
    """The state at the end of an earlier training of the same model: its masks stay, the plan begins anew.

    One of another plan, such as that of a file which was only tested, means nothing to this one.
    """

    def means_something(self, settings: Settings) -> bool:
        """Whether it was made under these settings."""
        return self.state.get("settings") in (None, settings.values)


def require_readable(state: Mapping[str, Any]) -> None:
    """Refuses a state that this release cannot read.

    Args:
        state: A state from a file.

    Raises:
        ValueError: If it is of a newer version, or something is missing.
    """
    version = state.get("version")
    if not isinstance(version, int) or version > STATE_VERSION:
        raise ValueError(
            f"the checkpoint holds a pruning state of version {version!r}, this release reads versions up to "
            f"{STATE_VERSION}: install the release that wrote it, or a newer one"
        )
    missing = [key for key in ("seed", "events", "done", "tensors", "rewind") if key not in state]
    if missing:
        raise ValueError(f"the pruning state of the checkpoint lacks {', '.join(missing)}: the file is damaged")


def require_same_plan(saved: Saved, settings: Settings) -> None:
    """Refuses what was saved under other settings; a state of version 1 has none to compare.

    Args:
        saved: What is to be gone on from.
        settings: Those of now.

    Raises:
        ValueError: Naming each setting that differs.
    """
    require_readable(saved.state)
    theirs = saved.state.get("settings")
    if theirs is None:
        return
    lines = [
        f"  {place}: {short(then)} there, {short(now)} here"
        for place, then, now in differences(theirs, settings.values)
    ]
    if lines:
        raise ValueError(
            "the checkpoint was written under another pruning plan; it differs in\n" + "\n".join(lines) + "\nTo begin "
            "this plan from the checkpoint's weights, load them into the model and give keep_zeros=True."
        )


def find_state(states: Mapping[str, Any], key: str, claimed: Iterable[str]) -> Mapping[str, Any] | None:
    """The state of a pruning among those of all callbacks in a checkpoint.

    Args:
        states: States by the keys of their callbacks.
        key: The key to look for.
        claimed: Keys of all prunings of this Trainer; a state that none of them claims may be this one's, saved
            under another description of the selection.

    Returns:
        The state; ``None`` if there is none, or more than one that could be meant.
    """
    if key in states:
        found: Mapping[str, Any] = states[key]
        return found
    free = [state for name, state in states.items() if name not in set(claimed) and _is_of_pruning(state)]
    return free[0] if len(free) == 1 else None


def _is_of_pruning(state: object) -> bool:
    return isinstance(state, Mapping) and {"tensors", "events", "seed"} <= set(state)
