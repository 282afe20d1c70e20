"""The handler of ListOffsets: earliest, latest, by time, and where an offset lies in the journal.

By time is the first entry of the committed log, in offset order, whose running maximum timestamp is
at or above the one asked for, then the first such record in it that is not deleted. So positions by
time never go back when records came out of time order. Records that were deleted count for that
maximum, so what is left may be found too early, never too late. What is settled is looked for in
its blocks, record by record the same; where that record was compacted away, the next one in them
counts, or where they end.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple

from oncelog_server.core.block import Block
from oncelog_server.core.ports import Call, led_machine
from oncelog_server.core.settling import Stretch
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
        wire.require_isolation(request.isolation)
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
            answer = pb.ListedOffset(
                partition=query.partition, offset=listed.offset, timestamp_us=listed.timestamp_us
            )
            if request.with_journal_points and not _is_of_journal(request.isolation):
                _point(replica, answer)
        except OncelogError as error:
            return pb.ListedOffset(partition=query.partition, error=to_status(error))
        return answer

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
        settled_end = replica.settled_end
        try:
            return await self._search(replica, ends, timestamp_us)
        except OffsetOutOfRange as error:
            now = committed_ends(replica)
            if now.start <= ends.start and replica.settled_end <= settled_end:
                what = f"what is committed at {now.start} or behind: {error}"
                raise replica.unreadable(CorruptLog(what)) from error
            # It was deleted, or settled, while it was read; what is there is looked at anew.
            return await self.by_time(replica, now, timestamp_us)

    async def _search(self, replica: PartitionReplica, ends: Ends, timestamp_us: int) -> _Listed:
        log = led_machine(replica).committed
        begins = log.since(timestamp_us, below=ends.end)
        if begins is None or ends.start == ends.end:
            return _Listed(ends.end)
        from_start = begins <= ends.start
        begins = max(begins, ends.start)
        (stretch,) = log.stretches(begins, below=ends.end, max_bytes=1, max_entries=1)
        async for batch in _batches(replica, stretch, begins):
            if batch.max_timestamp_us >= timestamp_us:
                listed = await self._in_batch(batch, begins, timestamp_us)
                if listed is not None and listed.offset < stretch.end_offset:
                    return listed
        compacted_to = min(replica.compacted_to, ends.end)
        if led_machine(replica).settings.is_compacted and begins < compacted_to:
            return await self._behind(replica, begins, compacted_to, timestamp_us)
        # What was deleted was so late; else what is not readable yet of a run holds the record.
        return _Listed(ends.start if from_start and ends.start else ends.end)

    async def _behind(
        self, replica: PartitionReplica, begins: int, compacted_to: int, timestamp_us: int
    ) -> _Listed:
        """The record that made its entry so late may be gone: the first one of what is left."""
        try:
            async for block in _blocks(replica, begins, compacted_to):
                if block.max_timestamp_us >= timestamp_us:
                    listed = await self._in_batch(_of_block(block), begins, timestamp_us)
                    if listed is not None:
                        return listed
        except CorruptLog as error:
            raise replica.unreadable(error) from error
        return _Listed(compacted_to)

    async def _in_batch(self, batch: _Batch, begin: int, timestamp_us: int) -> _Listed | None:
        """The first such record at or behind an offset."""
        found: list[_Listed | None] = []
        skipped = bisect_left(batch.offsets, begin)

        def search() -> None:
            one = records.first_since(batch.encoding, batch.payload, timestamp_us, begin=skipped)
            found.append(None if one is None else _Listed(batch.offsets[one[0]], one[1]))

        if records.needs_offload(batch.encoding, batch.payload):
            await self._env.offload(search)
        else:
            search()
        return found[0]


class _Batch(NamedTuple):
    """Neighbours of the committed log in one payload."""

    # Of each record.
    offsets: Sequence[int]
    max_timestamp_us: int
    encoding: int
    payload: bytes | memoryview


def _of_block(block: Block) -> _Batch:
    return _Batch(block.offsets, block.max_timestamp_us, block.encoding, block.payload)


async def _blocks(replica: PartitionReplica, position: int, end: int) -> AsyncIterator[Block]:
    """What is settled, one after the other, up to the one that holds what is before `end`. Raises
    CorruptLog."""
    while position < min(replica.settled_end, end):
        for block in await replica.read_settled(position, 1, below=replica.settled_end):
            yield block
            position = block.end_offset


async def _batches(
    replica: PartitionReplica, stretch: Stretch, from_offset: int
) -> AsyncIterator[_Batch]:
    """What holds the records of a stretch from an offset on, one after the other; the first may
    begin before, the last end behind."""
    position, end = from_offset, stretch.end_offset
    damage: CorruptLog | None = None
    try:
        async for block in _blocks(replica, from_offset, end):
            yield _of_block(block)
            position = block.end_offset
    except OffsetOutOfRange:
        pass
    except CorruptLog as error:
        # The journal may have it still.
        damage = error
    in_journal = stretch.journal_offset - stretch.first_offset
    while position < end:
        try:
            frames = await replica.read(position + in_journal, RUN_BYTES, below=stretch.journal_end)
        except OffsetOutOfRange as error:
            if damage is not None:
                raise replica.unreadable(damage) from error
            raise
        assert frames, f"the committed log points at {position + in_journal}, where nothing stands"
        for stored in frames:
            frame, at = stored
            first = at.offset - in_journal
            offsets = range(first, first + frame.record_count)
            yield _Batch(offsets, frame.max_timestamp_us, frame.encoding, frame.payload)
            position = stored.end - in_journal


def _is_of_journal(isolation: pb.Isolation.ValueType) -> bool:
    return isolation in (pb.ISOLATION_UNCOMMITTED, pb.ISOLATION_RAW)


def _point(replica: PartitionReplica, answer: pb.ListedOffset) -> None:
    """Adds it, of an offset that could be read a moment ago. Raises OffsetOutOfRange where it was
    deleted meanwhile."""
    require_in_range(answer.offset, committed_ends(replica))
    machine, high_watermark = led_machine(replica), replica.high_watermark
    point = machine.find_point(answer.offset, high_watermark)
    # Below it the journal has what nobody else serves any more.
    compacted_below = machine.compaction.compacted_below
    if point.earliest >= replica.log_start and answer.offset >= compacted_below:
        answer.journal_point.earliest = point.earliest
        answer.journal_point.iterator = point.iterator
        answer.journal_point.given = point.given
    else:
        answer.journal_has_from = machine.find_journaled(
            max(answer.offset, compacted_below),
            log_start=replica.log_start,
            high_watermark=high_watermark,
        )
