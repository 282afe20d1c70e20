"""Each planted bug is caught by the tests that are named beside it, for the reason that is named
there; and those tests pass without it. A test that could not fail shows here."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import pytest

from tests.planted.planting import Bug, Edit, TargetGone, edited, plant
from tests.planted.runs import Runner
from tests.planted.table import BUGS

BUGS_MIN: Final = 30


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    with Runner() as running:
        yield running


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_planted_bug_is_caught_by_name(bug: Bug, runner: Runner) -> None:
    planted = runner.run(list(bug.caught_by), bug=bug.name)
    for node, shows in bug.caught_by.items():
        verdicts = planted.of(node)
        assert verdicts, f"{node} was not run:\n{planted.output}"
        failed = [verdict for verdict in verdicts if not verdict.passed]
        assert failed, f"{node} lets {bug.name} through ({bug.breaks}): mend the test"
        assert any(v.judged and shows in v.text for v in failed), (
            f"{node} fails, but not by an assertion that shows {shows!r}:\n{planted.output}"
        )


def test_what_catches_bugs_passes_without_them(runner: Runner) -> None:
    clean = runner.run(sorted({node for bug in BUGS for node in bug.caught_by}))
    for bug in BUGS:
        for node in bug.caught_by:
            verdicts = clean.of(node)
            assert verdicts, f"{node} was not run:\n{clean.output}"
            assert all(v.passed for v in verdicts), f"{node} fails by itself:\n{clean.output}"


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
