"""Tables as aligned text and as HTML; whether rich ones can be shown, and figures drawn."""

from __future__ import annotations

import html
import sys
from collections.abc import Iterable, Sequence
from typing import Any, TextIO


def aligned(lines: Sequence[Sequence[str]], left: int) -> str:
    """Cells in columns.

    Args:
        lines: Rows of cells, the header first, all of the same length.
        left: How many columns are aligned to the left; the others to the right.

    Example:
        >>> print(aligned([("tensor", "zeros"), ("a", "12")], left=1))
        tensor  zeros
        a          12
    """
    columns = [(column, max(map(len, column))) for column in zip(*lines, strict=True)]
    padded = [[c.ljust(w) if i < left else c.rjust(w) for c in column] for i, (column, w) in enumerate(columns)]
    return "\n".join("  ".join(line).rstrip() for line in zip(*padded, strict=True))


def html_table(lines: Sequence[Sequence[str]], title: str = "", notes: Iterable[str] = ()) -> str:
    """The same for notebooks.

    Args:
        lines: Rows of cells, the header first.
        title: The caption.
        notes: Lines below.

    Example:
        >>> html_table([("a",), ("<1>",)])
        '<table><thead><tr><th>a</th></tr></thead><tbody><tr><td>&lt;1&gt;</td></tr></tbody></table>'
    """
    head, *body = ["".join(f"<{tag}>{html.escape(c)}</{tag}>" for c in line) for tag, line in _tagged(lines)]
    caption = f"<caption>{html.escape(title)}</caption>" if title else ""
    rows = "".join(f"<tr>{line}</tr>" for line in body)
    below = "".join(f"<p>{html.escape(note)}</p>" for note in notes)
    return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>{below}"


def _tagged(lines: Sequence[Sequence[str]]) -> list[tuple[str, Sequence[str]]]:
    return [("td" if i else "th", line) for i, line in enumerate(lines)]


def terminal(file: TextIO) -> Any:
    """A rich console for a terminal, ``None`` where there is no terminal or no rich.

    While a live display such as a progress bar of rich is shown, that is its console, which prints above the bar.
    """
    try:
        from rich import get_console
        from rich.console import Console
    except ModuleNotFoundError:
        return None
    console = Console(file=file) if covered(file) is None else get_console()
    return console if console.is_terminal else None


def covered(file: TextIO) -> TextIO | None:
    """The terminal below a live display of rich, which stands in for it; ``None`` if there is none."""
    proxies = sys.modules.get("rich.file_proxy")  # without it there is no display
    live = proxies is not None and isinstance(file, proxies.FileProxy)
    return file.rich_proxied_file if live else None  # type: ignore[attr-defined]


def pyplot() -> Any:
    """``matplotlib.pyplot``.

    Raises:
        ModuleNotFoundError: If matplotlib is missing; names the extra.
    """
    try:
        import matplotlib.pyplot as plt
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("plots need matplotlib: pip install 'lightning-prune[plot]'") from error
    return plt
