"""Which tests hold which promise (I1 to I35), found by their names: `test_i21_i22_...`, and golden
scripts and histories likewise. `docs/guarantees.md` shows what is found here.

Left out: tests that hold a promise and do not say so. Name a test after what it protects.
"""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from tests.planted.table import BUGS

ROOT: Final = Path(__file__).parents[2]
NUMBERS: Final = range(1, 36)
# Promises of a later version, and what they wait for.
LATER: Final[Mapping[int, str]] = {}
BEGIN: Final = "<!-- found by tests/tidy/promises.py, do not edit -->"
END: Final = "<!-- end of what was found -->"
_NAMED: Final = re.compile(r"(?:i\d+_)+")
_NUMBER: Final = re.compile(r"i(\d+)_")


def held_by() -> dict[int, list[str]]:
    """Promise -> the tests that carry its number, as `path::test` or the path of a script."""
    found: dict[int, list[str]] = {number: [] for number in NUMBERS}
    for name, place in sorted(_named_places(), key=lambda item: item[1]):
        numbers = _NAMED.match(name)
        if numbers is not None:
            for number in sorted({int(digits) for digits in _NUMBER.findall(numbers[0])}):
                found[number].append(place)
    return found


def planted_against() -> dict[int, list[str]]:
    """Promise -> the planted bugs that break it by name."""
    found: dict[int, list[str]] = {number: [] for number in NUMBERS}
    for bug in BUGS:
        for digits in re.findall(r"\bI(\d+)\b", bug.breaks):
            found[int(digits)].append(bug.name)
    return found


def page() -> str:
    """The section of `docs/guarantees.md`, between its two marks."""
    tests, bugs = held_by(), planted_against()
    lines = [BEGIN]
    for number in NUMBERS:
        lines += ["", f"### I{number}", ""]
        if number in LATER:
            lines.append(f"{LATER[number].capitalize()}.")
        lines += [f"* `{place}`" for place in tests[number]]
        if bugs[number]:
            lines.append("* planted: " + ", ".join(f"`{name}`" for name in bugs[number]))
    return "\n".join([*lines, "", END])


def _tracked() -> list[str]:
    """Files under tests/ that are or will be committed; what somebody tries out is no promise."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "tests"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    return [place for place in listed.stdout.splitlines() if (ROOT / place).exists()]


def _named_places() -> Iterator[tuple[str, str]]:
    for place in _tracked():
        path = ROOT / place
        if path.suffix == ".txt":
            yield path.name, place
        elif path.name.startswith("test_") and path.suffix == ".py":
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                    yield node.name.removeprefix("test_"), f"{place}::{node.name}"
