import os
import resource
import zipfile
from argparse import Namespace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn.utils import prune as torch_prune

from lightning_prune.__main__ import main
from lightning_prune.export import files
from tests.export.same import same


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
    assert files.make_dense(tmp_path / "in.ckpt", tmp_path / "out.ckpt").masks == 2
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
    assert files.make_dense(tmp_path / "in.pt", tmp_path / "out.pt").masks == 2
    dense = torch.load(tmp_path / "out.pt", weights_only=True)
    assert int((dense["0.weight"] == 0).sum()) == 9
    assert files.make_dense(tmp_path / "out.pt", tmp_path / "again.pt").masks == 0


def test_make_dense_overwrites_only_when_asked(tmp_path):
    torch.save(pruned().state_dict(), tmp_path / "in.pt")
    with pytest.raises(FileExistsError, match=r"in.pt' exists"):
        files.make_dense(tmp_path / "in.pt", tmp_path / "in.pt")
    assert files.make_dense(tmp_path / "in.pt", tmp_path / "in.pt", overwrite=True).masks == 2
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


def masked_state():
    return pruned().state_dict()


@pytest.mark.parametrize(
    ("contents", "key"),
    [
        (lambda sd: {"model_state_dict": sd, "optimizer_state_dict": {}, "loss": torch.ones(())}, "model_state_dict"),
        (lambda sd: {"ema": {"module": sd}, "step": 3}, "ema.module"),
        (lambda sd: {"a": {"b": {"c": sd}}, "small": {"x": torch.ones(1)}}, "small"),
        (lambda sd: {"small": {"x": torch.ones(1)}, "big": sd}, "big"),
        (lambda sd: {"ema": sd, "net": sd}, "net"),
        (lambda sd: {"state_dict": sd, "model": sd}, "state_dict"),
        (lambda sd: {"optimizer": torch.optim.Adam([nn.Parameter(torch.ones(9))]).state_dict(), "best": sd}, "best"),
        (lambda sd: {0: {"x": torch.ones(10_000)}, "net": {**sd, "fc._extra_state": {"a": 1}}}, "net"),
        (lambda sd: sd, ""),
        (lambda sd: {**sd, "epoch": 3, "optimizer": {"state": {}, "param_groups": []}}, ""),
    ],
)
def test_the_state_dict_is_found_by_what_it_holds(tmp_path, contents, key):
    torch.save(contents(masked_state()), tmp_path / "file.pt")
    found = files.load_state_dict(tmp_path / "file.pt")
    assert ".".join(found.keys) == key
    assert ("x" in found.state) == (key == "small")
    assert "0.weight_mask" not in found.state


def test_other_state_dicts_with_these_names_are_said(tmp_path):
    state = masked_state()
    torch.save({"ema": {"module": state}, "model": state, "head": {"x": torch.ones(1)}}, tmp_path / "file.pt")
    assert files.load_state_dict(tmp_path / "file.pt").others == (("ema", "module"),)


def test_make_dense_takes_all_state_dicts_and_says_which(tmp_path):
    contents = {"net": masked_state(), "ema": {"module": masked_state()}, "plain": {"x": torch.ones(1)}, "epoch": 3}
    torch.save(contents, tmp_path / "in.pt")
    assert files.make_dense(tmp_path / "in.pt", tmp_path / "out.pt") == files.Converted(
        4, (("net",), ("ema", "module"))
    )
    written = torch.load(tmp_path / "out.pt", weights_only=True)
    assert int((written["ema"]["module"]["0.weight"] == 0).sum()) == 9
    assert not any(name.endswith("_mask") for name in (*written["net"], *written["ema"]["module"]))
    assert (written["plain"]["x"].item(), written["epoch"]) == (1, 3)


def test_safetensors_are_read_and_written(tmp_path):
    state = {name: value for name, value in masked_state().items() if "num_batches" not in name}
    save_file(state, tmp_path / "in.safetensors")
    assert files.load_state_dict(tmp_path / "in.safetensors").keys == ()
    assert files.make_dense(tmp_path / "in.safetensors", tmp_path / "out.safetensors").masks == 2
    written = load_file(tmp_path / "out.safetensors")
    assert torch.equal(written["0.weight"], state["0.weight_orig"] * state["0.weight_mask"])
    assert "0.weight_mask" not in written


def test_safetensors_hold_tensors_only(tmp_path):
    torch.save({"state_dict": masked_state(), "epoch": 3}, tmp_path / "in.pt")
    with pytest.raises(ValueError, match="safetensors files hold tensors only, and 'state_dict' is none"):
        files.make_dense(tmp_path / "in.pt", tmp_path / "out.safetensors")


def test_make_sparse_and_make_dense_are_inverse(tmp_path):
    contents = {"state_dict": {"a": torch.eye(100), "b": torch.randn(3)}, "epoch": 3, "betas": (0.9, 0.95)}
    torch.save(contents, tmp_path / "in.ckpt")
    assert files.make_sparse(tmp_path / "in.ckpt", tmp_path / "small.ckpt").keys == ("state_dict",)
    assert os.path.getsize(tmp_path / "small.ckpt") < 2_000 < 40_000 < os.path.getsize(tmp_path / "in.ckpt")
    assert files.make_dense(tmp_path / "small.ckpt", tmp_path / "out.ckpt").masks == 0
    assert same(torch.load(tmp_path / "out.ckpt", weights_only=True), contents)


