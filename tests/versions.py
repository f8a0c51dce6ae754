"""What the oldest supported releases do not have, as marks for the tests that need it."""

from __future__ import annotations

import lightning
import pytest
import torch

TORCH, LIGHTNING = (
    tuple(int(part) for part in package.__version__.split("+")[0].split(".")[:2]) for package in (torch, lightning)
)


def needs_torch(minor: int, why: str) -> pytest.MarkDecorator:
    """For a test that needs torch 2.``minor``."""
    return pytest.mark.skipif((2, minor) > TORCH, reason=f"torch 2.{minor}: {why}")


def needs_lightning(minor: int, why: str) -> pytest.MarkDecorator:
    """For a test that needs lightning 2.``minor``."""
    return pytest.mark.skipif((2, minor) > LIGHTNING, reason=f"lightning 2.{minor}: {why}")


needs_averaging = needs_lightning(6, "it brought WeightAveraging")
takes_both_packages = needs_lightning(6, "a Trainer of 2.5.0 takes no callbacks of the other package and says so")
