"""The house stays one in which things are found: few rooms, imports that point one way, an engine without Lightning."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "lightning_prune"
FILES = sorted(PACKAGE.rglob("*.py"))
PUBLIC_DESPITE_THE_UNDERSCORE = {"_asdict", "_replace", "_getframe"}  # of named tuples and of sys, documented
PRIVATE_OF_TORCH = {
    *("_ConvNd", "_ConvTransposeNd", "_BatchNorm", "_InstanceNorm", "_NormBase", "_DropoutNd"),  # bases of layers
    *("_AvgPoolNd", "_MaxPoolNd", "_AdaptiveAvgPoolNd", "_AdaptiveMaxPoolNd"),
    *("_buffers", "_modules", "_parameters", "_forward_pre_hooks", "_call_impl"),  # what a module is made of
    *("_reset_parameters", "_init_flat_weights", "_version", "_guards"),
    *("_C", "_functorch", "_is_tracing", "_current_level"),  # whether a tensor has values
    *("_are_functorch_transforms_active", "_len_torch_dispatch_stack"),
    "_pytree",  # tensors within any structure of arguments
}


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


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def own_private_names() -> set[str]:
    """All that the package itself defines: functions, classes, variables and attributes."""
    names: set[str] = set()
    for node in (node for file in FILES for node in ast.walk(ast.parse(file.read_text()))):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self":
            names.add(node.attr)
    return {name for name in names if is_private(name)}


def foreign_private_names(tree: ast.AST, own: set[str]) -> Iterator[str]:
    """Private names that a file imports from other packages, or asks of objects, and that are not the package's own."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and not (node.module or "").startswith("lightning_prune"):
            private = [part for part in (node.module or "").split(".") if is_private(part)]
            yield from (name for name in [*private, *(a.name for a in node.names)] if is_private(name))
        elif isinstance(node, ast.Attribute) and is_private(node.attr) and node.attr not in own:
            yield node.attr
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "setattr", "hasattr", "delattr"):
            asked = node.args[1].value if len(node.args) > 1 and isinstance(node.args[1], ast.Constant) else ""
            if isinstance(asked, str) and is_private(asked) and asked not in own:
                yield asked


def test_nothing_private_of_other_packages_is_used() -> None:
    own = own_private_names()
    allowed = PRIVATE_OF_TORCH | PUBLIC_DESPITE_THE_UNDERSCORE
    asked = {module_name(file): set(foreign_private_names(ast.parse(file.read_text()), own)) for file in FILES}
    assert {room: names - allowed for room, names in asked.items() if names - allowed} == {}


def test_the_search_for_private_names_finds_them() -> None:
    code = "from a import _b\nfrom a._c import d\nx._e\nself._own\nx._f = 1\ngetattr(x, '_g')\nx.__dict__\nx.h"
    assert sorted(foreign_private_names(ast.parse(code), {"_own"})) == ["_b", "_c", "_e", "_f", "_g"]


def test_one_place_knows_both_packages_of_lightning() -> None:
    knowing = {module_name(file) for file in FILES if "pytorch_lightning" in file.read_text()}
    assert knowing == {"lightning_prune.trainer.lightning"}
