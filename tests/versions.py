"""What the oldest supported releases do not have, as marks for the tests that need it."""

from __future__ import annotations

import lightning.pytorch.callbacks
import pytest
import torch

TORCH = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])

needs_averaging = pytest.mark.skipif(
    not hasattr(lightning.pytorch.callbacks, "WeightAveraging"), reason="WeightAveraging came with lightning 2.6"
)
takes_both_packages = pytest.mark.skipif(
    not hasattr(lightning.pytorch.callbacks, "WeightAveraging"),
    reason="a Trainer of lightning 2.5.0 takes no callbacks of the other package and says so",
)


def needs_torch(minor: int, why: str) -> pytest.MarkDecorator:
    """For a test that needs torch 2.``minor``."""
    return pytest.mark.skipif((2, minor) > TORCH, reason=f"torch 2.{minor}: {why}")
