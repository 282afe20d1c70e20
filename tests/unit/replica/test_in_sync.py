"""The book of one leader epoch: what is asked of etcd, when, and what goes on without it. What is
lost where a rule is broken is shown by the explorer."""

from __future__ import annotations

import pytest

from oncelog_server.core.ids import Incarnation
from oncelog_server.runtime.replica.in_sync import REPLICA_SILENT_MS, InSync, IsrChange, Why
from oncelog_server.runtime.target import Assignment

A, B, C = (Incarnation(name * 16) for name in (b"a", b"b", b"c"))
A_OLD, B_NEW = Incarnation(b"0" * 16), Incarnation(b"n" * 16)
LAG_MS = 10_000


def book(
    *isr: Incarnation,
    min_insync_replicas: int = 2,
    epoch_start: int = 5,
    assignment: Assignment | None = None,
) -> InSync:
    """Of `a`, in epoch 3; the key is at revision 7."""
    return InSync(
        own=A,
        node="a",
        epoch=3,
        epoch_start=epoch_start,
        isr=isr,
        revision=7,
        min_insync_replicas=min_insync_replicas,
        replica_lag_ms=LAG_MS,
        now_ms=0,
        assignment=assignment,
    )


def ack(book: InSync, who: Incarnation, end: int, now_ms: int = 0, *, node: str = "") -> bool:
    return book.acknowledged(
        who, node=node or who[:1].decode(), epoch=3, synced_end=end, now_ms=now_ms
    )


def test_i25_the_high_watermark_is_the_minimum_over_those_that_count() -> None:
    of_a = book(A, B, C)
    assert not of_a.synced(9, now_ms=0)
    assert not ack(of_a, B, 8)
    assert ack(of_a, C, 7)
    assert (of_a.high_watermark, of_a.passed_epoch_start) == (7, True)
    assert ack(of_a, C, 9)
    assert of_a.high_watermark == 8


def test_a_lone_leader_counts_itself() -> None:
    of_a = book(A, min_insync_replicas=1)
    assert of_a.synced(6, now_ms=0)
    assert (of_a.high_watermark, of_a.has_enough(LAG_MS * 9)) == (6, True)


def test_i25_a_replica_that_joins_moves_the_high_watermark_once_it_is_a_member() -> None:
    of_a = book(A)
    of_a.synced(6, now_ms=0)
    assert not of_a.has_enough(0), "one node is too few"
    assert not ack(of_a, B, 6)
    change = of_a.next_change(0)
    assert change == IsrChange((A, B), Why.JOIN, B)
    of_a.change_sent(change, compared_revision=7)
    assert of_a.high_watermark == 0
    assert of_a.state_seen(8, (A, B))
    assert (of_a.high_watermark, of_a.has_enough(0), of_a.next_change(0)) == (6, True, None)


def test_a_dead_member_does_not_keep_another_one_from_joining() -> None:
    """EPOCH_START is not covered, and never will be while the dead one counts."""
    of_a = book(A, B)
    of_a.synced(6, now_ms=0)
    ack(of_a, C, 6)
    join = of_a.next_change(0)
    assert join == IsrChange((A, B, C), Why.JOIN, C)
    of_a.change_sent(join, compared_revision=7)
    of_a.state_seen(8, join.isr)
    late = LAG_MS + 1
    ack(of_a, C, 6, late)
    leave = of_a.next_change(late)
    assert leave == IsrChange((A, C), Why.LAGS, B)
    of_a.change_sent(leave, compared_revision=8)
    assert not of_a.passed_epoch_start, "until it is confirmed, the dead one counts"
    assert of_a.state_seen(9, leave.isr)
    assert of_a.passed_epoch_start


