"""Records merged into one payload, taken apart again, and taken out of it, in either encoding.
Loaded when it is needed first, for it needs PyArrow.

Invariant: keys, values, timestamps, headers, nulls and the order are kept exactly; but for a list
of no headers, which may become null: they mean the same (`oncelogpb.records`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

import pyarrow as pa
import pyarrow.compute as pc

from oncelog_server.core.cleaning import Keyed
from oncelog_server.partition_leader.settling import Payload
from oncelogpb import arrow_records, records
from oncelogpb.errors import CorruptBatch
from oncelogpb.records import ARROW_V1, ROWS, ROWS_BELOW, Compression
from oncelogpb.v1 import types_pb2

# An encoding, and records in it.
Encoded = tuple[int, bytes | memoryview]


def merge(parts: Sequence[Payload], record_count: int, compression: Compression) -> Encoded:
    """All records of the parts, in order; so many they are. A few rows stay rows: they are smaller.
    Raises CorruptBatch."""
    if record_count < ROWS_BELOW and all(part.encoding == ROWS for part in parts):
        return ROWS, _behind_each_other(parts)
    batches: list[pa.RecordBatch] = []
    for (encoding, codec), group in groupby(parts, lambda part: (part.encoding, part.compression)):
        batches += _batches(encoding, codec, list(group))
    batch = batches[0] if len(batches) == 1 else pa.concat_batches(batches)
    if batch.num_rows != record_count:
        raise CorruptBatch(f"{record_count} records were announced, {batch.num_rows} are there")
    return ARROW_V1, memoryview(arrow_records.encode_arrow(batch, compression))


def pieces(payload: Payload, counts: Sequence[int]) -> Iterator[bytes | memoryview]:
    """The records taken apart again, so many in each piece, encoded as they were. Raises
    CorruptBatch."""
    begin = 0
    if payload.encoding == ROWS:
        rows = records.decode_rows(payload.content).rows
        for count in counts:
            piece = types_pb2.Rows(rows=rows[begin : begin + count])
            yield piece.SerializeToString()
            begin += count
        return
    batch = arrow_records.decode_arrow(payload.content)
    for count in counts:
        piece = batch.slice(begin, count)
        yield memoryview(arrow_records.encode_arrow(piece, payload.compression))
        begin += count


def keyed(payload: Payload) -> Keyed:
    """Keys and tombstones of its records, in order. Raises CorruptBatch."""
    if payload.encoding == ROWS:
        rows = records.decode_rows(payload.content).rows
        keys = [row.key if row.HasField("key") else None for row in rows]
        gone = [
            number
            for number, row in enumerate(rows)
            if keys[number] is not None and not row.HasField("value")
        ]
        return Keyed(keys, gone)
    batch = arrow_records.decode_arrow(payload.content)
    column, values = batch.column(0), batch.column(1)
    tombstones: list[int] = []
    if values.null_count:
        are_such = pc.and_(pc.is_null(values), pc.is_valid(column))
        tombstones = pc.indices_nonzero(are_such).to_pylist()
    return Keyed(column.to_pylist(), tombstones)


def taken(payload: Payload, numbers: Sequence[int]) -> bytes | memoryview:
    """The records of these numbers, ascending, encoded as they were. Raises CorruptBatch."""
    if payload.encoding == ROWS:
        rows = records.decode_rows(payload.content).rows
        return types_pb2.Rows(rows=[rows[it] for it in numbers]).SerializeToString()
    batch = arrow_records.decode_arrow(payload.content)
    some = batch.take(pa.array(numbers, pa.int64()))
    return memoryview(arrow_records.encode_arrow(some, payload.compression))


def _batches(encoding: int, codec: Compression, parts: Sequence[Payload]) -> list[pa.RecordBatch]:
    """Of neighbours that are encoded alike."""
    if encoding == ROWS:
        rows = records.decode_rows(_behind_each_other(parts))
        return [arrow_records.rows_to_arrow(rows)]
    if codec is Compression.NONE:
        return [arrow_records.decode_arrow(part.content) for part in parts]
    return arrow_records.decode_stream([part.content for part in parts])


def _behind_each_other(parts: Sequence[Payload]) -> bytes:
    """Serialized lists behind each other are the list of what is in all of them."""
    return b"".join(part.content for part in parts)
