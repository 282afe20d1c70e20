"""Transactions by hand, in the words of the protos, with their history: for what the client never
does, and programs in other languages may."""

from __future__ import annotations

from typing import Any, Final

from oncelog._core.routing import PartitionKey
from oncelog.checker.recorder import RecordedLog
from oncelog.checker.telling import raised, telling
from oncelogpb import errors
from oncelogpb.ids import show_id
from oncelogpb.records import checksum
from oncelogpb.v1 import coordinator_pb2 as tx_pb
from oncelogpb.v1 import offset_manager_pb2 as offsets_pb
from oncelogpb.v1 import partition_leader_pb2 as log_pb
from oncelogpb.v1 import types_pb2 as pb
from tests.simulation.day import TRANSACTION_TIMEOUT_MS

CALL_MS: Final = 6_000


class Hand:
    """A registered producer. Every method raises OncelogError."""

    def __init__(self, log: RecordedLog, name: str) -> None:
        self._protocol = log.log.protocol
        self._history = log.history
        self._name = name
        self._requests = 0
        self.producer = pb.Producer()

    async def register(self) -> None:
        instance = self._protocol.entropy(16)
        op = self._history.invoke(
            "init_producer", name=self._name, group=self._name, instance=instance.hex()
        )
        with telling(self._history, op):
            reply = await self._call(
                "coordinator.init_producer",
                tx_pb.InitProducerRequest(name=self._name, instance_id=instance),
            )
        self.producer = reply.producer
        self._history.ok(op, group=self._name, **self.who)

    @property
    def who(self) -> dict[str, Any]:
        """As operations carry it."""
        return {
            "producer": show_id(self.producer.producer_id),
            "generation": self.producer.generation,
        }

    async def begin(self) -> HandTransaction:
        self._requests += 1
        name = self._history.fresh("tx")
        op = self._history.invoke("begin", tx=name, **self.who)
        with telling(self._history, op):
            reply = await self._call(
                "coordinator.begin_transaction",
                tx_pb.BeginTransactionRequest(
                    producer=self.producer,
                    request_id=self._requests,
                    timeout_ms=TRANSACTION_TIMEOUT_MS,
                ),
            )
            if reply.result != tx_pb.BeginTransactionReply.RESULT_OPEN:
                raise errors.TransactionEnded(f"{name} ended before it was used")
        self._history.ok(op, tx_id=show_id(reply.tx_id))
        return HandTransaction(self, name, reply.tx_id)

    async def transact(
        self,
        number: int,
        topic: str,
        partition: int,
        value: bytes,
        step: tuple[str, int] | None = None,
    ) -> tx_pb.TransactReply:
        """One record, under this request number. `step`: a group, and the offset of partition 0 of
        `in` from which it goes on by one."""
        name = self._history.fresh("tx")
        sends = [{"topic": topic, "partition": partition, "values": [value.decode()]}]
        moved = None if step is None else [_step(*step)]
        op = self._history.invoke("transact", tx=name, sends=sends, offsets=moved, **self.who)
        batch = await self.batch(topic, partition, value)
        request = tx_pb.TransactRequest(
            producer=self.producer, request_number=number, batches=[batch]
        )
        if step is not None:
            await self._move(request.offsets, *step)
        try:
            reply: tx_pb.TransactReply = await self._call("coordinator.transact", request)
        except errors.OutOfOrderSequence as error:
            # A copy that the network made of it may come when the gap is filled.
            self._history.unknown(op, error.reason)
            raise
        except BaseException as error:
            raised(self._history, op, error)
            raise
        self._history.ok(op, tx_id=show_id(reply.tx_id))
        return reply

    async def _move(self, offsets: offsets_pb.GroupOffsets, group: str, since: int) -> None:
        described = await self._protocol.topic("in")
        offsets.group = group
        offset = offsets.offsets.add(
            partition=PartitionKey(described.topic_id, 0).wire(),
            to_offset=since + 1,
            view=pb.VIEW_COMMITTED,
        )
        if since:
            offset.from_offset = since
        else:
            offset.from_none = True

    async def batch(self, topic: str, partition: int, *values: bytes) -> pb.Batch:
        described = await self._protocol.topic(topic)
        payload = pb.Rows(rows=[pb.Row(value=value) for value in values]).SerializeToString()
        return pb.Batch(
            partition=PartitionKey(described.topic_id, partition).wire(),
            record_count=len(values),
            encoding=pb.ENCODING_ROWS,
            payload=payload,
            crc32c=checksum(payload),
        )

    async def _call(self, method: str, request: Any) -> Any:
        return await self._protocol.call(method, request, CALL_MS)


class HandTransaction:
    """Begun by Hand.begin; one writer."""

    def __init__(self, hand: Hand, name: str, tx_id: int) -> None:
        self._hand = hand
        self._history = hand._history
        self.name = name
        self.tx_id = tx_id
        # Records by topic and partition.
        self.counts: dict[tuple[str, int], int] = {}

    async def produce(self, topic: str, partition: int, *values: bytes) -> None:
        """Durable and pending at return."""
        place = (topic, partition)
        op = self._history.invoke(
            "send",
            tx=self.name,
            topic=topic,
            partition=partition,
            values=[value.decode() for value in values],
        )
        try:
            await self._produce(topic, partition, *values)
        except (errors.TransactionEnded, errors.ProducerFenced) as error:
            # Of a sending that was repeated: what the first one left stands in the journal, and no
            # committed read shows it.
            self._history.unknown(op, error.reason)
            raise
        except BaseException as error:
            raised(self._history, op, error)
            raise
        self._history.ok(op)
        self.counts[place] = self.counts.get(place, 0) + len(values)

    async def _produce(self, topic: str, partition: int, *values: bytes) -> None:
        batch = await self._hand.batch(topic, partition, *values)
        batch.base_sequence = self.counts.get((topic, partition), 0)
        request = log_pb.ProduceRequest(
            tx_id=self.tx_id, producer=self._hand.producer, batches=[batch]
        )
        reply = await self._hand._call("partition_leader.produce", request)
        if reply.results[0].HasField("error"):
            raise errors.from_status(reply.results[0].error)

    async def commit(self) -> None:
        """What was produced so far."""
        manifest = pb.Manifest()
        named = []
        for (topic, partition), count in sorted(self.counts.items()):
            described = await self._hand._protocol.topic(topic)
            manifest.topics.add(
                topic_id=described.topic_id,
                partition=[partition],
                writer=[0],
                record_count=[count],
            )
            named.append([topic, partition, 0, count])
        request = tx_pb.CommitTransactionRequest(
            tx_id=self.tx_id, producer=self._hand.producer, manifest=manifest
        )
        op = self._history.invoke("commit", tx=self.name, manifest=named, **self._hand.who)
        with telling(self._history, op):
            await self._hand._call("coordinator.commit_transaction", request)
        self._history.ok(op, tx_id=show_id(self.tx_id))


def _step(group: str, since: int) -> dict[str, Any]:
    """As a history has it."""
    place = {"topic": "in", "partition": 0}
    return {"group": group, **place, "from": since or "none", "to": since + 1}
