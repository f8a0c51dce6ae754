"""Optimizers whose states are of few bits, in a type of tensor of their own."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torchao.optim import AdamW4bit, AdamW8bit

from lightning_prune import PruningCallback
from tests.models import Net, trainer, zeros


class Wide(Net):
    """One layer is large enough that its state is kept in few bits."""

    def __init__(self, optimizer: Any) -> None:
        super().__init__(optimizer)
        self.wide = nn.Linear(64, 128)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return super().training_step(batch, batch_idx) + self.wide(torch.ones(1, 64)).square().mean()


@pytest.mark.parametrize("optimizer", [AdamW8bit, AdamW4bit])
def test_what_is_masked_is_erased_and_stays_zero(tmp_path: Path, optimizer: Any) -> None:
    torch.manual_seed(0)
    model, callback = (
        Wide(functools.partial(optimizer, lr=1e-2)),
        PruningCallback(amount=0.5, epochs=[1], verbose=False),
    )
    fit = trainer(tmp_path, callback, epochs=4)
    fit.fit(model)
    state = fit.optimizers[0].state[model.wide.weight]["exp_avg"]
    dead = ~callback.masks["wide.weight"]
    assert type(state) is not Tensor
    assert zeros(model, "wide.weight") == int(dead.sum()) == 4096
    assert not state.dequantize()[dead].any()
    assert state.dequantize()[~dead].any()
