"""A transactional producer step by step, in the words of the protos: tests stop between the steps.

hand = ByHand(cluster, "billing")
tx = hand.begin()
tx.produce("payments", 0, b"a", b"b")
tx.commit()
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from oncelog.protocol import Protocol
from oncelogpb import errors
from oncelogpb.records import checksum
from oncelogpb.v1 import coordinator_pb2 as tx_pb
from oncelogpb.v1 import offset_manager_pb2 as offsets_pb
from oncelogpb.v1 import partition_leader_pb2 as log_pb
from oncelogpb.v1 import types_pb2 as pb

PREPARED, VISIBLE = pb.WAIT_PREPARED, pb.WAIT_VISIBLE


class ByHand:
    """One registered producer, over the low-level client, which routes and retries."""

    def __init__(self, bootstrap: str, name: str) -> None:
        self.protocol = Protocol(bootstrap)
        self._request_id = 0
        reply: tx_pb.InitProducerReply = self.protocol.call(
            "coordinator.init_producer",
            tx_pb.InitProducerRequest(name=name, instance_id=os.urandom(16)),
        )
        self.producer = reply.producer

    def begin(self, timeout_ms: int = 0) -> ByHandTransaction:
        self._request_id += 1
        reply: tx_pb.BeginTransactionReply = self.protocol.call(
            "coordinator.begin_transaction",
            tx_pb.BeginTransactionRequest(
                producer=self.producer, request_id=self._request_id, timeout_ms=timeout_ms
            ),
        )
        assert reply.result == tx_pb.BeginTransactionReply.RESULT_OPEN
        return ByHandTransaction(self, reply.tx_id)

    def partition(self, topic: str, number: int) -> pb.Partition:
        return pb.Partition(topic_id=self.protocol.topic(topic).topic_id, number=number)

    def journal(self, topic: str, number: int) -> log_pb.JournalDescription:
        """How a partition's journal stands."""
        request = log_pb.DescribeJournalsRequest(partitions=[self.partition(topic, number)])
        reply: log_pb.DescribeJournalsReply = self.protocol.call(
            "partition_leader.describe_journals", request
        )
        return reply.journals[0]

    def close(self) -> None:
        self.protocol.close()

    def __enter__(self) -> ByHand:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class ByHandTransaction:
    """Begun by ByHand.begin."""

    def __init__(self, hand: ByHand, tx_id: int) -> None:
        self.tx_id = tx_id
        self._hand = hand
        # Records by (topic, partition): the next sequence, and the manifest's count.
        self.counts: dict[tuple[str, int], int] = defaultdict(int)
        self._offset_participants: list[pb.Partition] = []

    def produce(self, topic: str, number: int, *values: bytes) -> None:
        """Durable and pending at return."""
        batch = rows_batch(self._hand.partition(topic, number), *values)
        batch.base_sequence = self.counts[topic, number]
        request = log_pb.ProduceRequest(
            tx_id=self.tx_id, producer=self._hand.producer, batches=[batch]
        )
        reply: log_pb.ProduceReply = self._hand.protocol.call("partition_leader.produce", request)
        if reply.results[0].HasField("error"):
            raise errors.from_status(reply.results[0].error)
        self.counts[topic, number] += len(values)

    def send_offset(
        self,
        group: str,
        topic: str,
        number: int,
        *,
        since: int | None,
        to: int,
        member: offsets_pb.GroupMember | None = None,
    ) -> None:
        """Durable and pending at return. `member`: in whose name; None: of who stands alone."""
        commit = offset_commit(self._hand.partition(topic, number), since=since, to=to)
        reply: offsets_pb.CommitTransactionOffsetsReply = self._hand.protocol.call(
            "offset_manager.commit_transaction_offsets",
            offsets_pb.CommitTransactionOffsetsRequest(
                tx_id=self.tx_id,
                producer=self._hand.producer,
                offsets=offsets_pb.GroupOffsets(group=group, offsets=[commit], member=member),
            ),
        )
        self._offset_participants.append(reply.participant)

    def commit(self, wait: pb.Wait.ValueType = PREPARED) -> tx_pb.CommitTransactionReply:
        parts = [
            (self._hand.partition(topic, number), count)
            for (topic, number), count in self.counts.items()
        ]
        parts += [(place, 0) for place in self._offset_participants]
        request = tx_pb.CommitTransactionRequest(
            tx_id=self.tx_id, producer=self._hand.producer, manifest=manifest_of(parts), wait=wait
        )
        reply: tx_pb.CommitTransactionReply = self._call("commit_transaction", request)
        return reply

    def abort(self) -> None:
        request = tx_pb.AbortTransactionRequest(tx_id=self.tx_id, producer=self._hand.producer)
        self._call("abort_transaction", request)

    def look(self) -> tx_pb.TransactionDescription:
        """What the coordinator says of it."""
        reply: tx_pb.GetTransactionReply = self._call(
            "get_transaction", tx_pb.GetTransactionRequest(tx_id=self.tx_id)
        )
        return reply.transaction

    def is_visible(self) -> bool:
        described = self.look()
        return described.state == pb.TRANSACTION_STATE_COMMITTED and described.visible

    def _call(self, method: str, request: Any) -> Any:
        return self._hand.protocol.call(f"coordinator.{method}", request)


def rows_batch(partition: pb.Partition, *values: bytes) -> pb.Batch:
    """As clients without Arrow make them."""
    return batch_of(partition, pb.Rows(rows=[pb.Row(value=v, timestamp_us=1) for v in values]))


def batch_of(partition: pb.Partition, rows: pb.Rows) -> pb.Batch:
    payload = rows.SerializeToString()
    return pb.Batch(
        partition=partition,
        encoding=pb.ENCODING_ROWS,
        record_count=len(rows.rows),
        crc32c=checksum(payload),
        max_timestamp_us=max(row.timestamp_us for row in rows.rows),
        payload=payload,
    )


def offset_commit(
    partition: pb.Partition, *, since: int | None, to: int
) -> offsets_pb.OffsetCommit:
    """None: no offset must be committed yet."""
    if since is None:
        return offsets_pb.OffsetCommit(partition=partition, from_none=True, to_offset=to)
    return offsets_pb.OffsetCommit(partition=partition, from_offset=since, to_offset=to)


def manifest_of(parts: Iterable[tuple[pb.Partition, int]]) -> pb.Manifest:
    """Of writer 0: partitions and their record counts."""
    topics: dict[bytes, pb.Manifest.Topic] = {}
    for partition, count in parts:
        topic = topics.setdefault(
            partition.topic_id, pb.Manifest.Topic(topic_id=partition.topic_id)
        )
        topic.partition.append(partition.number)
        topic.writer.append(0)
        topic.record_count.append(count)
    return pb.Manifest(topics=topics.values())
