"""Pictures of pruning, with matplotlib (extra ``plot``). Each returns the figure and the axis, as torchmetrics does."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from lightning_prune.metrics.functional import value_of
from lightning_prune.prune.printing import pyplot
from lightning_prune.prune.sharded.tensors import whole
from lightning_prune.report.history import History, Points
from lightning_prune.schedules import Schedule
from lightning_prune.targets.select import Target, all_targets, select
from lightning_prune.trainer.lightning import is_logger

if TYPE_CHECKING:
    from lightning.pytorch.loggers import Logger
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Picture = tuple["Figure", "Axes"]

_KEPT, _DROPPED, _GAP, _PLAN = "#1f4e79", "#dfe7ef", "#ffffff", "#d1495b"
_LEGEND_NAMES = 10  # the colours that can be told apart; more tensors are told by a colour bar
_PIXELS = 512  # larger pictures of masks show the share kept of blocks


def sparsity_over_time(history: History, ax: Axes | None = None) -> Picture:
    """The sparsity of each tensor over a fit, and that of all together.

    Args:
        history: Read by :func:`~lightning_prune.report.history.read_csv` from the log of a fit that logged each tensor,
            or made of events. Shares are drawn as they held from one time to the next.
        ax: Where to draw; a new figure by default.

    Returns:
        The figure and the axis. Up to ten tensors have their names in a legend; more are coloured by their order.

    Raises:
        ModuleNotFoundError: If matplotlib is missing.
    """
    ax = _axis(ax, (7.5, 4.2))
    names = list(history.tensors)
    colours = _colours(len(names))
    few = len(names) <= _LEGEND_NAMES
    for name, colour in zip(names, colours, strict=True):
        _steps(ax, history.tensors[name], color=colour, linewidth=1.3, marker=".", label=name if few else None)
    _steps(ax, history.sparsity, color="black", linewidth=2.4, marker=".", label="all together")
    if not few:
        _order_bar(ax, len(names))
    _finish_times(ax, history.unit)
    ax.legend(loc="center left" if few else "best", bbox_to_anchor=(1.01, 0.5) if few else None, frameon=False)
    ax.set_title("sparsity of each tensor")
    return _figure(ax), ax


def schedule_and_reached(history: History, schedule: Schedule | None = None, ax: Axes | None = None) -> Picture:
    """What a schedule asks for, and what was reached.

    Args:
        history: What was reached, and the targets that were logged.
        schedule: Draw its whole curve as well; its unit has to be that of the history.
        ax: Where to draw; a new figure by default.

    Raises:
        ValueError: If the schedule counts times in another unit.
        ModuleNotFoundError: If matplotlib is missing.
    """
    if schedule is not None and schedule.unit != history.unit:
        raise ValueError(f"the history counts times in {history.unit}s, the schedule in {schedule.unit}s: {schedule}")
    ax = _axis(ax, (6.4, 4.0))
    if schedule is not None:
        end = max([t for t, _ in history.sparsity] + [int(schedule.last)])
        times = torch.linspace(0, end, 400).tolist()
        ax.plot(times, [schedule.sparsity(t) for t in times], color=_PLAN, alpha=0.6, label=type(schedule).__name__)
    if history.target:
        ax.plot(*zip(*history.target, strict=True), "x", color=_PLAN, markersize=8, label="target", zorder=3)
    _steps(ax, history.sparsity, color=_KEPT, linewidth=2, marker=".", label="reached")
    _finish_times(ax, history.unit)
    ax.legend(loc="best", frameon=False)
    ax.set_title("planned and reached")
    return _figure(ax), ax


def regrowth_over_time(history: History, ax: Axes | None = None) -> Picture:
    """How many of the weights left each update of regrowth replaced, and how many of all were ever unmasked.

    Args:
        history: Read by :func:`~lightning_prune.report.history.read_csv` from the log of a fit with ``regrow=``.
        ax: Where to draw; a new figure by default.

    Raises:
        ValueError: If no weight was regrown.
        ModuleNotFoundError: If matplotlib is missing.
    """
    if not history.explored:
        raise ValueError("the history has no regrowth: give it that of a fit with regrow=, such as RigL(every=100)")
    ax = _axis(ax, (6.4, 4.0))
    ax.plot(*zip(*history.churn, strict=True), marker=".", color=_PLAN, label="replaced, of the weights left")
    _steps(ax, history.explored, color=_KEPT, linewidth=2, marker=".", label="explored, of all weights")
    _finish_times(ax, history.unit)
    ax.set(ylabel="share of weights", title="regrowth")
    ax.legend(loc="best", frameon=False)
    return _figure(ax), ax


def weight_histogram(
    model: nn.Module, name: str, threshold: float | None = None, bins: int = 80, ax: Axes | None = None
) -> Picture:
    """The values of a tensor without its zeros, and the magnitude below which none is left.

    Args:
        model: Any module.
        name: Full name of a tensor.
        threshold: The magnitude to mark; by default the smallest one that is not zero, if there are zeros.
        bins: Number of bars.
        ax: Where to draw; a new figure by default.

    Raises:
        ValueError: If the model has no such tensor.
        ModuleNotFoundError: If matplotlib is missing.
    """
    value = _value(_target(model, name)).flatten()
    living = value[value != 0]
    label = f"below {threshold:.3g}" if threshold is not None else ""
    if threshold is None and 0 < living.numel() < value.numel():
        threshold = float(living.abs().min())
        label = f"below the smallest one kept, {threshold:.3g}"
    ax = _axis(ax, (6.4, 4.4))
    ax.hist(living.numpy(), bins=bins, color=_KEPT, label="kept")
    if threshold is not None:
        ax.axvspan(-threshold, threshold, color=_PLAN, alpha=0.15, label=label)
        for side in (-threshold, threshold):
            ax.axvline(side, color=_PLAN, linewidth=1, linestyle="--")
    zeros = value.numel() - living.numel()
    ax.set(xlabel="weight", ylabel="number of weights")
    ax.set_title(f"{name}: {zeros:,} of {value.numel():,} are zero ({zeros / max(1, value.numel()):.1%})")
    ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), ncol=2, frameon=False)
    return _figure(ax), ax


def mask_picture(model: nn.Module, name: str, ax: Axes | None = None) -> Picture:
    """What is kept of a tensor: dark where a weight is left, light where it is zero.

    A matrix is shown as it is, a convolution as a grid of its kernels, outputs downwards and inputs to the right (a
    3-d kernel with its planes one below the other), a vector as a row. What is larger than 512 entries on a side is
    shown by the share kept of blocks.

    Args:
        model: Any module, pruned or not.
        name: Full name of a tensor.
        ax: Where to draw; a new figure by default.

    Raises:
        ValueError: If the model has no such tensor.
        ModuleNotFoundError: If matplotlib is missing.
    """
    target = _target(model, name)
    value = _value(target)
    kept = value != 0 if target.alive is None else whole(target.alive).cpu()
    kernels = _kernels(kept, target.output_dim or 0)
    outputs, inputs, height, width = kernels.shape
    tall = min(3.0, max(1 / 3, outputs * height / max(1, inputs * width)))
    ax = _axis(ax, (6.0 / max(1.0, tall) + 1, 6.0 * min(1.0, tall) + 1))
    if kept.dim() > 2 and max(outputs * height, inputs * width) <= _PIXELS:
        _draw_grid(ax, kernels)
    else:
        _draw_shares(ax, kernels.permute(0, 2, 1, 3).flatten(2).flatten(0, 1), (outputs, inputs))
    ax.set(xlabel=f"input channel (of {inputs:,})", ylabel=f"output channel (of {outputs:,})")
    if kept.dim() < 2:
        ax.set(xlabel=f"entry (of {kept.numel():,})", ylabel="", yticks=[])
    share = 1 - int(kept.count_nonzero()) / max(1, kept.numel())
    ax.set_title(f"{name}, {'x'.join(map(str, kept.shape))}\n{share:.1%} pruned", fontsize="medium")
    return _figure(ax), ax


def publish(figure: Figure, to: Logger | str | os.PathLike[str], name: str, step: int = 0) -> None:
    """Hands a figure to a logger that takes figures, or writes it into a folder, and closes it.

    Args:
        figure: The figure.
        to: A logger whose ``experiment`` has ``add_figure`` (TensorBoard), or that has ``log_image`` (Weights &
            Biases); or a folder, which is made if it is missing.
        name: The tag, or the name of the file; without an ending it becomes a PNG.
        step: Where in the log it belongs.

    Raises:
        TypeError: If the logger takes no figures.
    """
    plt = pyplot()
    if is_logger(to):
        _log_figure(to, figure, name, step)
    else:
        path = os.path.join(to, name if os.path.splitext(name)[1] else f"{name}.png")
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        figure.savefig(path, dpi=150)
    plt.close(figure)


def _log_figure(logger: Logger, figure: Figure, name: str, step: int) -> None:
    add: Any = getattr(getattr(logger, "experiment", None), "add_figure", None)
    log_image: Any = getattr(logger, "log_image", None)
    if add is not None:
        add(name, figure, global_step=step)
    elif log_image is not None:
        log_image(name, [_as_pixels(figure)], step=step)
    else:
        raise TypeError(f"{type(logger).__name__} takes no figures (no add_figure, no log_image): give a folder")


def _as_pixels(figure: Figure) -> Any:
    """Height x width x RGBA, 8 bits each."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas: Any = FigureCanvasAgg(figure)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())


