"""Reads frames of a journal from its segment files, off the loop. What is given was verified.

Invariants:
  * only synced bytes are read;
  * a frame whose CRC does not match is CORRUPT_LOG, naming file and byte, never an answer (I26).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from oncelogpb.errors import CorruptLog, OffsetOutOfRange
from services.core.frame import StoredFrame
from services.core.ports import Disk
from services.runtime.storage.frames import (
    HEADER_BYTES,
    FrameError,
    FrameIncomplete,
    decode,
    encoded_bytes,
    step,
)
from services.runtime.storage.segment import INDEX_INTERVAL_BYTES, Segment

# One disk read at most, unless a single frame is larger.
READ_BYTES_MAX: Final = 4 << 20
# Wanted frames so near to each other are fetched in one read: a gap costs less than a second read.
COALESCE_GAP_BYTES: Final = 64 << 10
COALESCED_BYTES_MAX: Final = 1 << 20


class Extent(NamedTuple):
    """Neighbouring bytes of a segment that hold the wanted frames."""

    segment: Segment
    # Byte of a frame's header.
    start: int
    # Exclusive.
    end: int
    # Journal offsets, ascending.
    wanted: Sequence[int]


async def read_segment(
    disk: Disk, segment: Segment, from_offset: int, max_bytes: int, *, below: int
) -> list[StoredFrame]:
    """Frames from the first that ends above `from_offset`, as far as they end at or before `below`
    and stand in this segment. At least one, if there is one. Raises CorruptLog, OSError."""
    entry, _ = segment.index.around(from_offset)
    position = entry.position if entry else 0
    wanted = min(max_bytes, READ_BYTES_MAX) + INDEX_INTERVAL_BYTES + HEADER_BYTES
    taken: list[StoredFrame] = []
    while position < segment.synced:
        wanted = min(wanted, segment.synced - position)
        block = memoryview(await disk.read(segment.file, position, wanted))
        at = 0
        try:
            while at < len(block):
                _, end, size = step(block, at)
                if end > from_offset:
                    stored = decode(block, at)
                    max_bytes -= size
                    if stored.end > below or (taken and max_bytes < 0):
                        return taken
                    taken.append(stored)
                at += size
        except FrameIncomplete as short:
            _require_more(segment, position + at, short)
            wanted = max(wanted, short.needed)
        except FrameError as error:
            raise corrupt(segment, position + at, error) from error
        if taken:
            return taken
        position += at
    return taken


def _require_more(segment: Segment, position: int, short: FrameIncomplete) -> None:
    if position + short.needed > segment.synced:
        raise corrupt(segment, position, short) from short


def extents(located: Iterable[tuple[Segment, int]]) -> Iterator[Extent]:
    """Few reads for many frames. `located`: the segment of each journal offset, ascending."""
    current: Extent | None = None
    for segment, offset in located:
        entry, following = segment.index.around(offset)
        start = entry.position if entry else 0
        end = min(following.position, segment.synced) if following else segment.synced
        if current is not None and _are_near(current, segment, start, end):
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
        and end - extent.start <= max(COALESCED_BYTES_MAX, extent.end - extent.start)
    )


async def read_extent(disk: Disk, extent: Extent) -> dict[int, StoredFrame]:
    """The wanted frames by their journal offset. Raises CorruptLog, OffsetOutOfRange, OSError."""
    segment, start, end, wanted = extent
    block = memoryview(await disk.read(segment.file, start, end - start))
    found: dict[int, StoredFrame] = {}
    at = 0
    for target in wanted:
        offset = -1
        try:
            while at < len(block) and (parsed := step(block, at))[0] < target:
                at += parsed[2]
            if at < len(block):
                stored = decode(block, at)
                offset = stored.at.offset
        except FrameError as error:
            raise corrupt(segment, start + at, error) from error
        if offset != target:
            raise OffsetOutOfRange(f"no frame of {segment.path} begins at journal offset {target}")
        found[target] = stored
        at += encoded_bytes(stored.frame)
    return found


def corrupt(segment: Segment, position: int, why: object) -> CorruptLog:
    """Names file and byte."""
    return CorruptLog(
        f"{segment.path} is damaged at byte {position}: {why}. Nothing of it is served; restore "
        "this replica from another one or a backup",
        file=segment.path,
        position=position,
    )
