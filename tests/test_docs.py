"""Every snippet and command of the guides in ``docs/`` does what the guide says."""

import contextlib
import copy
import io
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from operator import attrgetter
from pathlib import Path
from typing import Any
from unittest import mock

import lightning as L
import pytest
import torch
import torch.nn.utils.prune as torch_prune
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.cli import LightningCLI
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

from lightning_prune import Cubic, PruningCallback
from lightning_prune.metrics import sparsity
from lightning_prune.report.tables import Row, Summary
from tests.expected import ENDED_EARLY, FEW_SELECTED
from tests.idx import write_idx_folder
from tests.reader import ROOT, SIZES, TOTAL, Check, MyModel, Names, blocks, fit, names_of, quiet, some_data, text, zeros

pytestmark = [ENDED_EARLY, FEW_SELECTED]

GUIDES = sorted(str(page.relative_to(ROOT)) for page in (ROOT / "docs").rglob("*.md"))
GRADUAL = "docs/gradual-pruning.md"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(ROOT / "examples"))


def recipe(names: Names, run: Callable[[], None]) -> None:
    run()
    assert sum(fit(names).values()) == round(0.9 * TOTAL)


def amount(names: Names, run: Callable[[], None]) -> None:
    run()
    left = dict(SIZES)
    for _ in range(3):
        left = {name: count - round(0.2 * count) for name, count in left.items()}
    assert fit(names) == {name: count - left[name] for name, count in SIZES.items()}
    assert 1 - sum(left.values()) / TOTAL == pytest.approx(0.488, abs=0.002)


def steps(names: Names, run: Callable[[], None]) -> None:
    run()
    sampler = RandomSampler(some_data(), replacement=True, num_samples=1_001)
    names["datamodule"] = DataLoader(some_data(), sampler=sampler)
    assert sum(fit(names, max_epochs=1).values()) == round(0.9 * TOTAL)
    is_event = names["pruning"].plan.schedule.is_event
    assert [t for t in range(1_200) if is_event(t)] == [*range(100, 1_001, 50)]


def fractions(names: Names, run: Callable[[], None]) -> None:
    run()
    assert sum(fit(names).values()) == round(0.9 * TOTAL)
    assert names["pruning"].plan.schedule.in_steps(60).events()[::30] == [(6, 0.0), (36, 0.9)]


def targets(names: Names, run: Callable[[], None]) -> None:
    run()
    assert sum(fit(names).values()) == round(0.6 * TOTAL)


def channels(names: Names, run: Callable[[], None]) -> None:
    run()
    assert fit(names) == {**dict.fromkeys(SIZES, 0), "backbone.conv.weight": 576 // 2}
    alive = names["model"].backbone.conv.weight.flatten(1).norm(dim=1) > 0
    assert int(alive.sum()) == 8


def overrides(names: Names, run: Callable[[], None]) -> None:
    run()
    reached = fit(names)
    assert (reached["stem.weight"], reached["head.weight"]) == (0, 80)
    assert sum(reached.values()) == round(0.8 * TOTAL)


def erk(names: Names, run: Callable[[], None]) -> None:
    run()
    reached = fit(names)
    assert sum(reached.values()) == round(0.9 * TOTAL)
    assert reached["stem.weight"] / SIZES["stem.weight"] < reached["head.weight"] / SIZES["head.weight"]
    assert reached["head.weight"] / SIZES["head.weight"] < reached["backbone.conv.weight"] / 576


def own_method(names: Names, run: Callable[[], None]) -> None:
    run()
    names["model"] = MyModel(lr=0.0)
    small = {name: int((names["model"].get_parameter(name).abs() < 0.1).sum()) for name in SIZES}
    assert sum(small.values()) > 0
    assert fit(names) == small


def own_policy(names: Names, run: Callable[[], None]) -> None:
    class Scored(MyModel):
        def validation_step(self, batch: Any) -> None:
            self.log("val_accuracy", 0.98 if self.current_epoch in (3, 6) else 0.97)

    def trained(model: MyModel, *others: L.Callback, **more: Any) -> MyModel:
        run()
        options = {**quiet(), "enable_checkpointing": True, "num_sanity_val_steps": 0}
        trainer = L.Trainer(max_epochs=10, callbacks=[names["pruning"], *others], **options)
        trainer.fit(model, names["loader"], names["loader"], **more)
        return model

    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        whole = trained(Scored(), ModelCheckpoint(".", "{epoch}", save_top_k=-1))
    resumed = trained(Scored(), ckpt_path="epoch=3.ckpt")
    assert all(torch.equal(p, q) for p, q in zip(whole.parameters(), resumed.parameters(), strict=True))
    reached = sum(zeros(whole).values())
    first = round(0.1 * TOTAL)
    assert reached == first + round(0.1 * (TOTAL - first))
    said = [line for line in printed.getvalue().splitlines() if line.endswith("are zero")]
    assert said == [f"{first} of {TOTAL} weights are zero", f"{reached} of {TOTAL} weights are zero"]


def joining(names: Names, run: Callable[[], None]) -> None:
    class Unfreeze(L.Callback):
        def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
            if trainer.current_epoch == 5:
                frozen.append(sparsity(pl_module, "backbone.*"))
                pl_module.requires_grad_(True)

    run()
    frozen: list[float] = []
    names["model"].backbone.requires_grad_(False)
    reached = fit(names, Unfreeze())
    assert frozen == [0.0]
    assert reached["backbone.conv.weight"] > 0
    assert sum(reached.values()) == round(0.8 * TOTAL)


def read(names: Names, run: Callable[[], None]) -> None:
    run()
    assert names["pruning"].settings.enforce == "read"
    other: Names = {**names, "model": copy.deepcopy(names["model"])}
    exec(next(b for b in blocks(GRADUAL, "python") if '"read"' in b).replace('"read"', '"in_place"'), other)
    assert other["pruning"].settings.enforce == "in_place"
    assert sum(fit(names).values()) == round(0.9 * TOTAL) == sum(fit(other).values())
    expected = other["model"].state_dict()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in names["model"].state_dict().items())


