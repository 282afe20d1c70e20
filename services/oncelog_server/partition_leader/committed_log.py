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
huge transaction appends columns by memory copy and runs no Python per batch. Of a run, `relative`
is how many frames it has behind its first one (0 in rows of earlier versions).

The log begins at its start: what lies below was deleted (`retention`). A start is in force once
the HW has passed the record that says so; until then readers see what they saw. Entries that lie
below go from memory afterwards (`drop`), which changes nothing that anybody can see; a row keeps
its number all the same. Two things outlive what is deleted: the last row (the running maximum), and
the whole transaction or run that holds the start (`unit_row`).

Rows stay in memory as long as their records are there, and are packed (`packed`) once newer ones
have come: a leader does so at its ticks, and nobody can see it.

Invariant: first offsets ascend without gaps; an entry ends where the next begins, the last at
`end_offset`. Invariant: the start never goes back, and is never above the end.
Invariant: the journal offsets at which entries became readable never descend.
Invariant: only the last row may still change (a run that grows), so all before it are final.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left, bisect_right
from itertools import accumulate, compress, count, pairwise, takewhile
from operator import lt
from typing import Final

import msgspec

from oncelog_server.core.ids import JournalOffset, Offset
from oncelog_server.core.machine import Table
from oncelog_server.core.settling import RUN, Stretch
from oncelog_server.partition_leader.packed import PAGE_ROWS, Column
from oncelog_server.partition_leader.pending import WriterColumns

# Payload bytes of one run: how precisely the index knows times and positions.
RUN_BYTES: Final = 64 * 1024
# Name of the index's table beside the snapshot (docs/adr/0002).
COMMITTED_TABLE: Final = "committed"
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
# At one tick so many pages are packed; and as many rows as a page has stay as they are.
PACKED_AT_ONCE: Final = 4
# Before the first record. Real times may be negative: before 1970.
NO_TIME: Final = -(1 << 63)

assert sys.byteorder == "little", "tables and snapshots are stored in the order of the machine"


class DumpedLog(msgspec.Struct, frozen=True, array_like=True):
    """What the snapshot keeps beside the table: the row that may still change, and the ends."""

    end_offset: Offset
    readable_from: int
    last_row: tuple[int, ...] | None
    start_offset: int = 0
    # Number of the first row that is still needed.
    begin_row: int = 0
    # Payload bytes of entries not wholly below the start; -1: written before anything was deleted.
    payload_bytes: int = -1


