"""Hashes are the same numbers whatever computes them."""

import torch

from lightning_prune.prune.kernels.arrays import Scratch
from lightning_prune.prune.kernels.hashing import GOLDEN, mix, numbered

MASK = 2**64 - 1


def splitmix64(key: int) -> int:
    """Of the paper, in Python's integers."""
    key = (key ^ (key >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    key = (key ^ (key >> 27)) * 0x94D049BB133111EB & MASK
    return key ^ (key >> 31)


def test_mix_is_the_finalizer_of_splitmix64() -> None:
    keys = [0, 1, -1, 2**62, -(2**63), 123456789]
    found = mix(torch.tensor(keys)).tolist()
    assert [value & MASK for value in found] == [splitmix64(key & MASK) for key in keys]
    assert mix(torch.tensor(keys * 2)[::2]).tolist() == [found[i % 6] for i in range(0, 12, 2)]


def test_numbered_words_do_not_depend_on_where_they_begin() -> None:
    scratch, seed = Scratch(), 2**62 + 17
    words = numbered(0, 1000, seed, torch.device("cpu"), scratch).tolist()
    assert [word & MASK for word in words[:3]] == [splitmix64(i * GOLDEN + seed & MASK) for i in range(3)]
    assert numbered(990, 10, seed, torch.device("cpu"), scratch).tolist() == words[990:]
    assert numbered(5, 0, seed, torch.device("cpu"), scratch).tolist() == []
