"""What a consumer gives: a batch of records, backed by what came over the wire.

A batch holds chunks, each of one partition with ascending offsets. Nothing is decoded before it
is asked for: `.records()` goes over the columns without making an object more than the record
itself, `.table` hands out Arrow without copying what is not compressed.

Non-obvious: never `RecordBatch.to_pylist()` nor `to_pylist()` of a timestamp column; both are 10
times slower than all of `.records()`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from oncelog._core import holes
from oncelog._core.holes import Offsets
from oncelog._core.merged import Merged
from oncelog._core.units import Written
from oncelogpb import records
from oncelogpb.v1 import types_pb2

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
# The columns of `Batch.table`.
TABLE_SCHEMA: Final = pa.schema(
    [
        pa.field("topic", pa.string(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        *records.SCHEMA_V1,
    ]
)


class TopicPartition(NamedTuple):
    """One partition, by the topic's name."""

    topic: str
    partition: int


class Record(NamedTuple):
    """One record. `offset` counts committed records of the partition from 0, without gaps, but for
    what compaction took out of a compacted topic; with isolation uncommitted it is a journal
    offset. `timestamp_us`: microseconds since 1970."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    timestamp_us: int
    headers: tuple[tuple[str, bytes | None], ...]

    @property
    def timestamp(self) -> datetime:
        """The event time, in UTC."""
        return EPOCH + timedelta(microseconds=self.timestamp_us)


class Chunk:
    """Neighbours in one partition, decoded when asked. `skip` and `count` choose a part of the
    payload: batches are not cut on the wire. One of no record says that there is none before its
    first offset."""

    __slots__ = (
        "_arrow",
        "count",
        "encoding",
        "first_offset",
        "is_last",
        "merged",
        "offsets",
        "partition",
        "payload",
        "skip",
        "topic",
        "written",
    )

    def __init__(
        self,
        topic: str,
        partition: int,
        *,
        first_offset: int,
        encoding: int,
        payload: bytes,
        skip: int,
        count: int,
        written: Written | None = None,
        is_last: bool = False,
        merged: Merged | None = None,
        offsets: Offsets | None = None,
    ) -> None:
        """`written`, `is_last`, `merged`: only for who asked for whole transactions. `offsets`: of
        each record that is chosen, where they do not follow each other."""
        self.topic = topic
        self.partition = partition
        # Of the first record that is chosen.
        self.first_offset = first_offset
        self.encoding = encoding
        self.payload = payload
        self.skip = skip
        self.count = count
        # Who wrote it; None: nobody has asked.
        self.written = written
        # Its transaction, or the last of those that it was merged from, is known to end with it.
        self.is_last = is_last
        # Whose the records of the payload are, where it was merged from several.
        self.merged = merged
        self.offsets = offsets
        self._arrow: pa.RecordBatch | None = None

    @property
    def next_offset(self) -> int:
        return holes.next_offset(self.first_offset, self.count, self.offsets)

    def offset_at(self, place: int) -> int:
        """Of a record that is chosen."""
        return self.first_offset + place if self.offsets is None else int(self.offsets[place])

    def offsets_of_all(self) -> Offsets:
        """Of each record that is chosen."""
        if self.offsets is not None:
            return self.offsets
        return np.arange(self.first_offset, self.next_offset, dtype=np.int64)

    def split(self, count: int) -> tuple[Chunk, Chunk]:
        """The first `count` records and the rest; both share the payload."""
        assert 0 < count < self.count
        return self._part(0, count), self._part(count, self.count - count)

    def arrow(self) -> pa.RecordBatch:
        """Columns key, value, timestamp, headers."""
        if self._arrow is None:
            self._arrow = records.decode(self.encoding, self.payload).slice(self.skip, self.count)
        return self._arrow

    def records(self) -> Iterator[Record]:
        if self.encoding == records.ROWS:
            return self._from_rows()
        return self._from_arrow()

    def keys_and_values(self) -> tuple[list[bytes | None], list[bytes | None]]:
        """As many of both."""
        if self.encoding == records.ROWS:
            rows = records.decode_rows(self.payload).rows[self.skip : self.skip + self.count]
            return (
                [row.key if row.HasField("key") else None for row in rows],
                [row.value if row.HasField("value") else None for row in rows],
            )
        batch = self.arrow()
        return batch.column(0).to_pylist(), batch.column(1).to_pylist()

    def _from_rows(self) -> Iterator[Record]:
        rows = records.decode_rows(self.payload).rows[self.skip : self.skip + self.count]
        for offset, row in zip(self._each_offset(), rows, strict=True):
            yield Record(
                self.topic,
                self.partition,
                offset,
                row.key if row.HasField("key") else None,
                row.value if row.HasField("value") else None,
                row.timestamp_us,
                tuple(
                    (header.key, header.value if header.HasField("value") else None)
                    for header in row.headers
                ),
            )

    def _from_arrow(self) -> Iterator[Record]:
        batch = self.arrow()
        columns = (
            itertools.repeat(self.topic, self.count),
            itertools.repeat(self.partition),
            self._each_offset(),
            _nullable(batch.column(0)),
            _nullable(batch.column(1)),
            _timestamps(batch.column(2)),
            _headers(batch.column(3)),
        )
        # tuple.__new__(Record, columns) without a line of Python per record.
        return map(partial(tuple.__new__, Record), zip(*columns, strict=False))

    def _each_offset(self) -> Sequence[int]:
        if self.offsets is None:
            return range(self.first_offset, self.next_offset)
        offsets: list[int] = self.offsets.tolist()
        return offsets

    def _offsets_within(self, start: int, count: int) -> Offsets | None:
        return None if self.offsets is None else self.offsets[start : start + count]

    def _part(self, start: int, count: int) -> Chunk:
        return Chunk(
            self.topic,
            self.partition,
            first_offset=self.offset_at(start),
            encoding=self.encoding,
            payload=self.payload,
            skip=self.skip + start,
            count=count,
            written=self.written,
            is_last=self.is_last and start + count == self.count,
            merged=self.merged,
            offsets=self._offsets_within(start, count),
        )

    def cut(self) -> Chunk:
        """The same records, with a payload that has no others."""
        if not self.skip:
            return self
        encoding, payload = _Cutting(self.encoding, self.payload).cut(self.skip, self.count)
        return Chunk(
            self.topic,
            self.partition,
            first_offset=self.first_offset,
            encoding=encoding,
            payload=payload,
            skip=0,
            count=self.count,
            written=self.written,
            is_last=self.is_last,
            offsets=self.offsets,
        )

    def by_run(self) -> Iterator[Chunk]:
        """Of one that was merged from several: what became readable at once, each with a payload of
        its own."""
        assert self.merged is not None, "it was merged"
        cut = _Cutting(self.encoding, self.payload)
        end = self.skip + self.count
        for run in self.merged.runs(self.skip, self.count):
            encoding, payload = cut.cut(run.start, run.record_count)
            place = run.start - self.skip
            yield Chunk(
                self.topic,
                self.partition,
                first_offset=self.offset_at(place),
                encoding=encoding,
                payload=payload,
                skip=0,
                count=run.record_count,
                written=run.written,
                is_last=self.is_last or run.start + run.record_count < end,
                offsets=self._offsets_within(place, run.record_count),
            )


class _Cutting:
    """Cuts a payload into smaller ones."""

    def __init__(self, encoding: int, payload: bytes) -> None:
        self._encoding = encoding
        self._payload = payload
        self._arrow: pa.RecordBatch | None = None
        self._rows: types_pb2.Rows | None = None

    def cut(self, start: int, count: int) -> tuple[int, bytes]:
        """Encoding and payload of the records [start, start + count)."""
        if self._encoding != records.ROWS and count >= records.ROWS_BELOW:
            if self._arrow is None:
                self._arrow = records.decode(self._encoding, self._payload)
            cut = self._arrow.slice(start, count)
            return types_pb2.ENCODING_ARROW_V1, records.encode_arrow(cut).to_pybytes()
        if self._rows is None:
            self._rows = types_pb2.Rows.FromString(records.as_rows(self._encoding, self._payload))
        rows = types_pb2.Rows(rows=self._rows.rows[start : start + count])
        return records.ROWS, rows.SerializeToString()


class Batch:
    """Records of one or more partitions, in order within each. Immutable; may be kept, and used
    from any thread."""

    __slots__ = ("_chunks",)

    def __init__(self, chunks: Sequence[Chunk]) -> None:
        self._chunks = tuple(chunks)

    @property
    def chunks(self) -> tuple[Chunk, ...]:
        """Each of one partition, with ascending offsets."""
        return self._chunks

    def __len__(self) -> int:
        return sum(chunk.count for chunk in self._chunks)

    def __iter__(self) -> Iterator[Record]:
        return self.records()

    def records(self) -> Iterator[Record]:
        """The records, made one by one as they are asked for."""
        return itertools.chain.from_iterable(chunk.records() for chunk in self._chunks)

    @property
    def table(self) -> pa.Table:
        """Columns topic, partition, offset, key, value, timestamp, headers."""
        if not self._chunks:
            return TABLE_SCHEMA.empty_table()
        columns = pa.Table.from_batches(list(_joined(self._chunks))).columns
        return pa.Table.from_arrays([*_places(self._chunks), *columns], schema=TABLE_SCHEMA)

    def to_arrow(self) -> pa.Table:
        """Same as `table`."""
        return self.table

    def partitions(self) -> list[TopicPartition]:
        """The partitions that have records here, in order of appearance."""
        return list(dict.fromkeys(TopicPartition(c.topic, c.partition) for c in self._chunks))

    def next_offsets(self) -> dict[TopicPartition, int]:
        """One past the last record here, by partition: what a commit after it says."""
        return {TopicPartition(c.topic, c.partition): c.next_offset for c in self._chunks}

    def __repr__(self) -> str:
        places = ", ".join(
            f"{chunk.topic}/{chunk.partition}@{chunk.first_offset}+{chunk.count}"
            for chunk in self._chunks
        )
        return f"<Batch of {len(self)}: {places}>"


def _joined(chunks: Sequence[Chunk]) -> Iterator[pa.RecordBatch]:
    """Columns of their records. Neighbours of few rows become one batch: making one takes a tenth
    of a millisecond, whatever is in it."""
    for are_rows, group in itertools.groupby(chunks, lambda it: it.encoding == records.ROWS):
        if are_rows:
            rows = [
                records.decode_rows(it.payload).rows[it.skip : it.skip + it.count] for it in group
            ]
            yield records.join_rows(list(itertools.chain.from_iterable(rows)))
        else:
            yield from (it.arrow() for it in group)


def _places(chunks: Sequence[Chunk]) -> list[pa.ChunkedArray]:
    """Topic, partition and offset of their records."""
    topics, partitions = [], []
    for (topic, partition), group in itertools.groupby(chunks, lambda it: (it.topic, it.partition)):
        count = sum(it.count for it in group)
        topics.append(pa.repeat(pa.scalar(topic, pa.string()), count))
        partitions.append(pa.repeat(pa.scalar(partition, pa.int32()), count))
    offsets = [it.offsets_of_all() for it in chunks]
    return [
        pa.chunked_array(topics),
        pa.chunked_array(partitions),
        pa.chunked_array([pa.array(np.concatenate(offsets))]),
    ]


def _nullable(column: pa.Array) -> Any:
    if column.null_count == len(column):
        return itertools.repeat(None)
    return column.to_pylist()


def _timestamps(column: pa.Array) -> memoryview:
    """The int64 microseconds behind the column, without copying; mind the array's offset."""
    raw = memoryview(column.buffers()[1]).cast("q")
    return raw[column.offset : column.offset + len(column)]


def _headers(column: pa.Array) -> Any:
    """Tuples of pairs; the empty tuple for none."""
    if column.null_count == len(column):
        return itertools.repeat(())
    return [
        () if item is None else tuple((header["key"], header["value"]) for header in item)
        for item in column.to_pylist()
    ]
