import subprocess
import sys

import pytest
import torch
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import ModelPruning
from lightning.pytorch.demos.boring_classes import BoringModel

import lightning_prune
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


def test_compress_and_dense_are_inverse(tmp_path, capsys):
    model, path = fit(tmp_path, PruningCallback(amount=60, verbose=False))
    small, out = tmp_path / "small.ckpt", tmp_path / "out.ckpt"
    assert main(["compress", str(path), str(small)]) == 0
    assert f"small.ckpt written: {small.stat().st_size:,} bytes" in capsys.readouterr().out
    assert main(["show", str(small), "-p", "layer.weight"]) == 0
    assert line_of(capsys.readouterr().out, "layer.weight")[2:4] == ["64", "60"]
    assert main(["dense", str(small), str(out)]) == 0
    assert torch.equal(BoringModel.load_from_checkpoint(out).layer.weight, model.layer.weight)


def test_compress_says_that_masks_cost_room(tmp_path, capsys):
    _, path = fit(tmp_path, TorchPruning())
    assert main(["compress", str(path), str(tmp_path / "small.ckpt")]) == 0
    assert "it holds masks: 'dense' first makes it smaller" in capsys.readouterr().out


def test_the_key_that_was_taken_is_said(tmp_path, capsys):
    state = {"fc.weight": torch.eye(3)}
    contents = {"ema": {"module": state}, "model_state_dict": state, "optimizer_state_dict": {}, "loss": torch.ones(())}
    torch.save(contents, tmp_path / "file.pt")
    assert main(["show", str(tmp_path / "file.pt")]) == 0
    out = capsys.readouterr().out
    assert out.startswith("file.pt ['model_state_dict']\n")
    assert line_of(out, "total")[1:3] == ["9", "6"]
    assert out.endswith("another state dict with these names: 'ema.module'\n")


def test_names_are_shown_escaped(tmp_path, capsys):
    torch.save({"a\x1b[2J\nb.weight": torch.ones(2, 2).to_sparse()}, tmp_path / "bad.pt")
    torch.save({"a\x1b[2J\nb.weight": torch.eye(2)}, tmp_path / "good.pt")
    assert main(["show", str(tmp_path / "bad.pt")]) == 1
    assert main(["show", str(tmp_path / "good.pt")]) == 0
    out, err = capsys.readouterr()
    assert "a\\x1b[2J\\nb.weight" in out
    assert "a\\x1b[2J\\nb.weight" in err
    assert "\x1b" not in out + err
    assert err.count("\n") == 1


@pytest.mark.parametrize("command", ["dense", "compress"])
@pytest.mark.parametrize(
    ("name", "message"),
    [("none/out.pt", "there is no folder"), ("x" * 300, "File name too long"), ("folder", "is a folder")],
)
def test_places_that_cannot_be_written_are_one_line(tmp_path, capsys, command, name, message):
    (tmp_path / "folder").mkdir()
    torch.save({"a": torch.ones(2, 2)}, tmp_path / "in.pt")
    assert main([command, str(tmp_path / "in.pt"), str(tmp_path / name), "--overwrite"]) == 1
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "in.pt"]


def test_a_command_is_needed(capsys):
    with pytest.raises(SystemExit) as ended:
        main([])
    assert ended.value.code == 2
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    "command", [["-m", "lightning_prune"], ["{scripts}/lightning-prune"]], ids=["module", "script"]
)
def test_the_version_is_told_with_the_name(command, tmp_path):
    (tmp_path / "lightning-prune").write_text("from lightning_prune.__main__ import main\nmain()\n")
    arguments = [part.format(scripts=tmp_path) for part in command]
    told = subprocess.run([sys.executable, *arguments, "--version"], capture_output=True, text=True, check=True).stdout
    assert told == f"lightning_prune {lightning_prune.__version__}\n"
    usage = subprocess.run([sys.executable, *arguments, "-h"], capture_output=True, text=True, check=True).stdout
    assert usage.startswith(
        f"usage: {'lightning-prune' if tmp_path.name in arguments[0] else 'python -m lightning_prune'} "
    )
