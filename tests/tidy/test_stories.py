"""A test that defines its story as an inner function must also run it: one that lost its last line
passes whatever the code does."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

TESTS: Final = Path(__file__).parents[1]
Function = ast.FunctionDef | ast.AsyncFunctionDef


def _never_run(tree: ast.Module) -> Iterator[str]:
    """Functions that stand in a test and are named nowhere in it."""
    for test in tree.body:
        if not isinstance(test, Function) or not test.name.startswith("test_"):
            continue
        named = {node.id for node in ast.walk(test) if isinstance(node, ast.Name)}
        for inner in test.body:
            if isinstance(inner, Function) and inner.name not in named:
                yield f"{test.name}: {inner.name}"


def test_each_test_runs_the_story_that_it_tells() -> None:
    idle = [
        f"{file.relative_to(TESTS)}: {story}"
        for file in sorted(TESTS.rglob("test_*.py"))
        for story in _never_run(ast.parse(file.read_text()))
    ]
    assert not idle, f"run it at the end of its test, or drop it: {idle}"


@pytest.mark.parametrize(
    ("last_line", "found"), [("    run(story())", []), ("", ["test_a: story"])]
)
def test_a_story_that_nobody_runs_is_found(last_line: str, found: list[str]) -> None:
    source = f"def test_a():\n    async def story():\n        assert False\n{last_line}\n"
    assert list(_never_run(ast.parse(source))) == found
