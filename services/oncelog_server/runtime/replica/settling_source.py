"""What is to be settled next, read from a snapshot and the journal, a step at a time.

    rows of the snapshot ──settler──► stretches ──journal──► units: a stretch, and a frame of it

Invariant: units follow each other without a gap, from where it was opened to what was readable at
the snapshot; each frame is what the snapshot says of it (I26).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from itertools import groupby, islice
from typing import Final, NamedTuple

from oncelog_server.core.frame import StoredFrame
from oncelog_server.core.machine import Settled
from oncelog_server.core.settling import Settler, Stretch
from oncelog_server.runtime.storage.journal import Journal
from oncelog_server.runtime.storage.snapshots import SnapshotFile
from oncelogpb.errors import CorruptLog

# One step takes so much payload, unless a single batch is larger, and so many stretches.
STEP_BYTES: Final = 4 << 20
STEP_STRETCHES: Final = 8_192
# Frames are read, compared with their CRC and decoded so many at a time, in one turn of the loop.
READ_BYTES: Final = 256 << 10
READ_FRAMES: Final = 256
# The interpreter is given away after so many units.
SLICE_UNITS: Final = 64

Unit = tuple[Stretch, StoredFrame]
Units = list[Unit]


class Standing(NamedTuple):
    """A snapshot that stands, and what it says."""

    offset: int
    settled: Settled


class Source:
    """Of one snapshot. Raises CorruptLog, OSError."""

    def __init__(
        self,
        standing: Standing,
        journal: Journal,
        settler: Settler,
        offload: Callable[[Callable[[], None]], Awaitable[None]],
    ) -> None:
        self.standing = standing
        # No stretch is left.
        self.is_over = False
        self._journal = journal
        self._settler = settler
        self._offload = offload
        self._stretches: Iterator[Stretch] = iter(())
        self._put_back: Units = []

    async def open(self, from_offset: int) -> None:
        """Units come from the one on that holds an offset."""
        await self._offload(lambda: self._open(from_offset))

    def _open(self, from_offset: int) -> None:
        offset = self.standing.offset
        file = self._journal.snapshots.read(offset)
        if file is None:
            raise CorruptLog(f"the snapshot of {offset} cannot be read")
        rows = self._rows(file, from_offset)
        self._stretches = self._settler.stretches(file.state, rows, from_offset)

    def _rows(self, file: SnapshotFile, from_offset: int) -> Iterator[bytes]:
        end = file.tables.get(self._settler.table)
        if end is None:
            return iter(())
        rows = self._journal.snapshots.rows(self._settler.table, end)
        return rows.around(from_offset, self._settler.row_offset)

    async def stretches(self, count: int) -> list[Stretch]:
        """So many at most; whoever asks reads none of them."""
        found: list[Stretch] = []
        await self._offload(lambda: found.extend(islice(self._stretches, count)))
        return found

    async def next_units(self) -> Units:
        """Those of one step; none where it is over."""
        stretches: list[Stretch] = []
        await self._offload(lambda: stretches.extend(self._some_stretches()))
        units, self._put_back = self._put_back, []
        for is_run, group in groupby(stretches, lambda it: it.is_run):
            if is_run:
                for stretch in group:
                    await self._add_run(units, stretch)
            else:
                await self._add_batches(units, list(group))
        return units

    def put_back(self, units: Units, *, from_offset: int) -> None:
        """The next step begins with those of these units that begin at an offset or behind."""
        self._put_back = [unit for unit in units if _first_offset(*unit) >= from_offset]

    def _some_stretches(self) -> Iterator[Stretch]:
        size = sum(len(stored.frame.payload) for _, stored in self._put_back)
        for count, stretch in enumerate(self._stretches, 1):
            yield stretch
            size += stretch.payload_bytes
            if size >= STEP_BYTES or count == STEP_STRETCHES:
                return
        self.is_over = True

    async def _add_run(self, units: Units, stretch: Stretch) -> None:
        position = stretch.journal_offset
        while position < stretch.journal_end:
            found = await self._journal.read(position, READ_BYTES, below=stretch.journal_end)
            if not found:
                raise CorruptLog(f"the run at journal offset {stretch.journal_offset} ends early")
            units += [(stretch, stored) for stored in found]
            position = found[-1].end
            await asyncio.sleep(0)

    async def _add_batches(self, units: Units, stretches: list[Stretch]) -> None:
        for first in range(0, len(stretches), READ_FRAMES):
            some = stretches[first : first + READ_FRAMES]
            found = await self._journal.read_frames([it.journal_offset for it in some])
            for stretch, stored in zip(some, found, strict=True):
                if stored.frame.record_count != stretch.record_count:
                    raise CorruptLog(
                        f"the batch at journal offset {stretch.journal_offset} has "
                        f"{stored.frame.record_count} records, and not {stretch.record_count}"
                    )
                units.append((stretch, stored))
            await asyncio.sleep(0)


def in_slices(units: Units) -> Iterator[Unit]:
    """For a thread: the loop, which wants the interpreter too, gets it after each slice, and not
    when the interpreter's own patience is over (5 ms)."""
    for count, unit in enumerate(units):
        if count % SLICE_UNITS == 0:
            time.sleep(0)
        yield unit


def _first_offset(stretch: Stretch, stored: StoredFrame) -> int:
    return stretch.first_offset + stored.at.offset - stretch.journal_offset
