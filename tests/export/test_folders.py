"""Distributed checkpoints are read on one device, without executing what their index names."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest
import torch
from torch.distributed import checkpoint

from lightning_prune.export import files
from lightning_prune.report.tables import summary


class RunsCode:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, ("ran",)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    state = {"layer.weight": torch.eye(4), "layer.bias": torch.zeros(4)}
    optimizer = {"state": {"layer.weight": {"exp_avg": torch.ones(4, 4)}}, "param_groups": [{"lr": 0.1}]}
    with pytest.warns(UserWarning, match="torch.distributed is disabled"):
        checkpoint.save({"state_dict": state, "optimizer_0": optimizer, "epoch": 3}, checkpoint_id=tmp_path / "c")
    return tmp_path / "c"


def test_summary_of_a_folder(folder: Path) -> None:
    table = summary(folder)
    assert [(row.name, row.weights, row.zeros) for row in table.rows] == [
        ("layer.weight", 16, 12),
        ("layer.bias", 4, 4),
    ]
    assert list(files.load(folder)) == ["state_dict"]


def test_a_folder_can_be_written_as_one_file(folder: Path, tmp_path: Path) -> None:
    files.make_dense(folder, tmp_path / "out.pt")
    assert torch.equal(torch.load(tmp_path / "out.pt", weights_only=True)["state_dict"]["layer.weight"], torch.eye(4))


def test_an_index_with_code_is_refused(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (folder / ".metadata").write_bytes(pickle.dumps(RunsCode()))
    with pytest.raises(ValueError, match=r"c' has an index that names posix.mkdir, which could run code"):
        files.load(folder)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("name", ["FileSystem", "os.system", "pickle.loads", "FileSystemReader"])
def test_only_records_of_the_index_are_allowed(folder: Path, name: str) -> None:
    data = b"\x80\x04" + pickle.SHORT_BINUNICODE
    for word in ("torch.distributed.checkpoint.filesystem", name):
        data += b"" if data.endswith(pickle.SHORT_BINUNICODE) else pickle.SHORT_BINUNICODE
        data += bytes([len(word)]) + word.encode()
    (folder / ".metadata").write_bytes(data + pickle.STACK_GLOBAL + b".")
    with pytest.raises(ValueError, match="c' has an index that"):
        files.load(folder)


def test_damaged_and_other_folders(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is a folder, and not a distributed checkpoint"):
        files.load(tmp_path)
    (folder / "__0_0.distcp").write_bytes(b"short")
    with pytest.raises(ValueError, match="c' is damaged"):
        files.load(folder)
    (folder / ".metadata").write_bytes(b"short")
    with pytest.raises(ValueError, match="c' has a damaged index"):
        files.load(folder)
