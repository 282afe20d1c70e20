"""A new leader: what it may act on, what it shows, and which epoch it leads."""

from __future__ import annotations

import asyncio
import contextlib

from oncelog_server.core.ids import TRANSACTION_CONTROL_ID, control_partition
from oncelog_server.runtime.replica.state import Stage as ReplicaStage
from oncelogpb import errors
from tests.simulation.directed.stage import TOPIC, Stage, play

PRODUCER = "billing"
TRANSACTION_TIMEOUT_MS = 8_000
# For as long as nobody does anything, a bug has time to.
A_WHILE_S = 4.0


def test_i3_i19_nobody_acts_on_a_prepare_that_only_the_last_tail_had() -> None:
    """PREPARE reaches the second coordinator, not the third, and is not durable. The second one is
    elected, and dies; the third does not have the record, and the transaction is aborted."""

    async def story(stage: Stage) -> None:
        await stage.begin(partitions=2)
        journal = control_partition(TRANSACTION_CONTROL_ID, PRODUCER)
        first = stage.leader(journal)
        second, third = stage.others(journal)
        producer = await stage.client.transactional_producer(
            PRODUCER, transaction_timeout_ms=TRANSACTION_TIMEOUT_MS
        )
        transaction = producer.transaction()
        await transaction.__aenter__()
        for number in range(2):
            await transaction.send(TOPIC, b"never", partition=number)
        await transaction.flush()
        await stage.follows(second, journal, leader=first)
        await stage.follows(third, journal, leader=first)

        before = stage.replica(first, journal).log_end
        stage.hold((first, third), (second, first), (second, third), (third, second))
        commit = asyncio.create_task(transaction.commit())
        await stage.until(
            lambda: stage.replica(second, journal).journal.synced_end > before, "PREPARE is copied"
        )
        assert stage.replica(third, journal).log_end == before
        assert not commit.done(), "it is not durable"
        await stage.lose_power(first)
        commit.cancel()
        stage.bar(third)
        await stage.elected(second, journal)
        await asyncio.sleep(A_WHILE_S)
        assert stage.replica(second, journal).stage is ReplicaStage.LOADING
        assert await stage.read_now() == [[], []], "nobody has decided anything"

        await stage.lose_power(second)
        stage.unbar(third)
        stage.let((first, third))
        stage.bar(first)
        await stage.start(first)
        await stage.ready(third, journal)
        await stage.until(
            lambda: not stage.replica(third, journal).machine.state.transactions,
            "the transaction is over",
        )
        with contextlib.suppress(errors.OncelogError):
            await producer.close()
        assert await stage.end() == [], "it was aborted, and no part of it is seen"

    play(story)


def test_i14_i27_a_position_that_the_new_leader_does_not_know_of_is_waited_for() -> None:
    """Readers saw a record at the first leader; the second knows of a lower high watermark. A fetch
    behind that record is told to wait, never that its position is out of range."""

    async def story(stage: Stage) -> None:
        await stage.begin()
        first = stage.leader(stage.data)
        second, third = stage.others(stage.data)
        await stage.acknowledged(b"1", at=first)
        await stage.follows(second, stage.data, leader=first)
        consumer = await stage.client.consumer([TOPIC], start="earliest")
        assert [r.value for r in await stage.poll(consumer)] == [b"1"]
        known = stage.replica(first, stage.data).high_watermark

        # Frames are copied and acknowledged; the word that they are durable is held back.
        write = stage.write(b"2", at=first)
        await stage.until(
            lambda: all(
                stage.replica(name, stage.data).log_end > known for name in (second, third)
            ),
            "it is copied",
        )
        stage.hold((first, second), (first, third))
        await stage.until(lambda: write.is_acknowledged, "an answer")
        assert [r.value for r in await stage.poll(consumer)] == [b"2"]
        await stage.lose_power(first)
        stage.part_ways(second, third)
        stage.bar(third)
        await stage.elected(second, stage.data)
        assert stage.replica(second, stage.data).stage is ReplicaStage.LOADING
        assert stage.replica(second, stage.data).high_watermark == known, "it has not heard more"
        assert await stage.fetch(second, position=2) == "LOADING"
        assert await stage.fetch(second, position=0) == "LOADING"
        polling = asyncio.create_task(stage.poll(consumer))
        await asyncio.sleep(A_WHILE_S)

        await stage.heal()
        await stage.acknowledged(b"3", at=await stage.next_leader(stage.data))
        assert [r.value for r in await polling] == [b"3"], "the reader goes on where it was"
        await consumer.close()
        assert await stage.end() == [b"1", b"2", b"3"]

    play(story)


def test_i18_who_is_back_within_its_lease_leads_a_new_epoch() -> None:
    """The leader dies with frames that only a follower has, and is back before its lease is over.
    It writes something else in their place: in a later epoch, so the follower cuts them."""

    async def story(stage: Stage) -> None:
        await stage.begin()
        first = stage.leader(stage.data)
        second, third = stage.others(stage.data)
        await stage.acknowledged(b"1", at=first)
        epoch = stage.state(stage.data).epoch
        end = stage.replica(first, stage.data).log_end
        stage.hold((first, third))
        stage.disk(first).hold_commits()
        lost = stage.write(b"lost", at=first)
        await stage.until(
            lambda: stage.replica(second, stage.data).journal.synced_end > end, "it is copied"
        )
        assert not lost.task.done()
        stage.bar(second, third)
        await stage.lose_power(first)
        began_s = stage.world.loop.now_s
        await stage.start(first)
        await stage.until(lambda: stage.leader(stage.data) == first, "it is elected again")
        assert stage.world.loop.now_s - began_s < 4, "within its lease"
        led = stage.boots(stage.data)
        assert all(len(boots) == 1 for boots in led.values()), "an epoch is never continued"
        assert stage.state(stage.data).epoch == epoch + 1
        await stage.elected(first, stage.data)
        assert stage.replica(first, stage.data).log_end == end + 1, "it lost the frame"
        stage.let((first, third))
        await stage.ready(first, stage.data)
        await stage.acknowledged(b"2", at=first)
        assert not lost.is_acknowledged
        assert await stage.end() == [b"1", b"2"]

    play(story)
