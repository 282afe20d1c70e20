"""Transactions over what fails under them: coordinators that pause, markers that are refused in the
middle, offset managers that die, topics that are made again."""

from __future__ import annotations

import asyncio

import pytest

from oncelog.aio.transactional_producer import TransactionalProducer
from oncelog.aio.transactions import Transaction
from oncelog_server.core.ids import (
    CONSUMER_OFFSETS_ID,
    TRANSACTION_CONTROL_ID,
    control_partition,
)
from oncelogpb import errors
from tests.simulation.directed.stage import CLIENT, TOPIC, Stage, play

PRODUCER = "billing"
GROUP = "enricher"
JOURNAL = control_partition(TRANSACTION_CONTROL_ID, PRODUCER)
OFFSETS = control_partition(CONSUMER_OFFSETS_ID, GROUP)
FLOOR_BYTES = 64 << 10
# A lease is over.
LEASE_S = 7.0
# Questions are asked again, free space is looked at.
A_WHILE_S = 6.0


async def opened(producer: TransactionalProducer, *values: bytes) -> Transaction:
    """One that has begun, and whose records are durable."""
    transaction = producer.transaction()
    await transaction.__aenter__()
    for value in values:
        await transaction.send(TOPIC, value)
    await transaction.flush()
    return transaction


def test_i5_a_coordinator_that_was_paused_says_nothing_of_what_its_successor_began() -> None:
    """It wakes behind its lease, knows nothing of the transaction, and is asked about it by a
    leader whose view is old. Its "never" would make that leader drop what is committed later."""

    async def story(stage: Stage) -> None:
        await stage.begin()
        paused = stage.leader(JOURNAL)
        successor, third = stage.others(JOURNAL)
        leader = stage.leader(stage.data)
        producer = await stage.client.transactional_producer(PRODUCER)
        await stage.follows(successor, JOURNAL, leader=paused)
        stage.etcd(leader).stale = True
        stage.bar(third)
        # The client gives its connection up, and asks another one.
        stage.part_ways(paused, CLIENT)
        stage.freeze(paused)
        await stage.ready(successor, JOURNAL)
        transaction = await opened(producer, b"1")
        await asyncio.sleep(LEASE_S)
        stage.cut_off_from_etcd(paused)
        stage.thaw(paused)
        assert stage.replica(paused, JOURNAL).leads, "it has heard of nothing"
        await asyncio.sleep(A_WHILE_S)
        asked = [line for line in stage.world.trace if "ask_transactions" in line]
        assert asked, "it was asked"
        stage.reconnect(leader)
        await transaction.commit()
        await producer.close()
        assert await stage.end() == [b"1"]

    play(story)


def test_i11_markers_behind_a_refused_one_wait_for_it() -> None:
    """Three producers of one group commit; the leader's disk has no room for the second one's
    records, and the third would need none. It dies, and the next leader gets them all again."""

    async def story(stage: Stage) -> None:
        await stage.begin()
        coordinator, leader = stage.leader(JOURNAL), stage.leader(stage.data)
        begun, small, last = [
            await stage.client.transactional_producer(name, PRODUCER)
            for name in ("begun", "small", "last")
        ]
        first = await opened(begun, b"1")
        third = await opened(last, b"3")
        second = small.transaction()
        await second.__aenter__()
        await second.send(TOPIC, b"2")
        stage.hold((coordinator, leader))
        for transaction in (first, second, third):
            await transaction.commit()
        disk = stage.disk(leader)
        disk.capacity_bytes = disk.used_bytes() + FLOOR_BYTES // 2
        await asyncio.sleep(2.0)
        stage.let((coordinator, leader))
        await asyncio.sleep(2.0)
        assert await stage.read_now() == [[b"1"]], "the second one has no room, the third waits"
        await stage.lose_power(leader)
        disk.capacity_bytes = None
        await stage.next_leader(stage.data)
        for producer in (begun, small, last):
            await producer.close()
        assert await stage.end() == [b"1", b"2", b"3"]

    play(story, f"node.disk_free_floor_bytes={FLOOR_BYTES}")


def test_i21_i22_pending_offsets_outlive_the_offset_manager() -> None:
    """It dies when offsets are pending and their transaction is decided; the next one holds them
    until it has the marker, and has no other answer meanwhile."""

    async def story(stage: Stage) -> None:
        await stage.begin()
        await stage.acknowledged(b"1", at=stage.leader(stage.data))
        coordinator, manager = stage.leader(JOURNAL), stage.leader(OFFSETS)
        consumer = await stage.client.consumer(
            [TOPIC], GROUP, partitions="all", start="earliest", pending_timeout_ms=1_000
        )
        assert [record.value for record in await stage.poll(consumer)] == [b"1"]
        producer = await stage.client.transactional_producer(PRODUCER)
        transaction = producer.transaction(consumer)
        await transaction.__aenter__()
        await transaction.send(TOPIC, b"2")
        await transaction.flush()
        ways = [(coordinator, name) for name in stage.holders(OFFSETS)]
        stage.hold(*ways)
        committing = asyncio.create_task(transaction.commit())
        await stage.until(lambda: stage.pending_offsets(manager, OFFSETS), "offsets are pending")
        await asyncio.wait([committing], timeout=1.0)
        await stage.lose_power(manager)
        following = await stage.next_leader(OFFSETS)
        assert stage.pending_offsets(following, OFFSETS), "they are pending there"
        with pytest.raises(errors.PendingTransaction):
            await consumer.committed(TOPIC, 0)
        stage.let(*ways)
        await committing
        await stage.until(
            lambda: not stage.pending_offsets(following, OFFSETS), "the marker has come"
        )
        assert await consumer.committed(TOPIC, 0) == 1
        await producer.close()
        await consumer.close()
        assert await stage.end() == [b"1", b"2"]

    play(story)


def test_i1_what_was_sent_to_a_deleted_topic_is_not_in_the_next_one_of_its_name() -> None:
    """A plain batch on its way to the leader, one on its way to a follower, and a transaction that
    is committed when the topic is another one."""

    async def story(stage: Stage) -> None:
        await stage.begin()
        leader = stage.leader(stage.data)
        follower = stage.others(stage.data)[0]
        producer = await stage.client.transactional_producer(PRODUCER)
        transaction = await opened(producer, b"of the old topic")
        stage.hold((leader, follower))
        copied = stage.write(b"copied", at=leader)
        await asyncio.sleep(0.1)
        stage.hold(("writer", leader))
        sent = stage.write(b"sent", at=leader)
        await stage.client.admin.delete_topic(TOPIC)
        await stage.create_topic()
        stage.let(("writer", leader), (leader, follower))
        await stage.until(lambda: sent.task.done() and copied.task.done(), "answers")
        assert sent.why == "UNKNOWN_TOPIC", "it is of the old one"
        assert not copied.is_acknowledged
        await transaction.commit()
        await producer.close()
        await stage.all_in_sync()
        await stage.acknowledged(b"new", at=await stage.next_leader(stage.data))
        assert await stage.end() == [b"new"]

    play(story)
