"""One launch of two and one of three ranks serve all tests: starting Lightning takes longer than the checks."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.distributed.launch import Results, launch


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("distributed")


@pytest.fixture(scope="session")
def ddp(folder: Path) -> list[Results]:
    """What two ranks returned."""
    return launch("tests.distributed.workers_ddp", 2, folder)
