"""The arms of an experiment: what each level of an arm starts from."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Control = Literal["reinit", "random_mask", "finetune", "learning_rate"]


@dataclass(frozen=True)
class Arm:
    """A way to train a pruned network.

    Attributes:
        name: As in the results.
        rewound: Whether optimizers, schedulers and progress (and weights, if not ``trained``) are those of the rewind
            point; otherwise training starts at the beginning.
        trained: Whether the weights are those that the level before ended with.
        own_mask: Whether the mask comes from the arm's own trained weights; otherwise it is the ticket's.
        shuffled: Whether the mask's entries change places within each tensor.
    """

    name: str
    rewound: bool
    trained: bool = False
    own_mask: bool = False
    shuffled: bool = False


DENSE = Arm("dense", rewound=False)
TICKET = Arm("ticket", rewound=True, own_mask=True)
_CONTROLS = (
    Arm("reinit", rewound=False),
    Arm("random_mask", rewound=True, shuffled=True),
    Arm("finetune", rewound=False, trained=True, own_mask=True),
    Arm("learning_rate", rewound=True, trained=True, own_mask=True),
)


def arms(controls: Iterable[str]) -> tuple[Arm, ...]:
    """The ticket and some controls, in a fixed order.

    Args:
        controls: Names of controls.

    Raises:
        ValueError: If a name is unknown.

    Example:
        >>> [arm.name for arm in arms(["random_mask", "reinit"])]
        ['ticket', 'reinit', 'random_mask']
    """
    if isinstance(controls, str):
        controls = [controls]
    wanted = list(controls)
    known = [arm.name for arm in _CONTROLS]
    unknown = [name for name in wanted if name not in known]
    if unknown:
        raise ValueError(f"controls={wanted!r}: {unknown[0]!r} is unknown; known are {', '.join(known)}")
    return (TICKET, *(arm for arm in _CONTROLS if arm.name in wanted))