def preview(names: Names, run: Callable[[], None]) -> None:
    exec(next(b for b in blocks(GRADUAL, "python") if '"read"' in b), names)
    before = copy.deepcopy(names["model"].state_dict())
    run()
    assert names["table"].sparsities[-1] == pytest.approx(0.9, abs=0.5 / TOTAL)
    assert {row.name: row.weights for row in names["table"].rows} == SIZES
    assert all(torch.equal(tensor, before[name]) for name, tensor in names["model"].state_dict().items())


def fine_tuning(names: Names, run: Callable[[], None]) -> None:
    run()
    head = names["model"].head.weight
    with torch.no_grad():
        head[:5] = 0
    before = head.clone()
    assert fit(names, max_epochs=2) == {**dict.fromkeys(SIZES, 0), "head.weight": 80}
    assert not torch.equal(head[5:], before[5:])


def engine(names: Names, run: Callable[[], None]) -> None:
    run()
    assert int((names["layer"].weight == 0).sum()) == 500
    assert list(names["layer"].state_dict()) == ["weight", "bias"]


def old_checkpoint(names: Names, run: Callable[[], None]) -> None:
    old = MyModel()
    for module in (old.stem, old.head):
        torch_prune.l1_unstructured(module, "weight", 0.5)
    torch.save({"state_dict": old.state_dict()}, "old.ckpt")
    run()
    assert zeros(names["model"]) == {**dict.fromkeys(SIZES, 0), "stem.weight": 18, "head.weight": 80}
    assert torch.equal(names["model"].head.weight, old.head.weight)


def looking(names: Names, run: Callable[[], None]) -> None:
    torch_prune.l1_unstructured(names["model"].head, "weight", 40)
    torch_prune.remove(names["model"].head, "weight")
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        run()
    *table, two, flops = printed.getvalue().splitlines()
    assert "\n".join(table) == str(names["table"])
    assert {row.name: row.weights for row in names["table"].rows} == SIZES
    parameters = torch.cat([p.flatten() for p in names["model"].parameters()])
    assert two == f"{40 / 160} {len(parameters) / int(parameters.count_nonzero())}"
    effective, dense = (int(number) for number in re.findall(r"\d+", flops))
    assert dense - effective == 2 * 40


def one_meaning(names: Names, run: Callable[[], None]) -> None:
    names["pruning"] = PruningCallback(schedule=Cubic(final=0.9, end=20), scope="global", verbose=False)
    names["trainer"] = L.Trainer(max_epochs=30, callbacks=[names["pruning"]], **quiet())
    names["trainer"].fit(names["model"], names["loader"])
    exec(blocks("docs/tables-and-pictures.md", "python")[0], names)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        run()
    found = [float(word) for word in re.findall(r"\d\.\d+", printed.getvalue())]
    assert found == pytest.approx([round(0.9 * TOTAL) / TOTAL] * 3, abs=1e-4)


