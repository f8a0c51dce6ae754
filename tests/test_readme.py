"""Every snippet and command of the README does what the README says."""

import ast
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
import torch.nn.utils.prune as torch_prune
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.cli import LightningCLI
from torch import Tensor, nn
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

from tests.idx import write_idx_folder

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.M | re.S)


class MyModel(L.LightningModule):
    def __init__(self, lr: float = 0.05) -> None:
        super().__init__()
        self.lr = lr
        self.stem = nn.Conv2d(1, 4, 3)
        self.backbone = nn.Module()
        self.backbone.conv = nn.Conv2d(4, 16, 3, padding=1)
        self.backbone.norm = nn.BatchNorm2d(16)
        self.backbone.downsample = nn.Sequential(nn.Conv2d(4, 16, 1))
        self.head = nn.Linear(16, 10)

    def forward(self, images: Tensor) -> Tensor:
        x = self.stem(images)
        x = self.backbone.norm(self.backbone.conv(x)) + self.backbone.downsample(x)
        return self.head(x.relu().mean(dim=(2, 3)))

    def training_step(self, batch: list[Tensor]) -> Tensor:
        return nn.functional.cross_entropy(self(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), self.lr, momentum=0.9)


SIZES = {"stem.weight": 36, "backbone.conv.weight": 576, "backbone.downsample.0.weight": 64, "head.weight": 160}
TOTAL = sum(SIZES.values())

Names = dict[str, Any]


def some_data() -> TensorDataset:
    torch.manual_seed(0)
    return TensorDataset(torch.randn(8, 1, 6, 6), torch.arange(8))


@pytest.fixture
def names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Names:
    """What a reader of the README has: imports, a model, data, and files that earlier runs left."""
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    names: Names = {"MyModel": MyModel, "model": MyModel(), "datamodule": DataLoader(some_data(), batch_size=4)}
    for block in blocks("python"):
        imports = [node for node in ast.parse(block).body if isinstance(node, ast.Import | ast.ImportFrom)]
        exec(compile(ast.Module(imports, []), "README.md", "exec"), names)
    return names


def fit(names: Names, **limits: Any) -> dict[str, int]:
    """Fits the model with the recipe's callback and returns the zeros of its weights."""
    trainer = L.Trainer(**{"max_epochs": 30, **limits}, callbacks=[names["pruning"]], **quiet())
    trainer.fit(names["model"], names["datamodule"])
    return zeros(names["model"])


def quiet() -> dict[str, Any]:
    return {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}


def zeros(model: nn.Module) -> dict[str, int]:
    return {name: int((model.get_parameter(name) == 0).sum()) for name in SIZES}


def gradual_fit(names: Names, run: Callable[[], None]) -> None:
    run()
    assert sum(zeros(names["model"]).values()) == round(0.9 * TOTAL)
    assert type(names["model"]) is MyModel
    assert type(names["model"].head) is nn.Linear
    without = "import sys, torch; sys.modules['lightning_prune'] = None; torch.load('pruned.ckpt', weights_only=True)"
    subprocess.run([sys.executable, "-c", without], check=True)


def plain_checkpoint(names: Names, run: Callable[[], None]) -> None:
    exec(blocks("python")[0], names)
    run()
    assert zeros(names["plain"]) == zeros(names["model"])
    expected = names["model"].state_dict()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in names["plain"].state_dict().items())


def resuming(names: Names, run: Callable[[], None]) -> None:
    exec(blocks("python")[0].split("trainer =")[0], names)
    saving = ModelCheckpoint(".", "{epoch}", save_top_k=-1)
    whole = MyModel()
    options = {**quiet(), "enable_checkpointing": True}
    trainer = L.Trainer(max_epochs=30, callbacks=[names["pruning"], saving], **options)
    trainer.fit(whole, names["datamodule"])
    Path("epoch=9.ckpt").rename("last.ckpt")
    exec(blocks("python")[0].split("trainer =")[0], names)
    run()
    resumed = names["model"].state_dict()
    assert all(torch.equal(tensor, resumed[name]) for name, tensor in whole.state_dict().items())


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


# One for each python block of the README, in their order.
CHECKS = [
    gradual_fit,
    plain_checkpoint,
    resuming,
    amount,
    steps,
    fractions,
    targets,
    channels,
    overrides,
    erk,
    own_method,
    fine_tuning,
    engine,
    old_checkpoint,
]


@pytest.mark.parametrize(
    ("block", "check"),
    [*zip(blocks("python"), CHECKS, strict=True)],
    ids=[check.__name__ for check in CHECKS],
)
def test_snippet(block: str, check: Callable[[Names, Callable[[], None]], None], names: Names):
    check(names, lambda: exec(compile(block, "README.md", "exec"), names))


def test_the_cli_file(names: Names):
    (config,) = blocks("yaml")
    Path("config.yaml").write_text(config)
    cli = LightningCLI(MyModel, save_config_callback=None, run=False, args=["--config", "config.yaml"])
    cli.trainer.fit(cli.model, names["datamodule"])
    reached = zeros(cli.model)
    assert reached["head.weight"] == 0
    assert sum(reached.values()) == round(0.9 * (TOTAL - SIZES["head.weight"]))


def test_the_tests_of_each_promise_exist():
    (promises,) = re.findall(r"^## What is promised$(.*?)^## ", README, re.M | re.S)
    bullets = promises.split("\n- **")[1:]
    named = [re.findall(r"`(tests/\S+\.py)`", bullet) for bullet in bullets]
    assert len(bullets) == 7
    assert all(named)
    assert [path for paths in named for path in paths if not (ROOT / path).is_file()] == []


def test_the_two_commands_are_what_ci_runs():
    listed = subprocess.run(["bash", str(ROOT / ".ci/run"), "--list"], capture_output=True, text=True, check=True)
    main_job, tests = listed.stdout.splitlines()
    assert [f"{main_job}\n", f"{tests}\n"] == blocks("bash")[:2]
    assert main_job.endswith('pip install -e ".[examples]" && python examples/digits.py')
    assert tests.endswith('pip install -e ".[test]" && python -m pytest')


def test_the_command_of_the_table_prints_its_rows(tmp_path: Path):
    (command,) = blocks("bash")[2:]
    folder = str(write_idx_folder(tmp_path / "idx"))
    small = {"python": sys.executable, "10000": "40", "8": "2", "/usr/share/datasets/fashion-mnist": folder}
    words = [small.get(word, word) for word in shlex.split(command)]
    done = subprocess.run([*words, "--seeds", "2"], cwd=ROOT, capture_output=True, text=True, check=True)
    printed, shown = table(done.stdout), table(README)
    assert printed[0] == shown[0] == ["zeros", "one-shot", "cubic"]
    assert [row[0] for row in printed] == [row[0] for row in shown[: len(printed)]]
    accuracies = [float(cell.split(" ± ")[0]) for row in printed[2:] for cell in row[1:]]
    assert len(accuracies) == 8
    assert all(0 <= accuracy <= 1 for accuracy in accuracies)


def table(text: str) -> list[list[str]]:
    """The rows of the tables in a text."""
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("|")]
