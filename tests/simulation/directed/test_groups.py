"""Members of groups over offset managers that fail."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from oncelog.aio.consumer import Consumer
from oncelog.aio.log import Log
from oncelog_server.core.ids import (
    CONSUMER_OFFSETS_ID,
    TRANSACTION_CONTROL_ID,
    PartitionId,
    TopicId,
    control_partition,
)
from oncelogpb import errors
from tests.simulation.directed.stage import TOPIC, WAIT_S, Stage, play

GROUP = "enricher"
OFFSETS = control_partition(CONSUMER_OFFSETS_ID, GROUP)
SESSION_MS = 6_000
ZOMBIE = "zombie"


async def member(client: Log) -> Consumer:
    return await client.consumer(
        [TOPIC], GROUP, start="earliest", session_timeout_ms=SESSION_MS, instance_id=""
    )


def test_i21_i23_a_zombie_commits_nothing_over_a_failover_of_the_offset_manager() -> None:
    """KIP-447 in five steps. The first member reads, and stands still between its poll and its
    commit. The offset manager dies; its successor hears nothing of the first one for a session, and
    gives its partition to the second, which reads the same and is about to commit. The first one
    wakes up and commits what it has read. It does so by what it was told before: a client that
    looks at its clock again would not even try."""

    async def story(stage: Stage) -> None:
        await stage.begin()
        await stage.acknowledged(b"1", at=stage.leader(stage.data))
        polled, woken = asyncio.Event(), asyncio.Event()
        refused: list[errors.OncelogError] = []

        async def live_as_a_zombie() -> None:
            client = stage.world.client()
            consumer = await member(client)
            producer = await client.transactional_producer()
            metadata = replace(consumer.group_metadata(), feeding=None)
            [record] = await stage.poll(consumer)
            polled.set()
            # Here it stands still.
            await asyncio.sleep(1.0)
            with pytest.raises(errors.UnknownMember) as told:
                async with producer.transaction() as tx:
                    await tx.send(TOPIC, b"of the zombie")
                    await tx.send_offsets({(TOPIC, 0): record.offset + 1}, metadata)
            refused.append(told.value)
            woken.set()
            await client.close()

        zombie = asyncio.create_task(stage.world.run_as(ZOMBIE, live_as_a_zombie()))
        async with asyncio.timeout(WAIT_S):
            await polled.wait()
        stage.freeze(ZOMBIE)
        await stage.lose_power(stage.leader(OFFSETS))
        await stage.next_leader(OFFSETS)
        second = await member(stage.client)
        producer = await stage.client.transactional_producer()
        [record] = await stage.poll(second)
        assert record.value == b"1", "it reads what the first one has read"
        async with producer.transaction(second) as tx:
            await tx.send(TOPIC, b"of the owner")
            stage.thaw(ZOMBIE)
            async with asyncio.timeout(WAIT_S):
                await zombie
        assert [error.reason for error in refused] == ["UNKNOWN_MEMBER"]
        assert await second.committed(TOPIC, 0) == 1
        await second.close()
        await producer.close()
        assert await stage.end() == [b"1", b"of the owner"]

    play(story)


COPIES = "copies"


def coordinator(stage: Stage, group: str) -> str:
    """Of the producers of a transaction group."""
    return stage.leader(control_partition(TRANSACTION_CONTROL_ID, group))


@pytest.mark.parametrize("takes_over", ["member", "standalone"])
def test_i21_what_follows_in_the_input_follows_in_the_output(takes_over: str) -> None:
    """The first member commits, and leaves: its transaction's marker has reached the offsets, and
    is on its way to the output. Who goes on from there has a producer with another coordinator,
    whose markers nobody holds up."""

    async def story(stage: Stage) -> None:
        await stage.begin()
        topic = await stage.client.admin.create_topic(COPIES, 1, replication_factor=3)
        copies = PartitionId(TopicId(bytes.fromhex(topic.topic_id)), 0)
        await stage.until(lambda: stage.leader(copies), "somebody leads the output")
        await stage.acknowledged(b"1", at=stage.leader(stage.data))
        groups = [f"crew-{n}" for n in range(16)]
        slow = groups[0]
        fast = next(g for g in groups if coordinator(stage, g) != coordinator(stage, slow))
        first = await member(stage.client)
        before = await stage.client.transactional_producer(group=slow)
        [record] = await stage.poll(first)
        held_up = (coordinator(stage, slow), stage.leader(copies))
        stage.hold(held_up)
        async with before.transaction(first) as tx:
            await tx.send(COPIES, record.value)
        await first.close()
        await stage.acknowledged(b"2", at=stage.leader(stage.data))

        async def go_on() -> None:
            if takes_over == "member":
                second = await member(stage.client)
            else:
                second = await stage.client.consumer([TOPIC], GROUP, partitions="all")
            after = await stage.client.transactional_producer(group=fast)
            [record] = await stage.poll(second)
            async with after.transaction(second) as tx:
                await tx.send(COPIES, record.value)
            await second.close()

        going_on = asyncio.create_task(go_on())
        await asyncio.sleep(5.0)
        stage.let(held_up)
        async with asyncio.timeout(WAIT_S):
            await going_on
        reader = await stage.client.consumer([COPIES])
        seen: list[bytes | None] = []
        while len(seen) < 2:
            seen += [record.value for record in await stage.poll(reader)]
        assert seen == [b"1", b"2"]
        await reader.close()
        assert await stage.end() == [b"1", b"2"]

    play(story)
