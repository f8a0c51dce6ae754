"""What the metrics of this package have in common."""

from __future__ import annotations

from typing import Any

from torchmetrics import Metric
from torchmetrics.utilities.plot import _AX_TYPE, _PLOT_OUT_TYPE


class PruningMetric(Metric):
    """A metric of counts, which can be plotted and has no gradient."""

    is_differentiable = False
    full_state_update = False

    def plot(self, val: Any = None, ax: _AX_TYPE | None = None) -> _PLOT_OUT_TYPE:
        """Plots one value or several.

        Args:
            val: A result of ``compute`` or of calling the metric, or a list of them; ``compute()`` by default.
            ax: A matplotlib axis; a new one by default.

        Returns:
            Figure and axis.

        Raises:
            ModuleNotFoundError: If matplotlib is missing.
        """
        return self._plot(val, ax)
