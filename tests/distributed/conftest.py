"""One launch each of two, three and four ranks serve all tests: starting Lightning takes longer than the checks."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.distributed.launch import Results, launch


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("distributed")


@pytest.fixture(scope="session")
def two(folder: Path) -> list[Results]:
    """What two ranks returned."""
    return launch(2, folder)


@pytest.fixture(scope="session")
def three(folder: Path, two: list[Results]) -> list[Results]:
    """What three ranks returned, which go on from what two saved."""
    return launch(3, folder)


@pytest.fixture(scope="session")
def four(folder: Path) -> list[Results]:
    """What four ranks returned."""
    return launch(4, folder)


@pytest.fixture(params=["two", "three"])
def each(request: pytest.FixtureRequest) -> list[Results]:
    """Both in turn."""
    results: list[Results] = request.getfixturevalue(request.param)
    return results
