"""What other runtimes make of a pruned model in and after a fit: the same outputs, and every zero."""

from __future__ import annotations

import copy
import io
import os
import warnings
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from lightning.pytorch import Callback, Trainer, seed_everything
from lightning.pytorch.demos.boring_classes import BoringModel
from onnx import numpy_helper
from torch import Tensor, nn
from torchao.quantization import Int8WeightOnlyConfig, quantize_

from lightning_prune import Linear, PruningCallback
from lightning_prune.export import load_sparse, save_sparse


class Net(BoringModel):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Sequential(nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 2))


INPUTS = torch.randn(5, 32, generator=torch.Generator().manual_seed(0))


class Snapshot(Callback):
    """Copies the model in the middle of a fit, as a callback that exports or quantizes gets it: in training."""

    def on_train_batch_end(self, trainer: Trainer, module: BoringModel, *_: object) -> None:
        if trainer.global_step == 5:
            self.model = copy.deepcopy(module).eval()
            self.quantized = torch.ao.quantization.quantize_dynamic(module, {nn.Linear}, dtype=torch.qint8).eval()
            self.weight_only = copy.deepcopy(module).eval()
            quantize_(self.weight_only, Int8WeightOnlyConfig())
            self.program = torch.export.export(module.eval(), (INPUTS,))
            file = io.BytesIO()
            torch.onnx.export(module, (INPUTS,), file, dynamo=False, input_names=["x"], output_names=["y"])
            module.train()
            self.onnx = file.getvalue()


@dataclass
class Made:
    """A model and what was made of it."""

    model: Net
    quantized: nn.Module
    weight_only: nn.Module
    program: torch.export.ExportedProgram
    onnx: bytes


@pytest.fixture(scope="module", params=["in the fit", "after it"])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Made:
    seed_everything(0, verbose=False)
    model, snapshot = Net(), Snapshot()
    trainer = Trainer(
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=tmp_path_factory.mktemp("fit"),
        max_epochs=3,
        limit_train_batches=3,
        limit_val_batches=0,
        callbacks=[PruningCallback(schedule=Linear(final=0.9, end=1), verbose=False), snapshot],
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer.fit(model)
        if request.param == "after it":
            snapshot.on_train_batch_end(SimpleNamespace(global_step=5), model)
    return Made(snapshot.model, snapshot.quantized, snapshot.weight_only, snapshot.program, snapshot.onnx)


def zeros(model: Net) -> dict[str, Tensor]:
    found = {name: value == 0 for name, value in model.state_dict().items() if name.endswith("weight")}
    assert sum(int(mask.sum()) for mask in found.values()) == round(0.9 * 34 * 256)
    return found


def test_onnx(made: Made) -> None:
    found = {w.name: torch.tensor(numpy_helper.to_array(w)) for w in onnx.load_from_string(made.onnx).graph.initializer}
    for name, mask in zeros(made.model).items():
        assert torch.equal(found[name] == 0, mask)
    session = onnxruntime.InferenceSession(made.onnx, providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(session.run(["y"], {"x": INPUTS.numpy()})[0], made.model(INPUTS).detach(), atol=1e-5)


def test_torch_export(made: Made) -> None:
    masks = zeros(made.model)
    assert {name: value.shape for name, value in made.program.state_dict.items()} == {
        name: value.shape for name, value in made.model.state_dict().items()
    }
    for name, mask in masks.items():
        assert torch.equal(made.program.state_dict[name] == 0, mask)


@pytest.mark.filterwarnings("ignore")
def test_int8_dynamic_quantization_keeps_every_zero(made: Made, tmp_path: Path) -> None:
    small = made.quantized
    masks = zeros(made.model)
    for index in (0, 2):
        assert not bool(small.layer[index].weight().int_repr()[masks[f"layer.{index}.weight"]].any())
    expected = made.model(INPUTS)
    assert (small(INPUTS) - expected).abs().max() < 0.05 * expected.abs().max()
    save_sparse(small, tmp_path / "int8")
    torch.save(made.model.state_dict(), tmp_path / "dense")
    assert os.path.getsize(tmp_path / "int8") < 0.12 * os.path.getsize(tmp_path / "dense")
    again = torch.ao.quantization.quantize_dynamic(Net().eval(), {nn.Linear}, dtype=torch.qint8)
    again.load_state_dict(load_sparse(tmp_path / "int8"))
    assert torch.equal(again(INPUTS), small(INPUTS))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dtype", [torch.qint8, torch.quint8])
def test_all_bytes_of_quantized_tensors_come_back(tmp_path: Path, dtype: torch.dtype) -> None:
    state = {
        str(scale): torch.quantize_per_tensor(torch.arange(-256, 256) * scale, scale, zero, dtype)
        for scale, zero in ((0.1, 0), (1e-3, 7), (3.7e5, 100))
    }
    save_sparse(state, tmp_path / "file")
    for name, value in load_sparse(tmp_path / "file").items():
        assert torch.equal(value.int_repr(), state[name].int_repr())
        assert (value.q_scale(), value.q_zero_point()) == (state[name].q_scale(), state[name].q_zero_point())
        assert value.dtype == dtype


def test_weight_only_quantization_of_torchao_keeps_every_zero(made: Made) -> None:
    for name, mask in zeros(made.model).items():
        weight = made.weight_only.get_parameter(name)
        assert not bool(weight.qdata[mask].any())
        assert not bool(weight.dequantize()[mask].any())
    expected = made.model(INPUTS)
    assert (made.weight_only(INPUTS) - expected).abs().max() < 0.05 * expected.abs().max()
