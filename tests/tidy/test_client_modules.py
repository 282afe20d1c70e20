"""The modules of the client import each other in one direction, under TYPE_CHECKING too: who reads
one need not read the one that uses it."""

from __future__ import annotations

import ast
from graphlib import TopologicalSorter
from pathlib import Path

SOURCES = Path(__file__).parents[2] / "clients/python/src"


def name_of(path: Path) -> str:
    parts = path.relative_to(SOURCES).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


def test_no_two_modules_of_the_client_import_each_other() -> None:
    modules = {name_of(path): path for path in SOURCES.rglob("*.py")}
    assert len(modules) > 40, "the client is there"
    graph = {
        name: {imported for imported in imports(path, modules) if imported != name}
        for name, path in modules.items()
    }
    # Raises CycleError naming the circle.
    TopologicalSorter(graph).prepare()


def imports(path: Path, modules: dict[str, Path]) -> set[str]:
    """Names of modules of ours."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            whole = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= whole & modules.keys() or {node.module}
    return found & modules.keys()
