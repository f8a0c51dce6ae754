"""The directory of an experiment."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from lightning.pytorch.utilities import rank_zero_only

from lightning_prune.lottery.arms import DENSE, Arm
from lightning_prune.lottery.masks import State, remaining
from lightning_prune.lottery.results import LotteryResults, LotteryRow


@dataclass(frozen=True)
class Place:
    """The files of one network.

    Attributes:
        root: The experiment's directory.
        seed: Its seed.
        level: Its level.
        arm: Its arm.
    """

    root: Path
    seed: int
    level: int
    arm: Arm

    @property
    def folder(self) -> Path:
        """Where all its files are."""
        return self.root / f"seed-{self.seed}" / f"level-{self.level:02}" / self.arm.name

    @property
    def checkpoint(self) -> Path:
        """The trained network, plain."""
        return self.folder / "model.ckpt"

    @property
    def mask(self) -> Path:
        """The mask it was trained with."""
        return self.folder / "mask.pt"

    @property
    def pruned(self) -> Path:
        """The mask that its trained weights give the next level."""
        return self.folder / "next_mask.pt"

    @property
    def rewind(self) -> Path:
        """The Trainer's checkpoint at the rewind point of a dense network."""
        return self.folder / "rewind.ckpt"

    @property
    def dense(self) -> Place:
        """The dense network of the same seed."""
        return Place(self.root, self.seed, 0, DENSE)

    def before(self, arm: Arm) -> Place:
        """The network of an arm that was trained at the level before."""
        return self.dense if self.level == 1 else Place(self.root, self.seed, self.level - 1, arm)

    def row(self) -> LotteryRow | None:
        """The result, ``None`` if it is not finished."""
        file = self.folder / "row.json"
        if not file.exists():
            return None
        try:
            return LotteryRow(**json.loads(file.read_text("utf-8")))
        except (ValueError, TypeError) as error:
            raise ValueError(f"'{file}' is damaged ({error}): remove it, and this network is trained again") from error

    def finish(self, step: int | None, metrics: Mapping[str, float], state: State, pruned: State | None) -> None:
        """Writes masks, and at last the row, by which the network counts as finished.

        Args:
            step: The early-stopping step.
            metrics: Of the test.
            state: The masks it was trained with.
            pruned: The masks of the next level, if they come from this network.
        """
        torch.save(state, self.mask)
        if pruned is not None:
            torch.save(pruned, self.pruned)
        left, total = remaining(state)
        names = [path.relative_to(self.root).as_posix() for path in (self.checkpoint, self.mask)]
        row = LotteryRow(self.level, self.arm.name, self.seed, left / total, left, step, dict(metrics), *names)
        _write(self.folder / "row.json", json.dumps(asdict(row), indent=1))


@rank_zero_only
def claim(root: Path, words: str) -> None:
    """Makes the directory that of an experiment.

    Args:
        root: The directory.
        words: What must be the same for results to belong together.

    Raises:
        ValueError: If another experiment is in it.
    """
    file = root / "experiment.txt"
    if not file.exists():
        root.mkdir(parents=True, exist_ok=True)
        _write(file, words)
    elif (theirs := file.read_text("utf-8")) != words:
        raise ValueError(
            f"{root} holds another experiment:\n{theirs}\nthis one is\n{words}\nGive another "
            "directory, or remove that one"
        )


@rank_zero_only
def write_results(root: Path, results: LotteryResults) -> None:
    """Writes the rows so far."""
    results.to_csv(root / "results.csv")


def _write(path: Path, text: str) -> None:
    """Writes a file that is there as a whole or not at all."""
    partial = path.with_suffix(".partial")
    partial.write_text(text, "utf-8")
    partial.replace(path)
