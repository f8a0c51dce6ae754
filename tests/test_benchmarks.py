"""The benchmarks run, on the command that the README gives; how fast anything is, they print and no test asks."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_the_command_of_the_readme_prints_ratios() -> None:
    (command,) = re.findall(r"^python -m tests\.benchmarks$", (ROOT / "README.md").read_text(), re.M)
    words = [sys.executable, *shlex.split(command)[1:], "--quick", "selection"]
    printed = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    rows = [line for line in printed.splitlines() if line.startswith("global L1")]
    assert len(rows) == 3
    assert all(re.search(r"\d ms .*\d x .*\d x .*\d x", row) for row in rows)
