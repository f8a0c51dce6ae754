"""Tables of what is pruned: of models, of checkpoint files, of a fit at its start and its end."""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TextIO

from torch import Tensor, nn

from lightning_prune.export.files import load_state_dict, module_of
from lightning_prune.export.shrink_files import is_shrunk, kept_lines, read
from lightning_prune.metrics.functional import chosen, value_of
from lightning_prune.prune.checks import naming
from lightning_prune.prune.printing import aligned, html_table, terminal
from lightning_prune.prune.sharded.tensors import is_sharded, nonzero_entries
from lightning_prune.report.patterns import pattern_of
from lightning_prune.targets.biases import living_channels
from lightning_prune.targets.names import folded, listing, shortened
from lightning_prune.targets.patterns import Patterns
from lightning_prune.targets.select import Target

if TYPE_CHECKING:
    from rich.table import Table

_COLUMNS = ("tensor", "shape", "weights", "zeros", "sparsity", "dead channels", "share of zeros")
_WIDTH = 100
"""Columns of what a fit says."""


@dataclass(frozen=True)
class Row:
    """One tensor.

    Attributes:
        name: Full name in the model.
        shape: Its shape.
        weights: Number of entries.
        zeros: How many of them are zero, as the forward sees them.
        channels: Number of output channels, ``None`` for vectors.
        dead_channels: Output channels that nothing but zeros makes: all their weights are zero, and so is the bias that
            the layer adds. A norm behind the layer, which may make a constant of zeros, is not looked at. ``None`` for
            vectors.
        pattern: ``(n, m)`` if the zeros form that N:M pattern along the inputs; see
            :func:`lightning_prune.report.patterns.pattern_of`.
    """

    name: str
    shape: tuple[int, ...]
    weights: int
    zeros: int
    channels: int | None = None
    dead_channels: int | None = None
    pattern: tuple[int, int] | None = None

    @property
    def sparsity(self) -> float:
        """Share of zeros."""
        return self.zeros / self.weights if self.weights else 0.0


