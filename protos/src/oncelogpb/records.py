"""Batches of records: their two encodings, and how a server judges what it is sent.

A batch is ENCODING_ARROW_V1, one encapsulated Arrow IPC RecordBatch message without a Schema
message, or ENCODING_ROWS, a protobuf `Rows`. The schema of version 1 is implied:

    key        binary                   null is different from empty
    value      binary                   null is different from empty
    timestamp  timestamp[us, UTC]       not null
    headers    list<item: struct<key: string, value: binary>>
               item and header key are not null, a header's value may be; a null list is the same as
               an empty one and reads back as one from rows

Nodes and buffers, depth first: key (validity, offsets, data), value (the same), timestamp
(validity, data), headers (validity, offsets), item (validity), header key (validity, offsets,
data), header value (the same): 7 nodes, 17 buffers. A column of another type with the same layout
cannot be seen.

Invariants:
- a payload that `validate` accepted decodes without error, to exactly its record count, for ever;
- nothing is decompressed before its claimed size is below `decompressed_bytes_max`;
- no per-record Python work on Arrow, except in `arrow_to_rows` (bounded by the batch; who serves
  others does it off the event loop).

Left out: the meaning of keys, values and headers; who may write what.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from crc32c import crc32c
from google.protobuf.message import DecodeError

from oncelogpb import arrow_message, rows_message
from oncelogpb.arrow_message import Malformed
from oncelogpb.errors import CorruptBatch, InvalidArgument, TooLarge
from oncelogpb.v1 import types_pb2 as pb

ROWS: Final = pb.ENCODING_ROWS
ARROW_V1: Final = pb.ENCODING_ARROW_V1

# Below so many records, rows are smaller and quicker than an Arrow message (648 bytes for one).
ROWS_BELOW: Final = 16

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
SCHEMA_MESSAGE_BYTES: Final = SCHEMA_V1.serialize().size
NODES_V1: Final = 7
BUFFERS_V1: Final = 17
# Nodes that must hold no null: timestamp, header item, header key.
NOT_NULL_NODES_V1: Final = (2, 4, 5)

# Rows above this size are counted on the wire before they are parsed, and judged off the loop.
ROWS_SCAN_BYTES: Final = 64 * 1024
# Plain Arrow above this size is judged off the loop: below, it costs under 0.3 ms.
ARROW_OFFLOAD_BYTES: Final = 4 * 1024 * 1024
# What a parsed row or header takes in memory beside its bytes.
PARSED_ENTRY_BYTES: Final = 64

_NO_HEADER_ITEMS: Final = pa.array([], HEADERS.value_type)

# One record's headers: names may repeat, order is kept.
Headers = Sequence[tuple[str, bytes | None]]


class Compression(StrEnum):
    """Of the body of an Arrow message."""

    NONE = "none"
    LZ4 = "lz4"
    ZSTD = "zstd"


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """Limits that `validate` holds a batch to; each error names the one it hit."""

    # Payload as sent, bytes.
    max_batch_bytes: int = 16 * 1024 * 1024
    # Payload once loaded, bytes: a compressed batch must not become a bomb.
    decompressed_bytes_max: int = 64 * 1024 * 1024


DEFAULT_LIMITS: Final = BatchLimits()


# ------------------------------------------------------------------------------------- judging


def needs_offload(encoding: int, payload: bytes | memoryview) -> bool:
    """True where `validate` should run in a thread: compressed or large. Never raises."""
    if encoding != ARROW_V1:
        return len(payload) > ROWS_SCAN_BYTES
    if len(payload) > ARROW_OFFLOAD_BYTES:
        return True
    try:
        return arrow_message.is_compressed(memoryview(payload))
    except Malformed:
        return False


def validate(
    encoding: int,
    payload: bytes | memoryview,
    record_count: int,
    crc: int,
    limits: BatchLimits = DEFAULT_LIMITS,
    *,
    max_timestamp_us: int | None = None,
) -> None:
    """Returns where the batch is sound. Raises InvalidArgument (what the sender claims makes no
    sense), TooLarge (names the limit) or CorruptBatch (the bytes are not what the sender claims).
    `max_timestamp_us`, where given, must be the batch's."""
    if encoding not in (ROWS, ARROW_V1):
        raise InvalidArgument(f"batch encoding {encoding} is not known here", field="encoding")
    if record_count < 1:
        raise InvalidArgument("a batch holds at least one record", field="record_count")
    if len(payload) > limits.max_batch_bytes:
        raise _too_large("max_batch_bytes", len(payload), limits.max_batch_bytes)
    if crc32c(payload) != crc:
        raise CorruptBatch("the payload does not match its CRC32C; send it again", field="crc32c")
    if encoding == ROWS:
        highest = _validate_rows(payload, record_count, limits)
    else:
        highest = _validate_arrow(payload, record_count, limits)
    if max_timestamp_us is not None and highest != max_timestamp_us:
        raise CorruptBatch(
            f"max_timestamp_us says {max_timestamp_us}, the records say {highest}",
            field="max_timestamp_us",
        )


