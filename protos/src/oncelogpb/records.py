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
- no per-record Python work on Arrow, except in `arrow_to_rows` (bounded by the batch; off the
  loop).

Left out: the meaning of keys, values and headers; who may write what. What is done with loaded
Arrow batches is in `arrow_records`; its names are found here too.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from crc32c import crc32c
from google.protobuf.message import DecodeError

from oncelogpb import arrow_message, rows_message
from oncelogpb.arrow_message import Malformed
from oncelogpb.errors import CorruptBatch, InvalidArgument, TooLarge
from oncelogpb.v1 import types_pb2 as pb

if TYPE_CHECKING:
    import pyarrow as pa

    # isort: off
    from oncelogpb.arrow_records import (
        HEADERS as HEADERS,
        SCHEMA_MESSAGE_BYTES as SCHEMA_MESSAGE_BYTES,
        SCHEMA_V1 as SCHEMA_V1,
        TIMESTAMP as TIMESTAMP,
        arrow_to_rows as arrow_to_rows,
        conform as conform,
        decode as decode,
        decode_arrow as decode_arrow,
        encode_arrow as encode_arrow,
        join_rows as join_rows,
        make_batch as make_batch,
        max_timestamp as max_timestamp,
        rows_to_arrow as rows_to_arrow,
        seal as seal,
    )
    # isort: on

# What needs PyArrow. It is loaded when the first of it is used, for it takes a fifth of a second
# and 50 MB, and a process that meets rows alone goes without.
_WITH_ARROW: Final = "oncelogpb.arrow_records"

ROWS: Final = pb.ENCODING_ROWS
ARROW_V1: Final = pb.ENCODING_ARROW_V1

# Below so many records, rows are smaller and quicker than an Arrow message (648 bytes for one).
ROWS_BELOW: Final = 16

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
    # What errors call them: whoever sets a limit knows by which name it can be found.
    batch_limit: str = "max_batch_bytes"
    decompressed_limit: str = "decompressed_bytes_max"
    # Name of a topic that is compacted: each record needs a key. "": it may lack one.
    compacted_topic: str = ""


DEFAULT_LIMITS: Final = BatchLimits()


# ------------------------------------------------------------------------------------- judging


def needs_offload(encoding: int, payload: bytes | memoryview) -> bool:
    """True where `validate` should run in a thread: compressed, large, or the first Arrow batch,
    for which PyArrow has to be loaded. Never raises."""
    if encoding != ARROW_V1:
        return len(payload) > ROWS_SCAN_BYTES
    if len(payload) > ARROW_OFFLOAD_BYTES or _WITH_ARROW not in sys.modules:
        return True
    try:
        return arrow_message.codec_of(memoryview(payload)) is not None
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
    sense, or a record lacks a key that needs one), TooLarge (names the limit) or CorruptBatch (the
    bytes are not what the sender claims). `max_timestamp_us`, where given, must be the batch's."""
    if encoding not in (ROWS, ARROW_V1):
        raise InvalidArgument(f"batch encoding {encoding} is not known here", field="encoding")
    if record_count < 1:
        raise InvalidArgument("a batch holds at least one record", field="record_count")
    if len(payload) > limits.max_batch_bytes:
        raise _too_large(limits.batch_limit, len(payload), limits.max_batch_bytes)
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


def max_timestamp_of(encoding: int, payload: bytes | memoryview) -> int:
    """Highest timestamp of an encoded batch. Raises CorruptBatch."""
    if encoding == ROWS:
        return max(row.timestamp_us for row in decode_rows(payload).rows)
    # Imported here: see _WITH_ARROW.
    from oncelogpb import arrow_records

    return arrow_records.max_timestamp(arrow_records.decode_arrow(payload))


def first_since(
    encoding: int, payload: bytes | memoryview, timestamp_us: int, *, begin: int = 0
) -> tuple[int, int] | None:
    """Number and time of the first record of a batch at or after that time, none of the first
    `begin`; None where there is none. Raises CorruptBatch."""
    if encoding == ROWS:
        times = enumerate(row.timestamp_us for row in decode_rows(payload).rows)
        later = islice(times, begin, None)
        return next(((index, us) for index, us in later if us >= timestamp_us), None)
    # Imported here: see _WITH_ARROW.
    from oncelogpb import arrow_records

    return arrow_records.first_since(arrow_records.decode_arrow(payload), timestamp_us, begin=begin)


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
        raise _too_large(limits.decompressed_limit, loaded_bytes, limits.decompressed_bytes_max)
    # Imported here: see _WITH_ARROW.
    from oncelogpb import arrow_records

    highest = arrow_records.judge(payload)
    # Where the head says that no key is null, none is, for whoever reads it.
    if limits.compacted_topic and head.nodes[0][1]:
        index = arrow_records.first_without_key(arrow_records.decode_arrow(payload))
        raise _without_key(limits.compacted_topic, index)
    return highest


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
            raise _too_large(limits.decompressed_limit, loaded, limits.decompressed_bytes_max)
    rows = decode_rows(payload)
    if len(rows.rows) != record_count:
        raise _count_mismatch(record_count, len(rows.rows))
    if limits.compacted_topic:
        for index, row in enumerate(rows.rows):
            if not row.HasField("key"):
                raise _without_key(limits.compacted_topic, index)
    return max(row.timestamp_us for row in rows.rows)


def _too_large(limit: str, size: int, maximum: int) -> TooLarge:
    return TooLarge(f"{size} bytes are above {limit} = {maximum}", limit=limit, maximum=maximum)


def _without_key(topic: str, index: int) -> InvalidArgument:
    return InvalidArgument(
        f"record {index} of the batch has no key, and topic {topic!r} keeps the last value of each "
        "key (cleanup.policy): give each record a key, an empty one is one; nothing of this batch "
        "is written",
        field="key",
    )


def _count_mismatch(claimed: int, found: int) -> CorruptBatch:
    return CorruptBatch(
        f"record_count says {claimed}, the payload holds {found}", field="record_count"
    )


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


def as_rows(encoding: int, payload: bytes | memoryview) -> bytes:
    """A payload of either encoding as serialized Rows (format=ROWS). Raises CorruptBatch."""
    if encoding == ROWS:
        return bytes(payload)
    # Imported here: see _WITH_ARROW.
    from oncelogpb import arrow_records

    batch = arrow_records.decode_arrow(payload)
    return arrow_records.arrow_to_rows(batch).SerializeToString()


# ------------------------------------------------------------------------------------ with Arrow


def __getattr__(name: str) -> Any:
    """What stands in `arrow_records`, at the first use of each name."""
    if name.startswith("_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(importlib.import_module(_WITH_ARROW), name)
    globals()[name] = found
    return found
