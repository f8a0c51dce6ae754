"""The example that shrinks, run as a user runs it."""

import re
import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "shrink.py"


def test_coupled_channels_are_cut_and_read_again(tmp_path: Path):
    command = [sys.executable, str(EXAMPLE), "--epochs", "2", "--limit", "320"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=600)
    found = re.findall(r"^(\S.*?)  +(\d\.\d{4})  \(.*?\) +([\d,]+)", done.stdout, re.M)
    parameters = {name: int(number.replace(",", "")) for name, _, number in found}
    accuracies = {name: accuracy for name, accuracy, _ in found}
    assert parameters["dense"] == 77_818
    assert abs(parameters["coupled, 75%"] / 77_818 - 0.25) < 0.02
    assert parameters["coupled, 75%"] == parameters["random coupled, 75%"] < parameters["single tensors, 75%"]
    again = re.findall(r"read again: test accuracy (\d\.\d{4})", done.stdout)
    assert again == [accuracies["coupled, 75%"]]
    assert (tmp_path / "small.safetensors").stat().st_size < 100_000
