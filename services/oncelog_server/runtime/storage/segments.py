"""The segments of one journal, in the order of what they hold: which one takes the next frame,
which ones a range of offsets lies in, and how many of their files stay open.

Invariants: they ascend, and only the last one, the active one, grows; only what is synced is read.

Left out: what memory still has of the end (`tail`), and when it is synced (`unwritten`).
"""

from __future__ import annotations

import contextlib
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Final

from oncelog_server.core.frame import StoredFrame
from oncelog_server.runtime.storage.cutting import cut_segments, remove_segments
from oncelog_server.runtime.storage.epochs import EpochTable
from oncelog_server.runtime.storage.port import Disk
from oncelog_server.runtime.storage.reading import (
    copy_segment,
    extents,
    read_extent,
    read_segment,
    replay_segment,
)
from oncelog_server.runtime.storage.scan import Place
from oncelog_server.runtime.storage.segment import Segment
from oncelog_server.runtime.storage.tail import Copies

# Files of segments behind the active one that stay open after a read.
SEALED_SEGMENTS_OPEN_MAX: Final = 8


class Segments:
    """Of one journal, as recovery found them."""

    def __init__(
        self, disk: Disk, directory: str, segment_bytes: int, found: list[Segment]
    ) -> None:
        self.all = found
        self._disk = disk
        self._directory = directory
        self._segment_bytes = segment_bytes
        self._open_sealed: deque[Segment] = deque()

    @property
    def bases(self) -> list[int]:
        """Where they begin, ascending."""
        return [segment.base for segment in self.all]

    # ------------------------------------------------------------------------------- what grows

    def taking(self, size: int, *, log_end: int) -> Segment:
        """The active segment, or a new one where a frame of that size would not fit."""
        if self.all:
            active = self.all[-1]
            if active.size == 0 or active.size + size <= self._segment_bytes:
                return active
        return self.begin(log_end)

    def begin(self, base: int) -> Segment:
        """A new active one."""
        segment = Segment(self._disk, self._directory, base, grows_to=self._segment_bytes)
        segment.begin_index()
        self.all.append(segment)
        return segment

    def save_indexes(self, below: int) -> None:
        """Into the page cache, as far as they are about offsets below."""
        # A lost index is made again at the next start; failing for it would help nobody.
        with contextlib.suppress(OSError):
            for segment in reversed(self.all):
                was_saved = segment.index_is_saved
                segment.save_index(below)
                if was_saved and segment is not self.all[-1]:
                    break

    # ------------------------------------------------------------------------------- what is read

    def holding(self, offset: int) -> Segment:
        """The one that has the frame of an offset within the log."""
        return self._from(offset)[0]

    def bytes_between(self, start: int, end: int) -> int:
        """About how many bytes of frames stand there, by the indexes."""
        held = [segment for segment in self._from(start) if segment.base < end]
        sizes = [*(it.size for it in held[:-1]), *(it.position_of(end) for it in held[-1:])]
        return max(0, sum(sizes) - held[0].position_of(start)) if held else 0

    def bytes_from(self, start: int) -> int:
        """About how many stand there and behind; more rather than fewer."""
        held = self._from(start)
        return sum(it.size for it in held) - held[0].position_of(start) if held else 0

    async def read(self, from_offset: int, max_bytes: int, *, below: int) -> list[StoredFrame]:
        """See Journal.read."""
        for segment in self._from(from_offset):
            if segment.base >= below:
                break
            found = await read_segment(
                self._disk, self._use(segment), from_offset, max_bytes, below=below
            )
            if found:
                return found
        return []

    async def copies(self, from_offset: int, max_bytes: int, *, below: int) -> Copies:
        """See Journal.copies."""
        for segment in self._from(from_offset):
            found = await copy_segment(
                self._disk, self._use(segment), from_offset, max_bytes, below=below
            )
            if found.frames:
                return found
        return Copies(from_offset, b"")

    async def read_frames(self, offsets: Iterable[int]) -> dict[int, StoredFrame]:
        """The frames that begin at these offsets, which lie within the log. Neighbours share a disk
        read."""
        found: dict[int, StoredFrame] = {}
        located = [(self.holding(offset), offset) for offset in sorted(offsets)]
        for extent in list(extents(located)):
            self._use(extent.segment)
            found.update(await read_extent(self._disk, extent))
        return found

    def replay(self, epochs: EpochTable, from_offset: int, *, end: int) -> Iterator[StoredFrame]:
        """Every frame from the one that holds `from_offset` up to `end`. Blocking. Raises
        JournalDamaged."""
        for number, segment in enumerate(list(self.all)):
            following = self.all[number + 1 : number + 2]
            if following and following[0].base <= from_offset:
                continue
            if segment.base >= end:
                break
            yield from replay_segment(segment, epochs, from_offset, end=end)

    def _from(self, offset: int) -> list[Segment]:
        number = bisect_right(self.all, offset, key=lambda segment: segment.base) - 1
        return self.all[max(number, 0) :]

    def _use(self, segment: Segment) -> Segment:
        """Keeps few files of old segments open: the one used longest ago rests."""
        if segment is self.all[-1] or segment.synced != segment.size:
            return segment
        with contextlib.suppress(ValueError):
            self._open_sealed.remove(segment)
        self._open_sealed.append(segment)
        if len(self._open_sealed) > SEALED_SEGMENTS_OPEN_MAX:
            self._open_sealed.popleft().rest()
        return segment

    # ------------------------------------------------------------------------------- what goes

    def cut(self, place: Place, *, keep_bytes: bool) -> None:
        """See `cut_segments`. Raises OSError."""
        cut_segments(self.all, place, keep_bytes=keep_bytes)

    def take_before(self, log_start: int) -> list[Segment]:
        """Those that are wholly before it, from the front on: they are read no more, and their
        files are the caller's to remove."""
        count = sum(base <= log_start for base in self.bases[1:])
        taken = self.all[:count]
        del self.all[:count]
        for segment in taken:
            segment.retire()
        return taken

    def remove_from(self, base: int) -> None:
        """Those that begin there or behind. Raises OSError."""
        remove_segments(self.all, base)

    def close(self) -> None:
        for segment in self.all:
            segment.close()
