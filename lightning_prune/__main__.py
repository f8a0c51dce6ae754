"""Command line: ``python -m lightning_prune show FILE``, ``... compress IN OUT`` and ``... dense IN OUT``."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence

from lightning_prune import __version__
from lightning_prune.export.files import make_dense, make_sparse
from lightning_prune.report.tables import printable, show, summary


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
            print(printable(_convert(options.command, options.source, options.destination, options.overwrite)))
    except (OSError, ValueError, MemoryError, ModuleNotFoundError) as error:
        print(f"lightning_prune: error: {printable(str(error)) or 'not enough memory'}", file=sys.stderr)
        return 1
    return 0


def _convert(command: str, source: str, destination: str, overwrite: bool) -> str:
    if command == "dense":
        done = make_dense(source, destination, overwrite)
        return f"{destination} written; tensors that had a mask: {done.masks}{_under(done.keys)}"
    before = os.path.getsize(source)
    found = make_sparse(source, destination, overwrite)
    after = os.path.getsize(destination)
    masks = any(name.endswith("_mask") and f"{name[:-5]}_orig" in found.state for name in found.state)
    hint = "; it holds masks: 'dense' first makes it smaller" if masks else ""
    return f"{destination} written: {after:,} bytes, {after / before:.1%} of {before:,}{hint}"


def _under(keys: Sequence[Sequence[str]]) -> str:
    named = [f"'{'.'.join(key)}'" for key in keys if key]
    return f", in {', '.join(named)}" if named else ""


def _parser() -> argparse.ArgumentParser:
    command = "lightning-prune"
    installed = os.path.splitext(os.path.basename(sys.argv[0]))[0] == command
    name = command if installed else "python -m lightning_prune"
    parser = argparse.ArgumentParser(name, description="Looks at and converts checkpoints.")
    parser.add_argument("--version", action="version", version=f"lightning_prune {__version__}")
    commands = parser.add_subparsers(dest="command", required=True)
    shown = commands.add_parser("show", help="print a table of the tensors of a file and their zeros")
    shown.add_argument("file", help="what torch.save, Lightning, safetensors or 'compress' wrote, also a folder of it")
    shown.add_argument("-p", "--parameters", nargs="+", metavar="NAME", help="only these tensors: names or globs")
    shown.add_argument("-x", "--exclude", nargs="+", metavar="NAME", help="not these tensors: names or globs")
    _conversion(commands.add_parser, "compress", "write a file in which zeros take little room")
    _conversion(commands.add_parser, "dense", "write a plain file, without such compression and without masks")
    return parser


def _conversion(add: Callable[..., argparse.ArgumentParser], name: str, text: str) -> None:
    added = add(name, help=text)
    added.add_argument("source", metavar="IN")
    added.add_argument("destination", metavar="OUT")
    added.add_argument("--overwrite", action="store_true", help="OUT may exist")


if __name__ == "__main__":
    sys.exit(main())