class CommittedLog:
    """The index of one partition."""

    __slots__ = (
        "_columns",
        "_descents",
        "_readable_from",
        "_starts",
        "begin_row",
        "end_offset",
        "first_row",
        "start_offset",
        "total_bytes",
        *ROW,
    )

    def __init__(self) -> None:
        # Offset that the next committed record will get.
        self.end_offset = Offset(0)
        # HW from which on everything here is readable.
        self._readable_from = 0
        # Everything below was deleted, once the HW has passed the record of it: `readable_start`.
        self.start_offset = Offset(0)
        # Journal offset of each record that moved the start, and where to; the oldest is durable.
        self._starts: list[tuple[int, int]] = [(-1, 0)]
        # Number of the first row in memory, and of the first that is needed as of `start_offset`.
        self.first_row = self.begin_row = 0
        # Payload of the entries that do not lie below the start as a whole.
        self.total_bytes = 0
        # Numbers of rows that lie in the journal before the row above them, as far as no later row
        # lies before them: their journal offsets ascend.
        self._descents = array("q")
        self.base = Column()
        self.relative = Column()
        self.journal = Column()
        self.exposed_at = Column()
        self.payload_bytes = Column()
        self.running_max_us = Column()
        self.time_ms = Column()
        self._columns: tuple[Column, ...] = tuple(getattr(self, name) for name in ROW)

    def __len__(self) -> int:
        return len(self.base)

    @property
    def memory_bytes(self) -> int:
        """Of all entries: they stay in memory as long as the records are there."""
        return sum(column.memory_bytes for column in self._columns)

    def pack(self) -> None:
        """Some of the oldest rows that are not packed, if they are many."""
        pages = min(len(self.base.tail) // PAGE_ROWS - 1, PACKED_AT_ONCE)
        if pages > 0:
            for column in self._columns:
                column.pack(pages)

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
            self.payload_bytes.tail[-1] += payload_bytes
            self.total_bytes += payload_bytes
            highest = self.running_max_us.tail
            highest[-1] = max(highest[-1], max_timestamp_us)
            self.time_ms.tail[-1] = time_ms
            # One frame more, from the same offset on.
            self.base.tail[-1] -= 1
            self.relative.tail[-1] += 1
        else:
            running_max_us = max(self._running_max(), max_timestamp_us)
            row = (first, 0, journal_offset, RUN, payload_bytes, running_max_us, time_ms)
            for column, value in zip(self._columns, row, strict=True):
                column.tail.append(value)
            self.total_bytes += payload_bytes
        self.end_offset = Offset(first + record_count)
        self._readable_from = journal_offset + record_count
        return first

    def _extends_run(self, journal_offset: int, payload_bytes: int) -> bool:
        if not len(self) or self.exposed_at.tail[-1] != RUN:
            return False
        run_records = self.end_offset - self.base.tail[-1] - self.relative.tail[-1]
        return (
            self.journal.tail[-1] + run_records == journal_offset
            and self.payload_bytes.tail[-1] + payload_bytes <= RUN_BYTES
        )

    def expose(self, part: WriterColumns, *, exposed_at: JournalOffset, time_ms: int) -> Offset:
        """A part of a transaction, all of its batches in send order (I9). Returns the offset of its
        first record. Column by column: no Python runs per batch."""
        first, batches = self.end_offset, len(part)
        highest = self._running_max()
        self._note_descent(part.journal[0])
        below = bisect_left(part.running_max_us, highest)
        self.running_max_us.tail.extend(array("q", (highest,)) * below)
        self.running_max_us.tail.extend(part.running_max_us[below:])
        self.base.tail.extend(array("q", (first,)) * batches)
        self.relative.tail.extend(part.sequence)
        self.journal.tail.extend(part.journal)
        self.exposed_at.tail.extend(array("q", (exposed_at,)) * batches)
        self.payload_bytes.tail.extend(part.payload_bytes)
        self.time_ms.tail.extend(array("q", (time_ms,)) * batches)
        self.total_bytes += sum(part.payload_bytes)
        self.end_offset = Offset(first + part.records)
        self._readable_from = exposed_at + 1
        return first

    def _note_descent(self, journal_offset: int) -> None:
        """A row of that journal offset comes next."""
        if not len(self) or self.journal.tail[-1] <= journal_offset:
            return
        descents = self._descents
        while descents and self.journal[descents[-1] - self.first_row] >= journal_offset:
            descents.pop()
        descents.append(self.first_row + len(self))

    def _running_max(self) -> int:
        return self.running_max_us.tail[-1] if len(self) else NO_TIME

    # ----------------------------------------------------------------------------------- the start

    def begin_at(self, offset: Offset, *, moved_at: JournalOffset) -> None:
        """Everything below was deleted, by the record at `moved_at`. May lie inside an entry. No
        run goes on behind that record, so what is deleted whole is needed no more."""
        assert self.start_offset <= offset <= self.end_offset, "the start never goes back"
        self.total_bytes -= self.bytes_below(offset)
        self.start_offset = offset
        self._starts.append((moved_at, offset))
        if len(self):
            self.begin_row = self.first_row + self._first_needed(offset)

    def _first_needed(self, start: int) -> int:
        """The first entry that is needed of a log that begins there."""
        last = len(self) - 1
        return last if start == self.end_offset else self.unit_row(self.entry_of(start))

    def bytes_below(self, offset: int) -> int:
        """Payload of the entries from the start on that end at or below an offset."""
        if not len(self):
            return 0
        last = self.entry_of(offset) + (offset == self.end_offset)
        first = self.entry_of(self.start_offset) + (self.start_offset == self.end_offset)
        return sum(self.payload_bytes[first:last])

    def readable_start(self, high_watermark: int) -> int:
        """Offset of the first record that is not deleted for good: a start that is not durable
        hides nothing."""
        for moved_at, offset in reversed(self._starts):
            if moved_at < high_watermark:
                return offset
        raise AssertionError("the first start is durable")

    def may_drop(self, high_watermark: int) -> bool:
        """Whether `drop` would do anything."""
        return len(self._starts) > 1 and self._starts[1][0] < high_watermark

    def drop(self, high_watermark: int) -> None:
        """Lets go of rows that nobody can see or need under this HW. What is where is as before."""
        start = self.readable_start(high_watermark)
        while self.may_drop(high_watermark):
            del self._starts[0]
        self._starts[0] = (-1, start)
        if not len(self):
            return
        # What was the last row when the start moved may have become an earlier one.
        below = min(self._first_needed(start), self.begin_row - self.first_row)
        for column in self._columns:
            column.drop(below)
        self.first_row += below
        del self._descents[: bisect_right(self._descents, self.first_row)]

    def entry_of(self, offset: int) -> int:
        """The entry that holds an offset; of the end, the last one."""
        return bisect_right(range(len(self)), offset, key=self.first_offset) - 1

    def unit_row(self, entry: int) -> int:
        """The first entry of the transaction, or the run, that this entry belongs to: what became
        readable with it."""
        if self.exposed_at[entry] == RUN:
            return entry
        return bisect_left(range(entry), self.exposed_at[entry], key=self._begins_at)

    def lowest_from(self, entry: int) -> int:
        """Lowest journal offset of this entry and all behind it: they are in the order of their
        commit, not of the journal."""
        lowest = self.journal[entry]
        following = bisect_right(self._descents, self.first_row + entry)
        if following == len(self._descents):
            return lowest
        return min(lowest, self.journal[self._descents[following] - self.first_row])

    def cut_to(self, excess_bytes: int) -> int:
        """Where the log would begin without its oldest entries that have at most so many bytes
        together, at a boundary of what became readable at once."""
        if not len(self) or self.start_offset == self.end_offset:
            return self.start_offset
        first = self.entry_of(self.start_offset)
        sizes = accumulate(self.payload_bytes.behind(first))
        behind = first + sum(1 for _ in takewhile(excess_bytes.__ge__, sizes))
        if behind == len(self):
            return self.end_offset
        return max(self.start_offset, self.first_offset(self.unit_row(behind)))

    # ------------------------------------------------------------------------------------ reading

    def readable_end(self, high_watermark: int) -> int:
        """Offset after the last record that may be shown under this HW (I27)."""
        if high_watermark >= self._readable_from:
            return self.end_offset
        entries = self.entries_begun(high_watermark)
        if not entries:
            return self.readable_start(high_watermark)
        last = entries - 1
        if self.exposed_at[last] != RUN:
            return self.entry_end(last)
        readable = self.first_offset(last) + high_watermark - self.journal[last]
        return min(readable, self.entry_end(last))

    def entries_begun(self, high_watermark: int) -> int:
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
        first = self.entry_of(from_offset)
        assert first >= 0, "rows that somebody can see are in memory"
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
        journal_offset, exposed_at = self.journal[entry], self.exposed_at[entry]
        if exposed_at != RUN:
            time_ms = self.time_ms[entry]
            found.append(Stretch(start, journal_offset, end - start, time_ms, exposed_at))
            return
        skipped = max(from_offset - start, 0)
        start, journal_offset, end = start + skipped, journal_offset + skipped, min(end, below)
        last = found[-1] if found else None
        if last and last.is_run and last.journal_offset + last.record_count == journal_offset:
            found[-1] = last._replace(record_count=last.record_count + end - start)
        else:
            found.append(Stretch(start, journal_offset, end - start, RUN, RUN))

    def since(self, timestamp_us: int, *, below: int) -> int | None:
        """Offset at which the first entry begins whose running maximum time is at or above this;
        None where no readable one is. It may lie below the start, or be the start although nothing
        is so late there: what was deleted counts for the maximum."""
        entry = bisect_left(self.running_max_us, timestamp_us)
        if entry == len(self) or self.first_offset(entry) >= below:
            return None
        return self.first_offset(entry)

    # ----------------------------------------------------------------------------------- snapshots

    @property
    def final_rows(self) -> int:
        """Number behind the last row that is final."""
        return self.first_row + max(len(self) - 1, 0)

    def rows(self, first_row: int) -> bytes:
        """The final rows from that number on, as the table stores them."""
        count = self.final_rows - first_row
        rows = memoryview(bytearray(count * ROW_BYTES)).cast("q")
        first, behind = first_row - self.first_row, self.final_rows - self.first_row
        for place, column in enumerate(self._columns):
            rows[place :: len(ROW)] = memoryview(column[first:behind])
        return rows.tobytes()

    def table(self, rows_saved: int) -> Table:
        """The rows that a snapshot brings to the disk: those before that number are there."""
        first_row = max(rows_saved, self.begin_row)
        return Table(ROW_BYTES, first_row, self.rows(first_row), self.begin_row)

    def dump(self) -> DumpedLog:
        last = tuple(column[-1] for column in self._columns) if len(self) else None
        return DumpedLog(
            self.end_offset,
            self._readable_from,
            last,
            self.start_offset,
            self.begin_row,
            self.total_bytes,
        )

    def load(self, dumped: DumpedLog, rows: bytes) -> None:
        """Into an empty log. `rows` are those from `begin_row` on."""
        assert not len(self), "load is for an empty log"
        for place, column in enumerate(self._columns):
            column.load(rows, place, len(ROW))
            if dumped.last_row is not None:
                column.tail.append(dumped.last_row[place])
        self.end_offset = dumped.end_offset
        self._readable_from = dumped.readable_from
        self.start_offset = Offset(dumped.start_offset)
        self._starts = [(-1, dumped.start_offset)]
        self.first_row = self.begin_row = dumped.begin_row
        known = dumped.payload_bytes
        self.total_bytes = known if known >= 0 else sum(self.payload_bytes)
        self._find_descents()

    def _find_descents(self) -> None:
        journal = self.journal[:]
        lower = compress(count(1), map(lt, journal[1:], journal))
        for entry in lower:
            while self._descents and journal[self._descents[-1] - self.first_row] >= journal[entry]:
                self._descents.pop()
            self._descents.append(self.first_row + entry)

    def check(self, next_offset: int) -> None:
        assert {len(column) for column in self._columns} == {len(self)}, "columns differ in length"
        begun = 0
        expected = self.first_offset(0) if len(self) else self.end_offset
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
        self._check_start(next_offset)

    def _check_start(self, next_offset: int) -> None:
        starts = [offset for _, offset in self._starts]
        assert starts == sorted(starts), "the start never goes back"
        assert self.readable_start(next_offset) == self.start_offset <= self.end_offset
        if not len(self):
            assert (self.begin_row, self.total_bytes) == (0, 0)
            return
        begin = self.begin_row - self.first_row
        assert 0 <= begin <= len(self) - 1, "the last row is kept"
        assert self.first_offset(begin) <= self.start_offset, "rows that are needed are kept"
        assert self.first_offset(0) <= starts[0], "rows that somebody can see are kept"
        visible = self.entry_of(self.start_offset) + (self.start_offset == self.end_offset)
        assert self.total_bytes == sum(self.payload_bytes[visible:])
        lowest = list(accumulate(reversed(self.journal), min))[::-1]
        found = [self.lowest_from(entry) for entry in range(len(self))]
        assert found == lowest, "the lowest journal offset from each entry on"
