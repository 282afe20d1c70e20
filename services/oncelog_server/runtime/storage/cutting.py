"""Cuts segment files at a journal offset: the part of `Journal.cut` that is about files.

Invariant: a crash in the middle leaves a log without a hole, as long as it was or shorter.
"""

from __future__ import annotations

from oncelog_server.runtime.storage.epochs import EpochTable
from oncelog_server.runtime.storage.reading import corrupt
from oncelog_server.runtime.storage.scan import Ending, Place, Scan
from oncelog_server.runtime.storage.segment import Segment


def place_in(segment: Segment, end: int, epochs: EpochTable) -> Place:
    """Where in the segment the frame that ends at `end` ends. Raises CorruptLog where none does."""
    entry, _ = segment.index.around(end - 1)
    start = Place(0, segment.base, epochs.epoch_at(segment.base - 1))
    if entry is not None:
        start = Place(entry.position, entry.offset, epochs.epoch_at(entry.offset))
    scan = Scan(segment.file, start, until=end)
    for _ in scan:
        pass
    if scan.ending is not Ending.REACHED:
        raise corrupt(segment, scan.place.position, scan.why or f"no frame ends at {end}")
    return scan.place


def cut_segments(segments: list[Segment], place: Place, *, keep_bytes: bool) -> None:
    """Removes what begins at or behind `place`, from the last one back, and shortens the one that
    holds it. `keep_bytes`: after a failed write nothing is written to that file any more; what is
    in doubt in it ends, for every reader, where the name of the next file says."""
    remove_segments(segments, place.offset)
    if segments:
        last = segments[-1]
        last.drop_index_file()
        last.index.cut(place.offset)
        if not keep_bytes:
            last.truncate(place.position)
        last.size = last.synced = place.position


def remove_segments(segments: list[Segment], base: int) -> None:
    """Those that begin there or behind, from the last one back."""
    while segments and segments[-1].base >= base:
        # It stays in the list where that fails: a file that is left behind would end the log at the
        # next start, whatever was written before it meanwhile.
        segments[-1].remove()
        segments.pop()
