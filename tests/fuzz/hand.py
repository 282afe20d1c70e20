"""The services by hand: a call at a time, in the words of the protos, without the client's help."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any, Final

from google.rpc import status_pb2

from oncelog_server.core.ids import PLAIN_PRODUCER_BIT
from oncelogpb import calls, errors, records
from oncelogpb.errors import OncelogError
from oncelogpb.v1 import coordinator_pb2 as tx_pb
from oncelogpb.v1 import partition_leader_pb2 as log_pb
from oncelogpb.v1 import types_pb2 as pb
from tests.fuzz.target import Target, running
from tests.fuzz.witness import Witness

TIMEOUT_S: Final = 20.0
Refused = OncelogError
Part = tuple[pb.Partition, int, int]


class Hand:
    """Of one cluster."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self._request_id = 0

    # ----------------------------------------------------------------------------------- the calls

    async def call(self, method: str, request: Any, timeout_s: float = TIMEOUT_S) -> Any:
        """The reply. Raises Refused."""
        service, _, name = method.partition(".")
        channel = self.target.channels[service]
        return await calls.unary(channel, service, name, request, int(timeout_s * 1000))

    async def refusal(self, call: Awaitable[Any]) -> OncelogError:
        """The error that a call ends with. Fails where it has a reply."""
        try:
            reply = await call
        except OncelogError as error:
            return error
        raise AssertionError(f"was not refused, but answered: {reply}")

    async def why(self, call: Awaitable[Any]) -> str:
        """The reason of its refusal."""
        return (await self.refusal(call)).reason

    def reason_of(self, status: status_pb2.Status) -> str:
        return errors.from_status(status).reason

    # -------------------------------------------------------------------------------------- topics

    async def topic(self, name: str, partitions: int = 1) -> pb.Partition:
        """Its first partition, once all have leaders."""
        create = log_pb.CreateTopicRequest(name=name, partitions=partitions)
        await self.call("partition_leader.create_topic", create)
        describe = log_pb.DescribeTopicsRequest(names=[name])
        async with asyncio.timeout(TIMEOUT_S):
            while True:
                reply = await self.call("partition_leader.describe_topics", describe)
                (topic,) = reply.topics
                where = pb.Partition(topic_id=topic.topic_id)
                led = all(one.HasField("leader") for one in topic.partitions)
                if led and await self._answers(where, partitions):
                    return where
                await asyncio.sleep(0.01)

    async def _answers(self, first: pb.Partition, partitions: int) -> bool:
        queries = [
            log_pb.OffsetQuery(
                partition=pb.Partition(topic_id=first.topic_id, number=number), latest=True
            )
            for number in range(partitions)
        ]
        request = log_pb.ListOffsetsRequest(queries=queries)
        reply = await self.call("partition_leader.list_offsets", request)
        return not any(one.HasField("error") for one in reply.offsets)

    async def produce(
        self,
        where: pb.Partition,
        *values: bytes,
        producer: pb.Producer | None = None,
        tx_id: int = 0,
        sequence: int = 0,
    ) -> log_pb.BatchResult:
        batch = rows(where, *values)
        batch.base_sequence = sequence
        request = log_pb.ProduceRequest(
            tx_id=tx_id, producer=producer or self.plain_producer(), batches=[batch]
        )
        reply = await self.call("partition_leader.produce", request)
        result: log_pb.BatchResult = reply.results[0]
        _raise(result)
        return result

    async def fetch(
        self,
        where: pb.Partition,
        offset: int,
        isolation: log_pb.Isolation.ValueType = log_pb.ISOLATION_COMMITTED,
    ) -> log_pb.FetchedPartition:
        wanted = log_pb.FetchPartition(partition=where, offset=offset)
        request = log_pb.FetchRequest(
            partitions=[wanted], isolation=isolation, format=log_pb.FORMAT_ROWS
        )
        reply = await self.call("partition_leader.fetch", request)
        found: log_pb.FetchedPartition = reply.partitions[0]
        _raise(found)
        return found

    async def values(self, where: pb.Partition) -> list[bytes]:
        """All that is committed and visible."""
        values: list[bytes] = []
        while True:
            found = await self.fetch(where, len(values))
            for batch in found.batches:
                values += [row.value for row in pb.Rows.FromString(batch.payload).rows]
            if len(values) >= found.end_offset:
                return values

    async def list_offsets(self, where: pb.Partition, **at: Any) -> int:
        query = log_pb.OffsetQuery(partition=where, **at or {"latest": True})
        request = log_pb.ListOffsetsRequest(queries=[query])
        reply = await self.call("partition_leader.list_offsets", request)
        _raise(reply.offsets[0])
        return int(reply.offsets[0].offset)

    # -------------------------------------------------------------------------------- transactions

    def plain_producer(self) -> pb.Producer:
        return pb.Producer(producer_id=random.getrandbits(63) | PLAIN_PRODUCER_BIT)

    async def named_producer(self, name: str) -> pb.Producer:
        request = tx_pb.InitProducerRequest(name=name, instance_id=os.urandom(16))
        granted: tx_pb.InitProducerReply = await self.call("coordinator.init_producer", request)
        return granted.producer

    async def begin(self, producer: pb.Producer) -> int:
        self._request_id += 1
        request = tx_pb.BeginTransactionRequest(producer=producer, request_id=self._request_id)
        return int((await self.call("coordinator.begin_transaction", request)).tx_id)

    async def commit(
        self,
        producer: pb.Producer,
        tx_id: int,
        *parts: Part,
        wait: pb.Wait.ValueType = pb.WAIT_PREPARED,
    ) -> tx_pb.CommitTransactionReply:
        topics = [
            pb.Manifest.Topic(
                topic_id=where.topic_id,
                partition=[where.number],
                writer=[writer],
                record_count=[count],
            )
            for where, writer, count in parts
        ]
        request = tx_pb.CommitTransactionRequest(
            tx_id=tx_id, producer=producer, manifest=pb.Manifest(topics=topics), wait=wait
        )
        reply: tx_pb.CommitTransactionReply = await self.call(
            "coordinator.commit_transaction", request
        )
        return reply

    async def abort(self, producer: pb.Producer, tx_id: int) -> None:
        request = tx_pb.AbortTransactionRequest(tx_id=tx_id, producer=producer)
        await self.call("coordinator.abort_transaction", request)

    async def open_transactions(self, prefix: str) -> int:
        """Of producers whose names begin so. Asks until no marker of theirs is on its way."""
        async with asyncio.timeout(TIMEOUT_S):
            while True:
                request = tx_pb.ListTransactionsRequest(limit=10_000)
                reply = await self.call("coordinator.list_transactions", request)
                states = [one.state for one in reply.transactions if one.name.startswith(prefix)]
                if all(state == pb.TRANSACTION_STATE_ONGOING for state in states):
                    return len(states)
                await asyncio.sleep(0.05)

    async def transact(
        self,
        where: pb.Partition,
        *values: bytes,
        producer: pb.Producer | None = None,
        number: int = 1,
    ) -> tx_pb.TransactReply:
        who = producer or await self.named_producer(f"one-shot-{random.getrandbits(63)}")
        request = tx_pb.TransactRequest(
            producer=who, request_number=number, batches=[rows(where, *values)]
        )
        reply: tx_pb.TransactReply = await self.call("coordinator.transact", request)
        return reply


def rows(where: pb.Partition | None, *values: bytes) -> pb.Batch:
    """As clients without Arrow make them."""
    payload = pb.Rows(rows=[pb.Row(value=value, timestamp_us=1) for value in values])
    data = payload.SerializeToString()
    return pb.Batch(
        partition=where,
        encoding=pb.ENCODING_ROWS,
        record_count=len(values),
        crc32c=records.checksum(data),
        max_timestamp_us=1,
        payload=data,
    )


def story(
    data_dir: Path,
    tell: Callable[[Hand], Coroutine[Any, Any, None]],
    *settings: str,
    witnessed: bool = True,
) -> None:
    """Tells it on a cluster of its own, beside a client that must notice nothing."""

    async def main() -> None:
        async with running(data_dir, *settings) as target:
            if not witnessed:
                await tell(Hand(target))
                return
            witness = Witness(target.cluster.bootstrap)
            await witness.start()
            await tell(Hand(target))
            await witness.finish()

    asyncio.run(main())


def _raise(result: Any) -> None:
    """The error that an item of a reply has instead."""
    if result.HasField("error"):
        raise errors.from_status(result.error)