def _figure(ax: Axes) -> Figure:
    figure: Figure = ax.get_figure(root=True)  # type: ignore[assignment]
    return figure


def _axis(ax: Axes | None, size: tuple[float, float]) -> Axes:
    if ax is not None:
        return ax
    ax = pyplot().subplots(figsize=size, layout="constrained")[1]
    assert ax is not None
    return ax


def _steps(ax: Axes, points: Points, **style: Any) -> None:
    ax.plot([t for t, _ in points], [s for _, s in points], drawstyle="steps-post", **style)


def _finish_times(ax: Axes, unit: str) -> None:
    from matplotlib.ticker import MaxNLocator, PercentFormatter

    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.yaxis.set_major_formatter(PercentFormatter(1.0))
    ax.set(xlabel=unit, ylabel="sparsity", ylim=(-0.03, 1.03))
    ax.grid(alpha=0.3)


def _colours(count: int) -> list[Any]:
    import matplotlib as mpl

    if count <= _LEGEND_NAMES:
        return [f"C{i}" for i in range(count)]
    return [mpl.colormaps["viridis"](i / (count - 1)) for i in range(count)]


def _order_bar(ax: Axes, count: int) -> None:
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    bar = ax.figure.colorbar(ScalarMappable(Normalize(1, count), "viridis"), ax=ax)
    bar.set_label(f"tensors, from the first to the last of {count}")


