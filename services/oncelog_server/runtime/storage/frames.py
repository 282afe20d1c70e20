"""Frames as bytes. Drawn again, with golden bytes of every kind, in docs/log_format.md.

    byte  size  field                     (integers are little-endian)
       0     4  magic                     "ONCE"
       4     4  CRC32C                    of bytes 8 to the end of the payload
       8     1  format version            1
       9     1  kind                      oncelog_server.core.frame.FrameKind
      10     1  control code              of a MARKER
      11     1  payload encoding          of DATA and ONE_SHOT
      12     2  header length             96
      14     2  reserved                  0
      16     4  payload length
      20     4  leader epoch
      24     8  journal offset            of the first record
      32     8  timestamp                 ms, max(last, wall clock) of the leader
      40     4  record count
      44     4  client's CRC32C           of the payload as the client sent it
      48     8  producer id
      56     8  generation
      64     8  writer
      72     8  base sequence
      80     8  TxId
      88     8  highest record time       us, signed
      96     -  payload

Invariants:
  * magic, CRC, version, kind, header length and payload length keep their place in every version,
    so an old reader can tell "newer than I" from "damaged";
  * an intact frame of an unknown version, kind or control code is an error, never skipped;
  * the payload is never copied to be encoded.

Left out: whether a frame belongs where it stands. `scan` knows that.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from crc32c import crc32c

from oncelog_server.core.frame import OCCUPY_RECORDS, At, ControlCode, Frame, FrameKind, StoredFrame
from oncelogpb.errors import TooLarge
from oncelogpb.in_place import VIEW_SHARE

MAGIC: Final = b"ONCE"
VERSION: Final = 1
HEADER_BYTES: Final = 96
# A frame is one RPC's worth: a 16 MiB batch or manifest, with room for what goes around it.
FRAME_PAYLOAD_BYTES_MAX: Final = 32 << 20

# Magic and CRC; then everything that the CRC covers of the header.
_SEAL: Final = struct.Struct("<4sI")
_BODY: Final = struct.Struct("<BBBBHHIIQQIIQQQQQq")
# Enough of a header to step over its frame: magic, payload length, offset, record count, kind.
_STEP: Final = struct.Struct("<4s5xB6xI4xQ8xI")

assert _SEAL.size + _BODY.size == HEADER_BYTES
assert _STEP.size == 44

_KINDS: Final = {int(kind): kind for kind in FrameKind}
_CONTROLS: Final = {int(code): code for code in ControlCode}
_NO_HEADER: Final = bytes(HEADER_BYTES)


class FrameError(Exception):
    """Bytes that are no frame to us; the text says why."""


class FrameIncomplete(FrameError):
    """The bytes end inside the frame."""

    def __init__(self, needed: int) -> None:
        super().__init__(f"the frame needs {needed} bytes, and there are fewer")
        # Bytes of the whole frame as far as it is known; at least a header.
        self.needed = needed


class FrameDamaged(FrameError):
    """Not what was written."""


class FrameTooNew(FrameError):
    """Intact, and of a version, kind or control code that this code does not know."""


def encode(frame: Frame, at: At) -> Sequence[bytes | memoryview]:
    """The frame as chunks to be written one after the other; the payload is not copied.

    Raises TooLarge above FRAME_PAYLOAD_BYTES_MAX.
    """
    payload = frame.payload
    length = len(payload)
    if length > FRAME_PAYLOAD_BYTES_MAX:
        raise _too_large(length)
    body = _BODY.pack(
        VERSION,
        frame.kind,
        frame.control,
        frame.encoding,
        HEADER_BYTES,
        0,
        length,
        at.epoch,
        at.offset,
        at.time_ms,
        frame.record_count,
        frame.client_crc,
        frame.producer_id,
        frame.generation,
        frame.writer,
        frame.base_sequence,
        frame.tx_id,
        frame.max_timestamp_us,
    )
    if not length:
        return (_SEAL.pack(MAGIC, crc32c(body)) + body,)
    return (_SEAL.pack(MAGIC, crc32c(payload, crc32c(body))) + body, payload)


def require_size(frame: Frame) -> None:
    """Raises TooLarge, as `encode` would."""
    if len(frame.payload) > FRAME_PAYLOAD_BYTES_MAX:
        raise _too_large(len(frame.payload))


def _too_large(length: int) -> TooLarge:
    return TooLarge(
        f"a frame of {length} bytes is above frame_payload_bytes_max "
        f"({FRAME_PAYLOAD_BYTES_MAX}): send smaller batches"
    )


def encoded_bytes(frame: Frame) -> int:
    """Size of the frame on disk."""
    return HEADER_BYTES + len(frame.payload)


def decode(buffer: memoryview, position: int = 0, *, views: bool = False) -> StoredFrame:
    """The frame at `position`, its CRC verified. Its payload is a copy, so the buffer may go; with
    `views` one of records is left in the buffer, if it is at least 1/VIEW_SHARE of it.

    Raises FrameIncomplete, FrameDamaged, FrameTooNew.
    """
    start = position + HEADER_BYTES
    if start > len(buffer):
        raise FrameIncomplete(HEADER_BYTES)
    magic, crc = _SEAL.unpack_from(buffer, position)
    if magic != MAGIC:
        raise FrameDamaged(f"no frame begins here: {bytes(magic).hex()} is not the magic number")
    (
        version,
        kind,
        control,
        encoding,
        header_length,
        reserved,
        length,
        epoch,
        offset,
        time_ms,
        count,
        client_crc,
        producer_id,
        generation,
        writer,
        sequence,
        tx_id,
        max_us,
    ) = _BODY.unpack_from(buffer, position + _SEAL.size)
    size = header_length + length
    if header_length < HEADER_BYTES or length > FRAME_PAYLOAD_BYTES_MAX:
        raise FrameDamaged(f"lengths {header_length} + {length} cannot be")
    if position + size > len(buffer):
        raise FrameIncomplete(size)
    if crc32c(buffer[position + _SEAL.size : position + size]) != crc:
        raise FrameDamaged("the CRC32C does not match")
    if version != VERSION or header_length != HEADER_BYTES or reserved:
        raise FrameTooNew(f"format version {version}")
    if kind not in _KINDS or control not in _CONTROLS:
        raise FrameTooNew(f"frame kind {kind}, control code {control}")
    payload = buffer[start : start + length]
    is_left = views and kind in OCCUPY_RECORDS and length * VIEW_SHARE >= len(buffer)
    frame = Frame(
        _KINDS[kind],
        payload if is_left else bytes(payload),
        count,
        producer_id,
        generation,
        writer,
        sequence,
        tx_id,
        _CONTROLS[control],
        encoding,
        max_us,
        client_crc,
    )
    return StoredFrame(frame, At(offset, epoch, time_ms))


def step(buffer: memoryview, position: int) -> tuple[int, int, int]:
    """(journal offset, end offset, size) of the frame at `position`, from its header alone.

    For walking over frames that are not wanted: unverified, so what is served must be decoded.
    Raises FrameIncomplete, FrameDamaged.
    """
    if position + HEADER_BYTES > len(buffer):
        raise FrameIncomplete(HEADER_BYTES)
    magic, kind, length, offset, count = _STEP.unpack_from(buffer, position)
    if magic != MAGIC or length > FRAME_PAYLOAD_BYTES_MAX:
        raise FrameDamaged("no frame begins here")
    return offset, offset + (count if kind in OCCUPY_RECORDS else 1), HEADER_BYTES + length


def is_blank(buffer: memoryview, position: int) -> bool:
    """True where a header would stand, and nothing was ever written: the end of the log."""
    header = buffer[position : position + HEADER_BYTES]
    return header == _NO_HEADER[: len(header)]
