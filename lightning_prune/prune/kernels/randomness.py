"""Random numbers of an event's own: the same on every rank, and none of those that training draws."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor


@contextmanager
def seeded(seed: int, tensors: Iterable[Tensor] = ()) -> Iterator[None]:
    """Seeds the global generators of torch, NumPy and Python, and gives them their states back afterwards.

    Args:
        seed: Of up to 64 bits; NumPy's generator takes the lower 32.
        tensors: Those of the CUDA devices of these tensors are seeded too.

    Example:
        >>> with seeded(3):
        ...     first = torch.rand(()), np.random.rand(), random.random()
        >>> with seeded(3):
        ...     first == (torch.rand(()), np.random.rand(), random.random())
        True
    """
    devices = sorted({t.device.index for t in tensors if t.device.type == "cuda"})
    numpy_state, python_state = np.random.get_state(), random.getstate()
    try:
        with torch.random.fork_rng(devices=devices):
            torch.default_generator.manual_seed(seed)
            for index in devices:
                torch.cuda.default_generators[index].manual_seed(seed)
            np.random.seed(seed % 2**32)
            random.seed(seed)
            yield
    finally:
        np.random.set_state(numpy_state)
        random.setstate(python_state)
