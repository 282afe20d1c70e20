"""Corners of I16 to I20: what each rule must see, and what it must not."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.checker.telling import (
    ID,
    MADE,
    Op,
    abort,
    commit,
    judge,
    lookup,
    op,
    plain,
    raw,
    read,
    register,
    send,
    story,
)

_ACK = {"topic": "t", "partition": 0, "epoch": 1, "leader": "n1"}
FENCING = [
    story(
        "i16 a begin",
        [16],
        register(10, 20, 2, "b"),
        op("begin", 30, 31, ID, tx="x", producer="p", generation=1),
    ),
    story(
        "i16 the same begin is answered again",
        [],
        register(10, 20, 2, "b"),
        op(
            "begin",
            30,
            31,
            {"tx_id": "7", "state": "committed"},
            tx="x",
            producer="p",
            generation=1,
        ),
    ),
    story(
        "i16 looked up as ongoing",
        [16],
        op("begin", 1, 2, ID, tx="x", producer="p", generation=1),
        register(10, 20, 2, "b"),
        lookup(30, 31, "ongoing"),
    ),
    story(
        "i16 a commit of nothing",
        [],
        register(10, 20, 2, "b"),
        commit(30, 31, "x", producer="p", generation=1),
    ),
    story(
        "i16 the largest that was answered counts",
        [16],
        register(4, 10, 3, "c"),
        register(5, 20, 2, "b"),
        send(25, 26, "x", "a"),
        commit(30, 31, "x", producer="p", generation=2),
    ),
    story(
        "i17 one generation to two who have no name",
        [17],
        register(0, 1, 2, None),
        register(0, 2, 2, None),
    ),
    story(
        "i17 one instance gets one generation",
        [17],
        register(0, 10, 1, "a"),
        register(0, 20, 2, "a"),
    ),
    story("i17 a later one is smaller", [17], register(10, 20, 5, "a"), register(30, 40, 4, "b")),
    story(
        "i18 each partition has its own leader",
        [],
        plain(0, 1, "a", told={"acks": [_ACK]}),
        plain(0, 1, "b", 1, told={"acks": [{**_ACK, "partition": 1, "leader": "n2"}]}),
    ),
    story(
        "i18 one journal offset to two records",
        [18],
        plain(0, 1, "a", told={"acks": [{**_ACK, "first_offset": 5, "count": 3}]}),
        plain(2, 3, "b", told={"acks": [{**_ACK, "first_offset": 7, "count": 1}]}),
    ),
    story("i19 told both", [19], MADE[0], commit(5, 6, "x"), abort(7, 8, "x")),
    story(
        "i19 a marker aborted, and read",
        [19],
        MADE[0],
        commit(5, 6, "x", ID, how="unknown"),
        raw(10, 11, [], [[3, "7", "aborted"]]),
        read(20, 21, [(0, "a")]),
    ),
    story(
        "i20 read, though nobody acknowledged it",
        [20],
        MADE[0],
        commit(5, 6, "x"),
        send(10, 11, "x", "b", how="unknown"),
        read(20, 21, [(0, "a"), (1, "b")]),
    ),
    story(
        "i20 acknowledged after the abort, before its marker",
        [],
        MADE[0],
        abort(5, 6, "x"),
        send(10, 11, "x", "b"),
    ),
    story(
        "i20 acknowledged after the commit, before its marker",
        [],
        MADE[0],
        commit(5, 6, "x"),
        send(10, 11, "x", "b"),
    ),
    story(
        "i20 acknowledged after it was looked up as visible",
        [20],
        MADE[0],
        commit(5, 6, "x", ID),
        lookup(7, 8, "committed", visible=True),
        send(10, 11, "x", "b"),
    ),
    story(
        "i20 acknowledged where it has no marker",
        [],
        MADE[0],
        commit(5, 6, "x", {"visible": True}),
        send(10, 11, "x", "b", partition=1),
    ),
    story(
        "i20 acknowledged while the commit was on its way",
        [],
        MADE[0],
        commit(5, 30, "x"),
        send(10, 11, "x", "b"),
    ),
    story(
        "i20 behind the first of its markers",
        [20],
        MADE[0],
        commit(5, 6, "x", ID),
        raw(10, 11, [[7, "a", "7"]], [[5, "7", "committed"], [9, "7", "committed"]]),
    ),
]


@pytest.mark.parametrize(("broken", "ops"), FENCING)
def test_a_story_breaks_what_it_says_and_nothing_else(broken: list[int], ops: Sequence[Op]) -> None:
    report = judge(*ops)
    assert report.invariants() == broken, str(report)
