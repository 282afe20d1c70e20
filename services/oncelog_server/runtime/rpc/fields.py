"""Counts the fields of a serialized request before it is parsed: two bytes on the wire can become a
message of a hundred in memory, so 32 MiB of empty batches would take gigabytes.

Every tag counts, also of what is unknown. The bytes inside a `bytes` or `string` field are skipped,
so a message of few large batches is counted in no time. Whatever the bytes are, the count ends
after `stop_above` + 1 fields; what is malformed is left to the parser.
"""

from __future__ import annotations

from functools import cache
from typing import Final

from google.protobuf.descriptor import Descriptor

from oncelogpb.errors import TooLarge

# Below, even the worst message stays harmless. Streams pack up to 2 MiB (oncelogpb.calls), so what
# they carry in the usual case is not looked at.
COUNT_ABOVE_BYTES: Final = 2 * 1024 * 1024
VARINT_BITS_MAX: Final = 70


class _Malformed(Exception):
    """The parser will say why."""


def require_few(data: bytes, descriptor: Descriptor, fields_max: int) -> None:
    """Raises TooLarge."""
    if len(data) <= COUNT_ABOVE_BYTES:
        return
    if count_fields(data, descriptor, stop_above=fields_max) > fields_max:
        raise TooLarge(
            f"a request of {len(data)} bytes has more fields than message_fields_max = "
            f"{fields_max}; send less at once",
            limit="message_fields_max",
            maximum=fields_max,
        )


def count_fields(data: bytes, descriptor: Descriptor, *, stop_above: int) -> int:
    """Fields of the message and of those in it, up to `stop_above` + 1."""
    try:
        return _count(data, 0, len(data), descriptor, stop_above)
    except _Malformed:
        return 0


def _count(data: bytes, position: int, end: int, descriptor: Descriptor, stop_above: int) -> int:
    nested = _nested(descriptor)
    count = 0
    while position < end and count <= stop_above:
        count += 1
        tag, position = _varint(data, position, end)
        match tag & 7:  # The wire types of protobuf.
            case 2:
                length, position = _varint(data, position, end)
                if position + length > end:
                    raise _Malformed
                inner = nested.get(tag >> 3)
                if inner is not None:
                    left = stop_above - count
                    count += _count(data, position, position + length, inner, left)
                position += length
            case 0:
                _, position = _varint(data, position, end)
            case 1:
                position += 8
            case 5:
                position += 4
            case _:
                raise _Malformed
    return count


@cache
def _nested(descriptor: Descriptor) -> dict[int, Descriptor]:
    """Its fields that are messages, by number."""
    return {
        field.number: field.message_type
        for field in descriptor.fields
        if field.message_type is not None
    }


def _varint(data: bytes, position: int, end: int) -> tuple[int, int]:
    if position < end and data[position] < 0x80:
        return data[position], position + 1
    value = shift = 0
    while position < end and shift < VARINT_BITS_MAX:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
    raise _Malformed
