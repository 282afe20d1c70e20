"""Corners of I8 to I15: what each rule must see, and what it must not."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.checker.telling import (
    IN0,
    MADE,
    Op,
    commit,
    ends,
    judge,
    move,
    op,
    plain,
    read,
    send,
    stands,
    step,
    story,
)

_REFUSED = {"reason": "TRANSACTION_ENDED"}
# A consumer that stood at 3.
_GIVEN_TWO = (
    op("produce", 0, 1, topic="in", partition=0, values=["i", "j"]),
    move(10, 20, "none", 3, consumer="c2"),
    stands(21, 22, 3, consumer="d", group="g"),
    op(
        "read",
        22,
        23,
        {"parts": [{**IN0, "partition": 0, "records": [[3, "i"], [4, "j"]]}]},
        consumer="d",
    ),
)
# The second is known to have gone.
_TWO_IN_FLIGHT = (
    *_GIVEN_TWO,
    commit(24, 60, "x", _REFUSED, how="fail", offsets=[step(3, 4, consumer="d")]),
    commit(26, 30, "y", _REFUSED, how="fail", offsets=[step(4, 5, consumer="d")], builds_on="x"),
)
ORDER = [
    story(
        "i10 committed, and builds on one in flight that was refused",
        [10],
        send(0, 1, "t1", "a"),
        commit(2, 10, "t1", how="fail"),
        send(3, 4, "t2", "b"),
        commit(5, 11, "t2", builds_on="t1"),
    ),
    story(
        "i10 refused with the one in flight that it builds on, and of another one nobody knows",
        [],
        send(0, 1, "t1", "a"),
        commit(2, 10, "t1", how="fail"),
        send(3, 4, "t2", "b"),
        commit(5, 11, "t2", how="fail", builds_on="t1"),
        send(13, 14, "t3", "c"),
        commit(15, 16, "t3", how="unknown"),
        send(13, 14, "t4", "d"),
        commit(15, 16, "t4", builds_on="t3"),
    ),
    story(
        "i8 behind the latest of those before it",
        [8],
        plain(50, 60, "a"),
        plain(10, 11, "b", how="unknown"),
        plain(5, 20, "c"),
        read(100, 101, [(0, "a"), (1, "b"), (2, "c")]),
    ),
    story(
        "i8 behind one that is not the first",
        [8],
        plain(10, 11, "a", how="unknown"),
        plain(50, 60, "b"),
        plain(5, 20, "c"),
        read(100, 101, [(0, "a"), (1, "b"), (2, "c")]),
    ),
    story(
        "i8 acknowledged in the moment in which the other is sent",
        [],
        plain(0, 20, "a"),
        plain(20, 30, "b"),
        read(100, 101, [(0, "b"), (1, "a")]),
    ),
    story(
        "i8 an end that was listed bounds all below it",
        [8],
        plain(50, 60, "a"),
        plain(5, 6, "b", how="unknown"),
        ends(20, 30, 2),
        read(100, 101, [(0, "a"), (1, "b")]),
    ),
    story(
        "i8 i13 who saw a position knew of all before it",
        [8, 13],
        plain(50, 60, "a"),
        plain(5, 6, "b", how="unknown"),
        send(5, 6, "x", "c"),
        commit(7, 8, "x", how="unknown"),
        read(20, 30, [(2, "c")]),
        read(100, 101, [(0, "a"), (1, "b"), (2, "c")]),
    ),
    story(
        "i9 writers stand in the order of the manifest",
        [9],
        send(0, 1, "x", "a", writer=1),
        send(2, 3, "x", "b", writer=2),
        commit(5, 6, "x", manifest=[["t", 0, 2, 1], ["t", 0, 1, 1]]),
        read(20, 21, [(0, "a"), (1, "b")]),
    ),
    story(
        "i10 generations before the times of commits",
        [10],
        send(0, 1, "x", "a"),
        commit(10, 11, "x", producer="p", generation=2),
        send(0, 1, "y", "b"),
        commit(20, 21, "y", producer="p", generation=1),
        read(30, 31, [(0, "a"), (1, "b")]),
    ),
    story(
        "i10 the third against the second",
        [10],
        *[
            line
            for n, value in ((10, "a"), (30, "c"), (20, "b"))
            for line in (
                send(0, 1, value, value),
                commit(n, n + 50, value, producer="p", generation=1),
            )
        ],
        read(100, 101, [(0, "a"), (1, "c"), (2, "b")]),
    ),
    story(
        "i11 two predecessors are no circle",
        [],
        *[
            line
            for name, parts in (("x", (0,)), ("y", (1,)), ("z", (0, 1)))
            for line in (
                *(send(0, 1, name, f"{name}{part}", part) for part in parts),
                commit(5, 50, name, group="g"),
            )
        ],
        read(100, 101, [(0, "x0"), (1, "z0")]),
        read(100, 101, [(0, "y1"), (1, "z1")], 1),
    ),
    story(
        "i11 two groups have two orders",
        [],
        *[
            line
            for name in ("x", "y")
            for line in (
                *(send(0, 1, name, f"{name}{part}", part) for part in (0, 1)),
                commit(5, 50, name, group=name),
            )
        ],
        read(100, 101, [(0, "x0"), (1, "y0")]),
        read(100, 101, [(0, "y1"), (1, "x1")], 1),
    ),
    story(
        "i13 a plain record stands behind what came later",
        [13],
        plain(0, 10, "p"),
        send(12, 13, "x", "a"),
        commit(20, 30, "x"),
        read(100, 101, [(0, "a"), (1, "p")]),
    ),
    story(
        "i13 a visible transaction stands behind what came later",
        [13],
        MADE[0],
        commit(10, 20, "x", {"visible": True}),
        plain(30, 40, "p"),
        read(100, 101, [(0, "p"), (1, "a")]),
    ),
    story(
        "i14 the journal has gaps",
        [],
        plain(0, 1, "a"),
        plain(0, 1, "b"),
        read(10, 11, [(0, "a"), (2, "b")], consumer="c", isolation="uncommitted"),
    ),
    story(
        "i14 the journal goes forward",
        [14],
        plain(0, 1, "a"),
        plain(0, 1, "b"),
        read(10, 11, [(2, "a")], consumer="c", isolation="uncommitted"),
        read(20, 21, [(1, "b")], consumer="c", isolation="uncommitted"),
    ),
    story(
        "i14 a gap within one read",
        [14],
        plain(0, 1, "a"),
        plain(0, 1, "b"),
        read(10, 11, [(0, "a"), (2, "b")], consumer="c"),
    ),
    story(
        "i14 a seek may jump",
        [],
        plain(0, 1, "a"),
        plain(0, 1, "b"),
        read(10, 11, [(0, "a")], consumer="c"),
        op("seek", 12, 13, consumer="c", topic="t", partition=0, offset=5),
        read(20, 21, [(5, "b")], consumer="c"),
    ),
    story(
        "i15 without a group nobody sends it elsewhere",
        [15],
        stands(10, 11, 2, consumer="c"),
        stands(20, 21, 5, consumer="c"),
    ),
    story(
        "i15 where the group has nothing the option says",
        [],
        stands(10, 11, 7, consumer="c", group="g"),
    ),
    story(
        "i15 it goes back to its own commit",
        [],
        stands(1, 2, 0, consumer="c", group="g"),
        *_GIVEN_TWO,
        move(24, 25, 3, 5, consumer="d"),
        move(30, 40, 5, 9),
        stands(50, 51, 5, consumer="d", group="g"),
    ),
    story(
        "i15 it goes back behind the one in flight that is refused later",
        [],
        *_TWO_IN_FLIGHT,
        stands(32, 33, 4, consumer="d", group="g"),
    ),
    story(
        "i15 it goes on behind the one in flight that it gave up",
        [15],
        *_TWO_IN_FLIGHT,
        stands(32, 33, 5, consumer="d", group="g"),
    ),
]


@pytest.mark.parametrize(("broken", "ops"), ORDER)
def test_a_story_breaks_what_it_says_and_nothing_else(broken: list[int], ops: Sequence[Op]) -> None:
    report = judge(*ops)
    assert report.invariants() == broken, str(report)
