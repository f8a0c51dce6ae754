"""What other runtimes make of a pruned model after a fit: the same outputs, and every zero."""

from __future__ import annotations

import copy
import os
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from lightning.pytorch import Trainer, seed_everything
from lightning.pytorch.demos.boring_classes import BoringModel
from onnx import numpy_helper
from torch import Tensor, nn

from lightning_prune import Linear, PruningCallback
from lightning_prune.export import save_sparse


class Net(BoringModel):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Sequential(nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 2))


INPUTS = torch.randn(5, 32, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Net:
    seed_everything(0, verbose=False)
    model = Net()
    trainer = Trainer(
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=tmp_path_factory.mktemp("fit"),
        max_epochs=2,
        limit_train_batches=3,
        limit_val_batches=0,
        callbacks=[PruningCallback(schedule=Linear(final=0.9, end=1), verbose=False)],
    )
    trainer.fit(model)
    return model.eval()


def zeros(model: Net) -> dict[str, Tensor]:
    found = {name: value == 0 for name, value in model.state_dict().items() if name.endswith("weight")}
    assert sum(int(mask.sum()) for mask in found.values()) == round(0.9 * 34 * 256)
    return found


@pytest.mark.filterwarnings("ignore")
def test_onnx(fitted: Net, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    torch.onnx.export(fitted, (INPUTS,), path, dynamo=False, input_names=["x"], output_names=["y"])
    found = {w.name: torch.tensor(numpy_helper.to_array(w)) for w in onnx.load(path).graph.initializer}
    for name, mask in zeros(fitted).items():
        assert torch.equal(found[name] == 0, mask)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(session.run(["y"], {"x": INPUTS.numpy()})[0], fitted(INPUTS).detach(), atol=1e-5)


def test_torch_export(fitted: Net) -> None:
    program = torch.export.export(fitted, (INPUTS,))
    assert torch.equal(program.module()(INPUTS), fitted(INPUTS))
    for name, mask in zeros(fitted).items():
        assert torch.equal(program.state_dict[name] == 0, mask)


@pytest.mark.filterwarnings("ignore:.*deprecated")
def test_int8_dynamic_quantization_keeps_every_zero(fitted: Net, tmp_path: Path) -> None:
    small = torch.ao.quantization.quantize_dynamic(copy.deepcopy(fitted), {nn.Linear}, dtype=torch.qint8)
    masks = zeros(fitted)
    for index in (0, 2):
        assert not bool(small.layer[index].weight().int_repr()[masks[f"layer.{index}.weight"]].any())
    expected = fitted(INPUTS)
    assert (small(INPUTS) - expected).abs().max() < 0.05 * expected.abs().max()
    values = {name: small.layer[int(name.split(".")[1])].weight().int_repr() for name in masks}
    save_sparse(values, tmp_path / "int8")
    torch.save(fitted.state_dict(), tmp_path / "dense")
    assert os.path.getsize(tmp_path / "int8") < 0.08 * os.path.getsize(tmp_path / "dense")


@pytest.mark.filterwarnings("ignore")
def test_weight_only_quantization_of_torchao_keeps_every_zero(fitted: Net) -> None:
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    small = copy.deepcopy(fitted)
    quantize_(small, Int8WeightOnlyConfig())
    for name, mask in zeros(fitted).items():
        weight = small.get_parameter(name)
        assert not bool(weight.qdata[mask].any())
        assert not bool(weight.dequantize()[mask].any())
    expected = fitted(INPUTS)
    assert (small(INPUTS) - expected).abs().max() < 0.05 * expected.abs().max()
