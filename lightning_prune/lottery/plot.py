"""A metric against the share of weights remaining, as lottery-ticket papers draw it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lightning_prune.prune.printing import pyplot

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

_MARKERS = "osD^v"
_MOST_TICKS = 8


@dataclass(frozen=True)
class Line:
    """One arm.

    Attributes:
        label: Its name in the legend.
        points: Share of weights remaining in (0, 1], mean and standard deviation of the metric, for each level.
    """

    label: str
    points: Sequence[tuple[float, float, float]]


def plot_lines(lines: Sequence[Line], label: str, ax: Axes | None = None) -> tuple[Figure | SubFigure, Axes]:
    """Draws lines with error bars over a logarithmic axis that falls from 100 %.

    Args:
        lines: What to draw.
        label: What the vertical axis shows.
        ax: A matplotlib axis; a new one by default.

    Returns:
        Figure and axis.

    Raises:
        ModuleNotFoundError: If matplotlib is missing.
    """
    ax = pyplot().subplots(layout="constrained")[1] if ax is None else ax
    assert ax is not None
    for i, line in enumerate(lines):
        shares, means, spreads = zip(*line.points, strict=True)
        percent = [100 * share for share in shares]
        marker = _MARKERS[i % len(_MARKERS)]
        ax.errorbar(percent, means, spreads, label=line.label, marker=marker, markersize=4, capsize=3)
    ax.set_xscale("log")
    ax.invert_xaxis()
    _tick(ax, sorted({100 * share for line in lines for share, _, _ in line.points}, reverse=True))
    ax.set_xlabel("weights remaining [%]")
    ax.set_ylabel(label)
    ax.grid(alpha=0.3)
    ax.legend()
    return ax.figure, ax


def _tick(ax: Axes, percent: Sequence[float]) -> None:
    """Ticks at some of the levels, the first one among them, labelled with three digits."""
    shown = percent[:: -(-len(percent) // _MOST_TICKS)]
    ax.set_xticks(shown, [f"{value:.3g}" for value in shown])
    ax.minorticks_off()
