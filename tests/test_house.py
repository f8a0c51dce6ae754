"""The house stays one in which things are found: few rooms, imports that point one way, an engine without Lightning."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "lightning_prune"
FILES = sorted(PACKAGE.rglob("*.py"))


def module_name(file: Path) -> str:
    return ".".join(file.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")


def imported_when_run(tree: ast.AST) -> Iterator[str]:
    """Modules that a file imports at any time while it runs, not those for type checkers alone."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("lightning_prune"):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
            yield node.module or ""
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        yield from imported_when_run(node)


def test_top_level_is_a_table_of_contents() -> None:
    assert len([entry for entry in PACKAGE.iterdir() if entry.name != "__pycache__"]) <= 16


def test_imports_make_no_circle() -> None:
    names = {module_name(file) for file in FILES}
    packages = {module_name(file) for file in FILES if file.name == "__init__.py"}
    graph = {}
    for file in FILES:
        mine = module_name(file)
        found = {name for name in imported_when_run(ast.parse(file.read_text())) if name in names}
        # a module within a package does not wait for what the package's own __init__ collects
        graph[mine] = {name for name in found if name != mine and not (name in packages and mine.startswith(name))}
    order = list(TopologicalSorter(graph).static_order())
    assert set(order) == names


def test_engine_does_without_lightning() -> None:
    code = "import sys, lightning_prune.prune; print([m for m in ('lightning', 'torchmetrics') if m in sys.modules])"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"
