"""Command line: ``python -m lightning_prune show FILE`` and ``python -m lightning_prune dense IN OUT``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from lightning_prune.export.files import make_dense
from lightning_prune.report.tables import show, summary


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command.

    Args:
        arguments: The command line; that of the process by default.

    Returns:
        The exit status: 0, or 1 if a file cannot be used, which is then said on the standard error output.
    """
    options = _parser().parse_args(arguments)
    try:
        if options.command == "show":
            show(summary(options.file, options.parameters, options.exclude), limit=None)
        else:
            count = make_dense(options.source, options.destination, options.overwrite)
            print(f"{options.destination} written; tensors that had a mask: {count}")
    except (OSError, ValueError) as error:
        print(f"lightning_prune: error: {error}", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m lightning_prune", description="Looks at and converts checkpoint files.")
    commands = parser.add_subparsers(dest="command", required=True)
    shown = commands.add_parser("show", help="print a table of the tensors of a file and their zeros")
    shown.add_argument("file", help="a file that torch.save or Lightning wrote")
    shown.add_argument("-p", "--parameters", nargs="+", metavar="NAME", help="only these tensors: names or globs")
    shown.add_argument("-x", "--exclude", nargs="+", metavar="NAME", help="not these tensors: names or globs")
    dense = commands.add_parser("dense", help="write a file without the masks of torch.nn.utils.prune or ModelPruning")
    dense.add_argument("source", metavar="IN")
    dense.add_argument("destination", metavar="OUT")
    dense.add_argument("--overwrite", action="store_true", help="OUT may exist")
    return parser


if __name__ == "__main__":
    sys.exit(main())
