"""The memory tail: the newest frames of a journal. Readers who keep up never touch the disk.

Invariants:
  * it holds every frame that is not synced yet: the disk is asked only for what it surely has;
  * of synced frames it keeps at most `max_bytes`, the newest; what it drops it lets go within a
    quarter of that, whether frames are many or large.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import Final

from oncelog_server.core.frame import StoredFrame
from oncelog_server.runtime.storage.frames import encoded_bytes

TAIL_BYTES_MAX: Final = 4 << 20
# Dropped frames leave the lists in slices: deleting from the front of a list costs its length.
_SLICE: Final = 1024


class MemoryTail:
    """See the module."""

    def __init__(self, start: int, max_bytes: int = TAIL_BYTES_MAX) -> None:
        # Journal offset from which on it holds everything.
        self.start = start
        self._max_bytes = max_bytes
        self._frames: list[StoredFrame] = []
        self._offsets: list[int] = []
        # Frames before this number are dropped; so many bytes of them are still held.
        self._first = 0
        self._dropped_bytes = 0
        self._bytes = 0

    def append(self, stored: StoredFrame, *, synced_end: int) -> None:
        self._frames.append(stored)
        self._offsets.append(stored.at.offset)
        self._bytes += encoded_bytes(stored.frame)
        if self._bytes > self._max_bytes:
            self.trim(synced_end)

    def trim(self, synced_end: int) -> None:
        """Drops what is synced and does not fit."""
        frames, first = self._frames, self._first
        while self._bytes > self._max_bytes and first < len(frames):
            stored = frames[first]
            if stored.end > synced_end:
                break
            size = encoded_bytes(stored.frame)
            self._bytes -= size
            self._dropped_bytes += size
            self.start = stored.end
            first += 1
        self._first = first
        if first >= _SLICE or self._dropped_bytes > self._max_bytes // 4:
            del self._frames[:first], self._offsets[:first]
            self._first = self._dropped_bytes = 0

    def cut(self, end: int) -> None:
        """Forgets the frames at or above `end`."""
        keep = max(bisect_left(self._offsets, end), self._first)
        self._bytes -= sum(encoded_bytes(stored.frame) for stored in self._frames[keep:])
        del self._frames[keep:], self._offsets[keep:]
        self.start = min(self.start, end)

    def get(self, offset: int) -> StoredFrame | None:
        """The frame that begins at `offset`."""
        number = bisect_left(self._offsets, offset, self._first)
        found = number < len(self._offsets) and self._offsets[number] == offset
        return self._frames[number] if found else None

    def read(self, from_offset: int, max_bytes: int, *, below: int) -> list[StoredFrame]:
        """Frames from the one that holds `from_offset`; at least one, if it ends at `below`."""
        taken: list[StoredFrame] = []
        for stored in self.frames_from(from_offset):
            max_bytes -= encoded_bytes(stored.frame)
            if stored.end > below or (taken and max_bytes < 0):
                break
            taken.append(stored)
        return taken

    def frames_from(self, offset: int) -> Iterator[StoredFrame]:
        """Frames that end above `offset`, as far as they were appended when this was called."""
        number = max(bisect_right(self._offsets, offset, self._first) - 1, self._first)
        if number < len(self._frames) and self._frames[number].end <= offset:
            number += 1
        return iter(self._frames[number:])
