"""Transactions among real processes: order, fencing, timeouts, visibility, damage."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

import oncelog
from oncelog import errors
from oncelogpb.v1 import types_pb2 as pb
from tests.integration.by_hand import VISIBLE, ByHand, ByHandTransaction
from tests.integration.cluster import COORDINATOR, PARTITION_LEADER, Cluster, until
from tests.integration.reading import next_values, values
from tests.integration.shell import Shell

pytestmark = pytest.mark.integration


# ------------------------------------------------------------------------------------------ order


def test_i8_an_open_transaction_holds_back_nobody(
    cluster: Cluster, log: oncelog.Log, topic: str
) -> None:
    with (
        ByHand(cluster.bootstrap, topic) as first,
        ByHand(cluster.bootstrap, f"{topic}-late") as late,
    ):
        consumer = log.consumer([topic])
        early = first.begin()
        early.produce(topic, 0, b"early 1")
        later = late.begin()
        later.produce(topic, 0, b"later 1")
        early.produce(topic, 0, b"early 2")
        later.produce(topic, 0, b"later 2")
        later.commit(VISIBLE)
        with log.producer() as plain:
            plain.send(topic, b"plain", partition=0)
        with log.transactional_producer().transaction(wait="visible") as small:
            small.send(topic, b"small", partition=0)
        # All that ended can be read; the one that began first is still open.
        assert next_values(consumer, 4) == [b"later 1", b"later 2", b"plain", b"small"]
        assert early.look().state == pb.TRANSACTION_STATE_ONGOING
        assert first.journal(topic, 0).open_transactions == 1
        early.produce(topic, 0, b"early 3")
        exposed = early.commit(VISIBLE).exposed
        # It appears at its commit: behind the others, whole, in send order (I9).
        assert [(part.first_offset, part.record_count) for part in exposed] == [(4, 3)]
        assert next_values(consumer, 3) == [b"early 1", b"early 2", b"early 3"]
        assert not first.journal(topic, 0).HasField("first_open_position")


def test_i8_the_order_is_the_same_after_a_restart(
    cluster: Cluster, log: oncelog.Log, topic: str
) -> None:
    with (
        ByHand(cluster.bootstrap, topic) as hand,
        ByHand(cluster.bootstrap, f"{topic}-late") as late,
    ):
        early, later = hand.begin(), late.begin()
        early.produce(topic, 0, b"early")
        later.produce(topic, 0, b"later")
        later.commit(VISIBLE)
        cluster.restart(PARTITION_LEADER)
        assert values(log, topic) == [b"later"]
        early.commit(VISIBLE)
        cluster.restart(PARTITION_LEADER)
    assert values(log, topic) == [b"later", b"early"]


def test_i10_i11_one_group_commits_in_one_order_everywhere(
    cluster: Cluster, log: oncelog.Log, topic: str
) -> None:
    producers = [log.transactional_producer(f"{topic}-{n}", group=topic) for n in range(2)]
    for number in range(40):
        with producers[number % 2].transaction() as tx:
            for partition in range(2):
                tx.send(topic, b"%d" % number, partition=partition)
            if number % 3:
                # Begun and committed, beside those that go as one message.
                tx.flush()
        if number == 20:
            cluster.restart(PARTITION_LEADER)
    until(lambda: log.admin.offsets(topic) == [40, 40], "all are visible")
    assert values(log, topic) == [b"%d" % number for number in range(40)] * 2


# ---------------------------------------------------------------------------------------- fencing


@pytest.mark.parametrize("restart", [False, True], ids=["", "coordinator restarted"])
def test_i16_a_later_instance_of_a_name_fences_the_earlier(
    cluster: Cluster, log: oncelog.Log, topic: str, restart: bool
) -> None:
    with cluster.connect() as other_log:
        older = log.transactional_producer(topic)
        with pytest.raises(errors.ProducerFenced), older.transaction() as left_open:
            left_open.send(topic, b"never", partition=0)
            left_open.flush()
            newer = other_log.transactional_producer(topic)
            if restart:
                cluster.restart(COORDINATOR)
        described = log.admin.describe_transaction(left_open.tx_id)
        assert (described.state, described.cause) == ("aborted", "fenced")
        with newer.transaction(wait="visible") as tx:
            tx.send(topic, b"new", partition=0)
        with pytest.raises(errors.ProducerFenced), older.transaction() as tx:
            tx.send(topic, b"never", partition=0)
        assert values(log, topic) == [b"new"]


def test_i16_a_fenced_producer_can_write_begin_and_commit_nothing(
    cluster: Cluster, log: oncelog.Log, topic: str
) -> None:
    with ByHand(cluster.bootstrap, topic) as older:
        tx = older.begin()
        tx.produce(topic, 0, b"never")
        with ByHand(cluster.bootstrap, topic) as newer:
            with pytest.raises(errors.ProducerFenced):
                tx.commit()
            with pytest.raises(errors.ProducerFenced):
                older.begin()
            until(lambda: not newer.journal(topic, 0).open_transactions, "its marker arrives")
            with pytest.raises(errors.TransactionEnded):
                tx.produce(topic, 0, b"never")
            next_tx = newer.begin()
            next_tx.produce(topic, 0, b"new")
            next_tx.commit(VISIBLE)
    assert values(log, topic) == [b"new"]


def test_i16_i22_what_a_fenced_producer_sends_late_is_dropped_unseen(
    cluster: Cluster, log: oncelog.Log, topic: str
) -> None:
    """A partition that has not heard of the fence acknowledges it, and offsets become pending:
    until the question is answered. Nothing of it is read or committed, whenever one looks."""
    with ByHand(cluster.bootstrap, topic) as older:
        tx = older.begin()
        with ByHand(cluster.bootstrap, topic) as newer:
            tx.produce(topic, 0, b"never")
            tx.send_offset(topic, topic, 0, since=None, to=7)
            with pytest.raises(errors.ProducerFenced):
                tx.commit()

            def is_dropped() -> bool:
                assert values(log, topic) == []
                offsets = log.admin.group_offsets(topic)
                assert all(place.offset is None for place in offsets)
                return not offsets and not newer.journal(topic, 0).open_transactions

            until(is_dropped, "its questions are answered")
            next_tx = newer.begin()
            next_tx.produce(topic, 0, b"new")
            next_tx.send_offset(topic, topic, 0, since=None, to=3)
            next_tx.commit(VISIBLE)
    assert values(log, topic) == [b"new"]
    # Of the two partitions of the topic it committed one.
    assert [place.offset for place in log.admin.group_offsets(topic)] == [3, None]


# --------------------------------------------------------------------------------------- timeouts


@pytest.mark.parametrize("restart", [(), (COORDINATOR,), (PARTITION_LEADER,)], ids=" ".join)
def test_i30_an_idle_transaction_is_aborted_and_nothing_stays_pending(
    cluster: Cluster, log: oncelog.Log, topic: str, restart: tuple[str, ...]
) -> None:
    with ByHand(cluster.bootstrap, topic) as hand:
        tx = hand.begin(timeout_ms=4_000)
        tx.produce(topic, 0, b"never")
        tx.send_offset(topic, topic, 0, since=None, to=7)
        cluster.restart(*restart)
        until(lambda: tx.look().state == pb.TRANSACTION_STATE_ABORTED, "it times out")
        assert tx.look().cause == pb.ABORT_CAUSE_TIMEOUT
        with pytest.raises(errors.TransactionEnded):
            tx.commit()
        # The producer is no worse for it: the same generation begins again.
        after = hand.begin()
        after.produce(topic, 0, b"after")
        after.send_offset(topic, topic, 0, since=None, to=1)
        after.commit(VISIBLE)
        until(lambda: not hand.journal(topic, 0).open_transactions, "it is aborted there, too")
        assert not hand.journal(topic, 0).HasField("first_open_position")
    assert values(log, topic) == [b"after"]
    assert [place.offset for place in log.admin.group_offsets(topic)] == [1, None]
    assert not log.admin.transactions(states=["ongoing"])


def test_i30_data_of_a_transaction_that_never_was_is_aborted(
    cluster: Cluster, log: oncelog.Log, topic: str
) -> None:
    with ByHand(cluster.bootstrap, topic) as hand:
        never = ByHandTransaction(hand, hand.begin().tx_id + 1)
        never.produce(topic, 0, b"never")
        # It may yet be given out, as far as anybody knows: nothing is guessed away.
        assert hand.journal(topic, 0).open_transactions == 1
        with log.transactional_producer(f"{topic}-other", group=topic).transaction() as tx:
            tx.send(topic, b"other", partition=1)
        # Now the coordinator's journal is longer, and it knows that this was never begun.
        until(lambda: not hand.journal(topic, 0).open_transactions, "it is aborted")
    assert values(log, topic) == [b"other"]


def test_i30_data_under_a_txid_that_nobody_gave_out_does_not_stay_open(
    cluster: Cluster, log: oncelog.Log, topic: str
) -> None:
    """Nothing else happens in its journal: the coordinator proves by itself that nobody gave it
    out."""
    with ByHand(cluster.bootstrap, topic) as hand:
        begun = hand.begin()
        far = ByHandTransaction(hand, begun.tx_id + 1_000_000)
        far.produce(topic, 0, b"nobody's")
        far.send_offset(topic, topic, 0, since=None, to=7)
        assert hand.journal(topic, 0).open_transactions == 1
        until(lambda: not hand.journal(topic, 0).open_transactions, "it is aborted")
        with pytest.raises(errors.UnknownTransaction):
            far.look()
        # So are the offsets: a stable fetch goes on.
        until(lambda: not log.admin.group_offsets(topic), "its offsets are dropped")
        begun.abort()
    assert values(log, topic) == []


# ------------------------------------------------------------------------------------- visibility


def test_i12_wait_visible_names_the_offsets_and_they_can_be_read(
    cluster: Cluster, log: oncelog.Log, topic: str
) -> None:
    producer = log.transactional_producer()
    for size in (1, 3_000):
        ends = log.admin.offsets(topic)
        with producer.transaction(wait="visible") as tx:
            for number in range(size):
                tx.send(topic, b"%d" % number + b"x" * 300, partition=1)
        assert tx.visible
        assert [tuple(part) for part in tx.exposed] == [(topic, 1, ends[1], size)]
        assert log.admin.offsets(topic)[1] == ends[1] + size


def test_i3_i5_a_batch_that_comes_beside_the_commit_costs_nothing_that_was_committed(
    cluster: Cluster, log: oncelog.Log, topic: str
) -> None:
    """Acknowledged before its marker, or refused after it: what the manifest counts is seen."""
    with ByHand(cluster.bootstrap, topic) as hand, ThreadPoolExecutor() as threads:
        surplus = 0
        for number in range(30):
            tx = hand.begin()
            tx.produce(topic, 0, b"%d" % number)
            # The same transaction; what it sends is not counted.
            beside = ByHandTransaction(hand, tx.tx_id)
            beside.counts[topic, 0] = 1
            late = threads.submit(beside.produce, topic, 0, b"late")
            reply = tx.commit(VISIBLE)
            dropped = sum(part.surplus_records for part in reply.exposed)
            try:
                late.result()
            except errors.TransactionEnded:
                assert not dropped
            else:
                assert dropped == 1
            surplus += dropped
        assert surplus, "some came before their markers"
        assert not hand.journal(topic, 0).open_transactions
    assert values(log, topic) == [b"%d" % number for number in range(30)]


@pytest.mark.parametrize(("action", "seen"), [("drop", []), ("expose", [b"a", b"b"])])
def test_a_damaged_part_is_told_and_passed_and_resolved_by_hand(
    cluster: Cluster, log: oncelog.Log, topic: str, action: str, seen: list[bytes]
) -> None:
    with ByHand(cluster.bootstrap, topic) as hand:
        tx = hand.begin()
        tx.produce(topic, 0, b"a", b"b")
        tx.produce(topic, 1, b"whole")
        # The manifest says three, the log has two.
        tx.counts[topic, 0] = 3
        with pytest.raises(errors.Damaged):
            tx.commit(VISIBLE)
        assert tx.look().state == pb.TRANSACTION_STATE_COMMITTED
        assert [part.partition.number for part in tx.look().damaged] == [0]
        # Order moves on.
        after = hand.begin()
        after.produce(topic, 0, b"after")
        after.commit(VISIBLE)
        assert values(log, topic) == [b"after", b"whole"]
        assert list(hand.journal(topic, 0).damaged) == [tx.tx_id]
        cluster.restart(PARTITION_LEADER)
        cluster.wait_ready()
        resolved = Shell(cluster.bootstrap).ask(
            "tx", "resolve", f"{tx.tx_id:016x}", f"{topic}/0", f"--{action}"
        )
        assert resolved["record_count"] == 2
        assert values(log, topic) == [b"after", *seen, b"whole"]
        assert not hand.journal(topic, 0).damaged
        assert not hand.journal(topic, 0).HasField("first_open_position")
