import os
from argparse import Namespace

import pytest
import torch
from torch import nn
from torch.nn.utils import prune as torch_prune

from lightning_prune.export import files


class RunsCode:
    def __reduce__(self):
        return os.mkdir, ("ran",)


def pruned():
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Linear(2, 2))
    torch_prune.l1_unstructured(model[0], "weight", amount=9)
    torch_prune.random_unstructured(model[2], "weight", amount=2)
    return model


def test_make_dense_keeps_the_rest(tmp_path):
    model = pruned()
    rest = {
        "epoch": 3,
        "optimizer_states": [{"state": {0: {"step": torch.tensor(5)}}}],
        "hyper_parameters": {"lr": 0.1},
    }
    torch.save({"state_dict": model.state_dict(), **rest}, tmp_path / "in.ckpt")
    assert files.make_dense(tmp_path / "in.ckpt", tmp_path / "out.ckpt") == 2
    written = torch.load(tmp_path / "out.ckpt", weights_only=True)
    assert {key: written[key] for key in rest} == rest
    for index in (0, 2):
        torch_prune.remove(model[index], "weight")
    fresh = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Linear(2, 2))
    fresh.load_state_dict(written["state_dict"])
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in fresh.state_dict().items())
    assert sorted(os.listdir(tmp_path)) == ["in.ckpt", "out.ckpt"]


def test_make_dense_of_a_bare_state_dict_and_of_a_dense_one(tmp_path):
    torch.save(pruned().state_dict(), tmp_path / "in.pt")
    assert files.make_dense(tmp_path / "in.pt", tmp_path / "out.pt") == 2
    dense = torch.load(tmp_path / "out.pt", weights_only=True)
    assert int((dense["0.weight"] == 0).sum()) == 9
    assert files.make_dense(tmp_path / "out.pt", tmp_path / "again.pt") == 0


def test_make_dense_overwrites_only_when_asked(tmp_path):
    torch.save(pruned().state_dict(), tmp_path / "in.pt")
    with pytest.raises(FileExistsError, match=r"in.pt' exists"):
        files.make_dense(tmp_path / "in.pt", tmp_path / "in.pt")
    assert files.make_dense(tmp_path / "in.pt", tmp_path / "in.pt", overwrite=True) == 2
    assert "0.weight" in torch.load(tmp_path / "in.pt", weights_only=True)


def test_code_in_a_file_is_not_executed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save({"weight": torch.ones(2), "more": RunsCode()}, "evil.pt")
    with pytest.raises(ValueError, match=r"'evil.pt' holds more than tensors and plain values.*mkdir"):
        files.load("evil.pt")
    assert not os.path.exists("ran")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"weight": torch.ones(2), "hyper_parameters": Namespace(lr=1)}, r"holds more.*argparse.Namespace"),
        (nn.Linear(2, 2), r"holds more.*torch.nn.modules.linear.Linear"),
        ({"epoch": 3}, r"holds no state dict.*a mapping with 'epoch'"),
        ({}, r"holds no state dict.*nothing in it"),
        ({"state_dict": {}}, r"holds no state dict.*'state_dict'"),
        ([torch.ones(2)], r"holds no state dict.*found was a list"),
    ],
)
def test_other_contents_are_refused(tmp_path, content, message):
    torch.save(content, tmp_path / "file.pt")
    with pytest.raises(ValueError, match=message):
        files.load(tmp_path / "file.pt")


@pytest.mark.parametrize("content", [b"", b"hello world\n", b"\x80\x02.", b"PK\x03\x04 half of a zip file"])
def test_other_files_are_refused(tmp_path, content):
    (tmp_path / "file.pt").write_bytes(content)
    with pytest.raises(ValueError, match=r"file.pt' is not a file that torch.save wrote|holds no state dict"):
        files.load(tmp_path / "file.pt")


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no file '.*gone.pt'"):
        files.load(tmp_path / "gone.pt")


def test_module_of_takes_names_that_modules_use():
    state = {"forward.weight": torch.ones(2, 2), "training": torch.ones(1), "a.running_mean": torch.ones(1)}
    assert [name for name, _ in files.module_of(state).named_parameters()] == ["training", "forward.weight"]
