"""One launch each of two, three and four ranks serve all tests: starting Lightning takes longer than the checks."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from filelock import FileLock

from tests.distributed.launch import Results, launch, saved
from tests.distributed.workers_table import half_alone


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same for all processes in which tests run."""
    base = tmp_path_factory.getbasetemp()
    path = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "distributed"
    path.mkdir(exist_ok=True)
    return path


def launched_once(ranks: int, folder: Path) -> list[Results]:
    """What ranks returned that this process launched, or another one, for which it waits."""
    with FileLock(folder / f"{ranks}.lock"):
        if ranks == 2 and not saved(2, folder):
            half_alone(folder)
        return saved(ranks, folder) or launch(ranks, folder)


@pytest.fixture(scope="session")
def two(folder: Path) -> list[Results]:
    """What two ranks returned."""
    return launched_once(2, folder)


@pytest.fixture(scope="session")
def three(folder: Path, two: list[Results]) -> list[Results]:
    """What three ranks returned, which go on from what two saved."""
    return launched_once(3, folder)


@pytest.fixture(scope="session")
def four(folder: Path) -> list[Results]:
    """What four ranks returned."""
    return launched_once(4, folder)


@pytest.fixture(params=["two", "three"])
def each(request: pytest.FixtureRequest) -> list[Results]:
    """Both in turn."""
    results: list[Results] = request.getfixturevalue(request.param)
    return results