def checksum(payload: bytes | memoryview | pa.Buffer) -> int:
    """CRC32C, as `Batch.crc32c` wants it."""
    return int(crc32c(payload))


def _validate_arrow(payload: bytes | memoryview, record_count: int, limits: BatchLimits) -> int:
    view = memoryview(payload)
    try:
        head = arrow_message.read_head(view)
        loaded_bytes = arrow_message.decompressed_bytes(view, head)
    except Malformed as error:
        raise CorruptBatch(f"not an Arrow RecordBatch message: {error}") from None
    _require_layout(head)
    if head.row_count != record_count:
        raise _count_mismatch(record_count, head.row_count)
    if loaded_bytes > limits.decompressed_bytes_max:
        raise _too_large("decompressed_bytes_max", loaded_bytes, limits.decompressed_bytes_max)
    batch = decode_arrow(payload)
    try:
        batch.validate(full=True)
        return max_timestamp(batch)
    except (pa.ArrowException, ValueError, OSError) as error:
        raise CorruptBatch(f"an Arrow message that does not hold together: {error}") from None


def _require_layout(head: arrow_message.Head) -> None:
    if len(head.nodes) != NODES_V1 or len(head.buffers) != BUFFERS_V1:
        raise CorruptBatch(
            f"schema version 1 has {NODES_V1} nodes and {BUFFERS_V1} buffers, this message has "
            f"{len(head.nodes)} and {len(head.buffers)}: columns are key, value, timestamp, headers"
        )
    for node in NOT_NULL_NODES_V1:
        if head.nodes[node][1] != 0:
            raise CorruptBatch("timestamp, header item and header key must not be null")
    for node in (0, 1, 2, 3):
        if head.nodes[node][0] != head.row_count:
            raise CorruptBatch("the columns have different lengths")


def _validate_rows(payload: bytes | memoryview, record_count: int, limits: BatchLimits) -> int:
    if len(payload) > ROWS_SCAN_BYTES:
        budget = (limits.decompressed_bytes_max - len(payload)) // PARSED_ENTRY_BYTES
        entries = rows_message.count_entries(memoryview(payload), budget)
        if entries > budget:
            loaded = len(payload) + entries * PARSED_ENTRY_BYTES
            raise _too_large("decompressed_bytes_max", loaded, limits.decompressed_bytes_max)
    rows = decode_rows(payload)
    if len(rows.rows) != record_count:
        raise _count_mismatch(record_count, len(rows.rows))
    return max(row.timestamp_us for row in rows.rows)


def _too_large(limit: str, size: int, maximum: int) -> TooLarge:
    return TooLarge(f"{size} bytes are above {limit} = {maximum}", limit=limit, maximum=maximum)