def pictures(names: Names, run: Callable[[], None]) -> None:
    from digits import ConvNet

    names["model"] = ConvNet()
    names["datamodule"] = DataLoader(TensorDataset(torch.randn(8, 1, 8, 8), torch.arange(8)), batch_size=4)
    run()
    over = names["history"].read_csv("logs")
    assert over.sparsity[-1] == (14, pytest.approx(0.9, abs=1e-4))
    assert sorted(over.tensors) == ["conv1.weight", "conv2.weight", "linear1.weight", "linear2.weight"]
    lines = names["left"].get_lines()
    assert len(lines) == 5
    assert lines[-1].get_ydata()[-1] == pytest.approx(0.9, abs=1e-4)
    assert Path("sparsity.png").read_bytes()[:4] == b"\x89PNG"


def rewinding(names: Names, run: Callable[[], None]) -> None:
    class AfterTheLastEvent(L.Callback):
        def on_train_batch_start(self, trainer: L.Trainer, pl_module: L.LightningModule, *_: Any) -> None:
            if trainer.current_epoch == 90 and not seen:
                seen.update({name: attrgetter(name)(pl_module).detach().clone() for name in SIZES})

    run()
    seen: dict[str, Tensor] = {}
    start = {name: names["model"].get_parameter(name).detach().clone() for name in SIZES}
    reached = fit(names, AfterTheLastEvent(), max_epochs=91)
    left = dict(SIZES)
    for _ in range(9):
        left = {name: count - round(0.2 * count) for name, count in left.items()}
    assert reached == {name: count - left[name] for name, count in SIZES.items()}
    assert all(torch.equal(seen[name], torch.where(seen[name] != 0, start[name], 0)) for name in SIZES)


def lottery(names: Names, run: Callable[[], None]) -> None:
    data = some_data()
    names["datamodule"] = L.LightningDataModule.from_datasets(data, data, data, batch_size=4)
    block = next(b for b in blocks("docs/lottery-tickets.md", "python") if "LotteryTicket(" in b)
    for old, new in {"=2_000": "=6, **quiet()", "=12": "=2", "step=500": "step=2", "[0, 1, 2]": "[3]"}.items():
        assert block.count(old) == 1
        block = block.replace(old, new)
    exec(block, {**names, "quiet": quiet}, names)
    assert {(row.level, row.arm) for row in names["results"].rows} == {
        (0, "dense"),
        *((level, arm) for level in (1, 2) for arm in ("ticket", "reinit", "random_mask")),
    }
    left = dict(SIZES)
    for _ in range(2):
        left = {name: count - round((0.1 if name == "head.weight" else 0.2) * count) for name, count in left.items()}
    file = torch.load("lottery_ticket/seed-3/level-02/ticket/model.ckpt", weights_only=True)
    assert {name: int(file["state_dict"][name].count_nonzero()) for name in SIZES} == left
    assert Path("lottery_ticket/results.csv").is_file()
    assert Path("tickets.png").read_bytes()[:4] == b"\x89PNG"


def test_sharded_by_the_first_snippet():  # here on one rank; on several in tests/distributed
    names = names_of("docs/devices.md")
    exec(blocks("docs/devices.md", "python")[0], names)
    with mock.patch.dict(os.environ):
        try:
            names["model"] = type("ShardedModel", (MyModel,), {"configure_model": names["configure_model"]})()
            pruning = PruningCallback(schedule=Cubic(final=0.9, end=3), scope="global")
            seen = ShardedAtTheEnd()
            strategy = ModelParallelStrategy(data_parallel_size=1, tensor_parallel_size=1)
            trainer = L.Trainer(
                accelerator="cpu", devices=1, strategy=strategy, max_epochs=5, callbacks=[pruning, seen], **quiet()
            )
            trainer.fit(names["model"], names["datamodule"])
        finally:
            torch.distributed.destroy_process_group()
    assert set(seen.zeros) == set(SIZES)
    assert sum(seen.zeros.values()) == round(0.9 * TOTAL)


class ShardedAtTheEnd(L.Callback):
    """Counts the zeros of the parameters that are sharded."""

    def __init__(self) -> None:
        self.zeros: dict[str, int] = {}

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        for name, parameter in pl_module.named_parameters():
            if isinstance(parameter, DTensor) and parameter.dim() > 1:
                self.zeros[name] = int((parameter.to_local() == 0).sum())


def model_pruning(names: Names, run: Callable[[], None]) -> None:
    run()
    left = 576 + 160
    for _ in range(3):
        left -= round(0.2 * left)
    reached = fit(names)
    assert reached["stem.weight"] == reached["backbone.downsample.0.weight"] == 0
    assert sum(reached.values()) == 576 + 160 - left


def start(names: Names, run: Callable[[], None]) -> None:
    run()
    file = torch.load("pruned.ckpt", weights_only=True)["state_dict"]
    assert sum(int((file[name] == 0).sum()) for name in SIZES) == round(0.9 * TOTAL)


