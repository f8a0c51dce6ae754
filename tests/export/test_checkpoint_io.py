"""A Trainer writes its checkpoints as sparse files and resumes from them."""

from __future__ import annotations

import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, Trainer, seed_everything
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.demos.boring_classes import BoringModel
from lightning.pytorch.plugins.io import AsyncCheckpointIO
from torch import Tensor, nn

from lightning_prune import Linear, PruningCallback
from lightning_prune.export import SparseCheckpointIO, load_sparse
from lightning_prune.export.sparse_files import is_sparse_file
from tests.expected import ENDED_EARLY, FEW_SELECTED
from tests.export.same import same

pytestmark = [ENDED_EARLY, FEW_SELECTED]


class Net(BoringModel):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Sequential(nn.Linear(32, 300), nn.ReLU(), nn.Linear(300, 2))

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.Adam(self.parameters(), lr=0.01)
        return [optimizer], [torch.optim.lr_scheduler.MultiStepLR(optimizer, [1, 3])]


def fit(folder: Path, epochs: int, *plugins: Any, ckpt_path: Path | None = None, callbacks: Any = ()) -> Trainer:
    seed_everything(3, verbose=False)
    pruning = PruningCallback(schedule=Linear(final=0.9, end=3), scope="global", verbose=False, allow_unfinished=True)
    trainer = Trainer(
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
        max_epochs=epochs,
        limit_train_batches=3,
        limit_val_batches=1,
        callbacks=[pruning, ModelCheckpoint(folder, save_last=True, filename="{epoch}", save_top_k=-1), *callbacks],
        plugins=list(plugins),
    )
    trainer.fit(Net(), ckpt_path=ckpt_path)
    return trainer


def weights(trainer: Trainer) -> dict[str, Tensor]:
    return trainer.lightning_module.state_dict()


def test_files_are_small_and_hold_what_ordinary_ones_hold(tmp_path: Path) -> None:
    trainer = fit(tmp_path / "plain", 4)
    fit(tmp_path / "sparse", 4, SparseCheckpointIO())
    plain, sparse = (tmp_path / kind / "epoch=3.ckpt" for kind in ("plain", "sparse"))
    assert is_sparse_file(sparse)
    assert sparse.stat().st_size < 0.3 * plain.stat().st_size
    expected, found = torch.load(plain, weights_only=True), load_sparse(sparse)
    assert list(found) == list(expected)
    assert same(found["state_dict"], weights(trainer))
    assert same(found["optimizer_states"], expected["optimizer_states"])
    assert same(found["lr_schedulers"], expected["lr_schedulers"])
    assert same(found["loops"], expected["loops"])


@pytest.mark.parametrize("resume", ["sparse", "plain"])
def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path: Path, resume: str) -> None:
    whole = weights(fit(tmp_path / "whole", 5))
    sparse = SparseCheckpointIO()
    fit(tmp_path / "half", 2, *([sparse] if resume == "sparse" else []))
    resumed = weights(fit(tmp_path / "half", 5, sparse, ckpt_path=tmp_path / "half" / "last.ckpt"))
    assert same(resumed, whole)
    assert sum(int((w == 0).sum()) for name, w in whole.items() if "weight" in name) == round(0.9 * 34 * 300)


def test_written_from_another_thread(tmp_path: Path) -> None:
    trainer = fit(tmp_path, 2, AsyncCheckpointIO(SparseCheckpointIO()))
    assert same(load_sparse(tmp_path / "epoch=1.ckpt")["state_dict"], weights(trainer))


def test_validation_and_test_read_them(tmp_path: Path) -> None:
    trainer = fit(tmp_path, 1, SparseCheckpointIO())
    loaded = load_sparse(tmp_path / "last.ckpt")["state_dict"]
    model = Net()
    trainer.validate(model, ckpt_path=tmp_path / "last.ckpt", verbose=False)
    assert same(model.state_dict(), loaded)


def test_a_dense_file_of_it_loads_into_the_class(tmp_path: Path) -> None:
    trainer = fit(tmp_path, 2, SparseCheckpointIO())
    command = [sys.executable, "-m", "lightning_prune", "dense", "last.ckpt", "dense.ckpt"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    loaded = Net.load_from_checkpoint(tmp_path / "dense.ckpt", weights_only=True)
    assert same(loaded.state_dict(), weights(trainer))


class Objects(Callback):
    def state_dict(self) -> dict[str, Any]:
        return {"options": Namespace(a=1)}


def test_other_objects_are_written_as_usual_with_a_warning(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=r"ordinary checkpoint: .*options' is a argparse.Namespace"):
        fit(tmp_path, 1, SparseCheckpointIO(), callbacks=[Objects()])
    assert not is_sparse_file(tmp_path / "last.ckpt")
    checkpoint = SparseCheckpointIO().load_checkpoint(tmp_path / "last.ckpt", weights_only=False)
    assert checkpoint["callbacks"]["Objects"] == {"options": Namespace(a=1)}


@pytest.mark.parametrize("where", [None, "meta", torch.device("meta"), {"cpu": "meta"}, lambda storage, place: storage])
def test_map_location(tmp_path: Path, where: Any) -> None:
    plugin = SparseCheckpointIO(compress=False)
    plugin.save_checkpoint({"state_dict": {"a": torch.ones(3)}}, tmp_path / "new" / "file.ckpt")
    loaded = plugin.load_checkpoint(tmp_path / "new" / "file.ckpt", where)["state_dict"]["a"]
    assert loaded.device.type == ("cpu" if where is None or callable(where) else "meta")


def test_what_lightning_refuses_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="storage_options"):
        SparseCheckpointIO().save_checkpoint({"a": 1}, tmp_path / "file", storage_options={"a": 1})
    with pytest.raises(FileNotFoundError, match="not found"):
        SparseCheckpointIO().load_checkpoint(tmp_path / "file")


def test_a_missing_extra_is_said_before_the_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(ModuleNotFoundError, match=r"lightning-prune\[export\]"):
        SparseCheckpointIO()
