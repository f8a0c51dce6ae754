"""The examples, run as a user runs them, and the loader of their data."""

import gzip
import re
import struct
import subprocess
import sys
from pathlib import Path

import pytest
import torch

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.fixture
def data(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import data

    return data


def run(cwd: Path, script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(EXAMPLES / script), *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=True, timeout=600)


def write_idx(path: Path, array: torch.Tensor) -> None:
    content = struct.pack(f">I{array.dim()}I", 0x0800 + array.dim(), *array.shape) + array.numpy().tobytes()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


@pytest.fixture
def idx_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "idx"
    folder.mkdir()
    generator = torch.Generator().manual_seed(0)
    for part, count, ending in [("train", 96, ".gz"), ("t10k", 20, "")]:
        images = torch.randint(0, 256, (count, 28, 28), dtype=torch.uint8, generator=generator)
        write_idx(folder / f"{part}-images-idx3-ubyte{ending}", images)
        write_idx(folder / f"{part}-labels-idx1-ubyte{ending}", torch.arange(count).to(torch.uint8) % 10)
    return folder


def test_digits_end_pruned_to_the_exact_count_and_as_accurate_as_dense(tmp_path: Path):
    done = run(tmp_path, "digits.py")
    *_, last = done.stdout.splitlines()
    dense, pruned, reloaded = (float(value) for value in re.findall(r"\d\.\d{4}", last))
    assert dense >= 0.97
    assert pruned >= dense - 0.015
    assert reloaded == pruned
    assert done.stderr == ""

    state = torch.load(tmp_path / "digits-pruned.ckpt", weights_only=True)["state_dict"]
    weights = [tensor for name, tensor in state.items() if name.endswith(".weight")]
    total = sum(w.numel() for w in weights)
    assert sum(int((w == 0).sum()) for w in weights) == round(0.9 * total)
    assert re.findall(r"^all +(\d+) +(\d+) +90.0%$", done.stdout, re.M) == [(str(total), str(round(0.9 * total)))]


def test_digits_take_an_idx_folder(tmp_path: Path, idx_folder: Path):
    done = run(tmp_path, "digits.py", "--data", str(idx_folder), "--epochs", "3")
    assert re.findall(r"^all +71568 +64411 +90.0%$", done.stdout, re.M)


def test_gradual_prints_a_row_for_each_sparsity(tmp_path: Path, idx_folder: Path):
    done = run(tmp_path, "gradual.py", "--data", str(idx_folder), "--limit", "40", "--epochs", "2", "--seeds", "2")
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in done.stdout.splitlines() if line[:1] == "|"]
    assert rows[0] == ["zeros", "one-shot", "cubic"]
    assert [row[0] for row in rows[2:]] == ["90%", "95%", "98%", "none"]
    accuracies = [float(cell.split()[0]) for row in rows[2:] for cell in row[1:]]
    assert len(accuracies) == 8
    assert all(0 <= accuracy <= 1 for accuracy in accuracies)


def test_default_data_are_the_whole_digits_split_alike_every_time(data):
    one, two = data.Images(), data.Images()
    assert [len(part) for part in (one.train, one.validation, one.test)] == [1259, 179, 359]
    assert torch.equal(one.test[:][0], two.test[:][0])
    assert one.train.indices == two.train.indices
    assert not set(one.train.indices) & set(one.validation.indices)
    images = one.train.dataset.tensors[0]
    assert images.shape == (1438, 1, 8, 8)
    assert images.mean().item() == pytest.approx(0, abs=1e-5)
    assert images.std().item() == pytest.approx(1, abs=1e-5)


def test_limit_keeps_that_many_training_images_and_all_others(data):
    limited = data.Images(limit=100)
    assert (len(limited.train), len(limited.validation), len(limited.test)) == (100, 179, 359)


def test_idx_files_are_read_plain_and_gzipped(data, idx_folder: Path):
    train, test = data.idx_folder(idx_folder)
    assert train.tensors[0].shape == (96, 1, 28, 28)
    assert test.tensors[1].tolist() == [i % 10 for i in range(20)]
    expected = torch.randint(0, 256, (96, 28, 28), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    assert torch.equal(train.tensors[0], expected.unsqueeze(1).float())


def test_missing_files_are_named(data, tmp_path: Path):
    with pytest.raises(FileNotFoundError, match=r"neither train-images-idx3-ubyte nor train-images-idx3-ubyte\.gz"):
        data.Images(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "does not start like an IDX file"),
        (b"\x00\x00\x0d\x01\x00\x00\x00\x01\x07", "does not start like an IDX file"),
        (b"\x00\x00\x08\x01\x00\x00\x00\x03\x07", "should have 3 bytes after its header, it has 1"),
    ],
)
def test_files_that_are_no_idx_files_are_refused(data, tmp_path: Path, content: bytes, message: str):
    path = tmp_path / "labels"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        data.read_idx(path)


def test_parts_that_do_not_fit_together_are_refused(data, idx_folder: Path):
    write_idx(idx_folder / "t10k-labels-idx1-ubyte", torch.zeros(19, dtype=torch.uint8))
    with pytest.raises(ValueError, match=r"t10k has images of shape \[20, 28, 28\] and labels of \[19\]"):
        data.Images(idx_folder)
