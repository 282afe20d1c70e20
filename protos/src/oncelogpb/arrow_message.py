"""Reads the head of an encapsulated Arrow IPC message, so that a batch can be judged before it is
loaded: how many rows, nodes and buffers it claims, where they lie, and how big they become.

PyArrow checks what it reads but offers no look at these numbers, and loading a compressed body
allocates what the sender claims. Layout (Arrow columnar format, "Encapsulated message format"):

    u32 0xFFFFFFFF | i32 metadata length, a multiple of 8 | metadata (flatbuffer) | body

    Message      0 version i16   1 header type u8   2 header   3 body length i64
    RecordBatch  0 length i64    1 nodes [i64 length, i64 null count]
                 2 buffers [i64 offset, i64 length]   3 compression (table: 0 codec i8)
    compressed buffer: i64 uncompressed length (-1: not compressed) | bytes

Invariant: whatever the bytes are, `read_head` returns a head whose buffers lie inside the body, or
raises Malformed. It leaves the values inside the buffers to PyArrow's own validation.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

CONTINUATION: Final = 0xFFFFFFFF
PREFIX_BYTES: Final = 8
# Codecs of a body, from Arrow's Message.fbs.
LZ4_FRAME: Final = 0
ZSTD: Final = 1
# Header type and versions, from Arrow's Message.fbs and Schema.fbs.
RECORD_BATCH: Final = 3
METADATA_V4: Final = 3
METADATA_V5: Final = 4
# A head of our schema is below 600 bytes; nobody needs more.
METADATA_BYTES_MAX: Final = 4096
# More nodes or buffers than any schema version has.
ENTRIES_MAX: Final = 64

_I64 = struct.Struct("<q")


class Malformed(Exception):
    """The bytes are not one encapsulated RecordBatch message."""


class Head(NamedTuple):
    """What a RecordBatch message claims about itself."""

    row_count: int
    # (length, null count) of each field node, depth first.
    nodes: tuple[tuple[int, int], ...]
    # (offset in the body, length in bytes) of each buffer.
    buffers: tuple[tuple[int, int], ...]
    compressed: bool
    # Position of the body in the message.
    body_start: int
    body_bytes: int


def read_head(message: memoryview) -> Head:
    """The head of exactly one message that fills `message`. Raises Malformed."""
    try:
        return _read_head(message)
    except (struct.error, IndexError, OverflowError) as error:
        raise Malformed(f"metadata points outside of itself ({error})") from None


def codec_of(message: memoryview) -> int | None:
    """LZ4_FRAME or ZSTD; None: loading the message decompresses nothing. A fifth of the work of
    `read_head`; of a message that it refuses this may say anything. Raises Malformed."""
    try:
        flat = _Flat(bytes(message[PREFIX_BYTES : PREFIX_BYTES + METADATA_BYTES_MAX]))
        batch = flat.table(flat.reference(0), 2)
        if not flat.field(batch, 3):
            return None
        codec = flat.scalar("<b", flat.table(batch, 3), 0)
    except (struct.error, IndexError, OverflowError) as error:
        raise Malformed(f"metadata points outside of itself ({error})") from None
    if codec not in (LZ4_FRAME, ZSTD):
        raise Malformed(f"codec {codec}")
    return codec


def decompressed_bytes(message: memoryview, head: Head) -> int:
    """What the buffers hold once loaded, as the message claims. Raises Malformed."""
    if not head.compressed:
        return head.body_bytes
    total = 0
    for offset, length in head.buffers:
        if length == 0:
            continue
        if length < _I64.size:
            raise Malformed(f"a compressed buffer of {length} bytes has no length")
        (claimed,) = _I64.unpack_from(message, head.body_start + offset)
        if claimed < -1:
            raise Malformed(f"a compressed buffer claims {claimed} bytes")
        total += length - _I64.size if claimed == -1 else claimed
    return total


def _read_head(message: memoryview) -> Head:
    continuation, metadata_bytes = struct.unpack_from("<Ii", message, 0)
    if continuation != CONTINUATION:
        raise Malformed("no continuation marker")
    if not 8 <= metadata_bytes <= METADATA_BYTES_MAX:
        raise Malformed(f"metadata of {metadata_bytes} bytes")
    flat = _Flat(bytes(message[PREFIX_BYTES : PREFIX_BYTES + metadata_bytes]))
    if len(flat.data) != metadata_bytes:
        raise Malformed("cut inside the metadata")
    root = flat.reference(0)
    if flat.scalar("<h", root, 0) not in (METADATA_V4, METADATA_V5):
        raise Malformed("not metadata version 4 or 5")
    if flat.scalar("<B", root, 1) != RECORD_BATCH:
        raise Malformed("not a RecordBatch message")
    body_start, body_bytes = PREFIX_BYTES + metadata_bytes, flat.scalar("<q", root, 3)
    if body_start + body_bytes != len(message):
        raise Malformed(
            f"a body of {body_bytes} bytes was announced, {len(message) - body_start} came"
        )
    batch = flat.table(root, 2)
    head = Head(
        row_count=flat.scalar("<q", batch, 0),
        nodes=flat.pairs(batch, 1),
        buffers=flat.pairs(batch, 2),
        compressed=flat.field(batch, 3) != 0,
        body_start=body_start,
        body_bytes=body_bytes,
    )
    _check(head)
    return head


def _check(head: Head) -> None:
    for length, null_count in head.nodes:
        if not 0 <= null_count <= length:
            raise Malformed(f"a node of {length} values with {null_count} nulls")
    for offset, length in head.buffers:
        if offset < 0 or length < 0 or offset + length > head.body_bytes:
            raise Malformed(f"a buffer at [{offset}, {offset + length}) of {head.body_bytes} bytes")


class _Flat:
    """Just enough of a flatbuffer: tables, scalars and vectors of pairs, each step in bounds."""

    __slots__ = ("data",)

    def __init__(self, data: bytes) -> None:
        self.data = data

    def number(self, form: str, position: int) -> int:
        # unpack_from would take a negative position as one from the end.
        if position < 0:
            raise Malformed("metadata points before its start")
        return int(struct.unpack_from(form, self.data, position)[0])

    def reference(self, position: int) -> int:
        return position + self.number("<I", position)

    def field(self, table: int, index: int) -> int:
        """Position of a field of a table, 0 where it is absent."""
        vtable = table - self.number("<i", table)
        entry = 4 + 2 * index
        if entry + 2 > self.number("<H", vtable):
            return 0
        offset = self.number("<H", vtable + entry)
        return table + offset if offset else 0

    def scalar(self, form: str, table: int, index: int) -> int:
        position = self.field(table, index)
        return self.number(form, position) if position else 0

    def table(self, table: int, index: int) -> int:
        position = self.field(table, index)
        if not position:
            raise Malformed(f"field {index} is absent")
        return self.reference(position)

    def pairs(self, table: int, index: int) -> tuple[tuple[int, int], ...]:
        position = self.table(table, index)
        count = self.number("<I", position)
        if count > ENTRIES_MAX:
            raise Malformed(f"{count} nodes or buffers, more than {ENTRIES_MAX}")
        # One unpacking for all of them: this runs for every batch that a server is sent.
        values = struct.unpack_from(f"<{2 * count}q", self.data, position + 4)
        return tuple(zip(values[::2], values[1::2], strict=True))