def start_looking(names: Names, run: Callable[[], None]) -> None:
    torch_prune.l1_unstructured(names["model"].head, "weight", 40)
    torch_prune.remove(names["model"].head, "weight")
    torch.save({"state_dict": names["model"].state_dict()}, "pruned.ckpt")
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        run()
    (line,) = [line for line in printed.getvalue().splitlines() if line.startswith("head.weight")]
    assert line.split()[:4] == ["head.weight", "10x16", "160", "40"]


def plain_loop(names: Names, run: Callable[[], None]) -> None:
    run()
    assert sum(zeros(names["model"]).values()) == round(0.9 * TOTAL)


def plain_steps(names: Names, run: Callable[[], None]) -> None:
    run()
    assert [event.demand.time for event in names["pruning"].events] == [*range(6, 37)]
    assert sum(zeros(names["model"]).values()) == round(0.95 * TOTAL)


def plain_resume(names: Names, run: Callable[[], None]) -> None:
    whole = copy.deepcopy(names["model"])
    optimizer = torch.optim.AdamW(whole.parameters())
    names["optimizer"] = torch.optim.AdamW(names["model"].parameters())
    run()
    with names["Pruning"](whole, optimizer, **names["plan"]) as pruning:
        names["train"](whole, optimizer, pruning, range(8))
    resumed = names["model"].state_dict()
    assert all(torch.equal(tensor, resumed[name]) for name, tensor in whole.state_dict().items())
    assert sum(zeros(whole).values()) == round(0.98 * TOTAL)


def fabric(names: Names, run: Callable[[], None]) -> None:
    run()
    assert sum(zeros(names["model"]).values()) == round(0.99 * TOTAL)
    file = torch.load("fabric.ckpt", weights_only=True)
    assert sorted(file) == ["model", "optimizer", "pruning"]
    assert all(torch.equal(tensor, file["model"][name]) for name, tensor in names["model"].state_dict().items())


def fabric_resume(names: Names, run: Callable[[], None]) -> None:
    exec(blocks("docs/own-loops.md", "python")[3], names)
    run()
    assert sum(int((~mask).sum()) for mask in names["pruning"].masks.values()) == round(0.99 * TOTAL)


def transformers_trainer(names: Names, run: Callable[[], None]) -> None:
    from transformers import BertConfig, BertForSequenceClassification

    sizes = {"vocab_size": 64, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = BertConfig(**sizes, intermediate_size=32, max_position_embeddings=16)
    names["transformer"] = BertForSequenceClassification(config)
    words = torch.randint(0, 64, (32, 8), generator=torch.Generator().manual_seed(0))
    names["sentences"] = [{"input_ids": row, "labels": int(row[0] > 32)} for row in words]
    run()
    (pruning,) = [c.pruning for c in names["trainer"].callback_handler.callbacks if type(c) is names["PruneWithIt"]]
    masks = pruning.masks
    assert all(torch.equal(names["transformer"].get_parameter(name) != 0, mask) for name, mask in masks.items())
    total = sum(mask.numel() for mask in masks.values())
    assert sum(int((~mask).sum()) for mask in masks.values()) == round(0.9 * total)
    assert any("attention" in name for name in masks)


def accelerate(names: Names, run: Callable[[], None]) -> None:
    run()
    assert sum(zeros(names["model"]).values()) == round(0.995 * TOTAL)


CHECKS: dict[str, list[Check]] = {  # one for each python block of a page, in their order
    GRADUAL: [
        recipe,
        amount,
        steps,
        fractions,
        targets,
        channels,
        overrides,
        erk,
        own_method,
        own_policy,
        joining,
        read,
        preview,
        fine_tuning,
    ],
    "docs/coming-from.md": [engine, model_pruning, old_checkpoint],
    "docs/tables-and-pictures.md": [looking, one_meaning, pictures],
    "docs/lottery-tickets.md": [rewinding, lottery],
    "docs/index.md": [start, start_looking],
    "docs/own-loops.md": [
        plain_loop,
        plain_steps,
        plain_resume,
        fabric,
        fabric_resume,
        transformers_trainer,
        accelerate,
    ],
}


@pytest.mark.parametrize(
    ("page", "number", "check"),
    [
        pytest.param(page, number, check, id=check.__name__)
        for page, checks in CHECKS.items()
        for number, check in enumerate(checks)
    ],
)
def test_snippet(page: str, number: int, check: Check):
    names, snippets = names_of(page), blocks(page, "python")
    assert len(snippets) == len(CHECKS[page])
    check(names, lambda: exec(compile(snippets[number], page, "exec"), names))


@pytest.mark.parametrize("page", [page for page in GUIDES if page not in CHECKS and blocks(page, "python")])
def test_snippets_run_one_after_the_other(page: str):
    names = names_of(page)
    for block in blocks(page, "python"):
        exec(compile(block, page, "exec"), names)


def test_the_cli_file():
    names = names_of(GRADUAL)
    (config,) = blocks(GRADUAL, "yaml")
    Path("config.yaml").write_text(config)
    cli = LightningCLI(MyModel, save_config_callback=None, run=False, args=["--config", "config.yaml"])
    cli.trainer.fit(cli.model, names["datamodule"])
    reached = zeros(cli.model)
    assert reached["head.weight"] == 0
    assert sum(reached.values()) == round(0.9 * (TOTAL - SIZES["head.weight"]))


def test_the_tests_of_each_promise_exist():
    (promises,) = re.findall(r"^## What tests hold$(.*?)^## ", text("docs/promises.md"), re.M | re.S)
    bullets = promises.split("\n- **")[1:]
    named = [re.findall(r"`(tests/\S+\.py)`", bullet) for bullet in bullets]
    assert len(bullets) == 9
    assert all(named)
    assert [path for paths in named for path in paths if not (ROOT / path).is_file()] == []


def command(words: str) -> str:
    """The only command of the guides with some words."""
    (found,) = [block for page in GUIDES for block in blocks(page, "bash") if words in block]
    return found


def test_show_prints_a_table_like_the_one_shown():
    arguments = shlex.split(command("show digits"))[1:]
    torch.save({"state_dict": MyModel().state_dict()}, arguments[-1])
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=True)
    (shown,) = blocks("docs/tables-and-pictures.md", "text")
    title, header, *lines, total = shown.splitlines()
    assert done.stdout.splitlines()[0] == title
    assert done.stdout.splitlines()[1].split() == header.split()
    rows = [as_row(line.split()) for line in lines]
    assert f"{Summary(tuple(rows), title)}\n" == shown
    assert [row.weights for row in rows if row.channels] == [144, 4_608, 65_536, 1_280]
    assert sum(row.zeros for row in rows) == round(0.9 * 71_568)
    assert total.startswith("total")