def _target(model: nn.Module, name: str) -> Target:
    known = [t for t in all_targets(model) if name in t.aliases]
    return known[0] if known else select(model, name, frozen=True)[0]


def _value(target: Target) -> Tensor:
    value = whole(value_of(target)).cpu()
    return (value.abs() if value.is_complex() else value).float()


def _kernels(kept: Tensor, out: int) -> Tensor:
    """Any mask as (outputs, inputs, height, width)."""
    if kept.dim() < 2:
        return kept.reshape(1, -1, 1, 1)
    kept = kept.movedim(out, 0)
    return kept.reshape(*kept.shape[:2], -1, kept.shape[-1] if kept.dim() > 2 else 1)


def _draw_grid(ax: Axes, kernels: Tensor) -> None:
    """Kernels with a gap between them; ticks count channels."""
    from matplotlib.colors import ListedColormap

    outputs, inputs, height, width = kernels.shape
    cells = torch.full((outputs, inputs, height + 1, width + 1), 2)
    cells[:, :, :height, :width] = kernels.int()
    image = cells.permute(0, 2, 1, 3).flatten(2).flatten(0, 1)[:-1, :-1]
    colours = ListedColormap([_DROPPED, _KEPT, _GAP])
    square = 1 / 3 < image.shape[0] / image.shape[1] < 3
    aspect: Literal["equal", "auto"] = "equal" if square else "auto"
    ax.imshow(image, cmap=colours, vmin=0, vmax=2, interpolation="nearest", aspect=aspect)
    for axis, channels, size in ((ax.yaxis, outputs, height), (ax.xaxis, inputs, width)):
        shown = range(0, channels, max(1, -(-channels // 8)))
        axis.set_ticks([i * (size + 1) + (size - 1) / 2 for i in shown], [str(i) for i in shown])


def _draw_shares(ax: Axes, kept: Tensor, channels: tuple[int, int]) -> None:
    """A matrix of any size; ticks count channels."""
    from matplotlib.colors import LinearSegmentedColormap

    rows, columns = kept.shape
    shares = nn.functional.adaptive_avg_pool2d(kept[None].float(), (min(rows, _PIXELS), min(columns, _PIXELS)))[0]
    colours = LinearSegmentedColormap.from_list("kept", [_DROPPED, _KEPT])
    extent = (-0.5, channels[1] - 0.5, channels[0] - 0.5, -0.5)
    image = ax.imshow(shares, cmap=colours, vmin=0, vmax=1, interpolation="nearest", aspect="auto", extent=extent)
    if shares.shape != kept.shape:
        ax.figure.colorbar(image, ax=ax, label="share kept")
