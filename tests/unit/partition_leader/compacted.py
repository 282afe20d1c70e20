"""Blocks of which records were taken out, made record by record: what compaction leaves."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Collection
from itertools import accumulate
from typing import Final

from oncelog_server.core.block import Block, Units, block_of
from oncelogpb import records
from oncelogpb.records import ROWS
from oncelogpb.v1 import types_pb2

NO_UNITS: Final = Units(*[()] * len(Units._fields))


def without(block: Block, gone: Collection[int]) -> Block:
    """The block without the records at these offsets; it covers the same."""
    offsets = block.offsets
    stay = [number for number, offset in enumerate(offsets) if offset not in gone]
    if len(stay) == len(offsets):
        return block
    ends = list(accumulate(block.units.record_count))
    left = Counter(bisect_right(ends, number) for number in stay)
    rows = [
        (left[number], *(column[number] for column in block.units[1:])) for number in sorted(left)
    ]
    if block.encoding == ROWS:
        told = records.decode_rows(block.payload).rows
        content = types_pb2.Rows(rows=[told[number] for number in stay]).SerializeToString()
    else:
        batch = records.decode_arrow(block.payload)
        content = records.encode_arrow(batch.take(stay)).to_pybytes() if stay else b""
    return block_of(
        Units(*zip(*rows, strict=True)) if rows else NO_UNITS,
        content,
        first_offset=block.first_offset,
        end_offset=block.end_offset,
        offsets=[offsets[number] for number in stay],
        exposed_below=block.exposed_below,
        max_timestamp_us=records.max_timestamp_of(block.encoding, content) if stay else -(1 << 63),
        time_ms=block.time_ms,
        encoding=block.encoding,
        client_crc=records.checksum(content),
    )
