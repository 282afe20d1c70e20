"""Partitions that are added to a topic while it is written and read."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from oncelog._core.routing import Endpoint, PartitionKey
from oncelog.aio.log import Log
from oncelog.options import ConnectOptions
from oncelogpb.v1 import offset_manager_pb2 as offsets
from oncelogpb.v1 import partition_leader_pb2 as leader
from tests.unit.client.scripted import ScriptedTransport, on_virtual_time, produced, protocol_over

REFRESH_MS = 5_000


def _log(transport: ScriptedTransport) -> Log:
    options = ConnectOptions(topic_refresh_ms=REFRESH_MS)
    return Log("boot:1", options, protocol=protocol_over(transport, topic_refresh_ms=REFRESH_MS))


def _subscribed(transport: ScriptedTransport) -> list[dict[int, int]]:
    """Offsets by partition, of each Subscribe."""
    return [
        {part.partition.number: part.offset for part in request.partitions}
        for request in transport.requests
        if isinstance(request, leader.SubscribeRequest)
    ]


def _list_offsets(_: Endpoint, request: Any) -> Any:
    """Every partition begins at 3 and ends at 7."""
    return leader.ListOffsetsReply(
        offsets=[
            leader.ListedOffset(partition=query.partition, offset=3 if query.earliest else 7)
            for query in request.queries
        ]
    )


@pytest.mark.parametrize(("start", "offset"), [("earliest", 3), ("latest", 7)])
@pytest.mark.parametrize("group", [None, "g"])
def test_a_consumer_reads_them_from_their_first_record_on(
    start: str, offset: int, group: str | None
) -> None:
    """Also one that began at the end: what was written to them was written since."""

    def fetch_offsets(_: Endpoint, request: Any) -> Any:
        return offsets.FetchOffsetsReply(
            offsets=[offsets.CommittedOffset(partition=p) for p in request.partitions]
        )

    async def work() -> ScriptedTransport:
        transport = ScriptedTransport(5)
        transport.handlers["partition_leader.list_offsets"] = _list_offsets
        transport.handlers["offset_manager.fetch_offsets"] = fetch_offsets
        async with _log(transport) as log:
            consumer = await log.consumer(["a"], group, partitions="all", start=start)
            assert await consumer.poll(1.0) is None
            assert [place.partition for place in consumer.assignment] == [0]
            transport.partitions = [5, 5]
            for _ in range(2 * REFRESH_MS // 1000):
                await consumer.poll(1.0)
            assert [place.partition for place in consumer.assignment] == [0, 1]
            assert await consumer.position("a", 1) == 3
        return transport

    transport, _ = on_virtual_time(work)
    assert _subscribed(transport) == [{0: offset}, {1: 3}], "what is read already is read on"


def test_who_chose_partitions_keeps_them() -> None:
    async def work() -> ScriptedTransport:
        transport = ScriptedTransport(5, 5)
        transport.handlers["partition_leader.list_offsets"] = _list_offsets
        async with _log(transport) as log:
            consumer = await log.consumer(["a"], partitions=[("a", 1)])
            transport.partitions = [5, 5, 5]
            for _ in range(2 * REFRESH_MS // 1000):
                await consumer.poll(1.0)
            assert [place.partition for place in consumer.assignment] == [1]
        return transport

    transport, _ = on_virtual_time(work)
    assert _subscribed(transport) == [{1: 3}]


def test_a_producer_writes_to_them_too() -> None:
    def produce(_: Endpoint, request: Any) -> Any:
        asked = produced(request)
        return leader.ProduceReply(
            results=[leader.BatchResult(partition=batch.partition) for batch in asked.batches]
        )

    async def work() -> list[int]:
        transport = ScriptedTransport(5)
        transport.handlers["partition_leader.produce"] = produce
        async with _log(transport) as log:
            producer = await log.producer(linger_ms=0)
            written = []
            for second in range(12):
                if second == 2:
                    transport.partitions = [5, 5, 5]
                await producer.send("a", b"x")
                await producer.flush()
                written.append(produced(transport.requests[-1]).batches[0].partition.number)
                await asyncio.sleep(1)
        return written

    written, _ = on_virtual_time(work)
    # It hears of them once, REFRESH_MS after it began.
    heard = REFRESH_MS // 1000 + 1
    assert set(written[:heard]) == {0}
    assert set(written[heard:]) == {0, 1, 2}


def test_who_asks_for_the_topic_again_and_again_hears_of_them() -> None:
    """Spark's source does, at each trigger."""

    async def work() -> list[int]:
        transport = ScriptedTransport(5)
        protocol = protocol_over(transport, topic_refresh_ms=REFRESH_MS)
        heard = []
        for second in range(12):
            if second == 2:
                transport.partitions = [5, 5]
            heard.append(len((await protocol.topic("a")).partitions))
            await asyncio.sleep(1)
        await protocol.close()
        return heard

    heard, _ = on_virtual_time(work)
    since = REFRESH_MS // 1000 + 1
    assert heard == [1] * since + [2] * (12 - since)


def test_a_change_is_told_when_the_new_ones_are_led_whatever_was_known_before() -> None:
    async def work() -> Any:
        transport = ScriptedTransport(5)

        def altered(_: Endpoint, request: Any) -> Any:
            assert request.partitions == 3
            bare = leader.TopicDescription(name="a", topic_id=PartitionKey(b"t" * 16, 0).topic_id)
            for number in range(3):
                bare.partitions.add(number=number)
            return leader.AlterTopicReply(topic=bare)

        transport.handlers["partition_leader.alter_topic"] = altered
        async with _log(transport) as log:
            await log.protocol.topic("a")
            # At first another process answers, which has not heard of them.
            asyncio.get_running_loop().call_later(
                1.0, lambda: setattr(transport, "partitions", [5, 5, 6])
            )
            return await log.admin.alter_topic("a", partitions=3)

    topic, _ = on_virtual_time(work)
    assert [part.leader for part in topic.partitions] == ["boot:5", "boot:5", "boot:6"]
