"""The memory tail: the newest frames of a journal. Readers who keep up never touch the disk.

Invariants:
  * it holds every frame that is not synced yet: the disk is asked only for what it surely has;
  * of synced frames it keeps at most `max_bytes`, the newest; what it drops it lets go within a
    quarter of that, whether frames are many or large;
  * all tails of a node keep no more than the budget, as far as what they hold is synced: who was
    not written to for longest gives way first;
  * a tail that a thread cuts is in no budget meanwhile: the loop leaves it alone.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Final, NamedTuple

from oncelog_server.core.frame import StoredFrame
from oncelog_server.runtime.storage.frames import encoded_bytes

TAIL_BYTES_MAX: Final = 4 << 20
# What a frame takes in memory beside its bytes.
FRAME_MEMORY_BYTES: Final = 640
# Dropped frames leave the lists in slices: deleting from the front of a list costs its length.
_SLICE: Final = 1024
# Tails that are asked to give way at one append: one with nothing but unsynced frames cannot.
_ASKED_MAX: Final = 8


class Copies(NamedTuple):
    """Whole frames, as they stand on the disk."""

    # The journal offset behind the last one.
    end: int
    frames: bytes


class TailBudget:
    """Of all tails of a node. Belongs to its event loop."""

    def __init__(self, max_bytes: int | None = None) -> None:
        """None: no limit."""
        self.max_bytes = max_bytes
        # What all tails hold, frames as objects included.
        self.bytes = 0
        # Those that hold something; the one written to longest ago comes first.
        self._tails: OrderedDict[int, MemoryTail] = OrderedDict()

    def took(self, tail: MemoryTail, size: int) -> None:
        """`tail` holds so much more, and was written to."""
        self.bytes += size
        self._tails[id(tail)] = tail
        self._tails.move_to_end(id(tail))
        if self.max_bytes is not None and self.bytes > self.max_bytes:
            self._make_room(self.max_bytes)

    def let_go(self, tail: MemoryTail, size: int, *, is_empty: bool) -> None:
        self.bytes -= size
        if is_empty:
            self._tails.pop(id(tail), None)

    def _make_room(self, max_bytes: int) -> None:
        for tail in list(islice(self._tails.values(), _ASKED_MAX)):
            tail.give_way(self.bytes - max_bytes)
            if self.bytes <= max_bytes:
                return


class MemoryTail:
    """See the module."""

    def __init__(
        self, start: int, max_bytes: int = TAIL_BYTES_MAX, budget: TailBudget | None = None
    ) -> None:
        # Journal offset from which on it holds everything.
        self.start = start
        self._max_bytes = max_bytes
        self._budget = budget or TailBudget()
        self._synced_end = start
        self._frames: list[StoredFrame] = []
        self._offsets: list[int] = []
        # Of each frame, the bytes before its payload as they go to the disk, CRC and all: a copy
        # for a follower is these and the payload, never made anew.
        self._headers: list[bytes | memoryview] = []
        # Frames before this number are dropped; so many bytes of them are still held.
        self._first = 0
        self._dropped_bytes = 0
        self._bytes = 0
        # Frames, ever.
        self.appended = 0

    def append(self, stored: StoredFrame, header: bytes | memoryview, *, synced_end: int) -> None:
        self._frames.append(stored)
        self._headers.append(header)
        self._offsets.append(stored.at.offset)
        size = encoded_bytes(stored.frame)
        self.appended += 1
        self._bytes += size
        if self._bytes > self._max_bytes:
            self.trim(synced_end)
        self._budget.took(self, size + FRAME_MEMORY_BYTES)

    def trim(self, synced_end: int) -> None:
        """Drops what is synced and does not fit."""
        self._synced_end = synced_end
        while self._bytes > self._max_bytes and self._drop_oldest():
            pass
        if self._first >= _SLICE or self._dropped_bytes > self._max_bytes // 4:
            self._let_go_of_dropped()

    def give_way(self, wanted_bytes: int) -> None:
        """Drops so much of what is synced: others need the room."""
        freed = self._dropped_bytes + self._first * FRAME_MEMORY_BYTES
        while freed < wanted_bytes and (size := self._drop_oldest()):
            freed += size + FRAME_MEMORY_BYTES
        self._let_go_of_dropped()

    @contextmanager
    def apart(self) -> Iterator[None]:
        """On the loop, while a thread cuts it. Those who need room there drop from its front, and
        that would shift what the thread takes from its end: frames that were cut would stay."""
        budget, self._budget = self._budget, TailBudget()
        budget.let_go(self, self._held_bytes, is_empty=True)
        try:
            yield
        finally:
            self._budget = budget
            if self._frames:
                budget.took(self, self._held_bytes)

    @property
    def _held_bytes(self) -> int:
        """As the budget counts them."""
        return self._bytes + self._dropped_bytes + len(self._frames) * FRAME_MEMORY_BYTES

    def begin_at(self, offset: int) -> None:
        """Nothing is before it."""
        self.cut(0)
        self.start = self._synced_end = offset

    def clear(self) -> None:
        """Its journal is closed."""
        self.cut(0)

    def _drop_oldest(self) -> int:
        """The bytes of the oldest frame, if it is synced; else 0."""
        if self._first == len(self._frames):
            return 0
        stored = self._frames[self._first]
        if stored.end > self._synced_end:
            return 0
        size = encoded_bytes(stored.frame)
        self._bytes -= size
        self._dropped_bytes += size
        self.start = stored.end
        self._first += 1
        return size

    def _let_go_of_dropped(self) -> None:
        first = self._first
        if not first:
            return
        freed = self._dropped_bytes + first * FRAME_MEMORY_BYTES
        del self._frames[:first], self._offsets[:first], self._headers[:first]
        self._first = self._dropped_bytes = 0
        self._budget.let_go(self, freed, is_empty=not self._frames)

    def cut(self, end: int) -> None:
        """Forgets the frames at or above `end`."""
        self._let_go_of_dropped()
        keep = bisect_left(self._offsets, end)
        cut_bytes = sum(encoded_bytes(stored.frame) for stored in self._frames[keep:])
        self._bytes -= cut_bytes
        freed = cut_bytes + (len(self._frames) - keep) * FRAME_MEMORY_BYTES
        del self._frames[keep:], self._offsets[keep:], self._headers[keep:]
        self.start = min(self.start, end)
        self._synced_end = min(self._synced_end, end)
        self._budget.let_go(self, freed, is_empty=not self._frames)

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
        return iter(self._frames[self._number_of(offset) :])

    def copies(self, from_offset: int, max_bytes: int) -> Copies:
        """As `read`, up to the last frame, as the bytes that stand on the disk or will."""
        chunks: list[bytes | memoryview] = []
        end, size = from_offset, 0
        number = self._number_of(from_offset)
        for stored, header in zip(self._frames[number:], self._headers[number:], strict=True):
            length = encoded_bytes(stored.frame)
            if chunks and size + length > max_bytes:
                break
            chunks.append(header)
            if stored.frame.payload:
                chunks.append(stored.frame.payload)
            end, size = stored.end, size + length
        return Copies(end, b"".join(chunks))

    def _number_of(self, offset: int) -> int:
        """Of the first frame that ends above `offset`."""
        number = max(bisect_right(self._offsets, offset, self._first) - 1, self._first)
        if number < len(self._frames) and self._frames[number].end <= offset:
            number += 1
        return number
