"""Where a member begins in a partition of which its group has committed nothing."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from oncelog.batch import TopicPartition
from oncelog.errors import CannotConnect
from oncelogpb import errors
from oncelogpb.v1 import partition_leader_pb2 as leader
from tests.unit.client.member_world import RECORDS, Client, World, in_a_world, places, read
from tests.unit.client.scripted import TOPIC_ID


def test_i29_a_member_that_begins_at_the_end_skips_nothing_of_what_came_later() -> None:
    """Partitions that are added to its topic, and a topic that is made."""

    async def work(world: World) -> None:
        client = world.client(topic_refresh_ms=2_000)
        consumer = await client.member(pattern="[ab]", start="latest")
        await read(consumer, 1)
        client.transport.partitions.append(5)
        world.group.topics["a", TOPIC_ID] = 3
        world.group.topics["b", b"b" * 16] = 1
        await read(consumer, 10)
        begun = {place: await consumer.position(*place) for place in consumer.assignment}
        assert [begun[place] for place in places(0, 1)] == [RECORDS, RECORDS]
        later = [*places(2), TopicPartition("b", 0)]
        assert all(begun[place] < RECORDS for place in later), "each is read from its beginning"
        await consumer.close()

    in_a_world(work, partitions=2)


def _grown(client: Client, end: int) -> None:
    """Its leaders' partitions end there now."""

    def listed(to: object, request: leader.ListOffsetsRequest) -> leader.ListOffsetsReply:
        reply = leader.ListOffsetsReply()
        for query in request.queries:
            reply.offsets.add(partition=query.partition, offset=0 if query.earliest else end)
        return reply

    client.transport.handlers["partition_leader.list_offsets"] = listed


@pytest.mark.parametrize("asks", [True, False], ids=["asked where it stands", "reading"])
def test_i15_who_gets_a_partition_begins_where_its_group_began(asks: bool) -> None:
    """At the end, as it was when the first member began, though nobody has read a record since."""

    async def work(world: World) -> None:
        first = await world.client().member(start="latest")
        if asks:
            assert await first.position("a", 0) == RECORDS
        else:
            assert await read(first, 2) == []
        assert (await first.committed("a", 0), await first.lag()) == (
            RECORDS,
            dict.fromkeys(places(0, 1), 0),
        )
        other = world.client()
        _grown(other, 2 * RECORDS)
        second = await other.member(start="latest")
        await asyncio.gather(read(first, 12), read(second, 12))
        assert [await second.position(*place) for place in second.assignment] == [RECORDS]
        await first.close()
        await read(second, 4)
        assert [await second.position(*place) for place in places(0, 1)] == [RECORDS, RECORDS]
        assert {who for *_, who in world.commits} != set(world.group.members), "the first one did"
        await second.close()

    in_a_world(work, partitions=2)


def test_who_begins_at_the_first_record_or_stands_alone_commits_nothing_for_it() -> None:
    async def work(world: World) -> None:
        member = await world.client().member()
        await read(member, 1)
        alone = await world.client().log.consumer(["a"], start="latest")
        await read(alone, 1)
        assert world.commits == []
        await asyncio.gather(member.close(), alone.close())

    in_a_world(work)


@pytest.mark.parametrize(
    "refusal",
    [
        errors.StalePosition("somebody was earlier"),
        errors.IllegalGeneration("it is not yours"),
        errors.UnknownOutcome("no answer"),
    ],
    ids=lambda refusal: refusal.reason,
)
def test_a_beginning_that_was_refused_is_asked_for_again(refusal: errors.OncelogError) -> None:
    async def work(world: World) -> None:
        client = world.client()
        refused = 0

        def commit(to: object, request: Any) -> Any:
            nonlocal refused
            refused += 1
            if refused < 3:
                raise refusal
            return client.on_offset_manager__commit_offsets(request)

        client.transport.handlers["offset_manager.commit_offsets"] = commit
        consumer = await client.member(start="latest")
        assert await read(consumer, 5) == []
        assert [await consumer.committed(*place) for place in places(0, 1)] == [RECORDS, RECORDS]
        await consumer.close()

    in_a_world(work, partitions=2)


def test_i29_a_member_that_starts_while_its_group_is_away_waits_for_it() -> None:
    """As long as every call does that has not met the process yet: no heartbeat waits so long."""

    async def work(world: World) -> None:
        client = world.client(connect_timeout_ms=20_000)
        client.is_cut_off = True
        starting = asyncio.create_task(client.member())
        await asyncio.sleep(15)
        assert not starting.done(), "it is waited for"
        client.is_cut_off = False
        consumer = await starting
        assert len(consumer.assignment) == 2
        await consumer.close()

    in_a_world(work, partitions=2)


def test_a_member_whose_group_stays_away_is_told_what_is_wrong() -> None:
    async def work(world: World) -> None:
        client = world.client(connect_timeout_ms=5_000)
        client.is_cut_off = True
        with pytest.raises(CannotConnect, match="no offset_manager process"):
            await client.member()
        assert world.now_ms() < 10_000

    in_a_world(work, partitions=2)
