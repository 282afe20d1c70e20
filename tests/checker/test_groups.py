"""Corners of I23: what follows from heartbeats, and from offsets that were taken in somebody's
name; and what does not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tests.checker.telling import Op, commit, judge, op, step, story


def beat(
    begin: int, end: int, member: str, heard: int, told: int | str, *owns: int, **more: Any
) -> Op:
    """`told`: the generation in which it owns these partitions, or why it is refused."""
    asked = {"group": "g", "member": member, "generation": heard, **more}
    if isinstance(told, str):
        return op("heartbeat", begin, end, {"reason": told}, "fail", **asked)
    assigned = [{"topic": "in", "partition": number} for number in owns]
    return op("heartbeat", begin, end, {"generation": told, "assigned": assigned}, **asked)


def take(
    begin: int,
    end: int,
    member: str,
    heard: int,
    since: int | str,
    to: int,
    how: str = "ok",
    **more: Any,
) -> Op:
    """A plain commit of partition 0; with `request` in a transaction."""
    offsets = [{"topic": "in", "partition": 0, "from": since, "to": to}]
    asked = {"group": "g", "member": member, "generation": heard, "offsets": offsets, **more}
    return op("take_offsets", begin, end, how=how, **asked)


def given(begin: int, end: int, member: str, heard: int) -> Op:
    part = {"topic": "in", "partition": 0, "records": [[0, "v0"]]}
    told = {"group": "g", "member": member, "generation": heard, "parts": [part]}
    return op("read", begin, end, told, consumer=member)


FED = op("produce", 0, 1, topic="in", partition=0, values=["v0"])
GROUPS = [
    story(
        "i23 two are told that they own it",
        [23],
        beat(0, 1, "a", 0, 3, 0),
        beat(2, 3, "b", 0, 3, 0),
    ),
    story(
        "i23 one after the other",
        [],
        beat(0, 1, "a", 0, 3, 0),
        beat(2, 3, "b", 0, 4),
        beat(4, 5, "a", 3, 4),
        beat(6, 7, "a", 4, 5),
        beat(8, 9, "b", 4, 5, 0),
        take(10, 11, "b", 5, "none", 7),
    ),
    story(
        "i23 got again, and what was read before is committed",
        [23],
        beat(0, 1, "a", 0, 3, 0),
        beat(2, 3, "b", 0, 5, 0),
        beat(4, 5, "a", 3, 7, 0),
        take(6, 7, "a", 3, "none", 7),
    ),
    story(
        "i23 got again, and what was read since is committed",
        [],
        beat(0, 1, "a", 0, 3, 0),
        beat(2, 3, "b", 0, 5, 0),
        beat(4, 5, "a", 3, 7, 0),
        take(6, 7, "a", 7, "none", 7),
    ),
    story(
        "i23 two commits say that both own it, without an answer that does",
        [23],
        beat(0, 1, "c", 0, 9),
        take(2, 3, "a", 3, "none", 7, request="1.1"),
        take(4, 5, "b", 5, 7, 9, request="2.1"),
    ),
    story(
        "i23 asked for before anybody was told of the change",
        [],
        beat(0, 1, "a", 0, 3, 0),
        take(2, 9, "a", 3, "none", 7),
        beat(3, 5, "b", 0, 5, 0),
    ),
    story(
        "i23 a repeat is told what the first one did",
        [],
        beat(0, 1, "a", 0, 3, 0),
        take(2, 3, "a", 3, "none", 7, "unknown", request="1.1"),
        beat(4, 5, "b", 0, 5, 0),
        take(6, 7, "a", 3, "none", 7, request="1.1"),
    ),
    story(
        "i21 a member took by itself what a transaction says that was refused",
        [],
        commit(1, 2, "y", how="fail", offsets=[step("none", 5)]),
        beat(2, 3, "a", 0, 3, 0),
        take(4, 5, "a", 3, "none", 5, "unknown"),
        commit(6, 7, "x", offsets=[step(5, 8)]),
    ),
    story(
        "i23 another step of the transaction is no repeat",
        [23],
        beat(0, 1, "a", 0, 3, 0),
        take(2, 3, "a", 3, "none", 7, "unknown", request="1.1"),
        beat(4, 5, "b", 0, 5, 0),
        take(6, 7, "a", 3, 7, 8, request="1.1"),
    ),
    story(
        "i23 what was committed already took nothing now",
        [],
        beat(0, 1, "b", 0, 5, 0),
        op(
            "take_offsets",
            2,
            3,
            {"already_committed": True},
            group="g",
            member="a",
            generation=3,
            request="1.1",
            offsets=[{"topic": "in", "partition": 0, "from": "none", "to": 5}],
        ),
    ),
    story(
        "i23 of a member that was refused",
        [23],
        beat(0, 1, "a", 3, "UNKNOWN_MEMBER"),
        take(2, 3, "a", 3, "none", 7),
    ),
    story(
        "i23 of a member that is refused meanwhile",
        [],
        take(0, 3, "a", 3, "none", 7),
        beat(1, 2, "a", 3, "UNKNOWN_MEMBER"),
    ),
    story(
        "i23 of an instance that was fenced",
        [23],
        beat(0, 1, "a", 3, "FENCED_INSTANCE", instance="i"),
        take(2, 3, "a", 3, "none", 7),
    ),
    story(
        "i23 of a member that has left",
        [23],
        beat(0, 1, "a", 0, 3, 0),
        beat(2, 3, "a", 3, 4, leaving=True),
        take(4, 5, "a", 3, "none", 7),
    ),
    story(
        "i23 its farewell came before its join",
        [],
        beat(0, 1, "a", 0, 1, leaving=True),
        beat(2, 3, "a", 0, 3, 0),
        take(4, 5, "a", 3, "none", 7),
    ),
    story(
        "i23 of nobody, beside a member",
        [23],
        beat(0, 1, "a", 0, 3),
        take(2, 3, "", 0, "none", 7),
        beat(4, 5, "a", 3, 3),
    ),
    story(
        "i23 of nobody, before the member joins and after it left",
        [],
        take(0, 1, "", 0, "none", 7),
        beat(2, 3, "a", 0, 3),
        beat(4, 5, "a", 3, 4, leaving=True),
        take(6, 7, "", 0, 7, 8),
    ),
    story(
        "i23 of nobody, where the member may be dead",
        [],
        beat(0, 1, "a", 0, 3),
        take(6, 7, "", 0, "none", 8),
        beat(8, 9, "a", 3, "UNKNOWN_MEMBER"),
    ),
    story(
        "i23 the same step of nobody, by another one, is answered again",
        [],
        take(0, 1, "", 0, "none", 7),
        beat(2, 3, "a", 0, 3),
        take(4, 5, "", 0, "none", 7),
        beat(6, 7, "a", 3, 3),
    ),
    story(
        "i23 two members take one step",
        [23],
        take(0, 1, "a", 3, "none", 7),
        take(2, 3, "b", 5, "none", 7),
    ),
    story(
        "i23 two members take a part of one step",
        [23],
        take(0, 1, "a", 3, "none", 7),
        take(2, 3, "b", 5, 5, 9),
    ),
    story(
        "i23 signs of life cover nothing",
        [],
        take(0, 1, "a", 3, "none", 7),
        take(2, 3, "a", 3, 7, 7),
        take(4, 5, "b", 5, 7, 9),
        take(6, 7, "b", 5, 9, 9),
    ),
    story(
        "i23 back, after a seek",
        [],
        take(0, 1, "a", 3, "none", 7),
        take(2, 3, "a", 3, "any", 2),
        take(4, 5, "a", 3, 2, 9),
    ),
    story(
        "i23 an operator sets an empty group back, and it is read again",
        [],
        beat(0, 1, "a", 0, 3, 0),
        take(2, 3, "a", 3, "none", 10),
        beat(4, 5, "a", 3, 4, leaving=True),
        take(6, 7, "", 0, 10, 0),
        beat(8, 9, "b", 0, 6, 0),
        take(10, 11, "b", 6, 0, 10),
    ),
    story(
        "i23 a member commits less than it did, and goes on",
        [],
        take(0, 1, "a", 3, "none", 10),
        take(2, 3, "a", 3, 10, 5),
        take(4, 5, "a", 3, 5, 10),
    ),
    story(
        "i23 set back by what was not answered",
        [],
        take(0, 1, "a", 3, "none", 10),
        take(2, 3, "a", 3, 10, 5, "unknown", request="1.1"),
        take(4, 5, "b", 5, 5, 10),
    ),
    story(
        "i23 two members take one step, before one of them goes back",
        [23],
        take(0, 1, "a", 3, "none", 7),
        take(2, 3, "b", 5, "none", 7),
        take(4, 5, "b", 5, 7, 2),
        take(6, 7, "b", 5, 2, 7),
    ),
    story(
        "i23 two members take one step, after one of them went back",
        [23],
        take(0, 1, "a", 3, "none", 9),
        take(2, 3, "a", 3, 9, 2),
        take(4, 5, "a", 3, 2, 7),
        take(6, 7, "b", 5, 2, 7),
    ),
    story(
        "i23 given after another one was told",
        [23],
        beat(0, 1, "a", 0, 3, 0),
        beat(2, 3, "b", 0, 5, 0),
        FED,
        given(4, 5, "a", 3),
    ),
    story(
        "i23 given before another one was told",
        [],
        beat(0, 1, "a", 0, 3, 0),
        beat(2, 9, "b", 0, 5, 0),
        FED,
        given(4, 5, "a", 3),
    ),
    story(
        "i23 given when it was got again",
        [],
        beat(0, 1, "a", 0, 3, 0),
        beat(2, 3, "b", 0, 5, 0),
        beat(4, 5, "a", 3, 7, 0),
        FED,
        given(6, 7, "a", 7),
    ),
    story(
        "i23 an instance that replaces itself",
        [],
        beat(0, 1, "a", 0, 3, 0, instance="i"),
        beat(2, 3, "b", 0, 5, 0, instance="i"),
        FED,
        given(4, 5, "a", 3),
    ),
    story(
        "i23 what a replaced instance had is a third one's",
        [],
        beat(0, 1, "a", 0, 3, 0, instance="i"),
        beat(2, 3, "b", 0, 5, instance="i"),
        beat(3, 4, "c", 0, 6, 0, instance="j"),
        FED,
        given(5, 6, "a", 3),
    ),
    story(
        "i23 an instance is replaced by who asked first and joined last",
        [],
        beat(0, 4, "b", 0, 5, instance="i"),
        beat(1, 2, "a", 0, 3, 0, instance="i"),
        beat(4, 5, "c", 0, 6, 0, instance="j"),
        FED,
        given(6, 7, "a", 3),
    ),
    story(
        "i23 who replaced an instance is given what a third one was told it has",
        [23],
        beat(0, 1, "a", 0, 3, 0, instance="i"),
        beat(2, 3, "b", 0, 5, 0, instance="i"),
        beat(4, 5, "c", 0, 6, 0, instance="j"),
        FED,
        given(6, 7, "b", 5),
    ),
    story(
        "i23 an operator took it out",
        [],
        beat(0, 1, "a", 0, 3, 0),
        op("remove_member", 1, 2, group="g"),
        beat(2, 3, "b", 0, 5, 0),
        FED,
        given(4, 5, "a", 3),
    ),
]


@pytest.mark.parametrize(("broken", "ops"), GROUPS)
def test_a_story_breaks_what_it_says_and_nothing_else(broken: list[int], ops: Sequence[Op]) -> None:
    report = judge(*ops)
    assert report.invariants() == broken, str(report)
