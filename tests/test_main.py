import subprocess
import sys

import pytest
import torch
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import ModelPruning
from lightning.pytorch.demos.boring_classes import BoringModel

from lightning_prune import PruningCallback
from lightning_prune.__main__ import main


class TorchPruning(ModelPruning):
    def __init__(self):
        super().__init__("l1_unstructured", amount=0.25, use_global_unstructured=False, make_pruning_permanent=False)


def fit(tmp_path, *callbacks):
    trainer = Trainer(
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=tmp_path,
        max_epochs=1,
        limit_train_batches=2,
        limit_val_batches=0,
        callbacks=list(callbacks),
    )
    model = BoringModel()
    trainer.fit(model)
    trainer.save_checkpoint(tmp_path / "file.ckpt")
    return model, tmp_path / "file.ckpt"


def line_of(text, name):
    return next(line.split() for line in text.splitlines() if line.startswith(name))


@pytest.mark.parametrize(
    ("callbacks", "zeros"),
    [
        ([], "0"),
        ([PruningCallback(amount=16, verbose=False)], "16"),
        ([TorchPruning()], "16"),
    ],
    ids=["dense", "pruned", "ModelPruning"],
)
def test_show(tmp_path, capsys, callbacks, zeros):
    model, path = fit(tmp_path, *callbacks)
    assert main(["show", str(path), "-p", "layer.weight"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("file.ckpt\n")
    assert line_of(out, "layer.weight")[:4] == ["layer.weight", "2x32", "64", zeros]
    assert int((model.layer.weight == 0).sum()) == int(zeros)


def test_dense(tmp_path, capsys):
    model, path = fit(tmp_path, TorchPruning())
    assert "layer.weight_orig" in torch.load(path, weights_only=True)["state_dict"]
    out = tmp_path / "dense.ckpt"
    assert main(["dense", str(path), str(out)]) == 0
    assert "tensors that had a mask: 2" in capsys.readouterr().out
    loaded = BoringModel.load_from_checkpoint(out)
    assert torch.equal(loaded.layer.weight, model.layer.weight_orig * model.layer.weight_mask)
    assert int((loaded.layer.weight == 0).sum()) == 16
    assert torch.load(out, weights_only=True)["global_step"] == 2


@pytest.mark.parametrize("command", [["show"], ["dense"]])
def test_errors_are_one_line_and_a_status(tmp_path, capsys, command):
    path = tmp_path / "file.pt"
    path.write_text("hello")
    assert main([*command, str(path), *[str(tmp_path / "out.pt")] * (command == ["dense"])]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == f"lightning_prune: error: '{path}' is not a file that torch.save wrote, or it is damaged\n"


def test_an_unknown_name_is_said(tmp_path, capsys):
    torch.save({"weight": torch.ones(2, 2)}, tmp_path / "file.pt")
    assert main(["show", str(tmp_path / "file.pt"), "-p", "wieght"]) == 1
    assert "near names: weight" in capsys.readouterr().err


def test_as_a_module(tmp_path):
    torch.save({"weight": torch.eye(2)}, tmp_path / "file.pt")
    command = [sys.executable, "-m", "lightning_prune", "show", "file.pt"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, line_of(done.stdout, "weight")[2:4]) == (0, ["4", "2"])
