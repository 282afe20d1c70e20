"""One segment: a file of frames named by the journal offset that was next when it was begun, and
its sparse offset index.

    00000000000000004711.log     frames, one after the other; zeros behind the last one
    00000000000000004711.index   entries of 16 bytes:

    byte  size  field            (little-endian)
       0     8  journal offset   first of a frame
       8     4  byte position    of that frame in the segment file
      12     4  CRC32C           of bytes 0 to 11

Invariants:
  * an index says only where to begin looking: what is read there is verified, so a lost, stale or
    damaged index costs time, never a wrong answer;
  * the file holds only entries below `synced_end`. It is not synced by itself.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterator
from typing import Final, NamedTuple

from crc32c import crc32c

from oncelog_server.runtime.storage.frames import FRAME_PAYLOAD_BYTES_MAX
from oncelog_server.runtime.storage.port import Disk, File, read_if_readable
from oncelogpb.errors import OffsetOutOfRange

SEGMENT_BYTES: Final = 256 << 20
# Bytes of frames between two index entries: what a read of one small frame looks through.
INDEX_INTERVAL_BYTES: Final = 16 << 10
INDEX_ENTRY_BYTES: Final = 16
SEGMENT_SUFFIX: Final = ".log"
INDEX_SUFFIX: Final = ".index"

_ENTRY: Final = struct.Struct("<QI")
_CRC: Final = struct.Struct("<I")
_OFFSET: Final = struct.Struct("<Q")

assert _ENTRY.size + _CRC.size == INDEX_ENTRY_BYTES
assert SEGMENT_BYTES < 1 << 32, "an index entry holds 32 bits of position"
assert FRAME_PAYLOAD_BYTES_MAX < SEGMENT_BYTES


class IndexEntry(NamedTuple):
    """A frame of this journal offset begins at this byte of the segment."""

    offset: int
    position: int


def segment_name(base: int) -> str:
    """File name of the segment that begins at `base`."""
    return f"{base:020d}{SEGMENT_SUFFIX}"


def base_of(name: str) -> int | None:
    """The inverse of `segment_name`; None for other files."""
    stem = name.removesuffix(SEGMENT_SUFFIX)
    return int(stem) if stem != name and len(stem) == 20 and stem.isdigit() else None


class OffsetIndex:
    """In memory as on disk: bytes of entries, looked up by bisection."""

    def __init__(self, raw: bytes = b"") -> None:
        whole = len(raw) - len(raw) % INDEX_ENTRY_BYTES
        self._raw = bytearray(raw[:whole])
        # Entries from this byte on are not in the file.
        self.saved_bytes = whole
        self._last_position = -INDEX_INTERVAL_BYTES
        last = self._entry(len(self) - 1) if self._raw else None
        if last is not None:
            self._last_position = last.position

    def __len__(self) -> int:
        return len(self._raw) // INDEX_ENTRY_BYTES

    def saw(self, offset: int, position: int) -> None:
        """A frame begins there, which is no EPOCH_START; every so often that is worth an entry.

        (A scan from an entry compares the frame's epoch with the epoch table; only a frame that
        begins no epoch shows that the table lacks one.)"""
        if position - self._last_position < INDEX_INTERVAL_BYTES:
            return
        entry = _ENTRY.pack(offset, position)
        self._raw += entry + _CRC.pack(crc32c(entry))
        self._last_position = position

    def around(self, offset: int) -> tuple[IndexEntry | None, IndexEntry | None]:
        """The last entry at or before `offset`, and the one after it."""
        number = bisect_right(range(len(self)), offset, key=self._offset) - 1
        following = self._entry(number + 1) if number + 1 < len(self) else None
        while number >= 0:
            entry = self._entry(number)
            if entry is not None and entry.offset <= offset:
                return entry, following
            # Damaged: looking from further back finds the same frame.
            number, following = number - 1, None
        return None, following

    def last_within(self, start: int, end: int) -> int | None:
        """Where the last frame with an entry begins that begins behind byte `start`, at or before
        byte `end`. None: there is none."""
        number = bisect_right(range(len(self)), end, key=self._position) - 1
        entry = self._entry(number) if number >= 0 else None
        return entry.position if entry is not None and entry.position > start else None

    def entries_behind(self, position: int) -> Iterator[IndexEntry]:
        """Those that are intact, of what begins behind a byte of the segment."""
        entries = (self._entry(number) for number in range(len(self)))
        return (entry for entry in entries if entry is not None and entry.position > position)

    def last_good(self) -> IndexEntry | None:
        """The last entry that is intact. Those behind it are dropped."""
        while self._raw:
            entry = self._entry(len(self) - 1)
            if entry is not None:
                self._last_position = entry.position
                return entry
            del self._raw[-INDEX_ENTRY_BYTES:]
            self.saved_bytes = len(self._raw)
        return None

    def cut(self, offset: int) -> None:
        """Drops the entries of frames at or above `offset`."""
        keep = bisect_right(range(len(self)), offset - 1, key=self._offset)
        del self._raw[keep * INDEX_ENTRY_BYTES :]
        self.saved_bytes = min(self.saved_bytes, len(self._raw))
        last = self._entry(keep - 1) if keep else None
        self._last_position = last.position if last else -INDEX_INTERVAL_BYTES

    def unsaved(self, below: int) -> bytes:
        """Entries that are not in the file and stand below `below`."""
        end = bisect_right(range(len(self)), below - 1, key=self._offset) * INDEX_ENTRY_BYTES
        return bytes(self._raw[self.saved_bytes : end])

    def _offset(self, number: int) -> int:
        (offset,) = _OFFSET.unpack_from(self._raw, number * INDEX_ENTRY_BYTES)
        return int(offset)

    def _position(self, number: int) -> int:
        _, position = _ENTRY.unpack_from(self._raw, number * INDEX_ENTRY_BYTES)
        return int(position)

    def _entry(self, number: int) -> IndexEntry | None:
        at = number * INDEX_ENTRY_BYTES
        offset, position = _ENTRY.unpack_from(self._raw, at)
        (crc,) = _CRC.unpack_from(self._raw, at + _ENTRY.size)
        intact = crc32c(self._raw[at : at + _ENTRY.size]) == crc
        return IndexEntry(offset, position) if intact else None


class Segment:
    """One segment of a journal. The journal keeps it; its file and index are opened when needed."""

    def __init__(self, disk: Disk, directory: str, base: int, *, grows_to: int = 0) -> None:
        self._disk = disk
        self._grows_to = grows_to
        self._stem = f"{directory}/{base:020d}"
        self.path = self._stem + SEGMENT_SUFFIX
        self.base = base
        # Bytes of frames, those that are only in memory included.
        self.size = 0
        # Bytes of frames that are synced: what may be read.
        self.synced = 0
        self._file: File | None = None
        self._index: OffsetIndex | None = None
        # The index file does not fit the frames. It is removed before an entry is written to it.
        self._index_file_is_wrong = False
        # It is before the log start, and its file goes.
        self._is_retired = False

    @property
    def index_path(self) -> str:
        return self._stem + INDEX_SUFFIX

    @property
    def file(self) -> File:
        """Opened, and created where it is not there yet. Raises OffsetOutOfRange once it is
        before the log start: a reader that comes late must not make it again."""
        if self._is_retired:
            raise OffsetOutOfRange(f"the log begins behind {self.path} now")
        if self._file is None:
            self._file = self._disk.open(self.path, create=True, grows_to=self._grows_to)
        return self._file

    @property
    def has_unreadable(self) -> bool:
        """See File; of the file as it is open."""
        return self._file is not None and self._file.has_unreadable

    def what_is_wrong(self, why: object) -> str:
        """With what the disk had to say."""
        return f"{why} (the disk cannot read all of it)" if self.has_unreadable else str(why)

    @property
    def index(self) -> OffsetIndex:
        if self._index is None:
            saved = read_if_readable(self._disk, self.index_path)
            self._index = OffsetIndex(saved or b"")
            self._index_file_is_wrong |= saved is None
        return self._index

    @property
    def index_is_saved(self) -> bool:
        """The file has every entry."""
        index = self._index
        return index is None or index.saved_bytes == len(index) * INDEX_ENTRY_BYTES

    def position_of(self, offset: int) -> int:
        """About where its frame begins, or would: up to INDEX_INTERVAL_BYTES before. An index that
        cannot be read says what a lost one says, 0: who asks for sizes does it on the loop."""
        if offset <= self.base:
            return 0
        try:
            entry, _ = self.index.around(offset)
        except OSError:
            return 0
        return 0 if entry is None else entry.position

    def begin_index(self) -> None:
        """Starts it anew: there is none, or what it says was found wrong."""
        self._index = OffsetIndex()
        self._index_file_is_wrong = True

    def save_index(self, below: int) -> None:
        """Into the page cache: what is lost is found again by recovery. Raises OSError."""
        if self._index is None:
            return
        if self._index_file_is_wrong:
            self.drop_index_file()
        entries = self._index.unsaved(below)
        if not entries:
            return
        file = self._disk.open(self.index_path, create=True)
        try:
            self._disk.write_unsynced(file, self._index.saved_bytes, entries)
        finally:
            file.close()
        self._index.saved_bytes += len(entries)

    def drop_index_file(self) -> None:
        """Durably, before the frames that it points to go."""
        if self._disk.exists(self.index_path):
            self._disk.remove(self.index_path)
        if self._index is not None:
            self._index.saved_bytes = 0
        self._index_file_is_wrong = False

    def rest(self) -> None:
        """Lets go of file and index until they are needed. A read under way keeps its file."""
        self._file = None
        if self.index_is_saved:
            self._index = None

    def sync_index(self) -> None:
        """What was saved of it survives a loss of power. Blocking. Raises OSError."""
        if self._disk.exists(self.index_path):
            file = self._disk.open(self.index_path)
            try:
                self._disk.sync(file)
            finally:
                file.close()

    def retire(self) -> None:
        """Nobody begins to read it any more; a read that is under way keeps its file. `remove` is
        next."""
        self.rest()
        self._is_retired = True

    def truncate(self, position: int) -> None:
        """Durably. Raises OSError."""
        self._disk.truncate_and_sync(self.file, position)

    def remove(self) -> None:
        """Durably; the index first, so that it never speaks of another file."""
        self.drop_index_file()
        self.close()
        if self._disk.exists(self.path):
            self._disk.remove(self.path)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
