"""The examples, run as a user runs them, and the loader of their data."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.idx import random_images, write_idx, write_idx_folder

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.fixture
def data(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import data

    return data


def run(cwd: Path, script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(EXAMPLES / script), *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=True, timeout=600)


@pytest.fixture
def idx_folder(tmp_path: Path) -> Path:
    return write_idx_folder(tmp_path / "idx")


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
    done = run(tmp_path, "digits.py", "--data", str(idx_folder), "--epochs", "2")
    assert re.findall(r"^all +71568 +64411 +90.0%$", done.stdout, re.M)


def test_deploy_compares_files_and_runtimes(tmp_path: Path):
    done = run(tmp_path, "deploy.py")
    rows = re.findall(r"^(dense|compressed|sparse|int8)[a-z ,_.]+? +([\d,]+) +[\d.]+ +(\d\.\d{4})$", done.stdout, re.M)
    size = {name: int(count.replace(",", "")) for name, count, _ in rows}
    accuracy = {name: float(share) for name, _, share in rows}
    assert list(size) == ["dense", "compressed", "sparse", "int8"]
    assert size["int8"] < size["compressed"] < 0.1 * size["dense"]
    assert accuracy["compressed"] == accuracy["dense"] >= 0.95
    assert min(accuracy.values()) >= accuracy["dense"] - 0.01
    assert done.stderr == ""


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
    assert torch.equal(train.tensors[0], random_images(96).unsqueeze(1).float())


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


def test_sparse_from_scratch_compares_ways_and_draws_them(tmp_path: Path):
    ways = ["static", "SET", "RigL", "gradual and RigL", "dense"]
    done = run(
        tmp_path, "sparse_from_scratch.py", *("--zeros", "0.9", "0.95", "--steps", "200", "--seeds", "0", "1"),
        *("--ways", *ways, "--plot", "table.png"),
    )  # fmt: skip
    rows = re.findall(r"^\| (\d\d\.0%) \| (.*) \| (.*)% \|$", done.stdout, re.M)
    assert [zeros for zeros, _, _ in rows] == ["90.0%", "95.0%"]
    for (_, cells, explored), left in zip(rows, (10, 5), strict=True):
        accuracies = [float(cell.split(" ± ")[0]) for cell in cells.split(" | ")]
        assert len(accuracies) == len(ways)
        assert all(accuracy > 60 for accuracy in accuracies)
        assert left < float(explored) < 5 * left
    assert (tmp_path / "table.png").stat().st_size > 10_000
    assert done.stderr == ""


def test_criteria_are_compared_and_rounds_avoid_collapse(tmp_path: Path):
    table = run(tmp_path, "criteria.py", "--zeros", "0.9", "--ways", "SNIP", "SynFlow", "GraSP", "--steps", "100")
    (cells,) = re.findall(r"^\| 90\.0% \| (.*) \|$", table.stdout, re.M)
    assert all(float(cell) >= 75 for cell in cells.split(" | "))
    assert table.stderr == ""
    for option, columns in (("--trained", 6), ("--transfer", 2)):
        after = run(tmp_path, "criteria.py", option, "--zeros", "0.5", "--steps", "150").stdout
        (cells,) = re.findall(r"^\| 50\.0% \| (.*) \|$", after, re.M)
        assert len(cells.split(" | ")) == columns
        assert all(float(cell) >= 60 for cell in cells.split(" | "))
    collapse = run(tmp_path, "criteria.py", "--collapse").stdout
    found = {name: float(n.replace(",", "")) for name, n in re.findall(r"^\| (.*) \| ([\d,]+) \|$", collapse, re.M)}
    assert found["SynFlow, 100 rounds"] == round((64 * 300 + 300 * 100 + 100 * 10) / 3)
    assert found["SynFlow, 1 round"] < 1000
    assert found["magnitude"] < found["SynFlow, 100 rounds"] / 10
