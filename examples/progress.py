"""How far an example is: a line for each network, on terminals only."""

from __future__ import annotations

from lightning_prune.prune.progress import Progress


class Networks(Progress):
    """Says which network is trained next, of how many, and the time left.

    Args:
        total: How many there are.
    """

    def __init__(self, total: int) -> None:
        super().__init__("networks", total, lines=True)
        self._begun = 0

    def next(self, name: str) -> None:
        """Says that the next one begins.

        Args:
            name: What it is.
        """
        self.at(self._begun, name)
        self._begun += 1
