"""Blocks as bytes, in a file of the data log. Drawn again in docs/log_format.md.

    byte  size  field                     (integers are little-endian)
       0     4  magic                     "ODB1"
       4     4  CRC32C                    of byte 8 to the end of the block
       8     4  block length              all of it, this header too
      12     1  format version            1
      13     1  payload encoding          oncelogpb.v1.Encoding
      14     2  reserved                  0
      16     8  first offset
      24     8  end offset                where the next block begins
      32     8  exposed below             journal offset
      40     8  highest record time       us, signed
      48     8  time of its last unit     ms, signed
      56     4  record count
      60     4  unit count
      64     4  client's CRC32C           of the payload
      68     4  bytes of units
      72     4  bytes of offsets
      76     4  bytes of payload
      80     4  CRC32C of the header      of bytes 8 to 79
      84     -  units, offsets, payload   (core.block)

Invariants:
  * magic, both CRCs, block length and version keep their place in every version, so an old reader
    can tell "newer than I" from "damaged";
  * a header that is intact says where its block ends, whatever became of the rest: so damage in a
    block hides no other one, and nobody looks for a magic number, which a record may hold;
  * the payload is never copied to be encoded.

Left out: whether a block belongs where it stands. `data_file` knows that.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from crc32c import crc32c

from oncelog_server.core.block import Block
from oncelog_server.runtime.storage.frames import FRAME_PAYLOAD_BYTES_MAX

MAGIC: Final = b"ODB1"
VERSION: Final = 1
BLOCK_HEADER_BYTES: Final = 84
# A frame's payload by itself is a block; its columns are small beside that.
BLOCK_BYTES_MAX: Final = 2 * FRAME_PAYLOAD_BYTES_MAX

_SEAL: Final = struct.Struct("<4sI")
_HEADER_CRC: Final = struct.Struct("<I")
_HEADER_CRC_AT: Final = 80
_BODY: Final = struct.Struct("<IBBHQQQqqIIIIII")
# Enough of a header to step over its block: magic, length, first and end offset, exposed below.
_STEP: Final = struct.Struct("<4s4xI4xQQQ")
_VERSION_AT: Final = 12

assert _SEAL.size + _BODY.size == _HEADER_CRC_AT
assert _HEADER_CRC_AT + _HEADER_CRC.size == BLOCK_HEADER_BYTES


class BlockError(Exception):
    """Bytes that are no block to us; the text says why."""


class BlockIncomplete(BlockError):
    """The bytes end inside the block."""

    def __init__(self, needed: int) -> None:
        super().__init__(f"the block needs {needed} bytes, and there are fewer")
        # Bytes of the whole block as far as it is known; at least a header.
        self.needed = needed


class BlockDamaged(BlockError):
    """Not what was written."""


class BlockTooNew(BlockError):
    """Intact, and of a version that this code does not know."""


class Step(NamedTuple):
    """What a header says of its block."""

    first_offset: int
    end_offset: int
    exposed_below: int
    length: int


def encode_block(block: Block) -> Sequence[bytes | memoryview]:
    """As chunks to be written one after the other; the payload is not copied."""
    chunks = (block.packed_units, block.packed_offsets, block.payload)
    length = BLOCK_HEADER_BYTES + sum(map(len, chunks))
    assert length <= BLOCK_BYTES_MAX, "a block is no larger than a frame and its columns"
    body = _BODY.pack(
        length,
        VERSION,
        block.encoding,
        0,
        block.first_offset,
        block.end_offset,
        block.exposed_below,
        block.max_timestamp_us,
        block.time_ms,
        block.record_count,
        block.unit_count,
        block.client_crc,
        *map(len, chunks),
    )
    body += _HEADER_CRC.pack(crc32c(body))
    crc = crc32c(body)
    for chunk in chunks:
        crc = crc32c(chunk, crc)
    return (_SEAL.pack(MAGIC, crc) + body, *(chunk for chunk in chunks if len(chunk)))


def encoded_block_bytes(block: Block) -> int:
    """Size of the block on disk."""
    columns = len(block.packed_units) + len(block.packed_offsets)
    return BLOCK_HEADER_BYTES + columns + len(block.payload)


def step_block(buffer: memoryview, position: int) -> Step:
    """From the header alone, for walking over blocks that are not wanted. It is intact, the rest of
    the block perhaps not. Raises BlockIncomplete, BlockDamaged."""
    if position + BLOCK_HEADER_BYTES > len(buffer):
        raise BlockIncomplete(BLOCK_HEADER_BYTES)
    magic, length, first, end, exposed_below = _STEP.unpack_from(buffer, position)
    if magic != MAGIC:
        raise BlockDamaged(f"no block begins here: {bytes(magic).hex()} is not the magic number")
    header = buffer[position + _SEAL.size : position + _HEADER_CRC_AT]
    if crc32c(header) != _HEADER_CRC.unpack_from(buffer, position + _HEADER_CRC_AT)[0]:
        raise BlockDamaged("the CRC32C of its header does not match")
    if not BLOCK_HEADER_BYTES <= length <= BLOCK_BYTES_MAX or end <= first:
        raise BlockDamaged(f"{length} bytes of offsets {first} to {end} cannot be")
    return Step(first, end, exposed_below, length)


def verify_block(buffer: memoryview, position: int) -> Step:
    """The block at `position` is intact. Raises BlockIncomplete, BlockDamaged, BlockTooNew."""
    found = step_block(buffer, position)
    end = position + found.length
    if end > len(buffer):
        raise BlockIncomplete(found.length)
    _, crc = _SEAL.unpack_from(buffer, position)
    if crc32c(buffer[position + _SEAL.size : end]) != crc:
        raise BlockDamaged("the CRC32C does not match")
    version = buffer[position + _VERSION_AT]
    if version != VERSION:
        raise BlockTooNew(f"format version {version}")
    return found


def decode_block(buffer: memoryview, position: int = 0) -> Block:
    """The block at `position`, its CRC verified. Its payload is a copy, so the buffer may go.

    Raises BlockIncomplete, BlockDamaged, BlockTooNew.
    """
    found = verify_block(buffer, position)
    (
        length,
        _,
        encoding,
        _,
        first,
        end,
        exposed_below,
        max_us,
        time_ms,
        record_count,
        unit_count,
        client_crc,
        units,
        offsets,
        payload,
    ) = _BODY.unpack_from(buffer, position + _SEAL.size)
    at = position + BLOCK_HEADER_BYTES
    if at + units + offsets + payload != position + found.length:
        raise BlockDamaged(f"sections of {units} + {offsets} + {payload} in {length} bytes")
    payload_at = at + units + offsets
    return Block(
        first,
        end,
        record_count,
        exposed_below,
        max_us,
        time_ms,
        encoding,
        client_crc,
        bytes(buffer[payload_at : payload_at + payload]),
        unit_count,
        bytes(buffer[at : at + units]),
        bytes(buffer[at + units : payload_at]),
    )
