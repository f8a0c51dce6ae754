"""What the metrics of this package have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torchmetrics import Metric
from torchmetrics.utilities.plot import plot_single_or_multi_val

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


class PruningMetric(Metric):
    """A metric of counts, which can be plotted and has no gradient."""

    is_differentiable = False
    full_state_update = False

    def plot(self, val: Any = None, ax: Axes | None = None) -> tuple[Figure, Any]:
        """Plots one value or several.

        Args:
            val: A result of ``compute`` or of calling the metric, or a list of them; ``compute()`` by default.
            ax: A matplotlib axis; a new one by default.

        Returns:
            Figure and axis.

        Raises:
            ModuleNotFoundError: If matplotlib is missing.
        """
        figure, axis = plot_single_or_multi_val(
            self.compute() if val is None else val,
            ax=ax,
            name=type(self).__name__,
            higher_is_better=self.higher_is_better,
            lower_bound=self.plot_lower_bound,
            upper_bound=self.plot_upper_bound,
            legend_name=self.plot_legend_name,
        )
        return figure, axis
