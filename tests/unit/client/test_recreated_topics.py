"""A topic that was deleted and made again elsewhere is another topic: what this client knows of the
old one is told once, then forgotten."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from oncelog._core.routing import PartitionKey
from oncelog.aio.log import Log
from oncelog.options import ConnectOptions
from oncelogpb import errors
from oncelogpb.v1 import coordinator_pb2 as coordinator
from oncelogpb.v1 import partition_leader_pb2 as leader
from oncelogpb.v1 import types_pb2 as types
from tests.unit.client.scripted import (
    TOPIC_ID,
    ScriptedTransport,
    on_virtual_time,
    produced,
    protocol_over,
)

NEW_ID = b"n" * 16


class Cluster(ScriptedTransport):
    """Topic "a" has the id `topic_id`; leaders know no other."""

    def __init__(self) -> None:
        super().__init__(5)
        self.topic_id = TOPIC_ID
        self.handlers |= {
            "partition_leader.produce": self.produce,
            "partition_leader.list_offsets": self.list_offsets,
            "coordinator.init_producer": lambda to, request: coordinator.InitProducerReply(
                producer=types.Producer(producer_id=1, generation=1)
            ),
            "coordinator.transact": self.transact,
        }

    def metadata(self, to: Any, request: Any) -> Any:
        reply = super().metadata(to, request)
        for topic in list(reply.topics):
            asked = "a" in request.topics or self.topic_id in request.topic_ids
            topic.topic_id = self.topic_id
            if not asked:
                reply.topics.remove(topic)
        return reply

    def unknown(self, partition: types.Partition) -> errors.OncelogError | None:
        if partition.topic_id == self.topic_id:
            return None
        return errors.UnknownTopic(f"no topic with id {partition.topic_id.hex()}")

    def produce(self, to: Any, request: Any) -> Any:
        reply = leader.ProduceReply()
        for batch in produced(request).batches:
            result = reply.results.add(partition=batch.partition)
            error = self.unknown(batch.partition)
            if error is not None:
                result.error.CopyFrom(errors.to_status(error))
        return reply

    def list_offsets(self, to: Any, request: Any) -> Any:
        reply = leader.ListOffsetsReply()
        for query in request.queries:
            listed = reply.offsets.add(partition=query.partition)
            error = self.unknown(query.partition)
            if error is not None:
                listed.error.CopyFrom(errors.to_status(error))
        return reply

    def transact(self, to: Any, request: Any) -> Any:
        for batch in request.batches:
            error = self.unknown(batch.partition)
            if error is not None:
                raise error
        return coordinator.TransactReply(tx_id=7)


async def plainly(log: Log) -> None:
    producer = await log.producer()
    await producer.send("a", b"v")
    await producer.flush()


async def in_one_message(log: Log) -> None:
    async with (await log.transactional_producer()).transaction() as tx:
        await tx.send("a", b"v")


async def by_listing(log: Log) -> None:
    assert await log.admin.offsets("a") == [0]


@pytest.mark.parametrize("use", [plainly, in_one_message, by_listing])
def test_what_is_gone_is_told_once_and_the_next_use_finds_what_was_made_again(
    use: Callable[[Log], Awaitable[None]],
) -> None:
    async def work() -> None:
        transport = Cluster()
        log = Log("boot:1", ConnectOptions(), protocol=protocol_over(transport))
        await use(log)
        transport.topic_id = NEW_ID
        with pytest.raises(errors.UnknownTopic):
            await use(log)
        await use(log)

    on_virtual_time(work)


def test_a_reader_of_what_is_gone_is_told_and_the_next_one_finds_what_was_made_again() -> None:
    async def work() -> None:
        transport = Cluster()
        log = Log("boot:1", ConnectOptions(), protocol=protocol_over(transport))
        consumer = await log.consumer(["a"])
        await consumer.poll(0.1)
        transport.topic_id = NEW_ID
        refusal = errors.to_status(errors.UnknownTopic("no topic with that id"))
        part = leader.FetchedPartition(partition=PartitionKey(TOPIC_ID, 0).wire(), error=refusal)
        transport.streams = [[leader.FetchReply(partitions=[part])]]
        await consumer.seek("a", 0, 0)
        with pytest.raises(errors.UnknownTopic):
            await consumer.poll(1.0)
        again = await log.consumer(["a"])
        assert [key.topic_id for key in again._assigned.names] == [NEW_ID]
        await log.close()

    on_virtual_time(work)
