"""A block: settled records that stand side by side in the data log, as one payload. PURE.

    committed log │ unit │ unit │ unit │            a unit became readable at once: one batch of a
    block         │ one payload; a row per unit │   transaction's part, or one frame of a run

What a reader may ask of a unit (its transaction, its producer, its place in the journal, when it
was committed) stands in columns beside the payload, one row per unit. Columns are packed: the least
value, and how far each is above it in as few bytes as the widest needs.

    byte  size  field          (of a packed column; integers are little-endian)
       0     8  least value    of `time_ms` signed
       8     1  width          bytes per value: 0 (all are the least), 1, 2, 4 or 8
       9     -  values         minus the least, `width` bytes each

Invariants:
  * a unit's records stand in the payload one after the other, the units in offset order;
  * offsets are dense, so where a record stands says its offset; only where records were taken out
    (`record_count < end_offset - first_offset`) does a column say the offset of each. All may be
    gone: then it has neither units nor a payload, and covers its offsets still.

Left out: what the payload is (the role's `merge` and `split`), and where blocks stand
(`runtime/storage/data_log`).
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Sequence
from typing import Final, NamedTuple

assert sys.byteorder == "little", "columns are stored in the order of the machine"

_HEAD: Final = struct.Struct("<QB")
_SIGNED_HEAD: Final = struct.Struct("<qB")
_TYPECODES: Final = {1: "B", 2: "H", 4: "I", 8: "Q"}


# Below all timestamps.
NO_TIMESTAMP_US: Final = -(1 << 63)


class ColumnDamaged(ValueError):
    """Bytes that are no column; the text says why."""


class Units(NamedTuple):
    """One row per unit, in offset order; the columns are equally long."""

    record_count: Sequence[int]
    # 0: of a plain batch.
    tx_id: Sequence[int]
    producer_id: Sequence[int]
    generation: Sequence[int]
    writer: Sequence[int]
    base_sequence: Sequence[int]
    # Of its first record.
    journal_offset: Sequence[int]
    # When it became visible.
    time_ms: Sequence[int]


class Block(NamedTuple):
    """See the module. Made by `block_of`."""

    first_offset: int
    # Where the next block begins.
    end_offset: int
    # Fewer than it covers where records were taken out.
    record_count: int
    # Journal offset; all of it became readable by what stands below.
    exposed_below: int
    # Of all records; NO_TIMESTAMP_US where there is none.
    max_timestamp_us: int
    # When its last unit became visible, also if that is gone.
    time_ms: int
    # oncelogpb.v1.Encoding of the payload.
    encoding: int
    # CRC32C of the payload, as readers are told.
    client_crc: int
    payload: bytes | memoryview
    unit_count: int
    packed_units: bytes
    packed_offsets: bytes = b""

    @property
    def is_dense(self) -> bool:
        """Nothing was taken out."""
        return self.record_count == self.end_offset - self.first_offset

    @property
    def units(self) -> Units:
        """Unpacked anew each time. Raises ColumnDamaged."""
        return unpack_units(self.packed_units, self.unit_count)

    @property
    def offsets(self) -> Sequence[int]:
        """Of each record, ascending. Raises ColumnDamaged."""
        if self.is_dense:
            return range(self.first_offset, self.end_offset)
        relative, _ = _unpack(self.packed_offsets, 0, self.record_count, signed=False)
        return [self.first_offset + it for it in relative]


def block_of(
    units: Units,
    payload: bytes | memoryview,
    *,
    first_offset: int,
    exposed_below: int,
    max_timestamp_us: int,
    encoding: int,
    client_crc: int,
    time_ms: int | None = None,
    end_offset: int | None = None,
    offsets: Sequence[int] = (),
) -> Block:
    """A block of these units. `end_offset` and `offsets` (of each record) only where records were
    taken out; `time_ms` only where its last unit was."""
    record_count = sum(units.record_count)
    end = first_offset + record_count if end_offset is None else end_offset
    packed_offsets = b""
    if record_count < end - first_offset:
        assert len(offsets) == record_count, "an offset for each record that is left"
        packed_offsets = pack_column([it - first_offset for it in offsets])
    return Block(
        first_offset,
        end,
        record_count,
        exposed_below,
        max_timestamp_us,
        units.time_ms[-1] if time_ms is None else time_ms,
        encoding,
        client_crc,
        payload,
        len(units.record_count),
        pack_units(units),
        packed_offsets,
    )


def pack_units(units: Units) -> bytes:
    return b"".join(pack_column(column) for column in units)


def unpack_units(packed: bytes, count: int) -> Units:
    """Raises ColumnDamaged."""
    columns: list[Sequence[int]] = []
    at = 0
    for name in Units._fields:
        column, at = _unpack(packed, at, count, signed=name == "time_ms")
        columns.append(column)
    if at != len(packed):
        raise ColumnDamaged(f"{len(packed) - at} bytes stand behind the last column")
    return Units(*columns)


def pack_column(column: Sequence[int]) -> bytes:
    """Values of 64 bits, unsigned, or all of them signed."""
    least = min(column, default=0)
    above = max(column, default=0) - least
    head = _SIGNED_HEAD if least < 0 else _HEAD
    width = next(it for it in (0, 1, 2, 4, 8) if above < 1 << 8 * it)
    if not width:
        return head.pack(least, 0)
    return (
        head.pack(least, width)
        + array(_TYPECODES[width], [value - least for value in column]).tobytes()
    )


def _unpack(packed: bytes, at: int, count: int, *, signed: bool) -> tuple[Sequence[int], int]:
    """The column that begins at a byte, and the byte behind it."""
    head = _SIGNED_HEAD if signed else _HEAD
    values_at = at + head.size
    if values_at > len(packed):
        raise ColumnDamaged(f"a column of {count} values lacks its head")
    least, width = head.unpack_from(packed, at)
    end = values_at + width * count
    if width and width not in _TYPECODES:
        raise ColumnDamaged(f"a value of {width} bytes")
    if end > len(packed):
        raise ColumnDamaged(f"a column of {count} values ends early")
    if not width:
        return array("q" if signed else "Q", (least,)) * count, end
    above = array(_TYPECODES[width], packed[values_at:end])
    return ([least + value for value in above] if least else above), end
