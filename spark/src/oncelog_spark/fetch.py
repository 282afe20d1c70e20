"""Ranges of partitions' committed logs, as Arrow batches: what one task reads.

One fetch asks for all ranges of a task that are not read to their ends; the next one is under way
while Spark takes the rows of the last. Batches of the log are not cut by the server: what lies
outside of a range is sliced off here. Small batches of one fetch are joined, so that a topic of
many small transactions does not become many small batches in Spark; large ones pass uncopied.

In a compacted topic a range has fewer records than offsets: those that were taken out are no loss.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa

from oncelog._core import holes
from oncelog_spark.offsets import OffsetRange, TopicPartition, counted
from oncelog_spark.schema import joined
from oncelog_spark.subscription import raise_for
from oncelogpb import errors, records
from oncelogpb.v1 import partition_leader_pb2 as leader_pb
from oncelogpb.v1 import types_pb2 as pb

if TYPE_CHECKING:
    from oncelog.protocol import Protocol

log = logging.getLogger(__name__)

# Of each fetch, over its ranges. Large enough for bulk, small enough that a few tasks fit beside
# the JVM.
FETCH_BYTES: Final = 4 * 1024 * 1024
RANGE_BYTES_MIN: Final = 256 * 1024
# The range is committed, so data come at once; while a leader is away, nothing does.
FETCH_WAIT_MS: Final = 1_000
# Batches are joined up to this size: Spark takes them one message each.
JOINED_BYTES: Final = 1024 * 1024


class DataLoss(RuntimeError):
    """Records that a query should read are not there (any more)."""


class RangeOf(NamedTuple):
    """A range, and its partition as the wire names it."""

    partition: pb.Partition
    range: OffsetRange


class Chunk(NamedTuple):
    """Records of one partition with the offset of each, ascending, as batch of
    `records.SCHEMA_V1`, or of those of its columns that were asked for."""

    partition: TopicPartition
    offsets: pa.Int64Array
    rows: pa.RecordBatch


@dataclass
class _Open:
    """A range that is not read to its end."""

    partition: pb.Partition
    range: OffsetRange
    position: int


class RangeReader:
    """Reads ranges of different partitions; the first fetch is under way once it is made. Iterate
    once, and close it: also where Spark has enough of it (LIMIT, cancelled job)."""

    def __init__(
        self,
        protocol: Protocol,
        parts: Sequence[RangeOf],
        *,
        fail_on_data_loss: bool,
        timeout_ms: int,
        columns: Sequence[str] | None = None,
    ) -> None:
        """`timeout_ms`: how long records are waited for that are there to be read. `columns`: of
        the log's schema; None: all."""
        self._protocol = protocol
        self._fail_on_data_loss = fail_on_data_loss
        self._timeout_ms = timeout_ms
        self._columns = columns
        self._open = [
            _Open(part.partition, part.range, part.range.start)
            for part in parts
            if part.range.offset_count
        ]
        # Fetches in a row that brought nothing.
        self._empty = 0
        self._ahead = ThreadPoolExecutor(max_workers=1, thread_name_prefix="oncelog-fetch")
        self._under_way: Future[leader_pb.FetchReply] | None = None
        if self._open:
            self._under_way = self._ahead.submit(self._fetch, self._request())

    def close(self) -> None:
        """Safe to repeat."""
        self._ahead.shutdown(wait=False, cancel_futures=True)

    def __iter__(self) -> Iterator[Chunk]:
        """Raises DataLoss, or an OncelogError."""
        while self._under_way is not None:
            reply, self._under_way = self._under_way.result(), None
            read: list[tuple[leader_pb.FetchedPartition, TopicPartition, int, int]] = []
            moved = False
            for one, fetched in zip(self._open, reply.partitions, strict=True):
                before = one.position
                if self._passes_over(one, fetched):
                    moved = True
                    continue
                one.position = _end_of(fetched, before)
                moved = moved or one.position > before
                until = min(one.position, one.range.end)
                read.append((fetched, one.range.partition, before, until))
            self._open = [one for one in self._open if one.position < one.range.end]
            if self._open:
                self._require_news(moved)
                self._under_way = self._ahead.submit(self._fetch, self._request())
            for fetched, partition, start, end in read:
                yield from _chunks(fetched, partition, start, end, self._columns)

    def _request(self) -> leader_pb.FetchRequest:
        each = max(FETCH_BYTES // len(self._open), RANGE_BYTES_MIN)
        return leader_pb.FetchRequest(
            partitions=[
                leader_pb.FetchPartition(
                    partition=one.partition, offset=one.position, max_bytes=each
                )
                for one in self._open
            ],
            isolation=leader_pb.ISOLATION_COMMITTED,
            max_wait_ms=FETCH_WAIT_MS,
            with_offsets=True,
        )

    def _fetch(self, request: leader_pb.FetchRequest) -> leader_pb.FetchReply:
        reply: leader_pb.FetchReply = self._protocol.call(
            "partition_leader.fetch", request, timeout_ms=max(self._timeout_ms, FETCH_WAIT_MS)
        )
        return reply

    def _passes_over(self, one: _Open, fetched: leader_pb.FetchedPartition) -> bool:
        """Whether the range goes on behind what was deleted of it. Raises DataLoss where the user
        minds that."""
        begins = _begins_behind(fetched, one.position)
        if begins is None:
            return False
        end = min(begins, one.range.end)
        lost = f"{one.range.partition}: offsets {one.position} to {end - 1} are deleted"
        how_many = counted(end - one.position)
        if self._fail_on_data_loss:
            raise DataLoss(
                f"what this task should read is not there: {lost}, it begins at {begins} "
                f"({how_many}). With failOnDataLoss=false the query goes on with what is there"
            )
        log.warning("goes on with what is there (failOnDataLoss=false): %s (%s)", lost, how_many)
        one.position = begins
        return True

    def _require_news(self, moved: bool) -> None:
        """Raises DataLoss where nothing came for as long as the user waits."""
        self._empty = 0 if moved else self._empty + 1
        if self._empty * FETCH_WAIT_MS >= self._timeout_ms:
            where = ", ".join(
                f"{one.range.partition} at offset {one.position}, though {one.range.end} is the end"
                for one in self._open
            )
            raise DataLoss(f"nothing can be read of {where}")


def _begins_behind(fetched: leader_pb.FetchedPartition, position: int) -> int | None:
    """Where the log begins now, where that is behind the position; None: it can be read there.
    Raises DataLoss where the log ends before it."""
    try:
        raise_for(fetched)
    except errors.OffsetOutOfRange as error:
        log_start = max(fetched.start_offset, int(error.metadata.get("start", 0)))
        if log_start <= position:
            raise DataLoss(f"offset {position} cannot be read: {error}") from error
        return log_start
    return None


def _end_of(fetched: leader_pb.FetchedPartition, position: int) -> int:
    if not fetched.batches:
        return position
    last = fetched.batches[-1]
    return holes.next_offset(last.first_offset, last.record_count, holes.offsets_of(last))


def _chunks(
    fetched: leader_pb.FetchedPartition,
    partition: TopicPartition,
    start: int,
    end: int,
    columns: Sequence[str] | None = None,
) -> Iterator[Chunk]:
    """The records at offsets [start, end) of a fetch, joined where they are few."""
    parts: list[pa.RecordBatch] = []
    offsets: list[pa.Int64Array] = []
    gathered = 0
    for batch in fetched.batches:
        before, chosen = holes.within(batch, start, end)
        if not len(chosen):
            continue
        if parts and gathered + len(batch.payload) > JOINED_BYTES:
            yield Chunk(partition, pa.concat_arrays(offsets), joined(parts))
            parts, offsets, gathered = [], [], 0
        rows = records.decode(batch.encoding, batch.payload)
        if columns is not None:
            rows = rows.select(columns)
        parts.append(rows.slice(before, len(chosen)))
        offsets.append(pa.array(chosen))
        gathered += len(batch.payload)
    if parts:
        yield Chunk(partition, pa.concat_arrays(offsets), joined(parts))
