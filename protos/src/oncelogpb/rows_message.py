"""Counts what stands in a serialized Rows message without parsing it, so that a batch can be judged
before it is loaded: two bytes on the wire can become a row or a header of 64 bytes in memory.

    Rows    0A len | Row ...                                     field 1: rows
    Row     ... 22 len | Header ...                              field 4: headers

Invariant: the scan ends after at most `stop_above` + 1 entries, whatever the bytes are. It leaves
the fields inside a header to the parser.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from oncelogpb.errors import CorruptBatch

ROWS_FIELD: Final = 1
HEADERS_FIELD: Final = 4
# Wire types of protobuf.
VARINT, LENGTH_DELIMITED = 0, 2
FIXED_BYTES: Final = {1: 8, 5: 4}
VARINT_BITS_MAX: Final = 70


def count_entries(view: memoryview, stop_above: int) -> int:
    """Rows and headers, up to `stop_above` + 1. Raises CorruptBatch."""
    entries = 0
    for row_start, row_end in _nested(view, 0, len(view), ROWS_FIELD):
        entries += 1
        for _ in _nested(view, row_start, row_end, HEADERS_FIELD):
            entries += 1
            if entries > stop_above:
                return entries
        if entries > stop_above:
            return entries
    return entries


def _nested(view: memoryview, start: int, end: int, field: int) -> Iterator[tuple[int, int]]:
    """Ranges [first, end) of the length-delimited fields of that number between start and end."""
    position = start
    while position < end:
        tag, position = _varint(view, position, end)
        kind = tag & 7
        if kind == LENGTH_DELIMITED:
            length, position = _varint(view, position, end)
            if position + length > end:
                raise CorruptBatch("not a Rows message: a field runs past its end")
            if tag >> 3 == field:
                yield position, position + length
            position += length
        elif kind == VARINT:
            _, position = _varint(view, position, end)
        elif kind in FIXED_BYTES:
            position += FIXED_BYTES[kind]
        else:
            raise CorruptBatch(f"not a Rows message: wire type {kind}")


def _varint(view: memoryview, position: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while position < end and shift < VARINT_BITS_MAX:
        byte = view[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
    raise CorruptBatch("not a Rows message: a number runs past its end")
