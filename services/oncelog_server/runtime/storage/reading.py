"""Reads frames of a journal from its segment files, off the loop. What is given was verified.

Invariants:
  * only synced bytes are read;
  * a frame whose CRC does not match is CORRUPT_LOG, naming file and byte, never an answer; nor is a
    frame stepped over that does not lead to the next one (I26).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from oncelog_server.core.frame import FrameKind, StoredFrame
from oncelog_server.runtime.storage.damage import JournalDamaged
from oncelog_server.runtime.storage.epochs import EpochTable
from oncelog_server.runtime.storage.frames import (
    HEADER_BYTES,
    FrameDamaged,
    FrameError,
    FrameIncomplete,
    decode,
    encoded_bytes,
    step,
)
from oncelog_server.runtime.storage.port import Disk
from oncelog_server.runtime.storage.scan import Ending, Place, Scan
from oncelog_server.runtime.storage.segment import INDEX_INTERVAL_BYTES, IndexEntry, Segment
from oncelog_server.runtime.storage.tail import Copies
from oncelogpb.errors import CorruptLog, OffsetOutOfRange

# One disk read at most, unless a single frame is larger.
READ_BYTES_MAX: Final = 4 << 20
# Wanted frames so near to each other are fetched in one read: a gap costs less than a second read.
COALESCE_GAP_BYTES: Final = 64 << 10
COALESCED_BYTES_MAX: Final = 1 << 20


class Extent(NamedTuple):
    """Neighbouring bytes of a segment that hold the wanted frames."""

    segment: Segment
    # A frame, and the journal offset that is next there.
    start: IndexEntry
    # Exclusive.
    end: int
    # Journal offsets, ascending.
    wanted: Sequence[int]


async def read_segment(
    disk: Disk,
    segment: Segment,
    from_offset: int,
    max_bytes: int,
    *,
    below: int,
    copies: list[memoryview] | None = None,
) -> list[StoredFrame]:
    """Frames from the first that ends above `from_offset`, as far as they end at or before `below`
    and stand in this segment. At least one, if there is one. `copies` gets the bytes of each as
    they stand there. Raises CorruptLog, OSError."""
    start = _start(segment, from_offset)
    position, following = start.position, start.offset
    wanted = _wanted_bytes(segment, from_offset, start, min(max_bytes, READ_BYTES_MAX))
    taken: list[StoredFrame] = []
    while position < segment.synced:
        wanted = min(wanted, segment.synced - position)
        block = memoryview(await disk.read(segment.file, position, wanted))
        at = 0
        try:
            while at < len(block):
                _, end, size = step_on(block, at, following)
                if end > from_offset:
                    stored = decode(block, at, views=True)
                    max_bytes -= size
                    if stored.end > below or (taken and max_bytes < 0):
                        return taken
                    taken.append(stored)
                    if copies is not None:
                        copies.append(block[at : at + size])
                at += size
                following = end
            if position + at > segment.synced:
                raise FrameDamaged("a frame is longer than what is there")
        except FrameIncomplete as short:
            if position + at + short.needed > segment.synced:
                raise corrupt(
                    segment, first_damage(segment, start, position + at), short
                ) from short
            wanted = max(wanted, short.needed)
        except FrameError as error:
            raise corrupt(segment, first_damage(segment, start, position + at), error) from error
        if taken:
            return taken
        position += at
    return taken


def _wanted_bytes(segment: Segment, from_offset: int, start: IndexEntry, max_bytes: int) -> int:
    """How much to read from `start` on: whole frames, as far as the index knows them. Of frames of
    a MiB half of what is read were else read again, or for nothing. A wrong index costs a second
    read, as ever."""
    unknown = max_bytes + INDEX_INTERVAL_BYTES + HEADER_BYTES
    if start.position + unknown >= segment.synced:
        return unknown
    _, behind = segment.index.around(from_offset)
    # One frame at least: the one that holds the offset ends there or before.
    least = start.position if behind is None else behind.position
    end = segment.index.last_within(start.position, start.position + max_bytes)
    return max(least, end or 0) - start.position or unknown


async def copy_segment(
    disk: Disk, segment: Segment, from_offset: int, max_bytes: int, *, below: int
) -> Copies:
    """As `read_segment`, as the bytes that stand there: each frame was verified."""
    copies: list[memoryview] = []
    found = await read_segment(disk, segment, from_offset, max_bytes, below=below, copies=copies)
    return Copies(found[-1].end if found else from_offset, b"".join(copies))


def step_on(block: memoryview, at: int, following: int) -> tuple[int, int, int]:
    """As `step`, where the frame must be the one that begins at journal offset `following`. Whoever
    steps over frames by their headers alone would else step over records that he wanted, where a
    bit of one header is wrong (I26). Raises FrameIncomplete, FrameDamaged, FrameTooNew."""
    offset, end, size = step(block, at)
    if offset != following:
        # Only an EPOCH_START jumps ahead; that is rare, so its CRC is looked at.
        jumps = offset > following and decode(block, at).frame.kind is FrameKind.EPOCH_START
        if not jumps:
            raise FrameDamaged(f"journal offset {offset} stands where {following} should")
    return offset, end, size


def first_damage(segment: Segment, start: IndexEntry, found: int) -> int:
    """A wrong header is noticed at the frame behind it: the byte of the first frame from `start` on
    that is not what was written; `found` where all before that is. Blocking, and rare."""
    position, following = start.position, start.offset
    while position < found:
        try:
            header = memoryview(segment.file.read(position, HEADER_BYTES))
            _, _, size = step(header, 0)
            stored = decode(memoryview(segment.file.read(position, size)), 0)
        except FrameError:
            return position
        if stored.at.offset < following:
            return position
        position, following = position + size, stored.end
    return found


def _start(segment: Segment, offset: int) -> IndexEntry:
    """Where to begin to look for it."""
    entry, _ = segment.index.around(offset)
    return IndexEntry(segment.base, 0) if entry is None else entry


def extents(located: Iterable[tuple[Segment, int]]) -> Iterator[Extent]:
    """Few reads for many frames. `located`: the segment of each journal offset, ascending."""
    current: Extent | None = None
    for segment, offset in located:
        _, following = segment.index.around(offset)
        start = _start(segment, offset)
        end = min(following.position, segment.synced) if following else segment.synced
        if current is not None and _are_near(current, segment, start.position, end):
            current = Extent(
                segment, current.start, max(current.end, end), [*current.wanted, offset]
            )
            continue
        if current is not None:
            yield current
        current = Extent(segment, start, end, [offset])
    if current is not None:
        yield current


def _are_near(extent: Extent, segment: Segment, start: int, end: int) -> bool:
    return (
        extent.segment is segment
        and start <= extent.end + COALESCE_GAP_BYTES
        and end - extent.start.position
        <= max(COALESCED_BYTES_MAX, extent.end - extent.start.position)
    )


async def read_extent(disk: Disk, extent: Extent) -> dict[int, StoredFrame]:
    """The wanted frames by their journal offset. Raises CorruptLog, OffsetOutOfRange, OSError."""
    segment, start, end, wanted = extent
    block = memoryview(await disk.read(segment.file, start.position, end - start.position))
    found: dict[int, StoredFrame] = {}
    at, following = 0, start.offset
    for target in wanted:
        offset = -1
        try:
            while at < len(block):
                offset, behind, size = step_on(block, at, following)
                if offset >= target:
                    break
                at, following = at + size, behind
            if at > len(block):
                raise FrameDamaged("a frame is longer than what is there")
            stored = decode(block, at, views=True) if offset == target else None
        except FrameError as error:
            position = first_damage(segment, start, start.position + at)
            raise corrupt(segment, position, error) from error
        if stored is None:
            raise OffsetOutOfRange(f"no frame of {segment.path} begins at journal offset {target}")
        found[target] = stored
        at, following = at + encoded_bytes(stored.frame), stored.end
    return found


def replay_segment(
    segment: Segment, epochs: EpochTable, from_offset: int, *, end: int
) -> Iterator[StoredFrame]:
    """Every frame below `end` that stands in this segment, from the one that holds `from_offset`
    on. Blocking. Raises JournalDamaged."""
    entry, _ = segment.index.around(from_offset)
    start = Place(0, segment.base, epochs.epoch_at(segment.base - 1))
    if entry is not None:
        start = Place(entry.position, entry.offset, epochs.epoch_at(entry.offset))
    scan = Scan(segment.file, start)
    for stored in scan:
        if stored.at.offset >= end:
            return
        if stored.end > from_offset:
            yield stored
        if scan.place.position + encoded_bytes(stored.frame) >= segment.synced:
            return
    if scan.place.position < segment.synced:
        why = scan.why if scan.ending is Ending.BAD else "the file ends here"
        raise JournalDamaged(segment.path, scan.place.position, why)


def corrupt(segment: Segment, position: int, why: object) -> CorruptLog:
    """Names file and byte."""
    return CorruptLog(
        f"{segment.path} is damaged at byte {position}: {segment.what_is_wrong(why)}. Nothing of "
        "it is served; restore this replica from another one or a backup",
        file=segment.path,
        position=position,
    )


def require_within(offset: int, log_start: int, log_end: int | None = None) -> None:
    """Raises OffsetOutOfRange. Without a log end, any offset behind the log start is fine."""
    if offset < log_start:
        raise OffsetOutOfRange(f"the log begins at {log_start}, not at {offset}", start=log_start)
    if log_end is not None and offset >= log_end:
        raise OffsetOutOfRange(
            f"journal offset {offset} is outside of [{log_start}, {log_end})",
            start=log_start,
            end=log_end,
        )
