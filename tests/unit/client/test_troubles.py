"""What a consumer says while it cannot read, and that it reads on when it can again (I14, I15)."""

from __future__ import annotations

from typing import Any

import pytest

from oncelog._core.routing import PartitionKey
from oncelog.aio.consumer import Consumer
from oncelog.aio.log import Log
from oncelog.options import ConnectOptions
from oncelogpb import errors
from oncelogpb.v1 import partition_leader_pb2 as leader
from tests.unit.client.scripted import (
    TOPIC_ID,
    ScriptedTransport,
    on_virtual_time,
    protocol_over,
)
from tests.unit.client.test_consuming import consuming, offsets_of, refusal, reply
from tests.unit.client.test_recreated_topics import NEW_ID, Cluster

FINAL = [errors.Internal("a fault"), errors.CorruptBatch("a bit"), errors.CorruptLog("a disk")]


@pytest.mark.parametrize("trouble", FINAL, ids=lambda error: error.reason)
@pytest.mark.parametrize("within", [True, False], ids=["in a reply", "of the stream"])
def test_i14_a_consumer_tells_each_poll_what_is_the_matter_and_reads_on_when_it_is_over(
    trouble: errors.OncelogError, within: bool
) -> None:
    async def work(consumer: Consumer, transport: ScriptedTransport) -> None:
        assert await offsets_of(consumer, 3) == [0, 1, 2]
        for _ in range(3):
            with pytest.raises(type(trouble)):
                await consumer.poll(5.0)
        assert await offsets_of(consumer, 2) == [3, 4]

    breaking = refusal(0, trouble) if within else trouble
    consuming(work, [reply(0, 0, 3), breaking], [breaking], [breaking], [reply(0, 3, 2)])


def test_the_other_partition_is_read_meanwhile() -> None:
    async def work(consumer: Consumer, transport: ScriptedTransport) -> None:
        with pytest.raises(errors.Internal):
            await consumer.poll(5.0)
        found = await offsets_of(consumer, 4)
        assert sorted(found) == [0, 0, 1, 1]

    consuming(
        work,
        [refusal(0, errors.Internal("x"))],
        [reply(1, 0, 2)],
        [reply(0, 0, 2)],
        partitions=(5, 5),
    )


def test_an_offset_out_of_range_is_told_each_time_until_a_seek() -> None:
    async def work(consumer: Consumer, transport: ScriptedTransport) -> None:
        for _ in range(3):
            with pytest.raises(errors.OffsetOutOfRange):
                await consumer.poll(5.0)
        await consumer.seek("a", 0, 2)
        assert await offsets_of(consumer, 2) == [2, 3]

    gone = [refusal(0, errors.OffsetOutOfRange("x"))]
    consuming(work, gone, gone, gone, [reply(0, 2, 2)])


@pytest.mark.parametrize(
    ("again", "says"), [(True, "deleted and made again"), (False, "was deleted")]
)
def test_a_topic_that_was_deleted_is_told_by_name_each_time(again: bool, says: str) -> None:
    """One that was made again is another topic: to go on in it would repeat offsets (I14)."""

    async def work() -> None:
        transport = Cluster()
        log = Log("boot:1", ConnectOptions(), protocol=protocol_over(transport))
        consumer = await log.consumer(["a"])
        part: Any = leader.FetchedPartition(partition=PartitionKey(TOPIC_ID, 0).wire())
        part.error.CopyFrom(errors.to_status(errors.UnknownTopic("no topic with that id")))
        transport.streams = [[reply(0, 0, 2), leader.FetchReply(partitions=[part])]]
        assert await offsets_of(consumer, 2) == [0, 1]
        transport.topic_id = NEW_ID
        if not again:
            transport.partitions = []
        for _ in range(3):
            with pytest.raises(errors.UnknownTopic, match=f"'a' {says}|'a' was {says}"):
                await consumer.poll(5.0)
        consumer.feeding.forget()
        with pytest.raises(errors.UnknownTopic, match="'a'"):
            await consumer.poll(5.0)
        await log.close()

    on_virtual_time(work)


def test_a_fault_of_the_reader_itself_is_told_and_it_starts_over() -> None:
    async def work(consumer: Consumer, transport: ScriptedTransport) -> None:
        locate, broken = consumer._protocol.locate, True

        async def locating(key: Any, deadline: float) -> Any:
            if broken:
                raise RuntimeError("a bug")
            return await locate(key, deadline)

        consumer._protocol.locate = locating  # type: ignore[method-assign]
        await consumer.poll(0.1)
        with pytest.raises(RuntimeError, match="a bug"):
            await consumer.poll(0.1)
        broken = False
        assert await offsets_of(consumer, 2) == [0, 1]

    consuming(work, [reply(0, 0, 2)])