def test_who_has_no_dialog_is_given_up_sooner_than_who_lags() -> None:
    """After an election the dead leader is a member of the ISR still, and holds up every write."""
    of_a = book(A, B, C)
    of_a.synced(6, now_ms=0)
    of_a.opened(C, node="c", now_ms=0)
    ack(of_a, C, 6)
    assert of_a.next_change(REPLICA_SILENT_MS) is None
    assert of_a.next_change(REPLICA_SILENT_MS + 1) == IsrChange((A, C), Why.LAGS, B)
    of_a.opened(B, node="b", now_ms=0)
    assert of_a.next_change(REPLICA_SILENT_MS + 1) is None, "it may yet have everything"
    ack(of_a, B, 6)
    of_a.closed(C, now_ms=LAG_MS // 2)
    silent = LAG_MS // 2 + REPLICA_SILENT_MS
    assert of_a.next_change(silent) is None
    assert of_a.next_change(silent + 1) == IsrChange((A, B), Why.LAGS, C)
    of_a.opened(C, node="c", now_ms=0)
    assert of_a.next_change(silent + 1) is None


def test_who_has_no_process_is_given_up_at_once() -> None:
    """After an election the leader that died holds up every write. Etcd shows that its node has no
    process; which member it was is known once all others have begun their dialogs."""
    of_a = book(A, B, C, assignment=Assignment(("a", "b", "c")))
    of_a.synced(6, now_ms=0)
    assert of_a.next_change(0, living={"a", "c"}) is None, "b or c may be the one that lives"
    of_a.opened(C, node="c", now_ms=0)
    ack(of_a, C, 6)
    assert of_a.next_change(0) is None, "nobody says who lives"
    assert of_a.next_change(0, living={"a", "b", "c"}) is None, "it lives, and may begin"
    assert of_a.next_change(0, living={"a", "c"}) == IsrChange((A, C), Why.GONE, B)
    of_a.opened(B, node="b", now_ms=0)
    assert of_a.next_change(0, living={"a", "c"}) is None, "a dialog is a sign of life"
    ack(of_a, B, 6)
    of_a.closed(B, now_ms=1)
    assert of_a.next_change(1, living={"a", "b", "c"}) is None
    assert of_a.next_change(1, living={"a", "c"}) == IsrChange((A, C), Why.GONE, B)


def test_who_has_no_process_stays_where_too_few_would_be_left() -> None:
    of_a = book(A, B, assignment=Assignment(("a", "b")))
    of_a.synced(6, now_ms=0)
    assert of_a.next_change(0, living={"a"}) is None
    of_a = book(A, B, C, assignment=Assignment(("a", "b", "c")))
    of_a.synced(6, now_ms=0)
    assert of_a.next_change(0, living={"a"}) is None, "nobody beside the leader has said anything"


def test_the_isr_never_shrinks_below_the_least_and_writes_are_refused_there() -> None:
    of_a = book(A, B, C)
    for who in (B, C):
        ack(of_a, who, 6)
    of_a.synced(9, now_ms=0)
    late = LAG_MS + 1
    ack(of_a, B, 9, late)
    assert of_a.next_change(late) == IsrChange((A, B), Why.LAGS, C)
    assert of_a.has_enough(late)
    of_a.state_seen(8, (A, B))
    of_a.synced(12, now_ms=late)
    later = late + LAG_MS + 1
    assert of_a.next_change(later) is None, "b is the last one beside the leader"
    assert not of_a.has_enough(later), "nobody would acknowledge it: refused before any append"
    ack(of_a, B, 12, later)
    assert of_a.has_enough(later)


def test_who_has_everything_may_be_silent_and_lags_from_the_moment_in_which_there_is_more() -> None:
    of_a = book(A, B)
    of_a.synced(6, now_ms=0)
    of_a.opened(B, node="b", now_ms=0)
    ack(of_a, B, 6)
    more = 9 * LAG_MS
    assert of_a.has_enough(more), "nothing is missing there, and its dialog stands"
    assert of_a.keeping_up(more) == {"b"}
    of_a.synced(7, now_ms=more)
    assert of_a.has_enough(more + LAG_MS), "it has as long as anybody to sync it"
    assert not of_a.has_enough(more + LAG_MS + 1)
    ack(of_a, B, 7, more + LAG_MS + 2)
    assert of_a.has_enough(20 * LAG_MS)


def test_who_had_everything_is_given_up_like_anybody_once_its_dialog_ends() -> None:
    of_a = book(A, B, C)
    of_a.synced(6, now_ms=0)
    say(of_a, B, C)
    gone = 9 * LAG_MS
    of_a.closed(C, now_ms=gone)
    assert of_a.next_change(gone + REPLICA_SILENT_MS) is None
    change = of_a.next_change(gone + REPLICA_SILENT_MS + 1)
    assert change == IsrChange((A, B), Why.LAGS, C)


def test_who_begins_its_dialog_anew_must_say_again_that_it_has_everything() -> None:
    of_a = book(A, B)
    of_a.synced(6, now_ms=0)
    say(of_a, B)
    again = 9 * LAG_MS
    of_a.opened(B, node="b", now_ms=again)
    assert of_a.has_enough(again + LAG_MS)
    assert not of_a.has_enough(again + LAG_MS + 1), "it may have been cut"


def test_i29_a_leader_rests_only_while_no_change_can_become_due_by_itself() -> None:
    of_a = book(A, B, assignment=Assignment(("a", "b", "c")))
    rests = []

    def then(what: str) -> None:
        rests.append((what, of_a.is_at_rest))

    of_a.synced(6, now_ms=0)
    then("b has no dialog")
    say(of_a, B)
    then("c is nowhere: should it come, it begins a dialog")
    of_a.opened(C, node="c", now_ms=0)
    then("c is about to join")
    ack(of_a, C, 6)
    join = of_a.next_change(0)
    assert join is not None
    of_a.state_seen(8, join.isr)
    then("c has joined")
    of_a.change_sent(IsrChange(join.isr, Why.SETTLE, A), compared_revision=8)
    then("the answer to a change may be lost")
    of_a.state_seen(9, join.isr)
    of_a.synced(7, now_ms=0)
    then("they may lag")
    say(of_a, B, C, end=7)
    then("they have everything")
    of_a.state_seen(10, join.isr, Assignment(("a", "b", "c"), ("d",), ("a", "b", "d")))
    then("its replicas move")
    of_a.state_seen(11, join.isr, Assignment(("a", "b", "c")))
    then("they do not move any more")
    of_a.closed(B, now_ms=1)
    then("b is given up in a moment")
    assert [what for what, is_at_rest in rests if is_at_rest] == [
        "c is nowhere: should it come, it begins a dialog",
        "c has joined",
        "they have everything",
        "they do not move any more",
    ]


def test_two_incarnations_are_one_node() -> None:
    of_a = book(A, B)
    of_a.synced(6, now_ms=0)
    ack(of_a, B, 6)
    of_a.opened(B_NEW, node="b", now_ms=0)
    ack(of_a, B_NEW, 6, node="b")
    join = of_a.next_change(0)
    assert join == IsrChange((A, B, B_NEW), Why.JOIN, B_NEW)
    of_a.state_seen(8, join.isr)
    assert of_a.next_change(0) == IsrChange((A, B_NEW), Why.REPLACED, B)
    # Without b's new incarnation there would be one node, however many incarnations.
    late = LAG_MS + 1
    ack(of_a, B, 6, late)
    change = of_a.next_change(late)
    assert change is not None
    assert change.who == B


def test_what_a_node_was_before_does_not_join_again() -> None:
    of_a = book(A)
    of_a.synced(6, now_ms=0)
    of_a.opened(B_NEW, node="b", now_ms=0)
    ack(of_a, B, 6)
    assert of_a.next_change(0) is None
    ack(of_a, B_NEW, 6, node="b")
    assert of_a.next_change(0) == IsrChange((A, B_NEW), Why.JOIN, B_NEW)


def test_a_leader_drops_its_own_older_incarnation() -> None:
    of_a = book(A, A_OLD, B)
    of_a.synced(6, now_ms=0)
    late = LAG_MS + 1
    assert of_a.next_change(late) is None, "nobody knows yet which node is left"
    ack(of_a, B, 6, late)
    assert of_a.next_change(late) == IsrChange((A, B), Why.LAGS, A_OLD)
    assert of_a.state_seen(8, (A, B))
    assert of_a.high_watermark == 6


def test_a_change_whose_answer_was_lost_is_settled() -> None:
    of_a = book(A, B)
    of_a.synced(6, now_ms=0)
    ack(of_a, B, 6)
    ack(of_a, C, 6)
    join = of_a.next_change(0)
    assert join is not None
    of_a.change_sent(join, compared_revision=7)
    late = LAG_MS + 1
    ack(of_a, B, 9, late)
    of_a.synced(9, now_ms=0)
    assert of_a.high_watermark == 6, "c may be a member by now, and is gone"
    assert not of_a.state_seen(7, (A, B)), "the same revision proves nothing"
    settle = of_a.next_change(late)
    assert settle == IsrChange((A, B), Why.SETTLE, A)
    of_a.change_sent(settle, compared_revision=7)
    assert [change.compared_revision for change in of_a.in_flight] == [7, 7]
    assert of_a.state_seen(8, (A, B))
    assert not of_a.in_flight
    assert (of_a.high_watermark, of_a.next_change(late)) == (9, None)


def test_under_steady_load_who_has_what_there_was_a_while_ago_keeps_up() -> None:
    of_a = book(A, B)
    end = 6
    for now_ms in range(0, LAG_MS * 4, LAG_MS // 2):
        ack(of_a, B, end, now_ms)
        end += 10
        of_a.synced(end, now_ms=0)
    assert of_a.has_enough(now_ms)
    # It still acknowledges, and comes no nearer.
    for later in range(now_ms, now_ms + LAG_MS * 2, LAG_MS // 2):
        ack(of_a, B, end - 50, later)
    assert not of_a.has_enough(later)


@pytest.mark.parametrize(("epoch", "node"), [(2, "b"), (4, "b"), (3, "a")])
def test_i5_what_another_epoch_or_the_own_node_acknowledges_counts_for_nothing(
    epoch: int, node: str
) -> None:
    of_a = book(A, B)
    of_a.synced(6, now_ms=0)
    assert not of_a.acknowledged(B, node=node, epoch=epoch, synced_end=9, now_ms=0)
    assert of_a.progress(B) is None


def test_who_is_about_to_stop_is_dropped_while_it_acknowledges() -> None:
    of_a = book(A, B, C)
    of_a.synced(6, now_ms=0)
    ack(of_a, B, 6)
    ack(of_a, C, 6)
    assert of_a.next_change(0) is None
    assert of_a.next_change(0, leaving={"b"}) == IsrChange((A, C), Why.LEAVES, B)
    assert of_a.keeping_up(0) == {"b", "c"}


def test_i25_nobody_leaves_where_too_few_would_be_left() -> None:
    of_a = book(A, B)
    of_a.synced(6, now_ms=0)
    ack(of_a, B, 6)
    assert of_a.next_change(0, leaving={"b"}) is None


def test_who_is_about_to_stop_does_not_join() -> None:
    of_a = book(A, B)
    of_a.synced(6, now_ms=0)
    ack(of_a, B, 6)
    ack(of_a, C, 6)
    assert of_a.next_change(0, leaving={"c"}) is None
    assert of_a.next_change(0) == IsrChange((A, B, C), Why.JOIN, C)


def test_who_has_gone_does_not_join_again_on_what_it_acknowledged_before() -> None:
    of_a = book(A, B)
    of_a.synced(6, now_ms=0)
    ack(of_a, B, 6)
    ack(of_a, C, 6)
    of_a.closed(C, now_ms=1)
    assert of_a.next_change(2) is None
    of_a.opened(C, node="c", now_ms=0)
    assert of_a.next_change(3) == IsrChange((A, B, C), Why.JOIN, C)


def test_of_two_that_go_the_one_that_acknowledges_nothing_goes_first() -> None:
    of_a = book(A, B, C)
    of_a.synced(6, now_ms=0)
    later_ms = REPLICA_SILENT_MS + 1
    ack(of_a, B, 6, later_ms)
    assert of_a.next_change(later_ms, leaving={"b"}) == IsrChange((A, B), Why.LAGS, C)


# ------------------------------------------------------------------------------ moving replicas


def say(book: InSync, *who: Incarnation, end: int = 6, now_ms: int = 0) -> None:
    """They begin a dialog, and have everything below `end`."""
    for one in who:
        book.opened(one, node=one[:1].decode(), now_ms=0)
        ack(book, one, end, now_ms)


def test_a_copy_that_is_added_stops_no_writes() -> None:
    """From one replica to three."""
    of_a = book(A, assignment=Assignment(("a",)))
    of_a.synced(6, now_ms=0)
    assert of_a.min_insync_replicas == 1
    of_a.state_seen(8, (A,), Assignment(("a", "b", "c"), ("b", "c"), ("a", "b", "c")))
    of_a.synced(7, now_ms=0)
    assert (of_a.high_watermark, of_a.has_enough(0)) == (7, True), "b and c have nothing yet"
    say(of_a, B, end=7)
    assert of_a.next_change(0) == IsrChange((A, B), Why.JOIN, B)
    of_a.state_seen(9, (A, B))
    assert of_a.next_change(0) is None, "c is not there"
    say(of_a, C, end=7)
    of_a.state_seen(10, (A, B, C))
    there = Assignment(("a", "b", "c"))
    assert of_a.next_change(0) == IsrChange((A, B, C), Why.MOVED, A, there)
    of_a.state_seen(11, (A, B, C), there)
    assert (of_a.min_insync_replicas, of_a.next_change(0)) == (2, None)


def test_i5_a_move_ends_when_every_wanted_node_has_a_member() -> None:
    moving = Assignment(("a", "b", "c"), ("c",), ("a", "c"))
    of_a = book(A, B, assignment=moving)
    of_a.synced(6, now_ms=0)
    say(of_a, B)
    assert of_a.next_change(0) is None, "c is no member yet, and b is needed"
    say(of_a, C)
    of_a.state_seen(8, (A, B, C))
    moved = of_a.next_change(0)
    assert moved == IsrChange((A, C), Why.MOVED, A, Assignment(("a", "c")))
    of_a.change_sent(moved, compared_revision=8)
    of_a.synced(9, now_ms=0)
    ack(of_a, C, 9)
    assert of_a.high_watermark == 6, "who leaves counts until that is confirmed"
    assert of_a.state_seen(9, (A, C), Assignment(("a", "c")))
    assert of_a.high_watermark == 9


def test_a_move_does_not_end_with_a_node_that_died() -> None:
    of_a = book(A, B, C, assignment=Assignment(("a", "b", "c"), ("c",), ("a", "c")))
    of_a.synced(6, now_ms=0)
    say(of_a, B, C)
    of_a.synced(9, now_ms=0)
    late = LAG_MS + 1
    ack(of_a, B, 9, late)
    change = of_a.next_change(late)
    assert change == IsrChange((A, B), Why.LAGS, C)


def test_a_leader_that_is_not_wanted_ends_the_move_without_itself() -> None:
    of_a = book(A, B, C, assignment=Assignment(("a", "b", "c"), (), ("c", "b")))
    of_a.synced(6, now_ms=0)
    say(of_a, B, C)
    assert of_a.next_change(0) == IsrChange((B, C), Why.MOVED, A, Assignment(("c", "b")))


def test_i5_who_was_moved_away_does_not_join_again() -> None:
    of_a = book(A, B, C, assignment=Assignment(("a", "b", "c"), (), ("a", "c")))
    of_a.synced(6, now_ms=0)
    say(of_a, B, C)
    moved = of_a.next_change(0)
    assert moved is not None
    of_a.change_sent(moved, compared_revision=7)
    of_a.state_seen(8, moved.isr, moved.assignment)
    assert not ack(of_a, B, 6)
    assert (of_a.next_change(0), of_a.hears(B, node="b")) == (None, False)


def test_i5_what_was_acknowledged_before_a_move_counts_for_nothing_after_it() -> None:
    """`b` was moved away, has put its log aside, and is wanted again. Etcd shows all of that at
    once: the leader has never seen it without `b`."""
    of_a = book(A, B, C, assignment=Assignment(("a", "b", "c"), (), ("a", "c")))
    of_a.synced(6, now_ms=0)
    say(of_a, B, C)
    moved = of_a.next_change(0)
    assert moved is not None
    of_a.change_sent(moved, compared_revision=7)
    again = Assignment(("a", "c", "b"), ("b",), ("a", "b", "c"))
    of_a.state_seen(9, (A, C), again)
    assert of_a.next_change(0) is None, "its log may be gone"
    assert not ack(of_a, B, 6)
    assert of_a.next_change(0) is None, "it was on its way"
    of_a.opened(B_NEW, node="b", now_ms=0)
    ack(of_a, B_NEW, 6, node="b")
    assert of_a.next_change(0) == IsrChange((A, C, B_NEW), Why.JOIN, B_NEW)


def test_a_move_that_was_called_back_drops_who_was_added() -> None:
    of_a = book(A, B, C, assignment=Assignment(("a", "b", "c"), ("c",), ("a", "b")))
    of_a.synced(6, now_ms=0)
    say(of_a, B, C)
    assert of_a.next_change(0) == IsrChange((A, B), Why.MOVED, A, Assignment(("a", "b")))
