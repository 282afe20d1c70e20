"""Blocks of which compaction has taken records out, as readers get them. PURE.

A block covers its offsets, whatever is left of its records: holes stand in front, between, and
behind them. Readers are told of those between (`FetchedBatch.offsets`), or get each row of
neighbours as a batch of its own, where they do not know what that means.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

from oncelog_server.core.block import Block, Units, block_of
from oncelogpb import records
from oncelogpb.records import ARROW_V1, ROWS, ROWS_BELOW
from oncelogpb.v1 import partition_leader_pb2 as pb
from oncelogpb.v1 import types_pb2


def has_any(block: Block, from_offset: int) -> bool:
    """It has a record at or behind that offset. Raises ColumnDamaged."""
    if block.is_dense:
        return from_offset < block.end_offset
    return bool(block.record_count) and block.offsets[-1] >= from_offset


def tell(offsets: Sequence[int], head: pb.FetchedBatch) -> None:
    """Of records, ascending, where they stand."""
    first = head.first_offset = offsets[0]
    if offsets[-1] - first >= len(offsets):
        head.offsets.extend([offset - first for offset in offsets])


def rows_of(block: Block, from_offset: int) -> Iterator[Block]:
    """Its records from an offset on, as blocks without holes. A unit is told of each that has some
    of it. Raises CorruptBatch, ColumnDamaged."""
    offsets = block.offsets
    begin = bisect_left(offsets, from_offset)
    loaded = _Loaded(block)
    units = block.units
    ends = list(accumulate(units.record_count))
    while begin < len(offsets):
        end = _end_of_row(offsets, begin)
        encoding, payload = loaded.part(begin, end)
        yield block_of(
            _units_of(units, ends, begin, end),
            payload,
            first_offset=offsets[begin],
            exposed_below=block.exposed_below,
            max_timestamp_us=records.max_timestamp_of(encoding, payload),
            encoding=encoding,
            client_crc=records.checksum(payload),
        )
        begin = end


def _end_of_row(offsets: Sequence[int], begin: int) -> int:
    """Number behind the last record that stands behind its neighbour."""
    end = begin + 1
    while end < len(offsets) and offsets[end] == offsets[end - 1] + 1:
        end += 1
    return end


def _units_of(units: Units, ends: Sequence[int], begin: int, end: int) -> Units:
    """Of the records with these numbers. A unit that began before goes on by as many as are left of
    it: what was taken out of it is not known any more."""
    first, last = bisect_right(ends, begin), bisect_left(ends, end)
    columns = [list(column[first : last + 1]) for column in units]
    counts, _, _, _, _, base_sequences, journal_offsets, _ = columns
    skipped = begin - (ends[first] - counts[0])
    counts[-1] -= ends[last] - end
    counts[0] -= skipped
    base_sequences[0] += skipped
    journal_offsets[0] += skipped
    return Units(*columns)


class _Loaded:
    """A block's records, loaded once."""

    def __init__(self, block: Block) -> None:
        self._rows: Any = None
        self._batch: Any = None
        if block.encoding == ROWS:
            self._rows = records.decode_rows(block.payload).rows
        else:
            self._batch = records.decode_arrow(block.payload)

    def part(self, begin: int, end: int) -> tuple[int, bytes | memoryview]:
        """An encoding, and these records in it: few of them as rows, which are smaller then."""
        if self._rows is not None:
            rows = types_pb2.Rows(rows=self._rows[begin:end])
            return ROWS, rows.SerializeToString()
        batch = self._batch.slice(begin, end - begin)
        if end - begin < ROWS_BELOW:
            return ROWS, records.arrow_to_rows(batch).SerializeToString()
        return ARROW_V1, memoryview(records.encode_arrow(batch))
