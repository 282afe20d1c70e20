"""What a source's topics are, where their partitions begin and end, and where a group stands.

All positions are of the committed log. Nothing is cached here but what the connection caches.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from oncelog._core.routing import PartitionKey
from oncelog.aio.visibility import Visibility
from oncelog.protocol import AsyncProtocol
from oncelog_spark.offsets import (
    EARLIEST_MARK,
    LATEST_MARK,
    Edge,
    Positions,
    TopicPartition,
)
from oncelog_spark.options import OptionError, SourceOptions
from oncelogpb import errors
from oncelogpb.v1 import coordinator_pb2, offset_manager_pb2, partition_leader_pb2
from oncelogpb.v1 import types_pb2 as pb

if TYPE_CHECKING:
    from oncelog.protocol import Protocol

LIST_TIMEOUT_MS: Final = 30_000
# Added to a long poll's own wait.
POLL_GRACE_MS: Final = 10_000
# The answers of several leaders are merged, so the slowest one holds back news of the others.
POLL_MANY_LEADERS_MS: Final = 50
# A poll asks where the ends are, but a fetch gives at least one batch.
POLL_BYTES: Final = 1


@dataclass(frozen=True, slots=True)
class Subscription:
    """The partitions that a source reads, with the ids that their topics have now."""

    protocol: Protocol
    topic_ids: Mapping[str, bytes]
    # Processes that lead the topics' partitions, as far as this process knows.
    leader_count: int
    partitions: tuple[TopicPartition, ...]

    @classmethod
    def resolve(cls, protocol: Protocol, options: SourceOptions) -> Subscription:
        """Raises UnknownTopic, or OptionError for an assigned partition that does not exist."""
        names = options.topics or tuple(dict.fromkeys(tp.topic for tp in options.assigned))
        topics = {name: protocol.topic(name) for name in names}
        partitions = options.assigned or tuple(
            sorted(
                TopicPartition(name, partition.number)
                for name, topic in topics.items()
                for partition in topic.partitions
            )
        )
        for partition in partitions:
            count = len(topics[partition.topic].partitions)
            if partition.number >= count:
                raise OptionError(f"`assign`: {partition} does not exist; there are {count}")
        leaders = {p.leader.boot_id for topic in topics.values() for p in topic.partitions}
        ids = {name: topic.topic_id for name, topic in topics.items()}
        return cls(protocol, ids, len(leaders), partitions)

    def wire(self, partition: TopicPartition) -> pb.Partition:
        return pb.Partition(topic_id=self.topic_ids[partition.topic], number=partition.number)

    def ids_hex(self) -> dict[str, str]:
        return {name: topic_id.hex() for name, topic_id in self.topic_ids.items()}

    def at(self, edge: Edge) -> dict[TopicPartition, int]:
        """Where every partition begins or ends."""
        mark = {"earliest": True} if edge is Edge.EARLIEST else {"latest": True}
        return self._list(self.partitions, mark)

    def by_time(self, time_ms: int) -> dict[TopicPartition, int]:
        """The first record of each partition at or after a time; the end where there is none."""
        return self._list(self.partitions, {"timestamp_us": time_ms * 1000})

    def place(self, wanted: Edge | Positions, name: str) -> dict[TopicPartition, int]:
        """What an option says, as offsets. Raises OptionError where it leaves a partition out."""
        if isinstance(wanted, Edge):
            return self.at(wanted)
        missing = [str(tp) for tp in self.partitions if tp not in wanted]
        if missing or len(wanted) != len(self.partitions):
            unread = [str(tp) for tp in sorted(wanted) if tp not in self.partitions]
            raise OptionError(
                f"`{name}` must name exactly the partitions that are read; "
                f"missing: {missing}, not read: {unread}"
            )
        placed = dict(wanted)
        for mark, edge in ((EARLIEST_MARK, Edge.EARLIEST), (LATEST_MARK, Edge.LATEST)):
            if mark in placed.values():
                edges = self.at(edge)
                placed.update({tp: edges[tp] for tp, at in placed.items() if at == mark})
        return placed

    def await_more(self, seen: Positions, wait_ms: int) -> dict[TopicPartition, int]:
        """A long poll: the ends of all partitions, once one is above `seen` or time is up."""
        if self.leader_count > 1:
            wait_ms = min(wait_ms, POLL_MANY_LEADERS_MS)
        request = partition_leader_pb2.FetchRequest(
            partitions=[
                partition_leader_pb2.FetchPartition(
                    partition=self.wire(tp), offset=seen[tp], max_bytes=POLL_BYTES
                )
                for tp in self.partitions
            ],
            isolation=partition_leader_pb2.ISOLATION_COMMITTED,
            max_wait_ms=wait_ms,
            max_bytes=POLL_BYTES,
        )
        reply = self.protocol.call(
            "partition_leader.fetch", request, timeout_ms=wait_ms + POLL_GRACE_MS
        )
        ends = {}
        for partition, fetched in zip(self.partitions, reply.partitions, strict=True):
            raise_for(fetched)
            ends[partition] = fetched.end_offset
        return ends

    def committed(
        self, group: str, *, stable: bool
    ) -> dict[TopicPartition, offset_manager_pb2.CommittedOffset]:
        """Where the group stands. With `stable`, waits for pending positions to be decided."""
        request = offset_manager_pb2.FetchOffsetsRequest(
            group=group, partitions=[self.wire(tp) for tp in self.partitions], stable=stable
        )
        reply = self.protocol.call(
            "offset_manager.fetch_offsets", request, timeout_ms=LIST_TIMEOUT_MS
        )
        return dict(zip(self.partitions, reply.offsets, strict=True))

    def await_what_was_made(
        self, standing: Mapping[TopicPartition, offset_manager_pb2.CommittedOffset]
    ) -> None:
        """Of the input before these positions: returns once all of it is visible, for what is read
        from there on may be written by a producer that has no order with the last one. Raises
        PendingTransaction, which names what is waited for."""
        moved: dict[int, list[PartitionKey]] = {}
        for committed in standing.values():
            if committed.moved_by_tx_id:
                key = PartitionKey.of(committed.partition)
                moved.setdefault(committed.moved_by_tx_id, []).append(key)

        async def wait(protocol: AsyncProtocol) -> None:
            visibility = Visibility(protocol)
            waits = (visibility.wait(tx_id, of, LIST_TIMEOUT_MS) for tx_id, of in moved.items())
            await asyncio.gather(*waits)

        if moved:
            self.protocol.run(wait)

    def _list(
        self, partitions: Iterable[TopicPartition], at: Mapping[str, Any]
    ) -> dict[TopicPartition, int]:
        wanted = list(partitions)
        request = partition_leader_pb2.ListOffsetsRequest(
            queries=[
                partition_leader_pb2.OffsetQuery(partition=self.wire(tp), **at) for tp in wanted
            ],
            isolation=partition_leader_pb2.ISOLATION_COMMITTED,
        )
        reply = self.protocol.call(
            "partition_leader.list_offsets", request, timeout_ms=LIST_TIMEOUT_MS
        )
        for listed in reply.offsets:
            raise_for(listed)
        return {tp: listed.offset for tp, listed in zip(wanted, reply.offsets, strict=True)}


def raise_for(item: Any) -> None:
    """Raises the error that an item of a merged reply holds."""
    if item.HasField("error"):
        raise errors.from_status(item.error)


def plain_offsets(
    subscription: Subscription, group: str, end: Positions
) -> offset_manager_pb2.GroupOffsets:
    """Positions for lag only: whatever stood there before."""
    offsets = offset_manager_pb2.GroupOffsets(group=group)
    for partition, position in sorted(end.items()):
        offsets.offsets.add(
            partition=subscription.wire(partition),
            from_any=True,
            to_offset=position,
            view=pb.VIEW_COMMITTED,
        )
    return offsets


def step_offsets(
    subscription: Subscription, group: str, start: Positions, end: Positions
) -> offset_manager_pb2.GroupOffsets:
    """The step of a micro-batch, each partition from where it begins: the group must stand there,
    or nowhere where it has no position yet."""
    standing = subscription.committed(group, stable=False)
    offsets = offset_manager_pb2.GroupOffsets(group=group)
    for partition, position in sorted(end.items()):
        commit = offsets.offsets.add(
            partition=subscription.wire(partition), to_offset=position, view=pb.VIEW_COMMITTED
        )
        if _stands_nowhere(subscription.protocol, standing[partition]):
            commit.from_none = True
        else:
            commit.from_offset = start[partition]
    return offsets


def not_standing_at(
    subscription: Subscription, group: str, positions: Positions
) -> list[TopicPartition]:
    """Partitions whose position the group neither has nor gets from a transaction that is decided
    to commit."""
    standing = subscription.committed(group, stable=False)
    return [
        partition
        for partition, position in sorted(positions.items())
        if partition in standing
        and standing[partition].offset != position
        and not _is_coming(subscription.protocol, standing[partition])
    ]


def _stands_nowhere(protocol: Protocol, committed: offset_manager_pb2.CommittedOffset) -> bool:
    """No position, and none on its way. A pending one counts once its transaction is decided to
    commit; one of an open transaction is of an earlier run, which this batch's tasks will fence."""
    return not committed.HasField("offset") and not _is_coming(protocol, committed)


def _is_coming(protocol: Protocol, committed: offset_manager_pb2.CommittedOffset) -> bool:
    """A position is pending under a transaction that is decided to commit."""
    if committed.pending_tx_id == 0:
        return False
    reply = protocol.call(
        "coordinator.get_transaction",
        coordinator_pb2.GetTransactionRequest(tx_id=committed.pending_tx_id),
        timeout_ms=LIST_TIMEOUT_MS,
    )
    return bool(reply.transaction.state == pb.TRANSACTION_STATE_COMMITTED)
