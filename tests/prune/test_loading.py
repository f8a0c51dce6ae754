"""What a model that is pruned where it is made can load: what a fit of it left, and nothing that is denser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from lightning_prune import PruningCallback, prune
from tests.models import Net, trainer, zeros


class PrunedFromTheStart(Net):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        prune.l1_unstructured(self.first, "weight", amount=0.5)


def callback() -> PruningCallback:
    return PruningCallback(amount=0.5, epochs=[1], verbose=False)


def test_a_checkpoint_of_the_fit_loads_into_the_class_and_resumes(tmp_path: Path) -> None:
    model = PrunedFromTheStart()
    fit = trainer(tmp_path, callback())
    fit.fit(model)
    fit.save_checkpoint(tmp_path / "fit.ckpt")
    assert zeros(model, "first.weight") == 96

    loaded = PrunedFromTheStart.load_from_checkpoint(tmp_path / "fit.ckpt")
    assert torch.equal(loaded.first.weight, model.first.weight)
    assert int(loaded.first.weight_mask.sum()) == 128 - 96

    (scores,) = trainer(tmp_path, callback()).validate(
        PrunedFromTheStart(), ckpt_path=tmp_path / "fit.ckpt", verbose=False
    )
    assert scores == trainer(tmp_path).validate(model, verbose=False)[0]

    resumed = PrunedFromTheStart()
    trainer(tmp_path, callback(), epochs=5).fit(resumed, ckpt_path=tmp_path / "fit.ckpt")
    assert torch.equal(resumed.first.weight == 0, model.first.weight == 0)


@pytest.mark.parametrize("zeros", [0, 63])
def test_a_state_that_is_denser_than_the_module_does_not(zeros: int) -> None:
    module = PrunedFromTheStart()
    before = module.first.weight.clone()
    state = Net().state_dict()
    state["first.weight"].view(-1)[:zeros] = 0
    with pytest.raises(RuntimeError, match="the state is dense: convert it with"):
        module.load_state_dict(state)
    assert torch.equal(module.first.weight, before)
