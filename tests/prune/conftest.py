import pytest
import torch


@pytest.fixture(params=[False, True], ids=["documented", "kept"])
def keep_name(request: pytest.FixtureRequest) -> bool:
    return request.param


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)
