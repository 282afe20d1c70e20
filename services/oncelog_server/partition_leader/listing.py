"""The handler of ListOffsets: earliest, latest, by time, and where an offset lies in the journal.

By time is the first committed batch, in offset order, whose running maximum timestamp is at or
above the one asked for, then the first such record in it. So positions by time never go back when
records came out of time order. Records that were deleted count for that maximum, so what is left
may be found too early, never too late.
"""

from __future__ import annotations

from typing import NamedTuple

from oncelog_server.core.frame import StoredFrame
from oncelog_server.core.ports import Call, led_machine
from oncelog_server.partition_leader import wire
from oncelog_server.partition_leader.committed_log import RUN_BYTES
from oncelog_server.partition_leader.config import PartitionLeaderConfig
from oncelog_server.partition_leader.ports import PartitionEnv, PartitionReplica
from oncelog_server.partition_leader.reads import (
    Ends,
    committed_ends,
    journal_ends,
    require_in_range,
)
from oncelogpb import records
from oncelogpb.errors import (
    CorruptLog,
    InvalidArgument,
    OffsetOutOfRange,
    OncelogError,
    Unsupported,
    to_status,
)
from oncelogpb.v1 import partition_leader_pb2 as pb


class _Listed(NamedTuple):
    offset: int
    timestamp_us: int | None = None


class Listing:
    """See the module."""

    def __init__(self, env: PartitionEnv, config: PartitionLeaderConfig) -> None:
        self._env = env
        self._config = config

    async def list_offsets(self, request: pb.ListOffsetsRequest, call: Call) -> pb.ListOffsetsReply:
        most = self._config.items_per_call_max
        wire.require_few("queries", len(request.queries), "items_per_call_max", most)
        return pb.ListOffsetsReply(
            offsets=[
                await self._answer(request, query, call.refused.get(place))
                for place, query in enumerate(request.queries)
            ]
        )

    async def _answer(
        self,
        request: pb.ListOffsetsRequest,
        query: pb.OffsetQuery,
        refusal: OncelogError | None,
    ) -> pb.ListedOffset:
        if refusal is not None:
            return pb.ListedOffset(partition=query.partition, error=to_status(refusal))
        try:
            replica = self._env.replicas.lead(wire.topic_partition(query.partition))
            # The ends are answers about now: only within the lease.
            replica.require_lease()
            listed = await self._list(replica, query, request.isolation)
            point = None
            if request.with_journal_points and not _is_of_journal(request.isolation):
                point = _point(replica, listed.offset)
        except OncelogError as error:
            return pb.ListedOffset(partition=query.partition, error=to_status(error))
        return pb.ListedOffset(
            partition=query.partition,
            offset=listed.offset,
            timestamp_us=listed.timestamp_us,
            journal_point=point,
        )

    async def _list(
        self, replica: PartitionReplica, query: pb.OffsetQuery, isolation: pb.Isolation.ValueType
    ) -> _Listed:
        in_journal = _is_of_journal(isolation)
        ends = journal_ends(replica) if in_journal else committed_ends(replica)
        match query.WhichOneof("at"):
            case "earliest":
                return _Listed(ends.start)
            case "latest":
                return _Listed(ends.end)
            case "timestamp_us":
                if in_journal:
                    raise Unsupported("offsets by time are those of committed reads")
                return await self.by_time(replica, ends, query.timestamp_us)
            case "offset":
                require_in_range(query.offset, ends)
                return _Listed(query.offset)
        raise InvalidArgument("ask for earliest, latest, timestamp_us or offset", field="at")

    async def by_time(self, replica: PartitionReplica, ends: Ends, timestamp_us: int) -> _Listed:
        """See the module. `ends` are those of the committed log."""
        try:
            return await self._search(replica, ends, timestamp_us)
        except OffsetOutOfRange as error:
            now = committed_ends(replica)
            if now.start <= ends.start:
                what = f"what is committed at {now.start} or behind: {error}"
                raise replica.unreadable(CorruptLog(what)) from error
            # It was deleted while it was read; what is left is looked at anew.
            return await self.by_time(replica, now, timestamp_us)

    async def _search(self, replica: PartitionReplica, ends: Ends, timestamp_us: int) -> _Listed:
        log = led_machine(replica).committed
        begins = log.since(timestamp_us, below=ends.end)
        if begins is None or ends.start == ends.end:
            return _Listed(ends.end)
        from_start = begins <= ends.start
        begins = max(begins, ends.start)
        (stretch,) = log.stretches(begins, below=ends.end, max_bytes=1, max_entries=1)
        position, end = stretch.journal_offset, stretch.journal_offset + stretch.record_count
        while position < end:
            stored_frames = await replica.read(position, RUN_BYTES, below=end)
            assert stored_frames, f"the committed log points at {position}, where nothing stands"
            for stored in stored_frames:
                position = stored.end
                if stored.frame.max_timestamp_us >= timestamp_us:
                    first = stretch.first_offset + stored.at.offset - stretch.journal_offset
                    listed = await self._in_batch(stored, first, timestamp_us)
                    # Of a batch of which a part was deleted, it may be in that.
                    return listed if listed.offset >= ends.start else _Listed(ends.start)
        # What was deleted was so late; else what is not readable yet of a run holds the record.
        return _Listed(ends.start if from_start and ends.start else ends.end)

    async def _in_batch(self, stored: StoredFrame, first: int, timestamp_us: int) -> _Listed:
        found: list[_Listed] = []

        def search() -> None:
            encoding, payload = stored.frame.encoding, stored.frame.payload
            index, time_us = records.first_since(encoding, payload, timestamp_us)
            found.append(_Listed(first + index, time_us))

        if records.needs_offload(stored.frame.encoding, stored.frame.payload):
            await self._env.offload(search)
        else:
            search()
        return found[0]


def _is_of_journal(isolation: pb.Isolation.ValueType) -> bool:
    return isolation in (pb.ISOLATION_UNCOMMITTED, pb.ISOLATION_RAW)


def _point(replica: PartitionReplica, offset: int) -> pb.JournalPoint:
    """Of an offset that could be read a moment ago. Raises OffsetOutOfRange where it was deleted
    meanwhile."""
    require_in_range(offset, committed_ends(replica))
    point = led_machine(replica).find_point(offset, replica.high_watermark)
    return pb.JournalPoint(earliest=point.earliest, iterator=point.iterator, given=point.given)
