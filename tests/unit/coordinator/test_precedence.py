"""Refusals in order of precedence: each row breaks one rule and rules behind it, so a check that
moves fails here."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from oncelog_server.coordinator.commands import (
    ELSEWHERE,
    AbortTransaction,
    AnswerOffsets,
    BeginAnswer,
    BeginResult,
    BeginTransaction,
    CommitTransaction,
    InitProducer,
    MarkersAnswered,
    ProducerIdentity,
    Transact,
)
from oncelog_server.coordinator.values import (
    CommitSeq,
    Manifest,
    OneShotBatch,
    OneShotOffsets,
    Refusal,
    TopicParts,
)
from oncelog_server.core.ids import Generation, ProducerId, TxId
from oncelogpb.errors import UnknownTopic
from tests.unit.coordinator.world import (
    A0,
    A1,
    BATCHES,
    INSTANCE,
    OFFSETS,
    OLD_INSTANCE,
    PARTS,
    World,
    said,
)

SEQ, OLD_SEQ, NEXT_SEQ = CommitSeq("q", 5), CommitSeq("q", 4), CommitSeq("q", 6)
OTHER_PARTS = Manifest((TopicParts(A0.topic_id, (0,), (0,), (2,)),))
WITH_OFFSETS = OneShotOffsets("group", b"")
STRANGER = ProducerIdentity(ProducerId(9_999), Generation(1))
NO = Refusal("STALE_POSITION", "no", {})
UNFIT = UnknownTopic("the topic is gone")
TOO_LONG_MS = 10**9


# --------------------------------------------------------------------------------- InitProducer


@pytest.mark.parametrize(
    ("instance_id", "expected"),
    [
        (INSTANCE, "ProducerGranted"),
        (OLD_INSTANCE, "PRODUCER_FENCED"),
        (b"another.........", "ProducerGranted"),
    ],
)
def test_init_by_instance(instance_id: bytes, expected: str) -> None:
    assert said(World().ask(InitProducer("g", "p", instance_id))) == expected


def test_of_replaced_instances_the_latest_are_remembered() -> None:
    """A late duplicate comes from a recent one; what is older than the limit takes over again."""
    world = World(replaced_instances_max=2)
    instances = [b"%16d" % number for number in range(4)]
    for instance in instances:
        world.init(instance)
    for recent in instances[1:3]:
        assert said(world.ask(InitProducer("g", "p", recent))) == "PRODUCER_FENCED"
    assert said(world.ask(InitProducer("g", "p", instances[0]))) == "ProducerGranted"


def test_init_beyond_producers_max() -> None:
    world = World(producers_max=1)
    refusal = world.ask(InitProducer("g", "another", INSTANCE))
    assert said(refusal) == "LIMIT_EXCEEDED"
    assert refusal.metadata == {"limit": "producers_max"}
    assert said(world.ask(InitProducer("g", "p", INSTANCE))) == "ProducerGranted"


# ---------------------------------------------------------------------------- BeginTransaction


def begin_unknown(world: World) -> BeginTransaction:
    world.commit(world.begin(5), SEQ)
    return BeginTransaction(STRANGER, 1, TOO_LONG_MS, SEQ)


def begin_fenced(world: World) -> BeginTransaction:
    world.commit(world.begin(5), SEQ)
    return BeginTransaction(world.old, 1, TOO_LONG_MS, SEQ)


def begin_known(world: World) -> BeginTransaction:
    world.commit(world.begin(5), SEQ)
    return BeginTransaction(world.who, 5, TOO_LONG_MS, SEQ, (), UNFIT)


def begin_stale(world: World) -> BeginTransaction:
    world.commit(world.begin(5), SEQ)
    return BeginTransaction(world.who, 4, TOO_LONG_MS, SEQ)


def begin_timeout(world: World) -> BeginTransaction:
    world.commit(world.begin(5), SEQ)
    world.begin(6)
    return BeginTransaction(world.who, 7, TOO_LONG_MS, NEXT_SEQ, (), UNFIT)


def begin_committed(world: World) -> BeginTransaction:
    world.commit(world.begin(5), SEQ)
    world.begin(6)
    return BeginTransaction(world.who, 7, TOO_LONG_MS, SEQ, (), UNFIT)


def begin_unfit(world: World) -> BeginTransaction:
    world.commit(world.begin(5), SEQ)
    world.begin(6)
    return BeginTransaction(world.who, 7, 0, NEXT_SEQ, (), UNFIT)


def begin_concurrent(world: World) -> BeginTransaction:
    world.commit(world.begin(5), SEQ)
    world.begin(6)
    return BeginTransaction(world.who, 7, 0, NEXT_SEQ)


def begin_staged(world: World) -> BeginTransaction:
    world.transact(Transact(world.who, 1, BATCHES, WITH_OFFSETS))
    return BeginTransaction(world.who, 7)


def begin_limit(world: World) -> BeginTransaction:
    other = world.init(INSTANCE, "other")
    assert said(world.ask(BeginTransaction(other, 1))) == "BeginAnswer"
    return BeginTransaction(world.who, 7)


@pytest.mark.parametrize(
    ("story", "expected"),
    [
        (begin_unknown, "UNKNOWN_PRODUCER"),
        (begin_fenced, "PRODUCER_FENCED"),
        (begin_known, "BeginAnswer committed"),
        (begin_stale, "STALE_REQUEST_ID"),
        (begin_committed, "BeginAnswer already committed"),
        (begin_timeout, "INVALID_TIMEOUT"),
        (begin_unfit, "UNKNOWN_TOPIC"),
        (begin_concurrent, "CONCURRENT_TRANSACTION"),
        (begin_staged, "CONCURRENT_TRANSACTION"),
        (begin_limit, "LIMIT_EXCEEDED"),
    ],
)
def test_begin_in_order(story: Callable[[World], BeginTransaction], expected: str) -> None:
    world = World(open_transactions_max=1)
    answer = world.ask(story(world))
    told = f" {answer.result.value}" if isinstance(answer, BeginAnswer) else ""
    assert said(answer) + told == expected


# --------------------------------------------------------------------------- CommitTransaction


def commit_mismatch(world: World) -> CommitTransaction:
    tx_id = world.commit(world.begin())
    return CommitTransaction(tx_id, world.old, OTHER_PARTS)


def commit_same(world: World) -> CommitTransaction:
    tx_id = world.commit(world.begin())
    world.init(b"third...........")
    return CommitTransaction(tx_id, world.who, PARTS, unfit=UNFIT)


def commit_other_manifest(world: World) -> CommitTransaction:
    return CommitTransaction(world.commit(world.begin()), world.who, OTHER_PARTS)


def commit_other_manifest_of_a_seq(world: World) -> CommitTransaction:
    return CommitTransaction(world.commit(world.begin(), SEQ), world.who, OTHER_PARTS, SEQ)


def commit_fenced(world: World) -> CommitTransaction:
    tx_id = world.begin()
    world.init(b"third...........")
    return CommitTransaction(tx_id, world.who, PARTS)


def commit_aborted(world: World) -> CommitTransaction:
    tx_id = world.begin(commit_seq=SEQ)
    world.ask(AbortTransaction(tx_id, world.who))
    return CommitTransaction(tx_id, world.who, PARTS, NEXT_SEQ)


def commit_staged(world: World) -> CommitTransaction:
    tx_id = world.transact(Transact(world.who, 1, BATCHES, WITH_OFFSETS))
    return CommitTransaction(tx_id, world.who, PARTS, SEQ)


def commit_contradicts(world: World) -> CommitTransaction:
    world.commit(world.begin(), SEQ)
    tx_id = world.begin(6, commit_seq=NEXT_SEQ, parts=(OFFSETS,))
    return CommitTransaction(tx_id, world.who, PARTS, OLD_SEQ)


def commit_again(world: World) -> CommitTransaction:
    world.commit(world.begin(), SEQ)
    tx_id = world.begin(6, parts=(OFFSETS,))
    return CommitTransaction(tx_id, world.who, PARTS, OLD_SEQ, unfit=UNFIT)


def commit_unfit(world: World) -> CommitTransaction:
    return CommitTransaction(world.begin(parts=(A0, OFFSETS)), world.who, PARTS, unfit=UNFIT)


def commit_duplicate(world: World) -> CommitTransaction:
    world.commit(world.begin(), SEQ)
    tx_id = world.begin(6, parts=(OFFSETS,))
    return CommitTransaction(tx_id, world.who, OTHER_PARTS, SEQ)


def commit_without_offsets(world: World) -> CommitTransaction:
    return CommitTransaction(world.begin(parts=(A0, OFFSETS)), world.who, PARTS, SEQ)


def commit_good(world: World) -> CommitTransaction:
    return CommitTransaction(world.begin(parts=(A0, A1)), world.who, PARTS, SEQ)


@pytest.mark.parametrize(
    ("story", "expected"),
    [
        (commit_mismatch, "PRODUCER_MISMATCH"),
        (commit_same, "CommitAnswer"),
        (commit_other_manifest, "MANIFEST_MISMATCH"),
        (commit_other_manifest_of_a_seq, "DUPLICATE_COMMIT_SEQ"),
        (commit_fenced, "PRODUCER_FENCED"),
        (commit_aborted, "TRANSACTION_ENDED"),
        (commit_staged, "CONCURRENT_TRANSACTION"),
        (commit_contradicts, "INVALID_ARGUMENT"),
        (commit_again, "CommitAnswer"),
        (commit_duplicate, "DUPLICATE_COMMIT_SEQ"),
        (commit_unfit, "UNKNOWN_TOPIC"),
        (commit_without_offsets, "MANIFEST_MISMATCH"),
        (commit_good, "CommitAnswer"),
    ],
)
def test_commit_in_order(story: Callable[[World], CommitTransaction], expected: str) -> None:
    world = World()
    command = story(world)
    end = world.host.log_end
    assert said(world.ask(command)) == expected
    # Only the good one changed anything.
    assert (world.host.log_end > end) == (story is commit_good)


def test_an_abort_that_is_known_is_told_again_whatever_became_of_its_topics() -> None:
    world = World()
    tx_id = world.begin()
    unfit = AbortTransaction(tx_id, world.who, unfit=UNFIT)
    assert said(world.ask(unfit)) == "UNKNOWN_TOPIC"
    world.ask(AbortTransaction(tx_id, world.who))
    assert said(world.ask(unfit)) == "AbortAnswer"


def test_commit_of_what_is_not_kept_is_looked_up_elsewhere() -> None:
    world = World()
    assert world.ask(CommitTransaction(TxId(1), world.who, PARTS)) is ELSEWHERE
    assert world.ask(AbortTransaction(TxId(1), None)) is ELSEWHERE


# ------------------------------------------------------------------------------------ Transact


def transact_unknown(world: World) -> Transact:
    return Transact(STRANGER, 7, BATCHES)


def transact_fenced(world: World) -> Transact:
    return Transact(world.old, 7, BATCHES)


def transact_known(world: World) -> Transact:
    world.transact(Transact(world.who, 1, BATCHES, None, SEQ))
    world.begin()
    return Transact(world.who, 1, BATCHES, None, SEQ)


def transact_stale(world: World) -> Transact:
    for number in range(1, 18):
        world.transact(Transact(world.who, number, BATCHES))
    world.begin()
    return Transact(world.who, 1, BATCHES)


def transact_gap(world: World) -> Transact:
    world.begin()
    return Transact(world.who, 2, BATCHES)


def transact_beside_open(world: World) -> Transact:
    world.commit(world.begin(), SEQ)
    world.begin(6)
    return Transact(world.who, 1, BATCHES, None, SEQ)


def transact_rival(world: World) -> Transact:
    world.transact(Transact(world.who, 1, BATCHES, WITH_OFFSETS, SEQ))
    return Transact(world.who, 2, BATCHES, None, SEQ)


def transact_committed(world: World) -> Transact:
    world.commit(world.begin(), SEQ)
    full(world)
    return Transact(world.who, 1, BATCHES, None, SEQ)


def transact_disk_full(world: World) -> Transact:
    full(world)
    return Transact(world.who, 1, (OneShotBatch(A1, 1, 1, 0, 0, b"x"), *BATCHES))


def transact_good(world: World) -> Transact:
    full(world)
    return Transact(world.who, 1, (OneShotBatch(A1, 1, 1, 0, 0, b"x"),))


def full(world: World) -> None:
    world.host.signal(MarkersAnswered(A0, disk_full=True))


@pytest.mark.parametrize(
    ("story", "expected"),
    [
        (transact_unknown, "UNKNOWN_PRODUCER"),
        (transact_fenced, "PRODUCER_FENCED"),
        (transact_known, "TransactAnswer"),
        (transact_stale, "STALE_REQUEST_ID"),
        (transact_gap, "OUT_OF_ORDER_SEQUENCE"),
        (transact_beside_open, "CONCURRENT_TRANSACTION"),
        (transact_rival, "CONCURRENT_TRANSACTION"),
        (transact_committed, "TransactAnswer"),
        (transact_disk_full, "DISK_FULL"),
        (transact_good, "TransactAnswer"),
    ],
)
def test_transact_in_order(story: Callable[[World], Transact], expected: str) -> None:
    world = World()
    assert said(world.ask(story(world))) == expected


@pytest.mark.parametrize(
    ("limits", "named"),
    [
        ({"marker_backlog_max": 1}, "marker_backlog_max"),
        ({"marker_backlog_bytes_max": 1}, "marker_backlog_bytes_max"),
        ({"one_shot_undelivered_bytes_max": 1}, "one_shot_undelivered_bytes_max"),
    ],
)
def test_a_backlog_refuses_before_the_append(limits: dict[str, int], named: str) -> None:
    world = World(**limits)
    world.transact(Transact(world.who, 1, BATCHES))
    refusal = world.ask(Transact(world.who, 2, BATCHES))
    assert said(refusal) == "THROTTLED"
    assert refusal.metadata["limit"] == named
    # The number is not used up.
    assert said(world.ask(Transact(world.who, 3, BATCHES))) == "OUT_OF_ORDER_SEQUENCE"


def test_staged_one_shots_count_in_the_limit_of_bytes() -> None:
    """While the offset manager was away as many as were sent stayed in memory."""
    offsets = OneShotOffsets("group", b"o" * 40)
    held = sum(len(batch.payload) for batch in BATCHES) + 40
    world = World(one_shot_undelivered_bytes_max=2 * held)
    first = world.transact(Transact(world.who, 1, BATCHES, offsets))
    world.transact(Transact(world.who, 2, BATCHES, offsets))
    refusal = world.ask(Transact(world.who, 3, BATCHES, offsets))
    assert said(refusal) == "THROTTLED"
    assert refusal.metadata["limit"] == "one_shot_undelivered_bytes_max"
    world.ask(AnswerOffsets(first, NO))
    assert said(world.ask(Transact(world.who, 3, BATCHES, offsets))) == "TransactAnswer"


def test_the_offset_managers_no_is_told_again_and_again() -> None:
    world = World()
    tx_id = world.transact(Transact(world.who, 1, BATCHES, WITH_OFFSETS))
    assert world.ask(AnswerOffsets(tx_id, NO)) == (tx_id,)
    for _ in range(2):
        assert said(world.ask(Transact(world.who, 1, BATCHES, WITH_OFFSETS))) == "STALE_POSITION"


# ------------------------------------------------------------------------------------ timeouts


def test_begin_without_timeout_gets_the_default() -> None:
    world = World(transaction_timeout_ms=1_234)
    tx_id = world.begin()
    assert world.state.transactions[tx_id].timeout_ms == 1_234


def test_i17_generations_grow_over_epochs_and_take_overs() -> None:
    world = World()
    seen = [world.old.generation, world.who.generation]
    for number in range(3):
        world.host.failover(lose_tail=False)
        world.host.sync()
        seen += [world.init(b"%16d" % (2 * number)).generation]
        seen += [world.init(b"%16d" % (2 * number + 1)).generation]
    assert seen == sorted(set(seen))


def test_begin_result_is_open_for_the_same_request() -> None:
    world = World()
    tx_id = world.begin(5)
    assert world.ask(BeginTransaction(world.who, 5)) == BeginAnswer(BeginResult.OPEN, tx_id)
