"""The committed log: what READ_COMMITTED readers see, in commit order, with dense offsets. PURE.

Nothing is copied (materialization `reference`): an entry says where its records lie in
the journal, and from which journal offset on they may be shown.

    journal     │ a1 │ x1 │ a2 │ x2 │ COMMITTED a │ y1 │ y2 │ COMMITTED x │      a, x: transactions
                   │         │             ▲           │    │                     y: plain
    committed   │ a1 │ a2 │ y1 │ y2 │ x1 │ x2 │
    entries       1    2    3 (run)   4    5

An entry is either
  * one batch of a transaction, exposed by the marker at `exposed_at`; or
  * a *run* (`exposed_at` is RUN): frames that expose themselves (plain, one-shot) and are
    neighbours in the journal, up to RUN_BYTES. So tiny plain batches do not cost an entry each.

Columns, 64-bit signed, one row per entry: ROW names them in order. An entry's first offset is `base
+ relative`: a part's `relative` column is its column of sequences in `pending`, so that exposing a
huge transaction appends columns by memory copy and runs no Python per batch.

Invariant: first offsets ascend without gaps; an entry ends where the next begins, the last at
`end_offset`. Invariant: the journal offsets at which entries became readable never descend.
Invariant: only the last row may still change (a run that grows), so all before it are final.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left, bisect_right
from itertools import pairwise
from typing import Final, NamedTuple

import msgspec

from oncelog_server.core.ids import JournalOffset, Offset
from oncelog_server.partition_leader.pending import WriterColumns

# Payload bytes of one run: how precisely the index knows times and positions.
RUN_BYTES: Final = 64 * 1024
# In the column `exposed_at`: each frame of the run is readable from its own place on.
RUN: Final = -1
# Columns of a row, in the order in which they are stored.
ROW: Final = (
    "base",
    "relative",
    "journal",
    "exposed_at",
    "payload_bytes",
    "running_max_us",
    "time_ms",
)
ROW_BYTES: Final = 8 * len(ROW)
# Before the first record. Real times may be negative: before 1970.
NO_TIME: Final = -(1 << 63)

assert sys.byteorder == "little", "tables and snapshots are stored in the order of the machine"


class Stretch(NamedTuple):
    """Records of the committed log that are neighbours in the journal too."""

    first_offset: int
    journal_offset: int
    record_count: int
    # When they were committed; RUN: each frame's own time.
    time_ms: int

    @property
    def is_run(self) -> bool:
        return self.time_ms == RUN


class DumpedLog(msgspec.Struct, frozen=True, array_like=True):
    """What the snapshot keeps beside the table: the row that may still change, and the ends."""

    end_offset: Offset
    readable_from: int
    last_row: tuple[int, ...] | None


class CommittedLog:
    """The index of one partition."""

    __slots__ = ("_columns", "_readable_from", "end_offset", *ROW)

    def __init__(self) -> None:
        # Offset that the next committed record will get.
        self.end_offset = Offset(0)
        # HW from which on everything here is readable.
        self._readable_from = 0
        self.base = array("q")
        self.relative = array("q")
        self.journal = array("q")
        self.exposed_at = array("q")
        self.payload_bytes = array("q")
        self.running_max_us = array("q")
        self.time_ms = array("q")
        self._columns: tuple[array[int], ...] = tuple(getattr(self, name) for name in ROW)

    def __len__(self) -> int:
        return len(self.base)

    @property
    def memory_bytes(self) -> int:
        """Of all entries: they stay in memory as long as the records are there."""
        return len(self) * ROW_BYTES

    def first_offset(self, entry: int) -> int:
        return self.base[entry] + self.relative[entry]

    def entry_end(self, entry: int) -> int:
        """Offset after the entry's last record."""
        following = entry + 1
        return self.first_offset(following) if following < len(self) else self.end_offset

    # ------------------------------------------------------------------------------------ growing

    def append_frame(
        self,
        journal_offset: JournalOffset,
        *,
        record_count: int,
        payload_bytes: int,
        max_timestamp_us: int,
        time_ms: int,
    ) -> Offset:
        """A frame that exposes itself. Returns the offset of its first record."""
        first = self.end_offset
        if self._extends_run(journal_offset, payload_bytes):
            self.payload_bytes[-1] += payload_bytes
            self.running_max_us[-1] = max(self.running_max_us[-1], max_timestamp_us)
            self.time_ms[-1] = time_ms
        else:
            highest = max(self._running_max(), max_timestamp_us)
            row = (first, 0, journal_offset, RUN, payload_bytes, highest, time_ms)
            for column, value in zip(self._columns, row, strict=True):
                column.append(value)
        self.end_offset = Offset(first + record_count)
        self._readable_from = journal_offset + record_count
        return first

    def _extends_run(self, journal_offset: int, payload_bytes: int) -> bool:
        if not self.base or self.exposed_at[-1] != RUN:
            return False
        run_records = self.end_offset - self.base[-1]
        return (
            self.journal[-1] + run_records == journal_offset
            and self.payload_bytes[-1] + payload_bytes <= RUN_BYTES
        )

    def expose(self, part: WriterColumns, *, exposed_at: JournalOffset, time_ms: int) -> Offset:
        """A part of a transaction, all of its batches in send order (I9). Returns the offset of its
        first record. Column by column: no Python runs per batch."""
        first, batches = self.end_offset, len(part)
        highest = self._running_max()
        below = bisect_left(part.running_max_us, highest)
        self.running_max_us.extend(array("q", (highest,)) * below)
        self.running_max_us.extend(part.running_max_us[below:])
        self.base.extend(array("q", (first,)) * batches)
        self.relative.extend(part.sequence)
        self.journal.extend(part.journal)
        self.exposed_at.extend(array("q", (exposed_at,)) * batches)
        self.payload_bytes.extend(part.payload_bytes)
        self.time_ms.extend(array("q", (time_ms,)) * batches)
        self.end_offset = Offset(first + part.records)
        self._readable_from = exposed_at + 1
        return first

    def _running_max(self) -> int:
        return self.running_max_us[-1] if self.running_max_us else NO_TIME

    # ------------------------------------------------------------------------------------ reading

    def readable_end(self, high_watermark: int) -> int:
        """Offset after the last record that may be shown under this HW (I27)."""
        if high_watermark >= self._readable_from:
            return self.end_offset
        entries = self._entries_begun(high_watermark)
        if not entries:
            return 0
        last = entries - 1
        if self.exposed_at[last] != RUN:
            return self.entry_end(last)
        readable = self.first_offset(last) + high_watermark - self.journal[last]
        return min(readable, self.entry_end(last))

    def _entries_begun(self, high_watermark: int) -> int:
        """Entries of which at least the first record is readable."""
        return bisect_left(range(len(self)), high_watermark, key=self._begins_at)

    def _begins_at(self, entry: int) -> int:
        exposed_at = self.exposed_at[entry]
        return self.journal[entry] if exposed_at == RUN else exposed_at

    def stretches(
        self, from_offset: int, *, below: int, max_bytes: int, max_entries: int
    ) -> list[Stretch]:
        """Where the records from `from_offset` on lie, at least one entry, up to about `max_bytes`.
        `below` is a readable end. The first stretch may begin before `from_offset`: batches of
        transactions are not cut here, and frames never are."""
        if not 0 <= from_offset < below:
            return []
        first = bisect_right(range(len(self)), from_offset, key=self.first_offset) - 1
        found: list[Stretch] = []
        budget = max_bytes
        for entry in range(first, min(len(self), first + max_entries)):
            if budget <= 0 or self.first_offset(entry) >= below:
                break
            budget -= self.payload_bytes[entry]
            self._add(found, entry, from_offset, below)
        return found

    def _add(self, found: list[Stretch], entry: int, from_offset: int, below: int) -> None:
        start, end = self.first_offset(entry), self.entry_end(entry)
        journal_offset = self.journal[entry]
        if self.exposed_at[entry] != RUN:
            found.append(Stretch(start, journal_offset, end - start, self.time_ms[entry]))
            return
        skipped = max(from_offset - start, 0)
        start, journal_offset, end = start + skipped, journal_offset + skipped, min(end, below)
        last = found[-1] if found else None
        if last and last.is_run and last.journal_offset + last.record_count == journal_offset:
            found[-1] = last._replace(record_count=last.record_count + end - start)
        else:
            found.append(Stretch(start, journal_offset, end - start, RUN))

    def since(self, timestamp_us: int, *, below: int) -> int | None:
        """Offset at which the first entry begins whose running maximum time is at or above this;
        None where no readable one is."""
        entry = bisect_left(self.running_max_us, timestamp_us)
        if entry == len(self) or self.first_offset(entry) >= below:
            return None
        return self.first_offset(entry)

    # ----------------------------------------------------------------------------------- snapshots

    @property
    def final_rows(self) -> int:
        return max(len(self) - 1, 0)

    def rows(self, first_row: int) -> bytes:
        """The final rows from `first_row` on, as the table stores them."""
        count = self.final_rows - first_row
        rows = memoryview(bytearray(count * ROW_BYTES)).cast("q")
        for place, column in enumerate(self._columns):
            rows[place :: len(ROW)] = memoryview(column)[first_row : self.final_rows]
        return rows.tobytes()

    def dump(self) -> DumpedLog:
        last = tuple(column[-1] for column in self._columns) if len(self) else None
        return DumpedLog(self.end_offset, self._readable_from, last)

    def load(self, dumped: DumpedLog, rows: bytes) -> None:
        """Into an empty log."""
        assert not len(self), "load is for an empty log"
        table = memoryview(rows).cast("q")
        for place, column in enumerate(self._columns):
            column.frombytes(table[place :: len(ROW)].tobytes())
            if dumped.last_row is not None:
                column.append(dumped.last_row[place])
        self.end_offset = dumped.end_offset
        self._readable_from = dumped.readable_from

    def check(self, next_offset: int) -> None:
        assert {len(column) for column in self._columns} == {len(self)}, "columns differ in length"
        expected = begun = 0
        for entry in range(len(self)):
            first, end = self.first_offset(entry), self.entry_end(entry)
            assert first == expected, f"entry {entry} is not dense (I14)"
            assert end > first, f"entry {entry} is empty"
            assert self._begins_at(entry) >= begun, f"entry {entry} is readable before its elder"
            assert self.journal[entry] <= self._begins_at(entry) < next_offset
            assert self.journal[entry] + end - first <= next_offset
            expected, begun = end, self._begins_at(entry)
        assert expected == self.end_offset
        assert all(a <= b for a, b in pairwise(self.running_max_us)), "the maximum runs"
        assert self._readable_from <= next_offset
        assert self.readable_end(next_offset) == self.end_offset