@dataclass(frozen=True)
class Summary:
    """Tensors and their zeros; prints as a table, with ``rich.print`` as a rich one.

    Attributes:
        rows: One for each tensor.
        title: What the table is about.
        notes: Lines below it.
        planned: Share of zeros that was planned over all these tensors, if any was.

    Example:
        >>> print(Summary((Row("fc.weight", (2, 3), 6, 4, 2, 1), Row("fc.bias", (2,), 2, 0)), planned=0.5))
        tensor     shape  weights  zeros  sparsity  dead channels  share of zeros
        fc.weight  2x3          6      4    66.67%            1/2         100.00%
        fc.bias    2            2      0     0.00%              -           0.00%
        reached                 8      4    50.00%            1/2         100.00%
        planned                        4    50.00%
    """

    rows: tuple[Row, ...]
    title: str = ""
    notes: tuple[str, ...] = ()
    planned: float | None = None

    @property
    def weights(self) -> int:
        """Entries of all tensors."""
        return sum(row.weights for row in self.rows)

    @property
    def zeros(self) -> int:
        """Zeros of all tensors."""
        return sum(row.zeros for row in self.rows)

    @property
    def sparsity(self) -> float:
        """Share of zeros over all tensors."""
        return self.zeros / self.weights if self.weights else 0.0

    @property
    def patterns(self) -> dict[str, list[str]]:
        """The tensors with zeros in a pattern, by the pattern, such as ``"2:4"``."""
        found: dict[str, list[str]] = {}
        for row in self.rows:
            if row.pattern is not None:
                found.setdefault(":".join(map(str, row.pattern)), []).append(row.name)
        return found

    def _below(self) -> list[str]:
        named = [f"{pattern} along the inputs: {listing(names)}" for pattern, names in self.patterns.items()]
        return [*map(printable, named), *self.notes]

    def share(self, row: Row) -> float:
        """The part of all zeros that lies in one tensor."""
        return row.zeros / self.zeros if self.zeros else 0.0

    def __str__(self) -> str:
        """All rows as plain aligned text."""
        return self.text()

    def text(self, limit: int | None = None, width: int | None = None) -> str:
        """Plain aligned text.

        Args:
            limit: Show at most so many tensors, the first and the last ones; all by default.
            width: Leave out the middle of names that make lines longer than so many columns; none by default.
        """
        lines = [_COLUMNS, *_cells(self, limit), *_totals(self)]
        if width is not None:
            rest = len(aligned([line[1:] for line in lines], left=1).partition("\n")[0])
            lines = [(shortened(name, max(width - rest - 2, 16)), *cells) for name, *cells in lines]
        table = aligned(lines, left=2)
        return "\n".join([*([printable(self.title)] if self.title else []), table, *self._below()])

    def __rich__(self) -> Table:
        """The same as a rich table."""
        return self.table()

    def _repr_html_(self) -> str:
        """A table for notebooks."""
        return html_table([_COLUMNS, *_cells(self, None), *_totals(self)], self.title, self._below())

    def table(self, limit: int | None = None) -> Table:
        """A rich table.

        Args:
            limit: Show at most so many tensors, the first and the last ones; all by default.
        """
        from rich.box import SIMPLE_HEAD
        from rich.table import Table
        from rich.text import Text

        below = self._below()
        caption = Text("\n".join(below)) if below else None
        table = Table(title=printable(self.title) or None, caption=caption, box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
        table.title_justify = table.caption_justify = "left"
        # On a narrow terminal names are folded; numbers stay whole as long as there is room for them.
        table.add_column(_COLUMNS[0], overflow="fold", min_width=8)
        for i, column in enumerate(_COLUMNS[1:]):
            table.add_column(column.replace(" ", "\n", 1), justify="right" if i else "left", no_wrap=True)
        cells = _cells(self, limit)
        for i, line in enumerate(cells):
            table.add_row(*map(Text, line), end_section=i == len(cells) - 1)
        for line in _totals(self):
            table.add_row(*map(Text, line), style="bold")
        return table


def summary(
    source: nn.Module | str | os.PathLike[str], parameters: Patterns = None, exclude: Patterns = None
) -> Summary:
    """What is zero in a model or a checkpoint file.

    Args:
        source: Any module (dense, pruned, or with its pruning made permanent), or a file that ``torch.save``,
            Lightning, ``lightning_prune.export.save_sparse`` or safetensors wrote, or the folder of a distributed
            checkpoint, with or without the masks of ``torch.nn.utils.prune`` or ``ModelPruning``. Its state dict is
            found by what it holds; the title says under which key, unless that is Lightning's own. Of a file
            of :func:`lightning_prune.export.save` the kept channels are listed too. Only tensors and plain values are
            read: code is never executed.
        parameters: Which tensors, as for :func:`lightning_prune.metrics.sparsity`; all parameters by default. In a
            file they are told by their names alone, and running statistics of norms are left out.
        exclude: Which tensors not.

    Returns:
        A table as a value. Output channels are those of the first dimension, or of the second in ConvTranspose and
        Embedding layers (in a file, which says nothing about layers, of the first). One is dead if its weights and its
        bias are zero; a norm behind it is not looked at.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the file holds no state dict of tensors, or more than tensors and plain values.

    Example:
        >>> from lightning_prune.prune import l1_unstructured
        >>> table = summary(l1_unstructured(nn.Linear(4, 2), "weight", amount=6))
        >>> table.sparsity, table.rows[0].zeros
        (0.6, 6)
    """
    if isinstance(source, nn.Module):
        return Summary(rows_of(chosen(source, parameters, exclude)), type(source).__name__)
    if is_shrunk(source):
        tensors, about = read(source)
        rows = rows_of(chosen(module_of(tensors), parameters, exclude))
        return Summary(rows, os.path.basename(source), tuple(kept_lines(about)))
    found = load_state_dict(source)
    model = module_of(found.state)
    place = f" ['{'.'.join(found.keys)}']" if found.keys not in ((), ("state_dict",)) else ""
    notes = tuple(f"another state dict with these names: '{'.'.join(keys)}'" for keys in found.others)
    return Summary(rows_of(chosen(model, parameters, exclude)), f"{os.path.basename(source)}{place}", notes)


def selection(model: nn.Module, targets: Sequence[Target]) -> str:
    """What is selected when a fit starts, in lines of at most 100 columns.

    More than eight names are told by what they have in common, such as ``layers.*.weight (12)``.

    Args:
        model: The whole model.
        targets: What is selected.

    Example:
        >>> from lightning_prune.targets.select import select
        >>> net = nn.Linear(4, 2)
        >>> print(selection(net, select(net)))
        pruning 1 tensor with 8 of 10 weights (80.0%): weight
    """
    whole = sum(p.numel() for p in model.parameters())
    weights = sum(t.parameter.numel() for t in targets)
    tensors = "1 tensor" if len(targets) == 1 else f"{len(targets)} tensors"
    names = [t.name for t in targets]
    named = listing([shortened(name, 80) for name in (folded(names) if len(names) > 8 else names)])
    text = f"pruning {tensors} with {weights:,} of {whole:,} weights ({weights / whole:.1%}): {named}"
    return textwrap.fill(text, _WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def end(targets: Sequence[Target], planned: float | None = None) -> Summary:
    """The table at the end of a fit: what was reached, and what was planned.

    Args:
        targets: What was selected; their pruning may be permanent by now.
        planned: Share of zeros that the plan ends at, if it says one.
    """
    return Summary(rows_of(targets), "pruning: planned and reached", planned=planned)


def show(table: Summary, file: TextIO | None = None, limit: int | None = 40) -> None:
    """Prints a table: a rich one on a terminal where rich is installed, else plain text.

    Args:
        table: What to print.
        file: Where to; the standard output by default.
        limit: Show at most so many tensors, the first and the last ones, in plain text with names that leave lines at
            100 columns; ``None``: all, with whole names.
    """
    file = sys.stdout if file is None else file
    console = terminal(file)
    if console is None:
        print(table.text(limit, None if limit is None else _WIDTH), file=file)
    else:
        console.print(table.table(limit))


def printable(text: str) -> str:
    r"""Text with escapes in place of what a terminal would not show, or would obey.

    Args:
        text: Any text, such as a name from a file.

    Example:
        >>> printable("layer\x1b[2J.weight")
        'layer\\x1b[2J.weight'
    """
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def rows_of(targets: Iterable[Target]) -> tuple[Row, ...]:
    """One row for each target, by the values that the forward sees."""
    return tuple(_row(target, value_of(target)) for target in targets)


def _row(target: Target, value: Tensor) -> Row:
    with naming(f"'{target.name}'"):
        zeros = value.numel() - nonzero_entries(value)
    if value.dim() < 2:
        return Row(target.name, tuple(value.shape), value.numel(), zeros)
    dim = target.output_dim or 0
    dead = value.shape[dim] - int(living_channels(target, value, dim).count_nonzero())
    pattern = None if is_sharded(value) else pattern_of(value.detach(), int(dim == 0))
    return Row(target.name, tuple(value.shape), value.numel(), zeros, value.shape[dim], dead, pattern)


def _cells(table: Summary, limit: int | None) -> list[tuple[str, ...]]:
    if limit is None or len(table.rows) <= limit:
        return [_line(table, row) for row in table.rows]
    first = (limit + 1) // 2
    last = len(table.rows) - (limit - first)
    skipped = (f"… {last - first} more", *[""] * (len(_COLUMNS) - 1))
    return [*(_line(table, r) for r in table.rows[:first]), skipped, *(_line(table, r) for r in table.rows[last:])]


def _line(table: Summary, row: Row) -> tuple[str, ...]:
    shape = "x".join(map(str, row.shape)) or "scalar"
    dead = "-" if row.channels is None else f"{row.dead_channels:,}/{row.channels:,}"
    return (
        printable(row.name),
        shape,
        f"{row.weights:,}",
        f"{row.zeros:,}",
        f"{row.sparsity:.2%}",
        dead,
        f"{table.share(row):.2%}",
    )


def _totals(table: Summary) -> list[tuple[str, ...]]:
    dead = sum(row.dead_channels or 0 for row in table.rows)
    channels = sum(row.channels or 0 for row in table.rows)
    whole = f"{float(table.zeros > 0):.2%}"
    counts = (f"{table.weights:,}", f"{table.zeros:,}", f"{table.sparsity:.2%}", f"{dead:,}/{channels:,}", whole)
    total = ("total" if table.planned is None else "reached", "", *counts)
    if table.planned is None:
        return [total]
    planned = round(table.planned * table.weights)
    return [total, ("planned", "", "", f"{planned:,}", f"{table.planned:.2%}", "", "")]
