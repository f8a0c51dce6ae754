"""One thread for all tests: the models are tiny, and threads that wait for each other cost more than they give.

Nor do examples of hypothesis have a time limit: how long one takes says something of the machine, not of the code.
"""

import hypothesis
import torch

torch.set_num_threads(1)
hypothesis.settings.register_profile("no deadline", deadline=None)
hypothesis.settings.load_profile("no deadline")
