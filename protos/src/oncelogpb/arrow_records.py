"""Batches as Arrow: made, cast to the schema of version 1, encoded, decoded. `records` draws the
schema and judges what a server is sent; nobody need import this by name, for `records` finds it.

Invariant: no per-record Python work, except in `arrow_to_rows` and `rows_to_arrow`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from oncelogpb.errors import CorruptBatch, InvalidArgument
from oncelogpb.records import (
    ARROW_V1,
    ROWS,
    ROWS_BELOW,
    Compression,
    Headers,
    checksum,
    decode_rows,
    make_rows,
)
from oncelogpb.v1 import types_pb2 as pb

TIMESTAMP: Final = pa.timestamp("us", "UTC")
HEADERS: Final = pa.list_(
    pa.field(
        "item",
        pa.struct([pa.field("key", pa.string(), nullable=False), pa.field("value", pa.binary())]),
        nullable=False,
    )
)
SCHEMA_V1: Final = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("timestamp", TIMESTAMP, nullable=False),
        pa.field("headers", HEADERS),
    ]
)
_SCHEMA_MESSAGE: Final = SCHEMA_V1.serialize()
SCHEMA_MESSAGE_BYTES: Final = _SCHEMA_MESSAGE.size
_NO_HEADER_ITEMS: Final = pa.array([], HEADERS.value_type)


def first_since(
    batch: pa.RecordBatch, timestamp_us: int, *, begin: int = 0
) -> tuple[int, int] | None:
    """Number and time of the first record at or after that time, none of the first `begin`; None
    where there is none."""
    times = batch.column(2).cast(pa.int64())
    index = pc.index(pc.greater_equal(times.slice(begin), timestamp_us), True).as_py()
    return None if index < 0 else (begin + index, times[begin + index].as_py())


def first_without_key(batch: pa.RecordBatch) -> int:
    """Number of the first record whose key is null; -1: there is none."""
    return int(pc.index(pc.is_null(batch.column(0)), True).as_py())


def judge(payload: bytes | memoryview) -> int:
    """The highest timestamp of a message whose head is sound. Raises CorruptBatch."""
    batch = decode_arrow(payload)
    try:
        batch.validate(full=True)
        return max_timestamp(batch)
    except (pa.ArrowException, ValueError, OSError) as error:
        raise CorruptBatch(f"an Arrow message that does not hold together: {error}") from None


def make_batch(
    keys: Sequence[bytes | None] | pa.Array,
    values: Sequence[bytes | None] | pa.Array,
    timestamps_us: int | Sequence[int] | pa.Array,
    headers: Sequence[Headers | None] | pa.Array | None = None,
) -> pa.RecordBatch:
    """Columns as a batch of the schema; one timestamp may stand for all records. PyArrow takes str
    for bytes without a word: callers that accept users' values check types first. Raises
    pa.ArrowInvalid where the columns differ in length."""
    count = len(values)
    if isinstance(timestamps_us, int):
        times = pa.repeat(pa.scalar(timestamps_us, TIMESTAMP), count)
    else:
        times = pa.array(timestamps_us, TIMESTAMP)
    columns = [
        pa.array(keys, pa.binary()),
        pa.array(values, pa.binary()),
        times,
        _no_headers(count) if headers is None else pa.array(headers, HEADERS),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA_V1)


def conform(batch: pa.RecordBatch, *, default_timestamp_us: int) -> pa.RecordBatch:
    """A batch with any of the columns value (required), key, timestamp, headers, of any type that
    casts, as one of the schema. Raises InvalidArgument naming the column."""
    unknown = sorted(set(batch.schema.names) - set(SCHEMA_V1.names))
    if unknown or "value" not in batch.schema.names:
        what = f"unknown column {unknown[0]!r}" if unknown else "no column 'value'"
        raise InvalidArgument(f"{what}; columns are key, value, timestamp, headers", field="value")
    columns = []
    for field in SCHEMA_V1:
        if field.name in batch.schema.names:
            columns.append(_cast(batch.column(field.name), field, default_timestamp_us))
        elif field.name == "timestamp":
            columns.append(pa.repeat(pa.scalar(default_timestamp_us, TIMESTAMP), batch.num_rows))
        elif field.name == "headers":
            columns.append(_no_headers(batch.num_rows))
        else:
            columns.append(pa.nulls(batch.num_rows, field.type))
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA_V1)


def _cast(column: pa.Array, field: pa.Field, default_timestamp_us: int) -> pa.Array:
    try:
        if column.type != field.type:
            column = column.cast(field.type)
    except pa.ArrowException as error:
        raise InvalidArgument(
            f"column {field.name!r} is {column.type}, not {field.type}: {error}", field=field.name
        ) from None
    if field.name == "timestamp" and column.null_count:
        column = pc.fill_null(column, pa.scalar(default_timestamp_us, TIMESTAMP))
    return column


def encode_arrow(batch: pa.RecordBatch, compression: Compression = Compression.NONE) -> pa.Buffer:
    """The message, without schema. `.to_pybytes()` where bytes are wanted; `memoryview` is free."""
    assert batch.schema.equals(SCHEMA_V1), "make_batch or conform first"
    if batch.column(3).null_count == batch.num_rows:
        # A slice, or pa.nulls, would send the offsets of children that are not there: 8 bytes for
        # each record that the batch once had.
        batch = batch.set_column(3, SCHEMA_V1.field("headers"), _no_headers(batch.num_rows))
    if compression is Compression.NONE:
        return batch.serialize()
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression.value)
    with pa.ipc.new_stream(sink, SCHEMA_V1, options=options) as writer:
        writer.write_batch(batch)
        message_end = sink.tell()
    # The writer puts a Schema message before and an end-of-stream mark behind: neither is sent.
    return sink.getvalue().slice(SCHEMA_MESSAGE_BYTES, message_end - SCHEMA_MESSAGE_BYTES)


def _no_headers(count: int) -> pa.Array:
    """A headers column of nulls, in the fewest bytes."""
    return pa.Array.from_buffers(
        HEADERS,
        count,
        [pa.py_buffer(bytes((count + 7) // 8)), pa.py_buffer(bytes(4 * (count + 1)))],
        count,
        0,
        [_NO_HEADER_ITEMS],
    )


def decode_arrow(payload: bytes | memoryview | pa.Buffer) -> pa.RecordBatch:
    """The batch, without copying where it is not compressed. Raises CorruptBatch."""
    try:
        return pa.ipc.read_record_batch(pa.py_buffer(payload), SCHEMA_V1)
    except (pa.ArrowException, ValueError, OSError) as error:
        raise CorruptBatch(f"an Arrow message that cannot be read: {error}") from None


def decode_stream(payloads: Sequence[bytes | memoryview]) -> list[pa.RecordBatch]:
    """The batches of many payloads, read as one stream by one thread. One by one takes three to
    five times as long where they are small and compressed (measured). Raises CorruptBatch."""
    joined = pa.py_buffer(b"".join([_SCHEMA_MESSAGE, *payloads]))
    options = pa.ipc.IpcReadOptions(use_threads=False)
    try:
        batches = list(pa.ipc.open_stream(joined, options=options))
    except (pa.ArrowException, ValueError, OSError) as error:
        raise CorruptBatch(f"an Arrow message that cannot be read: {error}") from None
    if len(batches) != len(payloads):
        raise CorruptBatch(f"{len(payloads)} Arrow messages hold {len(batches)} batches")
    return batches


def max_timestamp(batch: pa.RecordBatch) -> int:
    """Highest timestamp of a non-empty batch, microseconds."""
    # A view: pyarrow takes 20 us to find out how to cast.
    return int(pc.max(batch.column(2).view(pa.int64())).as_py())


def rows_to_arrow(rows: pb.Rows) -> pa.RecordBatch:
    """Rows as an Arrow batch; an empty header list becomes null."""
    return join_rows(rows.rows)


def join_rows(given: Sequence[pb.Row]) -> pa.RecordBatch:
    """Rows of any messages as one batch. Column by column, and few ask whether a field is there:
    half the time of going row by row (measured)."""
    keys = [row.key or (b"" if row.HasField("key") else None) for row in given]
    values = [row.value or (b"" if row.HasField("value") else None) for row in given]
    times = [row.timestamp_us for row in given]
    lists = [row.headers for row in given]
    if not any(lists):
        return make_batch(keys, values, times)
    headers: list[Headers | None] = [
        [(h.key, h.value if h.HasField("value") else None) for h in items] or None
        for items in lists
    ]
    return make_batch(keys, values, times, headers)


def arrow_to_rows(batch: pa.RecordBatch) -> pb.Rows:
    """An Arrow batch as rows, for readers without Arrow. Python work per record: off the loop."""
    times = batch.column(2).cast(pa.int64()).to_pylist()
    headers: list[Headers | None] | None = None
    if batch.column(3).null_count < batch.num_rows:
        headers = [_pairs(item) for item in batch.column(3).to_pylist()]
    return make_rows(batch.column(0).to_pylist(), batch.column(1).to_pylist(), times, headers)


def _pairs(headers: Iterable[Mapping[str, Any]] | None) -> Headers | None:
    return None if headers is None else [(header["key"], header["value"]) for header in headers]


def decode(encoding: int, payload: bytes | memoryview) -> pa.RecordBatch:
    """A payload of either encoding as an Arrow batch. Raises CorruptBatch."""
    return decode_arrow(payload) if encoding == ARROW_V1 else rows_to_arrow(decode_rows(payload))


def seal(batch: pa.RecordBatch, compression: Compression = Compression.NONE) -> pb.Batch:
    """A batch ready to send, but for its partition and sequence: rows where they are few."""
    encoding, payload = ARROW_V1, b""
    if batch.num_rows < ROWS_BELOW:
        encoding, payload = ROWS, arrow_to_rows(batch).SerializeToString()
    else:
        payload = encode_arrow(batch, compression).to_pybytes()
    return pb.Batch(
        encoding=encoding,
        record_count=batch.num_rows,
        crc32c=checksum(payload),
        max_timestamp_us=max_timestamp(batch),
        payload=payload,
    )
