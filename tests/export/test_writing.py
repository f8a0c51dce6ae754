"""Files appear whole or not at all."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from lightning_prune.export import load_sparse
from lightning_prune.export.writing import replacing

WRITER = """
import sys, torch
from lightning_prune.export import save_sparse
torch.set_num_threads(1)
state = {"a": torch.arange(100_000, dtype=torch.float32), "number": 0}
while True:
    state["number"] += 1
    save_sparse(state, sys.argv[1], compress=False)
    print(state["number"], flush=True)
"""


def write(path: Path, text: str) -> None:
    with replacing(path) as temporary, open(temporary, "w") as file:
        file.write(text)


def test_an_error_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(UnicodeEncodeError):
        write(path, "half\ud800")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o444])
def test_the_mode_of_an_existing_file_is_kept(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    path.chmod(mode)
    with replacing(path) as temporary:
        assert stat.S_IMODE(os.stat(temporary).st_mode) == 0o600
        Path(temporary).write_text("new")
    assert (path.read_text(), stat.S_IMODE(path.stat().st_mode)) == ("new", mode)


def test_a_new_file_has_the_mode_that_the_process_gives(tmp_path: Path) -> None:
    old = os.umask(0o027)
    try:
        write(tmp_path / "file", "new")
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o640


@pytest.mark.parametrize("exists", [True, False])
def test_links_are_followed(tmp_path: Path, exists: bool) -> None:
    (tmp_path / "folder").mkdir()
    target, link = tmp_path / "folder" / "target", tmp_path / "link"
    if exists:
        target.write_text("old")
    link.symlink_to(target)
    write(link, "new")
    assert link.is_symlink()
    assert target.read_text() == "new"


def test_long_names_and_missing_folders(tmp_path: Path) -> None:
    write(tmp_path / ("x" * 255), "new")
    with pytest.raises(FileNotFoundError, match=r"there is no folder '.*none'"):
        write(tmp_path / "none" / "file", "new")
    with pytest.raises(IsADirectoryError, match="is a folder"):
        write(tmp_path, "new")
    with pytest.raises(OSError, match="File name too long"):
        write(tmp_path / ("x" * 256), "new")


def test_what_a_dead_writer_left_is_swept_and_that_of_a_living_one_stays(tmp_path: Path) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    with replacing(tmp_path / "file") as temporary:
        start = os.path.basename(temporary).split(f"{os.getpid()}-")[0]
    left = [f"{start}{dead.pid}-1.part", f"{start}{os.getppid()}-1.part", ".other.part"]
    for name in left:
        (tmp_path / name).write_text("half")
    write(tmp_path / "another", "new")
    assert set(os.listdir(tmp_path)) == {*left, "another"} | {"file"}
    write(tmp_path / "file", "new")
    assert set(os.listdir(tmp_path)) == {*left[1:], "another", "file"}


def test_a_writer_killed_at_any_time_leaves_a_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    numbers = []
    for delay in (0.0, 0.002, 0.005, 0.011):
        with subprocess.Popen([sys.executable, "-c", WRITER, path], stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            said = int(process.stdout.readline())
            time.sleep(delay)
            process.send_signal(signal.SIGKILL)
        loaded = load_sparse(path)
        assert loaded["a"].sum(dtype=torch.float64) == 100_000 * 99_999 / 2
        numbers.append((said, loaded["number"]))
    assert {name for name in os.listdir(tmp_path) if not name.endswith(".part")} == {"file"}
    assert all(number >= said for said, number in numbers)
