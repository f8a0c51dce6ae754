"""Tables, curves and pictures of what is pruned."""

from lightning_prune.report.tables import Row, Summary, end, rows_of, show, start, summary

__all__ = ["Row", "Summary", "end", "rows_of", "show", "start", "summary"]
