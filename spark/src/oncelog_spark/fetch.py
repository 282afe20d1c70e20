"""Ranges of partitions' committed logs, as Arrow batches: what one task reads.

One fetch asks for all ranges of a task that are not read to their ends; the next one is under way
while Spark takes the rows of the last. A task that has much left of one range has it streamed, and
goes back to fetches where the stream ends: they say what is wrong. Batches of the log are not cut
by the server: what lies outside of a range is sliced off here. Small batches of one fetch are
joined, so that a topic of many small transactions does not become many small batches in Spark;
large ones pass uncopied.

In a compacted topic a range has fewer records than offsets: those that were taken out are no loss.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import pyarrow as pa

from oncelog._core import holes
from oncelog._core.routing import PartitionKey
from oncelog.read_ahead import ReadAhead, Reply
from oncelog_spark.offsets import OffsetRange, TopicPartition, counted
from oncelog_spark.schema import joined
from oncelog_spark.subscription import raise_for
from oncelogpb import bulk, errors, in_place, records
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
# Of the one range that is left: from so much on it is streamed. What comes behind the end of the
# range before the stream is closed, a few MiB, is thrown away.
STREAMED_BYTES_MIN: Final = 32 * 1024 * 1024
# Batches are joined up to this size: Spark takes them one message each.
JOINED_BYTES: Final = 1024 * 1024


class DataLoss(RuntimeError):
    """Records that a query should read are not there (any more)."""


# Of one partition, each with its payload.
Batches: TypeAlias = Sequence[tuple[leader_pb.FetchedBatch, bulk.Chunk]]


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
        self._stream: ReadAhead | None = None
        # Of what was read last, about: payload bytes for each offset.
        self._offset_bytes = 0.0
        self._ask()

    def close(self) -> None:
        """Safe to repeat."""
        self._ahead.shutdown(wait=False, cancel_futures=True)
        self._end_stream()

    def __iter__(self) -> Iterator[Chunk]:
        """Raises DataLoss, or an OncelogError."""
        while self._open:
            read: list[tuple[TopicPartition, Batches, int, int]] = []
            moved = False
            for one, (fetched, batches) in zip(
                self._open, in_place.fetched(self._reply()), strict=True
            ):
                before = one.position
                if self._passes_over(one, fetched):
                    moved = True
                    continue
                one.position = max(before, _end_of(batches, before))
                if one.position > before:
                    moved = True
                    size = sum(len(payload) for _, payload in batches)
                    self._offset_bytes = size / (one.position - before)
                until = min(one.position, one.range.end)
                read.append((one.range.partition, batches, before, until))
            self._open = [one for one in self._open if one.position < one.range.end]
            if self._open:
                self._require_news(moved)
            self._ask()
            for partition, found, start, end in read:
                yield from _chunks(found, partition, start, end, self._columns)

    def _ask(self) -> None:
        """Has what is left on its way, if anything is."""
        if not self._open:
            self._end_stream()
        elif self._stream is None:
            if self._is_streamed():
                [one] = self._open
                self._stream = ReadAhead(
                    self._protocol, PartitionKey.of(one.partition), one.position
                )
            else:
                self._under_way = self._ahead.submit(self._fetch, self._request())

    def _is_streamed(self) -> bool:
        if len(self._open) > 1:
            return False
        [one] = self._open
        return (one.range.end - one.position) * self._offset_bytes >= STREAMED_BYTES_MIN

    def _reply(self) -> Reply:
        """What was asked for. Raises an OncelogError."""
        if self._stream is not None:
            reply = self._stream.take(FETCH_WAIT_MS / 1000)
            if reply is not None:
                return reply
            self._end_stream()
            return self._fetch(self._request())
        assert self._under_way is not None, "it was asked for"
        return self._under_way.result()

    def _end_stream(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None

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


def _end_of(batches: Batches, position: int) -> int:
    if not batches:
        return position
    last, _ = batches[-1]
    return holes.next_offset(last.first_offset, last.record_count, holes.offsets_of(last))


def _chunks(
    batches: Batches,
    partition: TopicPartition,
    start: int,
    end: int,
    columns: Sequence[str] | None = None,
) -> Iterator[Chunk]:
    """The records at offsets [start, end) of a fetch, joined where they are few."""
    parts: list[pa.RecordBatch] = []
    offsets: list[pa.Int64Array] = []
    gathered = 0
    for batch, payload in batches:
        before, chosen = holes.within(batch, start, end)
        if not len(chosen):
            continue
        if parts and gathered + len(payload) > JOINED_BYTES:
            yield Chunk(partition, pa.concat_arrays(offsets), joined(parts))
            parts, offsets, gathered = [], [], 0
        rows = records.decode(batch.encoding, payload)
        if columns is not None:
            rows = rows.select(columns)
        parts.append(rows.slice(before, len(chosen)))
        offsets.append(pa.array(chosen))
        gathered += len(payload)
    if parts:
        yield Chunk(partition, pa.concat_arrays(offsets), joined(parts))
