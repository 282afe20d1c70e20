"""What one task attempt writes: its rows as batches of the log, under a writer number of its own.

Rows are collected until they fill a message, split by partition, encoded, and sent by one thread in
order, while the next ones are being collected. A batch that a leader refuses fails the task.

Invariants: sequences count from 0 per partition of this writer; what `finish` reports stands in the
journals, durable; nothing of it is visible before the driver names this writer in the manifest.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from oncelog_spark.batch_transaction import Entered, TransactionLost
from oncelog_spark.manifest import PartCount
from oncelog_spark.routing import pieces, route, topics_of
from oncelog_spark.schema import joined
from oncelog_spark.subscription import raise_for
from oncelogpb import errors, records
from oncelogpb.v1 import partition_leader_pb2 as leader_pb
from oncelogpb.v1 import types_pb2 as pb

if TYPE_CHECKING:
    from oncelog.protocol import Protocol

# Rows are collected up to this size, then split by partition.
COLLECT_BYTES: Final = 4 * 1024 * 1024
# Encoded batches of one message: below the wire's limit whatever a single row weighs.
MESSAGE_BYTES: Final = 2 * 1024 * 1024
# Messages that wait for the one under way.
MESSAGES_AHEAD: Final = 2
PRODUCE_TIMEOUT_MS: Final = 120_000


class TaskProducer:
    """Sends one attempt's rows. Use as a context manager; `finish` at the end."""

    def __init__(
        self, protocol: Protocol, entered: Entered, *, writer: int, topic: str | None, unkeyed: int
    ) -> None:
        self._protocol = protocol
        self._entered = entered
        self._writer = writer
        self._topic = topic
        # Takes the rows without key; moves on with every split.
        self._unkeyed = unkeyed
        self._collected: list[pa.RecordBatch] = []
        self._collected_bytes = 0
        self._topic_ids: dict[str, bytes] = {}
        self._partition_counts: dict[str, int] = {}
        # Records sent so far, by (topic id, partition): the next sequence.
        self._sequences: Counter[tuple[bytes, int]] = Counter()
        self._sender = ThreadPoolExecutor(max_workers=1, thread_name_prefix="oncelog-produce")
        self._under_way: deque[Future[None]] = deque()

    def __enter__(self) -> TaskProducer:
        return self

    def __exit__(self, *_exc: object) -> None:
        self._sender.shutdown(wait=False, cancel_futures=True)

    def write(self, batch: pa.RecordBatch) -> None:
        """Takes a DataFrame's batch. Raises what went wrong so far."""
        if batch.num_rows == 0:
            return
        self._collected.append(batch)
        self._collected_bytes += batch.nbytes
        if self._collected_bytes >= COLLECT_BYTES:
            self._send_collected()

    def finish(self) -> tuple[PartCount, ...]:
        """Sends the rest, waits until all of it is durable, and says what stands where."""
        if self._collected:
            self._send_collected()
        while self._under_way:
            self._under_way.popleft().result()
        return tuple(
            PartCount(topic_id, number, count)
            for (topic_id, number), count in sorted(self._sequences.items())
        )

    def _send_collected(self) -> None:
        rows = joined(self._collected)
        self._collected, self._collected_bytes = [], 0
        for name in topics_of(rows, self._topic):
            self._learn(name)
        for message in _messages(self._batches(rows)):
            while len(self._under_way) > MESSAGES_AHEAD:
                self._under_way.popleft().result()
            self._under_way.append(self._sender.submit(self._send, message))
        self._unkeyed += 1

    def _learn(self, name: str) -> None:
        if name not in self._topic_ids:
            topic = self._protocol.topic(name)
            self._topic_ids[name] = topic.topic_id
            self._partition_counts[name] = len(topic.partitions)

    def _batches(self, rows: pa.RecordBatch) -> Iterator[pb.Batch]:
        now_us = time.time_ns() // 1000
        routed = route(
            rows,
            topic=self._topic,
            partition_counts=self._partition_counts,
            unkeyed=self._unkeyed,
        )
        for target in routed:
            topic_id = self._topic_ids[target.topic]
            for piece in pieces(records.conform(target.rows, default_timestamp_us=now_us)):
                batch = records.seal(piece)
                batch.partition.topic_id = topic_id
                batch.partition.number = target.partition
                batch.base_sequence = self._sequences[topic_id, target.partition]
                self._sequences[topic_id, target.partition] += piece.num_rows
                yield batch

    def _send(self, batches: Sequence[pb.Batch]) -> None:
        request = leader_pb.ProduceRequest(
            tx_id=self._entered.tx_id,
            producer=self._entered.producer,
            writer=self._writer,
            batches=batches,
        )
        try:
            reply = self._protocol.call(
                "partition_leader.produce", request, timeout_ms=PRODUCE_TIMEOUT_MS
            )
            for result in reply.results:
                raise_for(result)
        except errors.TransactionEnded as error:
            raise TransactionLost(
                f"the batch's transaction ended while a task was writing ({error}): it was idle "
                "for too long, aborted by an operator, or a later run took over"
            ) from error


def _messages(batches: Iterator[pb.Batch]) -> Iterator[list[pb.Batch]]:
    """Batches in order, gathered up to the size of a message."""
    message: list[Any] = []
    size = 0
    for batch in batches:
        if message and size + len(batch.payload) > MESSAGE_BYTES:
            yield message
            message, size = [], 0
        message.append(batch)
        size += len(batch.payload)
    if message:
        yield message
