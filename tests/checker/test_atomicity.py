"""Corners of I1 to I7: what each rule must see, and what it must not."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from oncelog.checker.check import VIOLATIONS_MAX
from tests.checker.telling import (
    ID,
    MADE,
    Op,
    abort,
    commit,
    ends,
    judge,
    lookup,
    op,
    plain,
    raw,
    read,
    send,
    settled,
    story,
)

ATOMICITY = [
    story(
        "i1 looked up as aborted",
        [1],
        MADE[0],
        commit(5, 6, "x", ID, how="unknown"),
        lookup(10, 11, "aborted"),
        read(20, 21, [(0, "a")]),
    ),
    story(
        "i1 its abort was answered; the second record",
        [1],
        *MADE,
        abort(5, 6, "x"),
        read(20, 21, [(0, "b")]),
    ),
    story(
        "i1 its commit was refused",
        [1],
        MADE[0],
        commit(5, 6, "x", how="fail"),
        read(20, 21, [(0, "a")]),
    ),
    story(
        "i1 an abort that nobody answered says nothing",
        [],
        MADE[0],
        commit(5, 6, "x", how="unknown"),
        abort(7, 8, "x", how="unknown"),
        read(20, 21, [(0, "a")]),
    ),
    story("i2 nobody ever asked", [2], MADE[0], read(20, 21, [(0, "a")])),
    story(
        "i2 the earliest of two readers counts",
        [2],
        MADE[0],
        commit(50, 60, "x"),
        read(10, 100, [(0, "a")]),
        read(20, 30, [(0, "a")]),
    ),
    story("i3 the rest may come yet", [], *MADE, commit(5, 6, "x"), read(20, 21, [(0, "a")])),
    story(
        "i3 the rest may stand before",
        [],
        *MADE,
        commit(5, 6, "x"),
        plain(7, 8, "c"),
        read(20, 21, [(5, "b"), (6, "c")]),
    ),
    story(
        "i3 torn at the very beginning",
        [3],
        *MADE,
        commit(5, 6, "x"),
        plain(7, 8, "c"),
        read(20, 21, [(0, "b"), (1, "c")]),
    ),
    story(
        "i4 answered as committed, looked up as aborted",
        [4],
        MADE[0],
        commit(5, 6, "x", ID),
        lookup(10, 11, "aborted"),
    ),
    story(
        "i4 answered as aborted, looked up as committed",
        [4],
        MADE[0],
        abort(5, 6, "x", tx_id="7"),
        lookup(10, 11, "committed"),
    ),
    story(
        "i4 looked up as both",
        [4],
        MADE[0],
        commit(5, 6, "x", ID, how="unknown"),
        lookup(10, 11, "committed"),
        lookup(20, 21, "aborted"),
    ),
    story(
        "i4 decided, then ongoing",
        [4],
        MADE[0],
        commit(5, 6, "x", ID, how="unknown"),
        lookup(10, 11, "aborted"),
        lookup(20, 21, "ongoing"),
    ),
    story(
        "i4 expired, then remembered",
        [4],
        MADE[0],
        commit(5, 6, "x", ID, how="unknown"),
        lookup(10, 11, "expired"),
        lookup(20, 21, "committed"),
    ),
    story(
        "i4 ongoing, then committed, then expired",
        [],
        MADE[0],
        commit(5, 6, "x", ID, how="unknown"),
        lookup(2, 3, "ongoing"),
        lookup(10, 11, "committed"),
        lookup(20, 21, "expired"),
    ),
    story(
        "i4 the same commit is refused later",
        [4],
        MADE[0],
        commit(5, 6, "x", ID),
        commit(10, 11, "x", {"reason": "TRANSACTION_ENDED"}, how="fail"),
    ),
    story(
        "i4 refused while another answer is on its way",
        [],
        MADE[0],
        commit(5, 20, "x", ID),
        commit(10, 11, "x", {"reason": "TRANSACTION_ENDED"}, how="fail"),
    ),
    story(
        "i5 an unknown record need not stand", [], plain(0, 9, "a", how="unknown"), ends(10, 11, 0)
    ),
    story(
        "i5 the end was known to be further by a reader",
        [5],
        plain(0, 5, "a"),
        read(10, 20, [(0, "a")]),
        ends(30, 40, 0),
    ),
    story("i5 two listings at one time may differ", [], ends(10, 25, 1), ends(20, 30, 0)),
    story(
        "i5 the journal's end goes back",
        [5],
        ends(10, 11, 5, isolation="uncommitted"),
        ends(20, 21, 3, isolation="uncommitted"),
    ),
    story(
        "i5 not all below the end was read",
        [],
        plain(0, 1, "a"),
        plain(2, 3, "b"),
        read(10, 11, [(0, "a")]),
        ends(20, 21, 2),
    ),
    story(
        "i5 acknowledged while the listing was under way", [], ends(20, 40, 0), plain(25, 30, "a")
    ),
    story("i5 acknowledged after the listing", [], ends(5, 6, 0), plain(10, 20, "a")),
    story(
        "i5 it may stand in the partition that was not read",
        [],
        plain(0, 5, "a", None),
        ends(10, 11, 0, 1),
    ),
    story("i5 committed is not visible yet", [], MADE[0], commit(10, 20, "x"), ends(30, 31, 0)),
    story(
        "i5 settled before the commit says nothing",
        [],
        settled(5),
        MADE[0],
        commit(10, 20, "x"),
        ends(30, 31, 0),
    ),
    story(
        "i5 a lookup said visible",
        [5],
        MADE[0],
        commit(10, 20, "x", ID),
        lookup(21, 22, "committed", visible=True),
        ends(30, 31, 0),
    ),
    story(
        "i5 what was sent after the commit was asked for is not of it",
        [],
        send(15, 16, "x", "a", how="unknown"),
        commit(10, 20, "x", {"visible": True}),
        ends(30, 31, 0),
    ),
    story(
        "i5 a refused record is not of it",
        [],
        send(0, 1, "x", "a", how="fail"),
        commit(10, 20, "x", {"visible": True}),
        ends(30, 31, 0),
    ),
    story(
        "i5 a manifest that counts fewer counts from the first on",
        [5],
        *MADE,
        commit(10, 20, "x", {"visible": True}, manifest=[["t", 0, 0, 1]]),
        ends(30, 31, 0),
    ),
    story(
        "i5 a surplus belongs to nothing, although it was acknowledged",
        [],
        *MADE,
        commit(10, 20, "x", manifest=[["t", 0, 0, 1]]),
        send(21, 22, "x", "c"),
        settled(25),
        read(30, 31, [(0, "a")]),
        ends(32, 33, 1),
    ),
    story(
        "i5 whether one that nobody answered was counted is not known",
        [],
        send(0, 1, "x", "a", how="unknown"),
        MADE[1],
        commit(10, 20, "x", {"visible": True}, manifest=[["t", 0, 0, 1]]),
        ends(30, 31, 0),
    ),
    story(
        "i3 more is shown than its manifest counts",
        [3],
        *MADE,
        commit(10, 20, "x", manifest=[["t", 0, 0, 1]]),
        read(30, 31, [(0, "a"), (1, "b")]),
    ),
    story(
        "i3 of each writer and partition by itself",
        [],
        *MADE,
        send(4, 5, "x", "c", writer=7),
        send(6, 7, "x", "d", partition=1),
        commit(10, 20, "x", manifest=[["t", 0, 0, 2], ["t", 0, 7, 1], ["t", 1, 0, 1]]),
        read(30, 31, [(0, "a"), (1, "b"), (2, "c")]),
        read(32, 33, [(0, "d")], partition=1),
    ),
    story(
        "i5 what an earlier run committed is not this",
        [],
        MADE[0],
        commit(10, 20, "x", {"visible": True, "already_committed": True}),
        ends(30, 31, 0),
    ),
    story(
        "i6 in two partitions",
        [6],
        plain(0, 1, "a", None),
        read(10, 11, [(0, "a")]),
        read(10, 12, [(0, "a")], 1),
    ),
    story("i6 refused and there", [6], plain(0, 1, "a", how="fail"), read(10, 11, [(0, "a")])),
    story("i6 in another partition", [6], plain(0, 1, "a", 1), read(10, 11, [(0, "a")])),
    story(
        "i6 in another topic",
        [6],
        op("produce", 0, 1, topic="u", partition=0, values=["a"]),
        read(10, 11, [(0, "a")]),
    ),
    story("i6 before it was sent", [6], plain(10, 20, "a"), read(3, 5, [(0, "a")])),
    story("i6 a ghost in the journal", [6], raw(10, 11, [[0, "ghost"]])),
    story(
        "i6 exposed elsewhere, the last one",
        [6],
        *MADE,
        plain(25, 26, "c"),
        commit(10, 20, "x", {"visible": True, "exposed": [["t", 0, 0, 3]]}),
        read(30, 31, [(0, "a"), (1, "b"), (2, "c")]),
    ),
    story(
        "i7 two records at one position of the journal",
        [7],
        plain(0, 1, "a"),
        plain(0, 1, "b"),
        raw(10, 11, [[0, "a"]]),
        raw(10, 12, [[0, "b"]]),
    ),
]


@pytest.mark.parametrize(("broken", "ops"), ATOMICITY)
def test_a_story_breaks_what_it_says_and_nothing_else(broken: list[int], ops: Sequence[Op]) -> None:
    report = judge(*ops)
    assert report.invariants() == broken, str(report)


def test_lines_of_several_files_are_put_in_order_of_time() -> None:
    late_first = [
        commit(30, 31, "x", how="unknown"),
        send(0, 1, "x", "a"),
        commit(10, 11, "x", how="unknown"),
        read(20, 21, [(0, "a")]),
    ]
    assert judge(*late_first, sort=False).clean
    marks = [settled(50), settled(5), send(0, 1, "x", "a"), commit(10, 20, "x"), ends(60, 61, 0)]
    assert judge(*marks, sort=False).invariants() == [5]


def test_a_report_shows_the_first_violations_and_counts_the_others() -> None:
    ghosts = [(offset, f"ghost{offset}") for offset in range(VIOLATIONS_MAX + 5)]
    report = judge(read(10, 11, ghosts))
    assert (len(report.violations), report.more) == (VIOLATIONS_MAX, 5)
    assert str(report).endswith("and 5 more")


def test_a_report_counts_what_is_known_of_transactions() -> None:
    report = judge(
        send(0, 1, "silent", "a"),
        commit(5, 6, "unknown", how="unknown"),
        commit(5, 7, "refused", how="fail"),
        commit(5, 8, "told"),
    )
    size = report.size
    assert (size.transactions, size.committed, size.not_committed, size.unknown) == (4, 1, 2, 1)