def _count_mismatch(claimed: int, found: int) -> CorruptBatch:
    return CorruptBatch(
        f"record_count says {claimed}, the payload holds {found}", field="record_count"
    )


# --------------------------------------------------------------------------------------- Arrow


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


def max_timestamp(batch: pa.RecordBatch) -> int:
    """Highest timestamp of a non-empty batch, microseconds."""
    # A view: pyarrow takes 20 us to find out how to cast.
    return int(pc.max(batch.column(2).view(pa.int64())).as_py())


def max_timestamp_of(encoding: int, payload: bytes | memoryview) -> int:
    """Highest timestamp of an encoded batch. Raises CorruptBatch."""
    if encoding == ROWS:
        return max(row.timestamp_us for row in decode_rows(payload).rows)
    return max_timestamp(decode_arrow(payload))


# ---------------------------------------------------------------------------------------- rows


def make_rows(
    keys: Sequence[bytes | None],
    values: Sequence[bytes | None],
    timestamps_us: int | Sequence[int],
    headers: Sequence[Headers | None] | None = None,
) -> pb.Rows:
    """Columns as rows; the twin of make_batch for small batches. Raises TypeError for a str."""
    times = [timestamps_us] * len(values) if isinstance(timestamps_us, int) else timestamps_us
    rows = pb.Rows()
    append = rows.rows.add
    for number, (key, value, time_us) in enumerate(zip(keys, values, times, strict=True)):
        row = append(key=key, value=value, timestamp_us=time_us)
        for name, content in (headers[number] or ()) if headers is not None else ():
            row.headers.add(key=name, value=content)
    return rows


def decode_rows(payload: bytes | memoryview) -> pb.Rows:
    """Raises CorruptBatch."""
    try:
        return pb.Rows.FromString(payload if isinstance(payload, bytes) else bytes(payload))
    except DecodeError as error:
        raise CorruptBatch(f"not a Rows message: {error}") from None


def rows_to_arrow(rows: pb.Rows) -> pa.RecordBatch:
    """Rows as an Arrow batch; an empty header list becomes null."""
    keys: list[bytes | None] = []
    values: list[bytes | None] = []
    times: list[int] = []
    headers: list[Headers | None] = []
    for row in rows.rows:
        keys.append(row.key if row.HasField("key") else None)
        values.append(row.value if row.HasField("value") else None)
        times.append(row.timestamp_us)
        headers.append(
            [(h.key, h.value if h.HasField("value") else None) for h in row.headers] or None
        )
    return make_batch(keys, values, times, headers if any(headers) else None)


def arrow_to_rows(batch: pa.RecordBatch) -> pb.Rows:
    """An Arrow batch as rows, for readers without Arrow. Python work per record: off the loop."""
    times = batch.column(2).cast(pa.int64()).to_pylist()
    headers: list[Headers | None] | None = None
    if batch.column(3).null_count < batch.num_rows:
        headers = [_pairs(item) for item in batch.column(3).to_pylist()]
    return make_rows(batch.column(0).to_pylist(), batch.column(1).to_pylist(), times, headers)


def _pairs(headers: Iterable[Mapping[str, Any]] | None) -> Headers | None:
    return None if headers is None else [(header["key"], header["value"]) for header in headers]


# --------------------------------------------------------------------------------------- either


def decode(encoding: int, payload: bytes | memoryview) -> pa.RecordBatch:
    """A payload of either encoding as an Arrow batch. Raises CorruptBatch."""
    return decode_arrow(payload) if encoding == ARROW_V1 else rows_to_arrow(decode_rows(payload))


def as_rows(encoding: int, payload: bytes | memoryview) -> bytes:
    """A payload of either encoding as serialized Rows (format=ROWS). Raises CorruptBatch."""
    if encoding == ROWS:
        return bytes(payload)
    return arrow_to_rows(decode_arrow(payload)).SerializeToString()


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
