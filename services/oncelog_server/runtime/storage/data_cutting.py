"""What is left of a data log where the journal loses its end, as its note then says. Nothing is
changed here.

Invariant: what was taken out because a record of the lost end superseded it must not be missing, so
a log that would end below its holes is no use as a whole (docs/adr/0074). Nor must a tombstone that
was dropped by what stood in the lost end: who leads without it serves what the tombstone removed.
"""

from __future__ import annotations

from collections.abc import Sequence

from oncelog_server.runtime.storage.data_file import DataFile
from oncelog_server.runtime.storage.data_note import DataNote
from oncelog_server.runtime.storage.data_walk import Extent, at_once, find_exposed_above
from oncelogpb.errors import CorruptLog


def noted_cut(
    settled: DataNote, files: Sequence[DataFile], journal_end: int, *, journal_start: int
) -> DataNote | None:
    """The blocks that became readable by what stands below this journal offset; None: all did.
    Where that would lack what is superseded, or a tombstone, it is nothing, of a journal that has
    everything; else this raises CorruptLog. Blocking. Raises OSError."""
    if max(settled.settled_at, settled.dropped_at) <= journal_end:
        return None
    settled = settled._replace(settled_at=min(settled.settled_at, journal_end))
    if settled.dropped_at > journal_end:
        if journal_start:
            raise _lacks_tombstones(settled, journal_end)
        return settled._replace(settled_end=settled.begin)
    for file in reversed(files):
        extent = Extent(file.base, settled.settled_end, file.size, file.index)
        found = at_once(find_exposed_above(extent, journal_end), file.file)
        if found is None:
            break
        settled = settled._replace(
            settled_end=found.offset, base=file.base, position=found.position
        )
        if found.position:
            break
    if settled.settled_end < settled.holes_below:
        if journal_start:
            raise _lacks_superseded(settled)
        settled = settled._replace(settled_end=settled.begin)
    return settled


def emptied(settled: DataNote) -> DataNote:
    """It has nothing, and begins where it did."""
    begin = settled.begin
    return DataNote(begin, begin, settled.settled_at, begin, begun_at=settled.begun_at)


def _lacks_superseded(cut: DataNote) -> CorruptLog:
    return CorruptLog(
        f"what is settled would end at offset {cut.settled_end}, and what was superseded below "
        f"{cut.holes_below} was taken out of it: this replica has to be copied anew"
    )


def _lacks_tombstones(settled: DataNote, journal_end: int) -> CorruptLog:
    return CorruptLog(
        f"the journal would end at {journal_end}, and tombstones were dropped as a state at "
        f"{settled.dropped_at} of it said: this replica has to be copied anew"
    )
