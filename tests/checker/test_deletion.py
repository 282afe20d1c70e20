"""Corners of I32, and of the promises that must bear that records are deleted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tests.checker.telling import (
    Op,
    commit,
    ends,
    judge,
    move,
    op,
    plain,
    read,
    send,
    settled,
    stands,
    story,
)

MS = 1_000


def topic(**configs: str) -> Op:
    """Topic "t", of one partition. Settings are named with _ for the dot."""
    named = {name.replace("_", "."): value for name, value in configs.items()}
    return op("create_topic", 0, 1, {"partitions": 1}, topic="t", configs=named)


def alter(begin: int, end: int, how: str = "ok", **configs: str) -> Op:
    named = {name.replace("_", "."): value for name, value in configs.items()}
    return op("alter_topic", begin, end, how=how, topic="t", configs=named)


def begins(begin: int, end: int, offset: int, **more: Any) -> Op:
    """Somebody is told that the partition begins there."""
    return op("list_offsets", begin, end, {"offsets": [offset]}, topic="t", at="earliest", **more)


def truncate(begin: int, end: int, before: Any, start: int | None = None, how: str = "ok") -> Op:
    told = {} if start is None else {"starts": [{"topic": "t", "partition": 0, "start": start}]}
    return op("truncate", begin, end, told, how, topic="t", partition=0, before=before)


def given(rows: Sequence[tuple[int, str]], at: int = 22) -> Op:
    """What it is given of "in" there."""
    part = {"topic": "in", "partition": 0, "records": [list(row) for row in rows]}
    return op("read", at, at + 1, {"parts": [part]}, consumer="c")


def skips(begin: int, end: int, offset: int, start: int, **more: Any) -> Op:
    """A consumer of "in" goes on there, for it begins at `start`."""
    latest: dict[str, Any] = {
        name: more.pop(name) for name in ("if_deleted", "since") if name in more
    }
    told = {"positions": [{"topic": "in", "partition": 0, "offset": offset, "start": start}]}
    told["positions"][0] |= latest
    return op("position", begin, end, told, **more)


SHORT = topic(retention_ms="50")
INPUT = op("produce", 0, 1, topic="in", partition=0, values=list("klmnopqrst"))
THREE = [plain(10 * MS, 11 * MS, "a"), plain(20 * MS, 21 * MS, "b"), plain(30 * MS, 31 * MS, "c")]
IN = {"topic": "in", "partition": 0}
MADE_OF_5 = op("send", 30, 31, tx="x", topic="t", partition=0, values=["x"], of=["in", 0, 5])
CONSUMED = commit(
    40, 41, "x", offsets=[{"group": "g", **IN, "from": "none", "base": 2, "to": 6, "consumer": "c"}]
)
ALL = read(32 * MS, 33 * MS, [(0, "a"), (1, "b"), (2, "c")])

HALF_READ = [
    *(send(n, n + 1, "x", value) for n, value in enumerate("abcd")),
    commit(5, 6, "x"),
    plain(7, 8, "e"),
    read(10, 11, [(0, "a")]),
]

DELETED = [
    story(
        "i3 deleted between what was read of it and the rest",
        [],
        *HALF_READ,
        truncate(12, 13, 3, start=3),
        read(20, 21, [(3, "d"), (4, "e")]),
    ),
    story(
        "i3 more of it is not there than was deleted between",
        [3],
        *HALF_READ,
        truncate(12, 13, 2, start=2),
        read(20, 21, [(2, "d"), (3, "e")]),
    ),
    story(
        "i32 the last one before the start is old enough",
        [],
        SHORT,
        *THREE,
        ALL,
        begins(69 * MS, 70 * MS, 2),
    ),
    story(
        "i32 the last one before the start is not",
        [32],
        SHORT,
        *THREE,
        ALL,
        begins(69 * MS, 69 * MS + 900, 2),
    ),
    story(
        "i32 of records that nobody read the number tells",
        [32],
        SHORT,
        *THREE,
        begins(69 * MS, 69 * MS + 900, 2),
    ),
    story(
        "i32 a clock that is fast enough",
        [],
        SHORT,
        *THREE,
        ALL,
        [{"event": "mark", "time_us": 0, "what": "clocks", "faster": 0.25}],
        begins(60 * MS, 61 * MS, 2),
    ),
    story(
        "i32 a clock that is not",
        [32],
        SHORT,
        *THREE,
        ALL,
        [{"event": "mark", "time_us": 0, "what": "clocks", "faster": 0.2}],
        begins(60 * MS, 61 * MS, 2),
    ),
    story(
        "i32 a clock that leapt",
        [],
        SHORT,
        *THREE,
        ALL,
        [{"event": "mark", "time_us": 0, "what": "clocks", "leap_ms": 10}],
        begins(60 * MS, 61 * MS, 2),
    ),
    story("i32 whose settings nobody knows", [], *THREE, ALL, begins(34 * MS, 35 * MS, 3)),
    story(
        "i32 whose settings delete nothing", [32], topic(), *THREE, ALL, begins(34 * MS, 35 * MS, 1)
    ),
    story(
        "i32 a transaction is as old as its commit",
        [32],
        SHORT,
        send(1, 2, "x", "a"),
        commit(40 * MS, 41 * MS, "x"),
        read(42 * MS, 43 * MS, [(0, "a")]),
        begins(60 * MS, 61 * MS, 1),
    ),
    story(
        "i32 a transaction whose commit is young, that nobody read",
        [32],
        SHORT,
        send(1, 2, "x", "a"),
        commit(40 * MS, 41 * MS, "x"),
        begins(60 * MS, 61 * MS, 1),
    ),
    story(
        "i32 settings may still have been the old ones",
        [],
        SHORT,
        *THREE,
        ALL,
        alter(50 * MS, 51 * MS, retention_ms="-1"),
        begins(90 * MS, 91 * MS, 3),
    ),
    story(
        "i32 settings that came later allow nothing before",
        [32],
        topic(),
        *THREE,
        ALL,
        begins(90 * MS, 91 * MS, 1),
        alter(92 * MS, 93 * MS, retention_ms="50"),
    ),
    story(
        "i32 settings that were refused allow nothing",
        [32],
        topic(),
        *THREE,
        ALL,
        alter(40 * MS, 41 * MS, "fail", retention_ms="50"),
        begins(90 * MS, 91 * MS, 1),
    ),
    story(
        "i32 settings that may have come allow it",
        [],
        topic(),
        *THREE,
        ALL,
        alter(40 * MS, 41 * MS, "unknown", retention_ms="50"),
        begins(90 * MS, 91 * MS, 1),
    ),
    story(
        "i32 a truncation that may still come",
        [],
        topic(),
        *THREE,
        ALL,
        truncate(40 * MS, 41 * MS, 2, how="unknown"),
        begins(90 * MS, 91 * MS, 2),
    ),
    story(
        "i32 a truncation that was refused",
        [32],
        topic(),
        *THREE,
        ALL,
        truncate(40 * MS, 41 * MS, 2, how="fail"),
        begins(90 * MS, 91 * MS, 2),
    ),
    story(
        "i32 a truncation that is asked for later",
        [32],
        topic(),
        *THREE,
        ALL,
        begins(40 * MS, 41 * MS, 2),
        truncate(50 * MS, 51 * MS, 2, 2),
    ),
    story(
        "i32 a truncation of what was there, whose copy may come late",
        [],
        topic(),
        *THREE,
        ALL,
        truncate(34 * MS, 35 * MS, "end", 3),
        plain(40 * MS, 41 * MS, "d"),
        begins(90 * MS, 91 * MS, 4),
    ),
    story(
        "i32 a reader heard long ago what it tells",
        [],
        SHORT,
        *THREE,
        ALL,
        begins(90 * MS, 91 * MS, 2),
        op(
            "read",
            92 * MS,
            93 * MS,
            {"starts": [{"topic": "t", "partition": 0, "start": 1}]},
            "fail",
        ),
    ),
    story(
        "i32 a truncation deletes more than was written",
        [32],
        topic(),
        *THREE,
        truncate(40 * MS, 41 * MS, "end", 4),
    ),
    story(
        "i32 the bytes that nobody told",
        [],
        topic(retention_bytes="9000"),
        *THREE,
        ALL,
        begins(40 * MS, 41 * MS, 2),
    ),
    story(
        "i32 either setting may delete",
        [],
        topic(retention_bytes="90000", retention_ms="50"),
        *THREE,
        ALL,
        begins(90 * MS, 91 * MS, 3),
    ),
    story(
        "i32 two who are told at the same time",
        [],
        SHORT,
        *THREE,
        ALL,
        begins(90 * MS, 92 * MS, 2),
        begins(91 * MS, 93 * MS, 1),
    ),
    story(
        "i32 in journal offsets it begins elsewhere",
        [],
        topic(),
        *THREE,
        begins(90 * MS, 91 * MS, 7, isolation="uncommitted"),
    ),
    story(
        "i32 who was reading before gives what it had",
        [],
        SHORT,
        *THREE,
        op(
            "position",
            40 * MS,
            41 * MS,
            {"positions": [{"topic": "t", "partition": 0, "offset": 0}]},
            consumer="c",
        ),
        begins(90 * MS, 91 * MS, 2),
        read(92 * MS, 93 * MS, [(0, "a"), (1, "b"), (2, "c")], consumer="c"),
    ),
    story(
        "i5 what is behind all that was deleted unread is missed",
        [5],
        SHORT,
        plain(10 * MS, 11 * MS, "a", how="unknown"),
        *THREE[1:],
        plain(95 * MS, 96 * MS, "d"),
        begins(90 * MS, 91 * MS, 1),
        ends(92 * MS, 93 * MS, 2),
        ends(97 * MS, 98 * MS, 3),
        read(98 * MS, 99 * MS, [(1, "b"), (2, "c")]),
    ),
    story(
        "i3 a transaction of which a part was deleted unread",
        [],
        SHORT,
        send(1, 2, "x", "a"),
        send(3, 4, "x", "b"),
        commit(5 * MS, 6 * MS, "x"),
        settled(7 * MS),
        begins(90 * MS, 91 * MS, 1),
        ends(92 * MS, 93 * MS, 2),
        read(98 * MS, 99 * MS, [(1, "b")]),
    ),
    story(
        "i21 input that was deleted before it was read has no output",
        [],
        INPUT,
        stands(10, 11, 2, consumer="c", group="g"),
        skips(20, 21, 5, 5, consumer="c", group="g"),
        given([(5, "p")]),
        MADE_OF_5,
        CONSUMED,
    ),
    story(
        "i21 nor has what was given, went back with an abort, and was deleted since",
        [],
        INPUT,
        stands(10, 11, 2, consumer="c", group="g"),
        given([(2, "m")], at=12),
        skips(20, 21, 5, 5, consumer="c", group="g", since=2),
        given([(5, "p")]),
        MADE_OF_5,
        CONSUMED,
    ),
    story(
        "i21 but what was given and did not go back has",
        [21],
        INPUT,
        stands(10, 11, 2, consumer="c", group="g"),
        given([(2, "m")], at=12),
        skips(20, 21, 5, 5, consumer="c", group="g", since=3),
        given([(5, "p")]),
        MADE_OF_5,
        CONSUMED,
    ),
    story(
        "i21 input that was not read has no output",
        [21],
        INPUT,
        stands(10, 11, 2, consumer="c", group="g"),
        skips(20, 21, 4, 4, consumer="c", group="g"),
        given([(4, "o"), (5, "p")]),
        MADE_OF_5,
        CONSUMED,
    ),
    story(
        "i21 a member that begins at the end commits where, by itself",
        [],
        INPUT,
        op(
            "take_offsets", 10, 11, group="g", member="m", offsets=[{**IN, "from": "none", "to": 4}]
        ),
        commit(20, 21, "x", offsets=[{"group": "g", **IN, "from": 4, "to": 5}]),
    ),
    story(
        "i21 and where it is refused it does not",
        [21],
        INPUT,
        op(
            "take_offsets",
            10,
            11,
            how="fail",
            group="g",
            member="m",
            offsets=[{**IN, "from": "none", "to": 4}],
        ),
        commit(20, 21, "x", offsets=[{"group": "g", **IN, "from": 4, "to": 5}]),
    ),
    story(
        "i15 to the end, where it wants that",
        [],
        INPUT,
        stands(10, 11, 2, consumer="c"),
        skips(20, 21, 9, 5, consumer="c", if_deleted="latest"),
    ),
    story(
        "i15 to the end, where it does not",
        [15],
        INPUT,
        stands(10, 11, 2, consumer="c"),
        skips(20, 21, 9, 5, consumer="c"),
    ),
    story(
        "i15 before what is deleted",
        [15],
        INPUT,
        stands(10, 11, 2, consumer="c"),
        skips(20, 21, 4, 5, consumer="c", if_deleted="latest"),
    ),
    story(
        "i15 what it stood at is not deleted",
        [15],
        INPUT,
        stands(10, 11, 7, consumer="c"),
        skips(20, 21, 5, 5, consumer="c"),
    ),
    story(
        "i15 the group stood before the start",
        [],
        INPUT,
        move(10, 11, "none", 3),
        skips(20, 21, 5, 5, consumer="c", group="g"),
    ),
    story(
        "i15 the group stood behind the start",
        [15],
        INPUT,
        move(10, 11, "none", 8),
        skips(20, 21, 5, 5, consumer="c", group="g"),
    ),
]


@pytest.mark.parametrize(("broken", "ops"), DELETED)
def test_a_story_breaks_what_it_says_and_nothing_else(broken: list[int], ops: Sequence[Op]) -> None:
    report = judge(*ops)
    assert report.invariants() == broken, str(report)
