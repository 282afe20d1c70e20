"""Corners of I21 to I24: what each rule must see, and what it must not."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.checker.telling import (
    ID,
    Op,
    abort,
    commit,
    ends,
    fetch,
    judge,
    lookup,
    move,
    send,
    settled,
    step,
    story,
)

_TWO = [
    line
    for name in ("x", "y")
    for line in (
        send(0, 1, name, name),
        commit(5, 6, name, how="unknown", offsets=[step("none", 5)]),
    )
]
OFFSETS = [
    story("i21 from where nobody had ended", [21], commit(5, 6, "x", offsets=[step(5, 8)])),
    story(
        "i21 from within what another covers",
        [21],
        move(0, 1, "none", 2),
        commit(5, 6, "x", offsets=[step(2, 6)]),
        move(7, 8, 2, 4, "unknown"),
        commit(9, 10, "y", offsets=[step(4, 8)]),
    ),
    story(
        "i21 a number is of its scope",
        [],
        *[
            commit(n, n + 1, name, producer="p", commit_seq=[name, 1])
            for n, name in ((5, "x"), (7, "y"))
        ],
    ),
    story(
        "i21 output of what was not committed",
        [21],
        send(0, 1, "x", "a", of=["in", 0, 0]),
        send(0, 2, "x", "b", of=["in", 0, 5]),
        move(0, 1, "any", 0),
        commit(5, 6, "x", offsets=[step(0, 1)]),
    ),
    story(
        "i21 a plain commit covers nothing",
        [],
        move(0, 1, "none", 5),
        commit(5, 6, "x", offsets=[step("none", 5)]),
    ),
    story(
        "i21 who sought is not checked",
        [],
        commit(5, 6, "x", offsets=[step("any", 5)]),
        commit(7, 8, "y", offsets=[step("any", 5)]),
    ),
    story(
        "i21 asked again is once",
        [],
        commit(5, 6, "x", how="unknown", offsets=[step("none", 5)]),
        commit(7, 8, "x", offsets=[step("none", 5)]),
    ),
    story("i22 asked for after the fetch", [22], fetch(5, 10, 5), move(20, 30, "none", 5)),
    story("i22 aborted", [22], move(0, 1, "none", 5, tx="x"), abort(5, 6, "x"), fetch(10, 11, 5)),
    story(
        "i22 looked up as aborted",
        [22],
        move(0, 1, "none", 5, tx="x"),
        commit(5, 6, "x", ID, how="unknown"),
        lookup(7, 8, "aborted"),
        fetch(10, 11, 5),
    ),
    story(
        "i24 nobody knows whether a pending one was taken that got no answer",
        [],
        move(0, 1, "none", 5),
        move(2, 3, 5, 7, "unknown", tx="x"),
        commit(5, 6, "x", {"visible": True}),
        fetch(10, 11, 5),
    ),
    story("i22 refused", [22], move(0, 1, "none", 5, "fail"), fetch(10, 11, 5)),
    story(
        "i22 refused within what committed",
        [22],
        move(0, 1, "none", 5, "fail", tx="x"),
        commit(5, 6, "x"),
        fetch(10, 11, 5),
    ),
    story(
        "i22 pending, and not asked to commit",
        [22],
        move(0, 1, "none", 5, tx="x"),
        fetch(10, 11, 5),
        commit(20, 21, "x"),
    ),
    story("i22 of one of two unknown ones, nobody knows which", [], *_TWO, fetch(10, 11, 5)),
    story(
        "i22 of one of two of which nothing is there",
        [22],
        *_TWO,
        fetch(10, 11, 5),
        settled(15),
        ends(20, 21, 0),
    ),
    story(
        "i3 what a chain is built upon has committed",
        [3],
        send(0, 1, "x", "a"),
        commit(5, 6, "x", how="unknown", offsets=[step("none", 3)]),
        commit(7, 8, "y", how="unknown", offsets=[step(3, 6)]),
        commit(9, 10, "z", offsets=[step(6, 9)]),
        settled(15),
        ends(20, 21, 0),
    ),
    story("i24 what nobody committed", [24], move(0, 1, "none", 5), fetch(10, 11, 99)),
    story(
        "i24 who does not wait may see what was before",
        [],
        move(0, 1, "none", 3),
        commit(5, 6, "x", offsets=[step(3, 6)]),
        fetch(10, 11, 3, stable=False),
    ),
    story(
        "i24 who waits may not",
        [24],
        move(0, 1, "none", 3),
        commit(5, 6, "x", offsets=[step(3, 6)]),
        fetch(10, 11, 3),
    ),
    story(
        "i24 the earliest answer of a later one counts",
        [24],
        move(0, 5, "none", 1),
        move(10, 100, 1, 2),
        move(20, 30, 1, 3),
        fetch(50, 60, 1),
    ),
]


@pytest.mark.parametrize(("broken", "ops"), OFFSETS)
def test_a_story_breaks_what_it_says_and_nothing_else(broken: list[int], ops: Sequence[Op]) -> None:
    report = judge(*ops)
    assert report.invariants() == broken, str(report)
