"""Each planted bug is caught by the tests that are named beside it, for the reason that is named
there; and those tests pass without it. A test that could not fail shows here.

The suite plants one bug for each promise; `make planted` (ONCELOG_PLANTED=all) plants all of them.
That each one still can be planted, and that its tests are there, is looked at in any case.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, cast

import pytest

from tests.planted.planting import Bug, Edit, TargetGone, edited, plant, source_of
from tests.planted.runs import Runner, Runners
from tests.planted.table import BUGS, one_per_promise, promises_of

BUGS_MIN: Final = 30
ALL: Final = os.environ.get("ONCELOG_PLANTED", "") == "all"
PLANTED: Final = BUGS if ALL else one_per_promise(BUGS)
ROOT: Final = Path(__file__).parents[2]
# What catches bugs, by file.
CATCHING: Final = {
    file: sorted(nodes)
    for file, nodes in itertools.groupby(
        sorted({node for bug in BUGS for node in bug.caught_by}),
        lambda node: node.partition("::")[0],
    )
}


@pytest.fixture(scope="module")
def runners(request: pytest.FixtureRequest) -> Iterator[Runners]:
    """All runs of this session, under way from here on, several at a time."""
    asked = [
        (item.originalname, item.callspec.params)
        for item in request.session.items
        if isinstance(item, pytest.Function) and "runners" in item.fixturenames
    ]
    with Runners(os.cpu_count() or 1) as running:
        for test, of in asked:
            if test == "test_what_catches_bugs_passes_without_them":
                if not ALL:
                    # It is skipped, and asked for nothing.
                    continue
                file = cast(str, of["file"])
                running.begin(file, CATCHING[file])
            else:
                bug = cast(Bug, of["bug"])
                running.begin(bug.name, list(bug.caught_by), bug=bug.name)
        yield running


@pytest.fixture
def runner() -> Iterator[Runner]:
    with Runner() as running:
        yield running


@pytest.mark.parametrize("bug", PLANTED, ids=lambda bug: bug.name)
def test_a_planted_bug_is_caught_by_name(bug: Bug, runners: Runners) -> None:
    planted = runners.end(bug.name)
    for node, shows in bug.caught_by.items():
        verdicts = planted.of(node)
        assert verdicts, f"{node} was not run:\n{planted.output}"
        failed = [verdict for verdict in verdicts if not verdict.passed]
        assert failed, f"{node} lets {bug.name} through ({bug.breaks}): mend the test"
        assert any(v.judged and shows in v.text for v in failed), (
            f"{node} fails, but not by an assertion that shows {shows!r}:\n{planted.output}"
        )


# Else it is run by its own room: make test.
@pytest.mark.parametrize("file", CATCHING if ALL else ())
def test_what_catches_bugs_passes_without_them(file: str, runners: Runners) -> None:
    clean = runners.end(file)
    for node in CATCHING[file]:
        verdicts = clean.of(node)
        assert verdicts, f"{node} was not run:\n{clean.output}"
        assert all(v.passed for v in verdicts), f"{node} fails by itself:\n{clean.output}"


def test_the_suite_plants_a_bug_against_each_promise_that_any_bug_breaks() -> None:
    broken = {number for bug in BUGS for number in promises_of(bug)}
    assert {number for bug in one_per_promise(BUGS) for number in promises_of(bug)} == broken
    assert len(one_per_promise(BUGS)) <= len(broken)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_each_bug_can_still_be_planted_and_its_tests_are_there(bug: Bug) -> None:
    """Where the code has moved on: can the bug still be made? Then write its edit anew."""
    by_module: dict[str, list[Edit]] = {}
    for edit in bug.edits:
        by_module.setdefault(edit.module, []).append(edit)
    for module, edits in by_module.items():
        compile(edited(source_of(module), edits), module, "exec")
    for node in bug.caught_by:
        _require_there(node)


def _require_there(node: str) -> None:
    place, _, test = node.partition("::")
    name, _, case = test.partition("[")
    text = (ROOT / place).read_text()
    assert f"def {name}(" in text, f"{place} has no {name}"
    if place == "tests/golden/test_golden.py":
        script = ROOT / "tests" / "golden" / f"{case.removesuffix(']')}.txt"
        assert script.exists(), f"there is no {script}"


def test_the_table_names_what_each_bug_breaks() -> None:
    assert len(BUGS) >= BUGS_MIN
    for bug in BUGS:
        assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)+", bug.name), bug.name
        assert bug.edits, f"{bug.name} changes nothing"
        assert bug.caught_by, f"{bug.name} names no test"
        assert all(bug.caught_by.values()), f"{bug.name}: say what its failure shows"
        assert " " in bug.breaks, f"{bug.name}: say in words what it breaks"


# ------------------------------------------------------------- the patch layer cannot rot silently

SOURCE: Final = """\
LIMIT = 3

class Counter:
    def add(self, number):
        if number > 2:
            return number
        return 0

def add(number):
    return number
"""


def test_an_edit_changes_only_what_it_names() -> None:
    edit = Edit("m:Counter.add", "return number", "return -number")
    assert edited(SOURCE, [edit]) == SOURCE.replace("    return number", "    return -number", 1)


@pytest.mark.parametrize(
    ("where", "was", "says"),
    [
        ("m:Counter.remove", "return number", "there is no remove"),
        ("m:Counter.add", "return 1", "0 times"),
        ("m:Counter.add", "return", "2 times"),
    ],
)
def test_a_target_that_is_gone_is_said(where: str, was: str, says: str) -> None:
    with pytest.raises(TargetGone, match=says):
        edited(SOURCE, [Edit(where, was, "pass")])


@pytest.mark.parametrize("module", ["oncelog_server.core.frame", "oncelog_server.core.nowhere"])
def test_a_module_that_cannot_be_planted_is_said(module: str) -> None:
    """Imported already (this test's own imports did it), or not there at all."""
    import oncelog_server.core.frame  # noqa: F401

    with pytest.raises(TargetGone):
        plant(Bug("late", "a rule", [Edit(f"{module}:Frame", "x", "y")], {"test": "x"}))


def test_a_run_with_a_bug_that_is_gone_fails_before_any_test(runner: Runner) -> None:
    told = runner.run(["tests/planted/test_planted.py"], bug="no-such-bug")
    assert not told.verdicts
    assert "no such bug" in told.output
