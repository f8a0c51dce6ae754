"""Lottery tickets as experiments: iterative magnitude pruning with rewinding, and its control runs."""

from lightning_prune.lottery.arms import Control
from lightning_prune.lottery.experiment import LotteryTicket
from lightning_prune.lottery.masks import read_mask
from lightning_prune.lottery.results import LotteryResults, LotteryRow

__all__ = ["Control", "LotteryResults", "LotteryRow", "LotteryTicket", "read_mask"]
