"""Plants one bug into the code under test, while its modules are imported. Test-only.

A bug is a list of edits; an edit names a function, method or class by path and qualified name, a
text that stands in its source exactly once, and what stands there instead. The edited source is
compiled in memory: nothing on disk changes, and who imports a name from the module gets the planted
one too.

Invariant: a bug is planted whole, or the run ends with `TargetGone`. So a change of the code under
test shows which bugs must be looked at again; none turns into a plant that does nothing.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Final


class TargetGone(Exception):
    """What an edit names is not there (any more), or was imported before it could be planted."""


@dataclass(frozen=True, slots=True)
class Edit:
    """One change of one definition."""

    # "package.module:Class.method"
    where: str
    # Stands exactly once in the source of that definition.
    was: str
    becomes: str

    @property
    def module(self) -> str:
        return self.where.partition(":")[0]

    @property
    def name(self) -> str:
        return self.where.partition(":")[2]


@dataclass(frozen=True, slots=True)
class Bug:
    """A bug that could be made, and the tests that must not let it through."""

    name: str
    # What it breaks: the promise by its number, if it is one, and the rule in words.
    breaks: str
    edits: Sequence[Edit]
    # Node id of a test that must fail -> what its failure shows: this reason, and no other.
    caught_by: Mapping[str, str]


def story(name: str) -> str:
    """The node id of a golden script: `role/what_happens`."""
    return f"tests/golden/test_golden.py::test_story[{name}]"


def unit(file: str, test: str) -> str:
    """The node id of a unit test: file without ending, name of the test."""
    return f"tests/unit/{file}.py::{test}"


def corner(file: str, story: str) -> str:
    """The node id of a checker's story: file without `test_` and ending, name of the story."""
    test = "test_a_story_breaks_what_it_says_and_nothing_else"
    return f"tests/checker/test_{file}.py::{test}[{story}]"


def plant(bug: Bug) -> None:
    """Plants it for the rest of this process, before anything imports its modules. Raises
    TargetGone."""
    edits: dict[str, list[Edit]] = {}
    for edit in bug.edits:
        edits.setdefault(edit.module, []).append(edit)
    for module in edits:
        if module in sys.modules:
            raise TargetGone(f"{bug.name}: {module} is imported already, plant before")
    sys.meta_path.insert(0, _Planter(edits))
    for module in edits:
        try:
            importlib.import_module(module)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{module}.".startswith(f"{error.name}."):
                # Something that the module needs is missing, not the module.
                raise
            raise TargetGone(f"{bug.name}: there is no module {module}") from error


def source_of(module: str) -> str:
    """As it stands on disk; nothing is imported but the packages above it. Raises TargetGone."""
    try:
        spec = importlib.util.find_spec(module)
    except ModuleNotFoundError as error:
        raise TargetGone(f"there is no module {module}") from error
    if spec is None or spec.origin is None:
        raise TargetGone(f"there is no module {module}")
    return Path(spec.origin).read_text()


def edited(source: str, edits: Sequence[Edit]) -> str:
    """Raises TargetGone."""
    for edit in edits:
        first, last = _lines_of(source, edit)
        lines = source.splitlines(keepends=True)
        body = "".join(lines[first:last])
        found = body.count(edit.was)
        if found != 1:
            raise TargetGone(f"{edit.where} holds {edit.was!r} {found} times, not once")
        body = body.replace(edit.was, edit.becomes)
        source = "".join([*lines[:first], body, *lines[last:]])
    return source


def _lines_of(source: str, edit: Edit) -> tuple[int, int]:
    """Of the definition that the edit names: half-open, from 0."""
    scope: ast.Module | _Definition = ast.parse(source)
    for part in edit.name.split("."):
        inner = [n for n in scope.body if isinstance(n, _DEFINITIONS) and n.name == part]
        if not inner:
            raise TargetGone(f"{edit.where}: there is no {part}")
        # Of overloads and properties the last one is the definition.
        scope = inner[-1]
    assert not isinstance(scope, ast.Module)
    assert scope.end_lineno is not None
    return scope.lineno - 1, scope.end_lineno


_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
_DEFINITIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


class _Planter(MetaPathFinder):
    """Finds the modules to be edited as everybody does, and has them compiled otherwise."""

    def __init__(self, edits: dict[str, list[Edit]]) -> None:
        self._edits = edits

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        edits = self._edits.get(fullname)
        if edits is None:
            return None
        spec = next(
            (
                found
                for finder in sys.meta_path
                if finder is not self and (found := finder.find_spec(fullname, path, target))
            ),
            None,
        )
        if spec is None or spec.origin is None:
            return None
        spec.loader = _EditedLoader(fullname, spec.origin, edits)
        return spec


class _EditedLoader(SourceFileLoader):
    """Neither reads nor writes cached bytecode."""

    def __init__(self, fullname: str, path: str, edits: Sequence[Edit]) -> None:
        super().__init__(fullname, path)
        self._planted = edits

    def get_code(self, fullname: str) -> CodeType:
        source = self.get_source(fullname)
        assert source is not None
        code: CodeType = compile(edited(source, self._planted), self.path, "exec")
        return code
