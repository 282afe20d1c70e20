"""Reads one partition for one reply: committed, uncommitted or raw, only below the high watermark.

    COMMITTED     the committed log: offsets, in commit order; what is settled from blocks, the rest
                  from the journal, and nobody can tell which but by how much there is in a batch.
                  Below the point of compaction from blocks alone, and from such alone of which what
                  is superseded below it is gone
    UNCOMMITTED   the journal without control records: journal offsets
    RAW           the journal with them (buffering consumers, tools): journal offsets

A found batch covers [first_offset, first_offset + record_count) of its numbering, unless its head
tells the offset of each record; a control record of RAW covers one journal offset. Batches are
never cut: the first may begin before what was asked for. What is found always lets its reader go
on: a batch of which all records lie before what was asked for is left out, and where nothing but
such stands, what is behind is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Final, NamedTuple

from oncelog_server.core.block import Block
from oncelog_server.core.frame import OCCUPY_RECORDS, StoredFrame
from oncelog_server.core.ports import led_machine
from oncelog_server.core.settling import Stretch
from oncelog_server.partition_leader import heads, holes
from oncelog_server.partition_leader.committed_log import CommittedLog
from oncelog_server.partition_leader.config import PartitionLeaderConfig
from oncelog_server.partition_leader.heads import Head
from oncelog_server.partition_leader.ports import PartitionEnv, PartitionReplica
from oncelogpb import bulk, records
from oncelogpb.errors import CorruptLog, Loading, NotLeader, OffsetOutOfRange, OncelogError
from oncelogpb.v1 import partition_leader_pb2 as pb
from oncelogpb.v1 import types_pb2

# Conversions of so many payload bytes are quicker than a thread's round trip.
INLINE_ROWS_BYTES: Final = 2 * 1024
# What an offset takes in a reply, about: they are told as small numbers.
OFFSET_BYTES: Final = 3
# What is told of a batch beside its payload, at most, but for what tells of units and offsets.
ROW_HEAD_BYTES: Final = 100


class Ends(NamedTuple):
    """The half-open range that can be read now."""

    start: int
    end: int


def _size_of(head: Head, payload: bulk.Chunk) -> int:
    """Of tiny units, what tells of them takes as much as their records; as do offsets."""
    told = head.units.ByteSize() if head.HasField("units") else 0
    return len(payload) + told + OFFSET_BYTES * len(head.offsets)


class Tells(NamedTuple):
    """What a reader wants to be told of merged batches."""

    # Whose their records are.
    units: bool
    # The offset of each, where there are holes. False: it gets none that has any.
    offsets: bool


class Found(NamedTuple):
    """What one partition has for a reader."""

    ends: Ends
    # Each without its payload, which stands beside it (`bulk`).
    batches: Sequence[tuple[Head, bulk.Chunk]]
    payload_bytes: int
    # Where to read on.
    next_offset: int

    @property
    def record_count(self) -> int:
        return sum(head.record_count for head, _ in self.batches)


class Reader:
    """See the module. Raises OffsetOutOfRange, in the reader's numbering, CorruptLog, and what the
    replica raises."""

    def __init__(self, env: PartitionEnv, config: PartitionLeaderConfig) -> None:
        self._env = env
        self._config = config

    async def read(
        self,
        replica: PartitionReplica,
        from_offset: int,
        *,
        isolation: pb.Isolation.ValueType,
        format_: pb.Format.ValueType,
        max_bytes: int,
        with_units: bool = False,
        with_offsets: bool = False,
    ) -> Found:
        as_rows = format_ == pb.FORMAT_ROWS
        if as_rows:
            max_bytes = min(max_bytes, self._config.rows_bytes_max)
        of_journal = isolation in (pb.ISOLATION_UNCOMMITTED, pb.ISOLATION_RAW)
        try:
            if of_journal:
                found = await self._journal(replica, from_offset, isolation, max_bytes)
            else:
                tells = Tells(with_units, with_offsets)
                found = await self._committed(replica, from_offset, max_bytes, tells)
        except OffsetOutOfRange as error:
            # What was deleted while it was read is told in the reader's own numbering.
            ends = journal_ends(replica) if of_journal else committed_ends(replica)
            require_in_range(from_offset, ends)
            if of_journal:
                raise
            # The journal's start and end are of another numbering: nobody is sent there.
            raise replica.unreadable(CorruptLog(f"{from_offset} is committed: {error}")) from error
        return await self._converted(found) if as_rows else found

    # ---------------------------------------------------------------------------------- committed

    async def _committed(
        self, replica: PartitionReplica, from_offset: int, max_bytes: int, tells: Tells
    ) -> Found:
        """From blocks as far as they go, then from the journal."""
        ends = committed_ends(replica)
        machine = led_machine(replica)
        _require_in_range(replica, from_offset, ends, machine.committed.end_offset)
        compacted_below = machine.compaction.compacted_below
        _require_compacted(replica, from_offset, compacted_below)
        settled = Found(ends, (), 0, from_offset)
        lacks: OncelogError | None = None
        if from_offset < replica.settled_end:
            settled, lacks = await self._settled(replica, ends, from_offset, max_bytes, tells)
        position, left_bytes = settled.next_offset, max_bytes - settled.payload_bytes
        is_deleted_here = isinstance(lacks, OffsetOutOfRange)
        # The journal has what is superseded below the point, and of what superseded it the
        # tombstones may be gone from the blocks behind.
        from_blocks_alone = position < compacted_below
        if lacks is None:
            from_blocks_alone = position < min(replica.settled_end, ends.end)
        if left_bytes <= 0 or (settled.batches and (is_deleted_here or from_blocks_alone)):
            return settled
        if is_deleted_here:
            # Deleted meanwhile; or an unclean election took back by what the data log begins there.
            require_in_range(position, committed_ends(replica))
        if lacks is not None and from_blocks_alone:
            raise replica.unreadable(lacks) if isinstance(lacks, CorruptLog) else lacks
        try:
            rest = await self._referenced(replica, ends, position, left_bytes)
        except (OffsetOutOfRange, CorruptLog) as error:
            if settled.batches:
                # What is behind them is for the next read.
                return settled
            if isinstance(lacks, CorruptLog):
                raise replica.unreadable(lacks) from error
            if lacks is not None:
                raise lacks from error
            if isinstance(error, OffsetOutOfRange) and position < replica.settled_end:
                # It was settled, and its journal went, while it was looked for.
                return await self._committed(replica, from_offset, max_bytes, tells)
            raise
        if not settled.batches:
            return rest
        return rest._replace(
            batches=[*settled.batches, *rest.batches],
            payload_bytes=settled.payload_bytes + rest.payload_bytes,
        )

    async def _settled(
        self,
        replica: PartitionReplica,
        ends: Ends,
        from_offset: int,
        max_bytes: int,
        tells: Tells,
    ) -> tuple[Found, OncelogError | None]:
        """What stands in blocks, up to the first one that is damaged, or that is not here: the
        journal may still have what was in it."""
        end = min(replica.settled_end, ends.end)
        batches: list[tuple[Head, bulk.Chunk]] = []
        size, next_offset = 0, from_offset
        lacks: OncelogError | None = None
        while (
            next_offset < end and size < max_bytes and len(batches) < self._config.fetch_batches_max
        ):
            try:
                blocks = await replica.read_settled(next_offset, max_bytes - size, below=end)
            except (CorruptLog, OffsetOutOfRange) as error:
                lacks = error
                break
            assert blocks, f"{next_offset} is settled, and stands in no block"
            for block in blocks:
                position, next_offset = next_offset, block.end_offset
                if not holes.has_any(block, position):
                    continue
                parts: Sequence[Block] = (block,)
                if not (tells.offsets or block.is_dense):
                    room = self._config.fetch_batches_max - len(batches)
                    parts = await self._without_holes(block, position, max_bytes - size, room)
                    size += ROW_HEAD_BYTES * len(parts)
                for part in parts:
                    head = heads.of_block(part, with_units=tells.units)
                    batches.append((head, part.payload))
                    size += _size_of(head, part.payload)
                if parts[-1].end_offset < block.end_offset:
                    # More of them may be behind.
                    next_offset = parts[-1].end_offset
                    break
                if size >= max_bytes:
                    break
        return Found(ends, batches, size, next_offset), lacks

    async def _without_holes(
        self, block: Block, from_offset: int, max_bytes: int, rows_max: int
    ) -> Sequence[Block]:
        """For who does not know of holes: its rows of neighbours, from the first that is wanted,
        so many as a reply may have, but at least one."""
        found: list[Block] = []

        def take() -> None:
            size = 0
            for row in holes.rows_of(block, from_offset):
                found.append(row)
                size += len(row.payload) + ROW_HEAD_BYTES
                if size >= max_bytes or len(found) >= rows_max:
                    break

        await self._env.offload(take)
        return found

    async def _referenced(
        self, replica: PartitionReplica, ends: Ends, from_offset: int, max_bytes: int
    ) -> Found:
        """What entries of the index point at in the journal."""
        log = led_machine(replica).committed
        stretches = log.stretches(
            from_offset,
            below=ends.end,
            max_bytes=max_bytes,
            max_entries=self._config.fetch_batches_max,
        )
        batches: list[tuple[Head, bulk.Chunk]] = []
        size = 0
        next_offset = from_offset
        for is_run, group in groupby(stretches, lambda stretch: stretch.is_run):
            for stretch, stored in await _frames(
                replica, log, is_run, list(group), max_bytes - size
            ):
                first = stretch.first_offset + stored.at.offset - stretch.journal_offset
                time_ms = stored.at.time_ms if is_run else stretch.time_ms
                batches.append((heads.of_data(stored, first, time_ms), stored.frame.payload))
                size += len(stored.frame.payload)
                next_offset = first + stored.frame.record_count
            if size >= max_bytes:
                break
        return Found(ends, batches, size, next_offset)

    # ------------------------------------------------------------------------------------ journal

    async def _journal(
        self,
        replica: PartitionReplica,
        from_offset: int,
        isolation: pb.Isolation.ValueType,
        max_bytes: int,
    ) -> Found:
        """Reads on over control records until it finds a batch: a reader of UNCOMMITTED that got
        nothing would ask for the same place for ever."""
        ends = journal_ends(replica)
        _require_in_range(replica, from_offset, ends, replica.log_end)
        batches: list[tuple[Head, bulk.Chunk]] = []
        size, position = 0, from_offset
        while not batches and position < ends.end and max_bytes > 0:
            stored_frames = await replica.read(position, max_bytes, below=ends.end)
            if not stored_frames:
                break
            for stored in stored_frames:
                position = stored.end
                if isolation == pb.ISOLATION_RAW:
                    batches.append((heads.of_raw(stored), _records_in(stored)))
                elif stored.frame.kind in OCCUPY_RECORDS:
                    head = heads.of_data(stored, stored.at.offset, stored.at.time_ms)
                    batches.append((head, stored.frame.payload))
            size = sum(len(payload) for _, payload in batches)
        return Found(ends, batches, size, position)

    # --------------------------------------------------------------------------------------- rows

    async def _converted(self, found: Found) -> Found:
        """Every batch as Rows: Python work per record, so bounded, and off the loop."""
        converted: list[tuple[Head, bulk.Chunk]] = []

        def convert() -> None:
            for head, payload in found.batches:
                if head.encoding == types_pb2.ENCODING_ARROW_V1:
                    payload = records.as_rows(head.encoding, payload)
                    head.encoding = types_pb2.ENCODING_ROWS
                    head.crc32c = records.checksum(payload)
                converted.append((head, payload))

        if found.payload_bytes > INLINE_ROWS_BYTES:
            await self._env.offload(convert)
        else:
            convert()
        size = sum(len(payload) for _, payload in converted)
        return found._replace(batches=converted, payload_bytes=size)


def committed_ends(replica: PartitionReplica) -> Ends:
    """What is durable: neither a record nor a start that may still be lost is shown."""
    log, high_watermark = led_machine(replica).committed, replica.high_watermark
    return Ends(log.readable_start(high_watermark), log.readable_end(high_watermark))


def journal_ends(replica: PartitionReplica) -> Ends:
    return Ends(replica.log_start, replica.high_watermark)


def _require_in_range(
    replica: PartitionReplica, from_offset: int, ends: Ends, appended_end: int
) -> None:
    """An offset between the readable end and what is appended is not out of range: it waits for the
    HW."""
    if ends.start <= from_offset <= max(ends.end, appended_end):
        return
    # "There is nothing" is an answer about now, which only the leader may give.
    replica.require_lease()
    raise out_of_range(from_offset, ends)


def _require_compacted(replica: PartitionReplica, from_offset: int, compacted_below: int) -> None:
    """Raises Loading where this replica would serve what others have removed for good: its
    tombstone may be gone there, and a reader of both would keep the key for ever."""
    if from_offset < compacted_below and replica.compacted_to < compacted_below:
        raise Loading(
            f"{replica.partition} is compacted below offset {compacted_below}, and here, where it "
            f"is led now, below {replica.compacted_to} only so far; try again, it comes next"
        )


def require_in_range(offset: int, ends: Ends) -> None:
    """Of what can be read now. Raises OffsetOutOfRange."""
    if not ends.start <= offset <= ends.end:
        raise out_of_range(offset, ends)


def out_of_range(offset: int, ends: Ends) -> OffsetOutOfRange:
    what = "records below the start were deleted" if offset < ends.start else "it is above the end"
    return OffsetOutOfRange(
        f"offset {offset} is not in [{ends.start}, {ends.end}]: {what}; seek to one of its ends",
        start=ends.start,
        end=ends.end,
    )


async def _frames(
    replica: PartitionReplica,
    log: CommittedLog,
    is_run: bool,
    stretches: Sequence[Stretch],
    max_bytes: int,
) -> Sequence[tuple[Stretch, StoredFrame]]:
    """The frames of neighbouring stretches of one kind, in order; of a run at most about
    max_bytes. Raises NotLeader where its epoch ended since `log` was looked into."""
    if not is_run:
        _require_same_epoch(replica, log)
        offsets = [stretch.journal_offset for stretch in stretches]
        return list(zip(stretches, await replica.read_frames(offsets), strict=True))
    found: list[tuple[Stretch, StoredFrame]] = []
    for stretch in stretches:
        position, end = stretch.journal_offset, stretch.journal_offset + stretch.record_count
        while position < end and max_bytes > 0:
            stored_frames = await replica.read(position, max_bytes, below=end)
            if not stored_frames:
                _require_same_epoch(replica, log)
            assert stored_frames, f"the committed log points at {position}, where nothing stands"
            for stored in stored_frames:
                found.append((stretch, stored))
                position = stored.end
                max_bytes -= len(stored.frame.payload)
        if position < end:
            break
    return found


def _require_same_epoch(replica: PartitionReplica, log: CommittedLog) -> None:
    """Else it may not know any more, or not yet, that what the log points at is durable."""
    if led_machine(replica).committed is not log:
        raise NotLeader(f"{replica.partition} is led in another epoch now; ask again")


def _records_in(stored: StoredFrame) -> bulk.Chunk:
    """What a marker holds is told in its head."""
    return stored.frame.payload if stored.frame.kind in OCCUPY_RECORDS else b""


def readable(found: Found, partition: types_pb2.Partition) -> bulk.Encoded:
    """The partition's item of a reply, joined by hand."""
    head = pb.FetchedPartition(
        partition=partition, start_offset=found.ends.start, end_offset=found.ends.end
    )
    return bulk.fetched_partition(head, found.batches)
