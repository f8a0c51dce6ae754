"""Everything that is checked on two or three ranks, in one launch for each number."""

from __future__ import annotations

from tests.distributed import (
    workers_ddp,
    workers_failures,
    workers_loops,
    workers_selection,
    workers_sharded,
    workers_table,
)
from tests.distributed.launch import RANKS, Check, work


def checks(ranks: int) -> dict[str, Check]:
    """In the order in which all ranks run them; the fits come first, since they start the process group."""
    table = workers_table.checks(ranks)
    if ranks == 4:
        return {**table, **workers_selection.CHECKS}
    ddp = workers_ddp.checks_on_two() if ranks == 2 else {"resumed": workers_ddp.resumed}
    more = {**workers_loops.checks(), **workers_failures.checks()} if ranks == 2 else {}
    return {**ddp, **more, **workers_selection.CHECKS, **workers_sharded.checks(ranks), **table}


if __name__ == "__main__":
    work(checks(RANKS))