def as_row(cells: list[str]) -> Row:
    """A line of a printed table."""
    name, shape, weights, zero, _, dead, _ = cells
    counts = [int(number) for number in dead.split("/")] if "/" in dead else [None, None]
    sizes = tuple(int(number) for number in shape.split("x"))
    return Row(name, sizes, int(weights.replace(",", "")), int(zero.replace(",", "")), counts[1], counts[0])


def test_every_file_that_is_named_exists():
    pages = "".join(text(page) for page in GUIDES)
    commands = re.findall(r"python (\S+\.py)", pages)
    modules = [name.replace(".", "/") for name in re.findall(r"python -m (tests\.[\w.]+|lightning_prune)", pages)]
    pictures = re.findall(r"\]\((\S+\.png)\)", pages)
    assert "pictures/sparsity.png" in pictures
    assert all((ROOT / "docs" / picture).read_bytes()[:4] == b"\x89PNG" for picture in pictures)
    assert [name for name in commands if not (ROOT / name).is_file()] == []
    assert "tests/benchmarks/distributed" in modules
    assert [name for name in modules if not ((ROOT / f"{name}.py").is_file() or (ROOT / name).is_dir())] == []


def test_the_command_of_the_table_prints_its_rows(tmp_path: Path):
    folder = str(write_idx_folder(tmp_path / "idx"))
    small = {"python": sys.executable, "10000": "40", "8": "2", "/usr/share/datasets/fashion-mnist": folder}
    words = [small.get(word, word) for word in shlex.split(command("gradual.py"))]
    done = subprocess.run([*words, "--seeds", "2"], cwd=ROOT, capture_output=True, text=True, check=True)
    (section,) = re.findall(r"^## Gradual or at once\?$(.*?)^## ", text("docs/results.md"), re.M | re.S)
    printed, shown = table(done.stdout), table(section)
    assert printed[0] == shown[0] == ["zeros", "one-shot", "cubic"]
    assert [row[0] for row in printed] == [row[0] for row in shown[: len(printed)]]
    accuracies = [float(cell.split(" ± ")[0]) for row in printed[2:] for cell in row[1:]]
    assert len(accuracies) == 8
    assert all(0 <= accuracy <= 1 for accuracy in accuracies)


def table(text: str) -> list[list[str]]:
    """The rows of the tables in a text."""
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("|")]
