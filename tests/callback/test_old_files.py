"""Checkpoints that release 0.1.0 wrote in mid-fit are gone on from as that release went on."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.models import trainer
from tests.resume import make

DATA = Path(__file__).parents[1] / "data"


@pytest.mark.parametrize(("optimizer", "plan"), [("sgd", "magnitude"), ("adamw", "steps")])
def test_a_checkpoint_of_the_first_release_resumes(tmp_path: Path, optimizer: str, plan: str) -> None:
    """Each file holds a checkpoint after 6 of 16 steps, and the weights of the run that was not interrupted.

    Processors of other makes round the sums of a product in another order: zeros are exact, weights are close. What the
    norm subtracts again has a gradient of nothing but rounding, which AdamW turns into steps of a usual size.
    """
    saved = torch.load(DATA / f"{optimizer}-{plan}-0.1.0.pt", weights_only=True)
    torch.save(saved["checkpoint"], tmp_path / "old.ckpt")
    model, callback = make(optimizer, plan, seed=99)
    trainer(tmp_path, callback, epochs=4).fit(model, ckpt_path=tmp_path / "old.ckpt")
    weights = model.state_dict()
    assert weights.keys() == saved["weights"].keys()
    for name in weights.keys() - {"first.bias", "norm.running_mean"}:
        weight = weights[name]
        assert torch.equal(weight == 0, saved["weights"][name] == 0)
        torch.testing.assert_close(weight, saved["weights"][name], rtol=1e-4, atol=1e-6)
