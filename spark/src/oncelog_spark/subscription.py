"""What a source's topics are, where their partitions begin and end, and where a group stands.

All positions are of the committed log. Nothing is cached here but what the connection caches.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from oncelog._core.routing import PartitionKey
from oncelog.aio.visibility import Visibility
from oncelog.protocol import AsyncProtocol
from oncelog_spark.batch_transaction import described
from oncelog_spark.offsets import (
    EARLIEST_MARK,
    LATEST_MARK,
    Edge,
    OffsetRange,
    Place,
    Positions,
    Times,
    TopicPartition,
)
from oncelog_spark.options import (
    OFFSET_RETRIES,
    OFFSET_RETRY_INTERVAL_MS,
    OptionError,
    SourceOptions,
)
from oncelogpb import errors
from oncelogpb.v1 import offset_manager_pb2, partition_leader_pb2
from oncelogpb.v1 import types_pb2 as pb

if TYPE_CHECKING:
    from oncelog.protocol import Protocol

log = logging.getLogger(__name__)

LIST_TIMEOUT_MS: Final = 30_000
# Added to a long poll's own wait.
POLL_GRACE_MS: Final = 10_000
# The answers of several leaders are merged, so the slowest one holds back news of the others.
POLL_MANY_LEADERS_MS: Final = 50
# A poll asks where the ends are, but a fetch gives at least one batch.
POLL_BYTES: Final = 1
# A fetch takes no more; where there are more, their ends are asked for instead.
POLL_PARTITIONS_MAX: Final = 1_000
# Which topics match a pattern is asked so often at most.
PATTERN_EVERY_S: Final = 5.0
# How large records are is looked at so often at most.
SIZE_EVERY_S: Final = 30.0


# How each edge is asked for, in the order of `Edges`.
EDGES: Final[Mapping[Edge, Mapping[str, Any]]] = {
    Edge.EARLIEST: {"earliest": True},
    Edge.LATEST: {"latest": True},
}


@dataclass(frozen=True, slots=True)
class Edges:
    """What the log holds: where its partitions begin and end."""

    earliest: Positions
    latest: Positions


@dataclass
class RecordSize:
    """About how large a record is, as it was a moment ago."""

    size_bytes: float = 0.0
    asked: float | None = None

    def ask(self, subscription: Subscription, part: OffsetRange) -> float:
        now = time.monotonic()
        if self.asked is None or now - self.asked >= SIZE_EVERY_S:
            self.size_bytes, self.asked = subscription.record_bytes(part), now
        return self.size_bytes


@dataclass
class Matching:
    """Names that a pattern matches, as they were a moment ago."""

    names: tuple[str, ...] = ()
    asked: float | None = None

    def ask(self, protocol: Protocol, pattern: re.Pattern[str]) -> tuple[str, ...]:
        """Asks the cluster, unless it was asked just now."""
        now = time.monotonic()
        if self.asked is None or now - self.asked >= PATTERN_EVERY_S:
            reply = protocol.call(
                "partition_leader.list_topics",
                partition_leader_pb2.ListTopicsRequest(names_only=True),
                timeout_ms=LIST_TIMEOUT_MS,
            )
            self.names = tuple(t.name for t in reply.topics if pattern.fullmatch(t.name))
            self.asked = now
        return self.names


@dataclass(frozen=True, slots=True)
class Subscription:
    """The partitions that a source reads, with the ids that their topics have now."""

    protocol: Protocol
    topic_ids: Mapping[str, bytes]
    # Processes that lead the topics' partitions, as far as this process knows.
    leader_count: int
    partitions: tuple[TopicPartition, ...]
    offset_retries: int = OFFSET_RETRIES
    offset_retry_interval_ms: int = OFFSET_RETRY_INTERVAL_MS

    @classmethod
    def resolve(
        cls, protocol: Protocol, options: SourceOptions, matching: Matching | None = None
    ) -> Subscription:
        """`matching`: what is known of a pattern already. Raises UnknownTopic, or OptionError for
        an assigned partition that does not exist."""
        names = options.topics or tuple(dict.fromkeys(tp.topic for tp in options.assigned))
        if options.pattern is not None:
            names = (matching or Matching()).ask(protocol, options.pattern)
        topics = _described(protocol, names, may_be_gone=options.pattern is not None)
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
        return cls(
            protocol,
            ids,
            len(leaders),
            partitions,
            options.offset_retries,
            options.offset_retry_interval_ms,
        )

    def wire(self, partition: TopicPartition) -> pb.Partition:
        return pb.Partition(topic_id=self.topic_ids[partition.topic], number=partition.number)

    def ids_hex(self) -> dict[str, str]:
        return {name: topic_id.hex() for name, topic_id in self.topic_ids.items()}

    def at(self, edge: Edge) -> dict[TopicPartition, int]:
        """Where every partition begins or ends."""
        return self._offsets([(tp, EDGES[edge]) for tp in self.partitions])

    def edges(self) -> Edges:
        """Where every partition begins and ends, asked for at once."""
        wanted = [(tp, EDGES[edge]) for edge in EDGES for tp in self.partitions]
        offsets = [listed.offset for listed in self._list(wanted)]
        count = len(self.partitions)
        earliest = dict(zip(self.partitions, offsets[:count], strict=True))
        return Edges(earliest, dict(zip(self.partitions, offsets[count:], strict=True)))

    def place(
        self, wanted: Place, name: str, *, late: Literal["error", "latest"] = "latest"
    ) -> dict[TopicPartition, int]:
        """What an option says, as offsets. `late`: what becomes of a partition that has nothing so
        late as the time asked for. Raises OptionError for that, or where the option leaves a
        partition out."""
        if isinstance(wanted, Edge):
            return self.at(wanted)
        if isinstance(wanted, Times):
            return self._by_time(wanted, name, late)
        self._require_named(wanted, name)
        placed = dict(wanted)
        for mark, edge in ((EARLIEST_MARK, Edge.EARLIEST), (LATEST_MARK, Edge.LATEST)):
            if mark in placed.values():
                edges = self.at(edge)
                placed.update({tp: edges[tp] for tp, at in placed.items() if at == mark})
        return placed

    def _require_named(self, wanted: Collection[TopicPartition], name: str) -> None:
        missing = [str(tp) for tp in self.partitions if tp not in wanted]
        if missing or len(wanted) != len(self.partitions):
            unread = [str(tp) for tp in sorted(wanted) if tp not in self.partitions]
            raise OptionError(
                f"`{name}` must name exactly the partitions that are read; "
                f"missing: {missing}, not read: {unread}"
            )

    def _by_time(
        self, times: Times, name: str, late: Literal["error", "latest"]
    ) -> dict[TopicPartition, int]:
        """The first record of each partition at or after its time."""
        if not isinstance(times.of, int):
            self._require_named(times.of, f"{name}ByTimestamp")
        wanted = [(tp, {"timestamp_us": times.at(tp) * 1000}) for tp in self.partitions]
        found = dict(zip(self.partitions, self._list(wanted), strict=True))
        without = [str(tp) for tp, at in found.items() if not at.HasField("timestamp_us")]
        if without and late == "error":
            raise OptionError(
                f"{', '.join(without)}: no record is so late as the time to begin at. With "
                "startingOffsetsByTimestampStrategy=latest the read begins at the end there"
            )
        return {tp: at.offset for tp, at in found.items()}

    def await_more(self, seen: Positions, wait_ms: int) -> dict[TopicPartition, int]:
        """A long poll: the ends of all partitions, once one is above `seen` or time is up."""
        if not 0 < len(self.partitions) <= POLL_PARTITIONS_MAX:
            time.sleep(wait_ms / 1000)
            return self.at(Edge.LATEST)
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

    def record_bytes(self, part: OffsetRange) -> float:
        """Of a record there, by the first batch of the range; 0: nothing is told of it."""
        request = partition_leader_pb2.FetchRequest(
            partitions=[
                partition_leader_pb2.FetchPartition(
                    partition=self.wire(part.partition), offset=part.start, max_bytes=POLL_BYTES
                )
            ],
            isolation=partition_leader_pb2.ISOLATION_COMMITTED,
            max_bytes=POLL_BYTES,
            with_offsets=True,
        )
        try:
            reply = self.protocol.call(
                "partition_leader.fetch", request, timeout_ms=LIST_TIMEOUT_MS
            )
        except errors.OncelogError:
            # Only the number of tasks depends on it: what is wrong, the tasks will find.
            return 0.0
        batches = reply.partitions[0].batches
        count = sum(batch.record_count for batch in batches)
        return sum(len(batch.payload) for batch in batches) / count if count else 0.0

    def committed(
        self, group: str, *, stable: bool
    ) -> dict[TopicPartition, offset_manager_pb2.CommittedOffset]:
        """Where the group stands. With `stable`, waits for pending positions to be decided."""
        if not self.partitions:
            # Asked for none, the offset manager gives all that the group has.
            return {}
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

    def _offsets(
        self, wanted: Sequence[tuple[TopicPartition, Mapping[str, Any]]]
    ) -> dict[TopicPartition, int]:
        listed = self._list(wanted)
        return {tp: item.offset for (tp, _), item in zip(wanted, listed, strict=True)}

    def _list(
        self, wanted: Sequence[tuple[TopicPartition, Mapping[str, Any]]]
    ) -> Sequence[partition_leader_pb2.ListedOffset]:
        """One answer for each question. Where nobody leads a partition for longer than a call
        waits, asked again, as often as the user says."""
        request = partition_leader_pb2.ListOffsetsRequest(
            queries=[
                partition_leader_pb2.OffsetQuery(partition=self.wire(tp), **at) for tp, at in wanted
            ],
            isolation=partition_leader_pb2.ISOLATION_COMMITTED,
        )
        for left in range(self.offset_retries, -1, -1):
            try:
                return self._list_once(request)
            except errors.OncelogError as error:
                if not error.retriable or left == 0:
                    raise
                log.warning("where partitions begin and end is asked for again: %s", error)
                time.sleep(self.offset_retry_interval_ms / 1000)
        raise AssertionError("the last attempt returns or raises")

    def _list_once(
        self, request: partition_leader_pb2.ListOffsetsRequest
    ) -> Sequence[partition_leader_pb2.ListedOffset]:
        if not request.queries:
            return []
        reply = self.protocol.call(
            "partition_leader.list_offsets", request, timeout_ms=LIST_TIMEOUT_MS
        )
        for listed in reply.offsets:
            raise_for(listed)
        offsets: Sequence[partition_leader_pb2.ListedOffset] = reply.offsets
        return offsets


def _described(
    protocol: Protocol, names: Iterable[str], *, may_be_gone: bool
) -> dict[str, partition_leader_pb2.TopicDescription]:
    """The topics by name. One that a pattern found may be deleted by now."""
    topics = {}
    for name in names:
        try:
            topics[name] = protocol.topic(name)
        except errors.UnknownTopic:
            if not may_be_gone:
                raise
    return topics


def raise_for(item: Any) -> None:
    """Raises the error that an item of a merged reply holds."""
    if item.HasField("error"):
        raise errors.from_status(item.error)


def plain_offsets(
    subscription: Subscription, group: str, end: Positions
) -> offset_manager_pb2.GroupOffsets:
    """Positions for lag only: whatever stood there before. Not of a topic that is gone by now."""
    offsets = offset_manager_pb2.GroupOffsets(group=group)
    there = {tp: at for tp, at in end.items() if tp.topic in subscription.topic_ids}
    for partition, position in sorted(there.items()):
        offsets.offsets.add(
            partition=subscription.wire(partition),
            from_any=True,
            to_offset=position,
            view=pb.VIEW_COMMITTED,
        )
    return offsets


# Where a group stands, as `Subscription.committed` gives it.
GroupStanding = Mapping[TopicPartition, offset_manager_pb2.CommittedOffset]


def step_offsets(
    subscription: Subscription,
    group: str,
    standing: GroupStanding,
    start: Positions,
    end: Positions,
) -> offset_manager_pb2.GroupOffsets:
    """The step of a micro-batch, each partition from where it begins: the group must stand there,
    or nowhere where it has no position yet."""
    offsets = offset_manager_pb2.GroupOffsets(group=group)
    decisions = _Decisions(subscription.protocol)
    for partition, position in sorted(end.items()):
        commit = offsets.offsets.add(
            partition=subscription.wire(partition), to_offset=position, view=pb.VIEW_COMMITTED
        )
        if decisions.stands_nowhere(standing[partition]):
            commit.from_none = True
        else:
            commit.from_offset = start[partition]
    return offsets


def not_standing_at(
    subscription: Subscription, standing: GroupStanding, positions: Positions
) -> list[TopicPartition]:
    """Partitions whose position the group neither has nor gets from a transaction that is decided
    to commit."""
    decisions = _Decisions(subscription.protocol)
    return [
        partition
        for partition, position in sorted(positions.items())
        if partition in standing
        and standing[partition].offset != position
        and not decisions.is_coming(standing[partition])
    ]


class _Decisions:
    """Which transactions are decided to commit; each is asked for once, for all partitions."""

    def __init__(self, protocol: Protocol) -> None:
        self._protocol = protocol
        self._known: dict[int, bool] = {}

    def stands_nowhere(self, committed: offset_manager_pb2.CommittedOffset) -> bool:
        """No position, and none on its way. A pending one counts once its transaction is decided to
        commit; one of an open transaction is of an earlier run, which this batch's tasks will
        fence."""
        return not committed.HasField("offset") and not self.is_coming(committed)

    def is_coming(self, committed: offset_manager_pb2.CommittedOffset) -> bool:
        """A position is pending under a transaction that is decided to commit."""
        tx_id = committed.pending_tx_id
        if tx_id and tx_id not in self._known:
            found = described(self._protocol, tx_id, timeout_ms=LIST_TIMEOUT_MS)
            self._known[tx_id] = found.state == pb.TRANSACTION_STATE_COMMITTED
        return self._known.get(tx_id, False)
