"""A job that writes as several writers in one transaction, over the low-level face, as Spark's sink
does; what it does goes into the history by hand (docs/history_format.md)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa

from oncelog.checker.recorder import RecordedLog
from oncelogpb import errors, records
from oncelogpb.v1 import (
    coordinator_pb2,
    offset_manager_pb2,
    partition_leader_pb2,
    types_pb2,
)
from tests.faults.attempts import Attempt, Outcome

BATCHES: Final = 3
WRITERS: Final = (0x77AA, 0x77BB)
# Of a task attempt that failed: the manifest does not name it.
LOST_WRITER: Final = 0x77CC
# The batch whose transaction is open for longer than leaders wait before they ask about it.
SLOW_BATCH: Final = 1
SLOW_SECONDS: Final = 1.6
# An idle transaction ends soon.
IDLE_MS: Final = 10_000
CALL_MS: Final = 60_000


class Job:
    """Several writers in one transaction, over the low-level face, as the Spark sink does it."""

    def __init__(self, client: RecordedLog, name: str, source: str, target: str) -> None:
        self._name, self._source, self._target = name, source, target
        self._history = client.history
        self._protocol = client.log.protocol
        self._instance = self._protocol.entropy(16)
        self._target_id = b""
        self._source_id = b""

    async def start(self) -> None:
        self._target_id = (await self._protocol.topic(self._target)).topic_id
        self._source_id = (await self._protocol.topic(self._source)).topic_id

    def renew(self) -> None:
        """The next run: its InitProducer decides what this one left open."""
        self._instance = self._protocol.entropy(16)

    async def run(self, attempt: Attempt, number: int) -> bool:
        """Raises OncelogError where it is not known to be committed."""
        tx = f"job.{attempt.number}"
        begun, who = await self._enter(tx, number)
        if begun.result == coordinator_pb2.BeginTransactionReply.RESULT_ALREADY_COMMITTED:
            attempt.outcome = Outcome.ABORTED
            return True
        manifest = types_pb2.Manifest()
        _name_participant(manifest, await self._register(tx, begun.tx_id, who, number))
        topic = manifest.topics.add(topic_id=self._target_id)
        for writer in (*WRITERS, LOST_WRITER):
            for partition in range(2):
                rows = [attempt.value(f"{writer:x}/{partition}/{index}") for index in range(2)]
                await self._write(tx, begun.tx_id, who, writer, partition, rows)
                if writer != LOST_WRITER:
                    attempt.wrote += [(partition, row) for row in rows]
                    topic.partition.append(partition)
                    topic.writer.append(writer)
                    topic.record_count.append(len(rows))
        await asyncio.sleep(SLOW_SECONDS if number == SLOW_BATCH else 0.0)
        await self._commit(tx, begun.tx_id, who, manifest, number)
        attempt.outcome = Outcome.COMMITTED
        return True

    async def _enter(self, tx: str, number: int) -> tuple[Any, types_pb2.Producer]:
        """Two tasks, one transaction."""
        who = await self._init()
        begun = await self._begin(who, number)
        if begun.result == coordinator_pb2.BeginTransactionReply.RESULT_OPEN:
            op = self._history.invoke("begin", tx=tx, **_identity(who))
            self._history.ok(op, tx_id=f"{begun.tx_id:x}")
        again_who = await self._init()
        again = await self._begin(again_who, number)
        if (begun.tx_id, begun.result, who) != (again.tx_id, again.result, again_who):
            raise errors.TransactionEnded("the transaction ended between two tasks")
        if begun.result == coordinator_pb2.BeginTransactionReply.RESULT_ENDED:
            raise errors.TransactionEnded("its batch ended under it")
        return begun, who

    async def _init(self) -> types_pb2.Producer:
        request = coordinator_pb2.InitProducerRequest(name=self._name, instance_id=self._instance)
        with self._told(
            "init_producer", name=self._name, group=self._name, instance=self._instance.hex()
        ) as answer:
            reply = await self._protocol.call("coordinator.init_producer", request, CALL_MS)
            answer.update(_identity(reply.producer), group=self._name)
        who: types_pb2.Producer = reply.producer
        return who

    async def _begin(self, who: types_pb2.Producer, number: int) -> Any:
        request = coordinator_pb2.BeginTransactionRequest(
            producer=who,
            request_id=number + 1,
            timeout_ms=IDLE_MS,
            commit_seq=self._commit_seq(number),
        )
        return await self._protocol.call("coordinator.begin_transaction", request, CALL_MS)

    async def _commit(
        self,
        tx: str,
        tx_id: int,
        who: types_pb2.Producer,
        manifest: types_pb2.Manifest,
        number: int,
    ) -> None:
        request = coordinator_pb2.CommitTransactionRequest(
            tx_id=tx_id,
            producer=who,
            manifest=manifest,
            commit_seq=self._commit_seq(number),
            wait=types_pb2.WAIT_PREPARED,
        )
        named = manifest.topics[-1]
        columns = zip(named.partition, named.writer, named.record_count, strict=True)
        with self._told(
            "commit",
            tx=tx,
            **_identity(who),
            manifest=[[self._target, *column] for column in columns],
            commit_seq=[self._name, number + 1],
        ) as answer:
            await self._protocol.call("coordinator.commit_transaction", request, CALL_MS)
            answer["tx_id"] = f"{tx_id:x}"
        # As after a lost answer: nothing changes.
        await self._protocol.call("coordinator.commit_transaction", request, CALL_MS)

    async def _register(
        self, tx: str, tx_id: int, who: types_pb2.Producer, number: int
    ) -> types_pb2.Partition:
        """The batch's input, one record, before anything is written: the partition that holds it
        until the commit."""
        request = offset_manager_pb2.CommitTransactionOffsetsRequest(
            tx_id=tx_id, producer=who, timeout_ms=IDLE_MS
        )
        request.offsets.group = self._name
        offset = request.offsets.offsets.add(to_offset=number + 1, view=types_pb2.VIEW_COMMITTED)
        offset.partition.topic_id = self._source_id
        if number:
            offset.from_offset = number
        else:
            offset.from_none = True
        commit = {"group": self._name, "topic": self._source, "partition": 0}
        moved = {**commit, "from": number or "none", "to": number + 1}
        with self._told("commit_offsets", group=self._name, tx=tx, offsets=[moved]):
            reply: offset_manager_pb2.CommitTransactionOffsetsReply = await self._protocol.call(
                "offset_manager.commit_transaction_offsets", request, CALL_MS
            )
        return reply.participant

    async def _write(
        self,
        tx: str,
        tx_id: int,
        who: types_pb2.Producer,
        writer: int,
        partition: int,
        values: list[bytes],
    ) -> None:
        table = pa.RecordBatch.from_pydict({"value": pa.array(values, pa.binary())})
        batch = records.seal(records.conform(table, default_timestamp_us=1))
        batch.partition.topic_id = self._target_id
        batch.partition.number = partition
        request = partition_leader_pb2.ProduceRequest(
            tx_id=tx_id, producer=who, writer=writer, batches=[batch]
        )
        with self._told(
            "send",
            tx=tx,
            topic=self._target,
            partition=partition,
            values=[value.decode() for value in values],
            writer=writer,
        ):
            reply = await self._protocol.call("partition_leader.produce", request, CALL_MS)
            for result in reply.results:
                if result.HasField("error"):
                    raise errors.from_status(result.error)

    def _commit_seq(self, number: int) -> types_pb2.CommitSeq:
        return types_pb2.CommitSeq(scope=self._name, number=number + 1)

    @contextlib.contextmanager
    def _told(self, do: str, **arguments: Any) -> Iterator[dict[str, Any]]:
        """An operation of the history around a call; what is put into it is its result."""
        op = self._history.invoke(do, **arguments)
        answer: dict[str, Any] = {}
        try:
            yield answer
        except errors.OncelogError as error:
            end = self._history.unknown if error.may_have_applied else self._history.fail
            end(op, error.reason)
            raise
        self._history.ok(op, **answer)


def _identity(who: types_pb2.Producer) -> dict[str, Any]:
    return {"producer": f"{who.producer_id:x}", "generation": who.generation}


def _name_participant(manifest: types_pb2.Manifest, participant: types_pb2.Partition) -> None:
    """A partition of `__consumer_offsets`: without writer and count."""
    topic = manifest.topics.add(topic_id=participant.topic_id)
    topic.partition.append(participant.number)
    topic.writer.append(0)
    topic.record_count.append(0)
