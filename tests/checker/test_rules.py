"""Each promise has a history that breaks it, and a clean one beside it that differs in one thing.

A file is named after the promise, what is special about it, and its verdict; its first line says in
words what it shows.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from oncelog.checker import RULES, check, check_files

HISTORIES = Path(__file__).parent / "histories"
FILES = sorted(HISTORIES.glob("*.jsonl"))
BROKEN = [file for file in FILES if file.stem.endswith("_broken")]
CLEAN = [file for file in FILES if file.stem.endswith("_clean")]


def _number(file: Path) -> int:
    return int(file.stem[1:3])


@pytest.mark.parametrize("file", BROKEN, ids=lambda file: file.stem)
def test_a_broken_promise_is_reported_as_that_one_and_with_lines(file: Path) -> None:
    report = check_files([file])
    assert report.invariants() == [_number(file)], str(report)
    lines = file.read_text().splitlines()
    for violation in report.violations:
        assert violation.lines, f"no proof: {violation}"
        for line in violation.lines:
            assert isinstance(json.loads(lines[int(line) - 1]), dict), "a line of the history"


@pytest.mark.parametrize("file", CLEAN, ids=lambda file: file.stem)
def test_a_clean_history_is_clean(file: Path) -> None:
    report = check_files([file])
    assert report.clean, str(report)


def test_every_promise_has_both_histories_or_a_reason() -> None:
    assert {_number(file) for file in BROKEN} == set(RULES) == {_number(file) for file in CLEAN}
    assert {file.stem.replace("_broken", "") for file in BROKEN} == {
        file.stem.replace("_clean", "") for file in CLEAN
    }, "each broken history has its clean twin"
    for file in FILES:
        assert file.read_text().startswith("# "), f"{file.name}: say in words what it shows"


def test_a_rule_is_its_promise_in_words() -> None:
    for number, rule in RULES.items():
        assert re.match(rf"i{number}_", rule.__name__), "a rule is named after its promise"
        assert rule.__doc__, f"I{number} says nothing"


class _Story:
    """Histories that are easier told than written down: one event per line of a test."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []

    def invoke(self, do: str, **arguments: Any) -> str:
        return self._add({"event": "invoke", "op": str(len(self.events)), "do": do, **arguments})

    def end(self, event: str, op: str, **results: Any) -> None:
        self._add({"event": event, "op": op, **results})

    def _add(self, event: dict[str, Any]) -> str:
        self.events.append({**event, "time_us": 10 * len(self.events)})
        return str(event["op"])


def _fetch(story: _Story, offset: int | None) -> None:
    fetch = story.invoke("fetch_offsets", group="g", stable=True)
    story.end("ok", fetch, offsets=[{"topic": "in", "partition": 0, "offset": offset}])


@pytest.mark.parametrize("seen", [None, 5])
def test_i24_an_unknown_offset_commit_may_resolve_either_way(seen: int | None) -> None:
    story = _Story()
    commit = story.invoke(
        "commit_offsets",
        group="g",
        offsets=[{"topic": "in", "partition": 0, "from": "none", "to": 5}],
    )
    story.end("unknown", commit)
    _fetch(story, seen)
    assert check(story.events).clean


def test_i24_an_offset_of_before_the_acknowledged_one_is_stale_over_an_unknown_one() -> None:
    story = _Story()
    for event, start, to in (("ok", "none", 5), ("unknown", 5, 7), ("ok", 7, 9)):
        commit = story.invoke(
            "commit_offsets",
            group="g",
            offsets=[{"topic": "in", "partition": 0, "from": start, "to": to}],
        )
        story.end(event, commit)
    _fetch(story, 5)
    assert check(story.events).invariants() == [24]


def test_i3_a_commit_upon_the_offset_of_an_unknown_one_says_that_it_committed() -> None:
    story = _Story()
    story.invoke("send", tx="t1", topic="out", partition=0, values=["a"])
    first = story.invoke(
        "commit",
        tx="t1",
        offsets=[{"group": "g", "topic": "in", "partition": 0, "from": "none", "to": 3}],
    )
    story.end("unknown", first)
    second = story.invoke(
        "commit",
        tx="t2",
        offsets=[{"group": "g", "topic": "in", "partition": 0, "from": 3, "to": 6}],
    )
    story.end("ok", second)
    story._add({"event": "mark", "what": "settled", "op": ""})
    listing = story.invoke("list_offsets", topic="out", at="latest", isolation="committed")
    story.end("ok", listing, offsets=[0])
    assert check(story.events).invariants() == [3]
