"""Which branches of the services' and the client's code a run reached: a mark at the beginning of
each block, put in while a module is imported. Nothing on disk changes.

A block is what may or may not run: a function, an arm of `if` and `match`, a loop's body, a handler
of an exception. Its name is the file and the line at which it begins.

    watch()                       before anything imports the modules
    REACHED                       names since it was cleared
    everything()                  all names of what was imported
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType, ModuleType
from typing import Final

# Whose branches say something about promises: not commands, tools and what the fakes stand for.
WATCHED: Final = (
    "oncelog_server.coordinator",
    "oncelog_server.offset_manager",
    "oncelog_server.participant",
    "oncelog_server.partition_leader",
    "oncelog_server.runtime.replica.driver",
    "oncelog_server.runtime.replica.epochs",
    "oncelog_server.runtime.replica.followers",
    "oncelog_server.runtime.replica.leading",
    "oncelog_server.runtime.replica.log",
    "oncelog_server.runtime.replica.replies",
    "oncelog_server.runtime.replica.snapshots",
    "oncelog_server.runtime.storage",
    "oncelog_server.runtime.leadership.election",
    "oncelog_server.runtime.leadership.held",
    "oncelog_server.runtime.leadership.resigning",
    "oncelog_server.runtime.leadership.rules",
    "oncelog_server.runtime.leadership.standing",
    "oncelog._core",
    "oncelog._fan_out",
    "oncelog._repeating",
    "oncelog._metadata",
    "oncelog.aio",
)
# What the marks call, in the modules' namespaces.
_MARK: Final = "_oncelog_reached"

REACHED: Final[set[str]] = set()
_known: Final[set[str]] = set()


def watch() -> None:
    """From here on. Modules that are imported already are not watched."""
    sys.meta_path.insert(0, _Finder())


def everything() -> frozenset[str]:
    """Empty where nobody watches."""
    return frozenset(_known)


def marked(source: str, file: str) -> tuple[ast.Module, list[str]]:
    """The module with marks, and their names. `file` is what names begin with."""
    marking = _Marking(file)
    tree = ast.fix_missing_locations(marking.visit(ast.parse(source)))
    assert isinstance(tree, ast.Module)
    return tree, marking.names


class _Marking(ast.NodeTransformer):
    """Puts a mark in front of each block."""

    def __init__(self, file: str) -> None:
        self.names: list[str] = []
        self._file = file

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        if isinstance(node, _BLOCKS):
            node.body = self._mark(node.body)
        if isinstance(node, ast.If | ast.For | ast.While | ast.AsyncFor):
            # An `elif` is a block by itself.
            is_elif = len(node.orelse) == 1 and isinstance(node.orelse[0], ast.If)
            if node.orelse and not is_elif:
                node.orelse = self._mark(node.orelse)
        return node

    def _mark(self, body: list[ast.stmt]) -> list[ast.stmt]:
        first = body[0]
        name = f"{self._file}:{first.lineno}"
        self.names.append(name)
        call = ast.Call(ast.Name(_MARK, ast.Load()), [ast.Constant(name)], [])
        mark = ast.copy_location(ast.Expr(call), first)
        says = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
        return [first, mark, *body[1:]] if says else [mark, *body]


_BLOCKS: Final = (
    ast.FunctionDef,
    ast.AsyncFunctionDef,
    ast.If,
    ast.For,
    ast.AsyncFor,
    ast.While,
    ast.ExceptHandler,
    ast.match_case,
)


class _Finder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not any(fullname == name or fullname.startswith(f"{name}.") for name in WATCHED):
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
            return None
        spec.loader = _Loader(fullname, spec.origin)
        return spec


class _Loader(SourceFileLoader):
    """Neither reads nor writes cached bytecode."""

    def get_code(self, fullname: str) -> CodeType:
        source = self.get_source(fullname)
        assert source is not None
        tree, names = marked(source, self.path.rpartition("/oncelog")[2].partition("/")[2])
        _known.update(names)
        code: CodeType = compile(tree, self.path, "exec")
        return code

    def exec_module(self, module: ModuleType) -> None:
        setattr(module, _MARK, REACHED.add)
        super().exec_module(module)