def test_a_name_of_thousands_of_levels(tmp_path):
    name = "a." * 5000 + "weight"
    torch.save({name: torch.eye(2)}, tmp_path / "file.pt")
    ((found, value),) = files.module_of(files.load_state_dict(tmp_path / "file.pt").state).named_parameters()
    assert found == name
    assert int((value == 0).sum()) == 2


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (lambda: torch.eye(2).to_sparse(), "of the layout torch.sparse_coo"),
        (lambda: torch.eye(2).to_sparse_csr(), "of the layout torch.sparse_csr"),
        (lambda: torch.ones(2, device="meta"), "on the meta device"),
        (
            lambda: torch.ones(1).expand(10**6, 10**6),
            r"of shape \(1000000, 1000000\) that is expanded: 4 bytes",
        ),
    ],
)
def test_tensors_that_cannot_be_counted_are_named(tmp_path, value, message):
    torch.save({"fc.weight": value()}, tmp_path / "file.pt")
    with pytest.raises(ValueError, match=f"file.pt' has a tensor 'fc.weight' .*{message}"):
        files.load_state_dict(tmp_path / "file.pt")


def test_float8_and_masks_that_are_no_tensors(tmp_path):
    state = {"a": torch.eye(4).to(torch.float8_e4m3fn), "b_orig": torch.ones(2, 2), "b_mask": "none", 3: torch.ones(1)}
    torch.save({"net": {k: v for k, v in state.items() if k != 3}, "more": state}, tmp_path / "file.pt")
    found = files.load_state_dict(tmp_path / "file.pt")
    assert found.keys == ("net",)
    assert list(found.state) == ["a", "b_orig", "b_mask"]
    counts = {name: int(value.count_nonzero()) for name, value in files.module_of(found.state).named_parameters()}
    assert counts == {"a": 4, "b_orig": 4}


def test_files_that_inflate_are_refused_before_they_do(tmp_path):
    torch.save({"a": torch.zeros(1_000_000)}, tmp_path / "plain.pt")
    with zipfile.ZipFile(tmp_path / "plain.pt") as plain, zipfile.ZipFile(tmp_path / "bomb.pt", "w") as bomb:
        for name in plain.namelist():
            bomb.writestr(name, plain.read(name), zipfile.ZIP_DEFLATED)
    with pytest.raises(ValueError, match=r"bomb.pt' has [\d,]+ bytes and 4,00[\d,]+ when it is unpacked"):
        files.load(tmp_path / "bomb.pt")


@pytest.mark.filterwarnings("ignore:.*torch.jit")
def test_a_torchscript_archive_is_said_to_be_one(tmp_path):
    torch.jit.script(nn.Linear(2, 2)).save(tmp_path / "file.pt")
    with pytest.raises(ValueError, match="is a TorchScript archive"):
        files.load(tmp_path / "file.pt")


def test_too_little_memory_is_said(tmp_path, monkeypatch):
    def load(*args, **kwargs):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 4 bytes")

    torch.save({"a": torch.ones(1)}, tmp_path / "file.pt")
    monkeypatch.setattr(torch, "load", load)
    with pytest.raises(MemoryError, match=r"not enough memory for '.*file.pt'"):
        files.load(tmp_path / "file.pt")


@pytest.mark.parametrize("write", [files.make_dense, files.make_sparse], ids=["dense", "sparse"])
def test_a_full_disk_leaves_the_old_file(tmp_path, write):
    torch.save({"a": torch.randn(100_000)}, tmp_path / "in.pt")
    (tmp_path / "out.pt").write_text("old")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            write(tmp_path / "in.pt", tmp_path / "out.pt", overwrite=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (tmp_path / "out.pt").read_text() == "old"
    assert sorted(os.listdir(tmp_path)) == ["in.pt", "out.pt"]


def test_a_link_is_written_through_and_asked_like_its_file(tmp_path):
    torch.save(masked_state(), tmp_path / "in.pt")
    (tmp_path / "link.pt").symlink_to(tmp_path / "target.pt")
    files.make_dense(tmp_path / "in.pt", tmp_path / "link.pt")
    assert (tmp_path / "link.pt").is_symlink()
    assert "0.weight" in torch.load(tmp_path / "target.pt", weights_only=True)
    with pytest.raises(FileExistsError, match=r"link.pt' exists"):
        files.make_dense(tmp_path / "in.pt", tmp_path / "link.pt")


@pytest.mark.parametrize("content", [b"some text\n", b'{"a": 1}', b"\x89PNG\r\n", b"", b"PK\x03\x04"], ids=range(5))
def test_show_of_a_foreign_file_is_one_line(tmp_path: Path, content: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_bytes(content)
    assert main(["show", str(tmp_path / "file")]) == 1
    error = f"lightning_prune: error: '{tmp_path}/file' is not a file that torch.save wrote, or it is damaged\n"
    assert capsys.readouterr() == ("", error)
