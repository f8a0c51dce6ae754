"""One thread for all tests: the models are tiny, and threads that wait for each other cost more than they give.

Strategies of several devices set as many as there are processors, which would go on in the next test.
Nor do examples of hypothesis have a time limit: how long one takes says something of the machine, not of the code.
"""

from collections.abc import Iterator

import hypothesis
import pytest
import torch

torch.set_num_threads(1)
hypothesis.settings.register_profile("no deadline", deadline=None)
hypothesis.settings.load_profile("no deadline")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(1)
