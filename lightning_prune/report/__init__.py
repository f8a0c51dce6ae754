"""Tables, curves and pictures of what is pruned."""

from lightning_prune.report.tables import Row, Summary, end, rows_of, selection, show, summary

__all__ = ["Row", "Summary", "end", "rows_of", "selection", "show", "summary"]
