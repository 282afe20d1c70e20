"""One file of the data log: blocks, one after the other, named by the offset of its first one; and
its sparse offset index, which is a segment's.

    data/00000000000000004711.data
    data/00000000000000004711.index

Invariants:
  * an index says only where to begin looking, so a lost, stale or damaged one costs time, never a
    wrong answer. It is not synced by itself, and what a walk finds is added to it;
  * what was added is synced by the file that it was written with: a disk tells an error of writing
    back to who had the file open then.
"""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Iterable
from typing import Final

from oncelog_server.runtime.storage.port import Disk, File, read_all, set_aside
from oncelog_server.runtime.storage.segment import INDEX_SUFFIX, OffsetIndex
from oncelogpb.errors import OffsetOutOfRange

DATA_SUFFIX: Final = ".data"
# Of a file that is to stand in the place of another.
REWRITTEN_SUFFIX: Final = ".rewritten"
# Of one that stands in the place of several, of which some may be left: "<base>-<end>.joined".
JOINED_SUFFIX: Final = ".joined"
# Files of one log that stay open after a read, where a node does not say it for all of its logs.
DATA_FILES_OPEN_MAX: Final = 4


def data_base_of(name: str) -> int | None:
    """The offset that a file is named by; None for other files."""
    stem = name.removesuffix(DATA_SUFFIX)
    return int(stem) if stem != name and len(stem) == 20 and stem.isdigit() else None


def joined_range_of(name: str) -> tuple[int, int] | None:
    """The offsets that it covers; None for other files."""
    stem = name.removesuffix(JOINED_SUFFIX)
    base, _, end = stem.partition("-")
    if stem == name or not (base.isdigit() and end.isdigit()):
        return None
    return int(base), int(end)


class DataFile:
    """Opened when needed. Readers on the loop and one writer in a thread may use it."""

    def __init__(self, disk: Disk, directory: str, base: int, *, size: int | None = None) -> None:
        self._disk = disk
        self._stem = f"{directory}/{base:020d}"
        self.path = self._stem + DATA_SUFFIX
        self.base = base
        # Bytes of blocks, those that are not synced included; None: as many as there are.
        self._size = size
        self._file: File | None = None
        self._index: OffsetIndex | None = None
        # Something was added, and neither synced nor given up.
        self._has_unsynced = False
        # It goes.
        self._is_retired = False
        # Of its writer. Who has other things to do does not wait for it.
        self._lock = threading.Lock()

    @property
    def index_path(self) -> str:
        return self._stem + INDEX_SUFFIX

    @property
    def file(self) -> File:
        """Opened. Raises OffsetOutOfRange once it goes, OSError where it is not there."""
        return self._opened(create=False)

    def _opened(self, *, create: bool) -> File:
        if self._is_retired:
            raise OffsetOutOfRange(f"{self.path} was removed")
        file = self._file
        if file is None:
            file = self._file = self._disk.open(self.path, create=create)
        return file

    @property
    def size(self) -> int:
        if self._size is None:
            self._size = self.file.size()
        return self._size

    def measure(self) -> int:
        """Its size, without leaving it open. Raises OSError."""
        if self._size is None:
            file = self._disk.open(self.path)
            try:
                self._size = file.size()
            finally:
                file.close()
        return self._size

    def add(self, offset: int, data: bytes) -> None:
        """A block, behind the last one. Into the page cache. Raises OSError."""
        with self._lock:
            size = self.size
            self._has_unsynced = True
            self._disk.write_unsynced(self._opened(create=True), size, data)
            self.index.saw(offset, size)
            self._size = size + len(data)

    def sync(self) -> None:
        """What was added is durable; its index goes to the page cache. Raises OSError."""
        with self._lock:
            self._disk.sync(self.file)
            self._has_unsynced = False
            self._save_index()

    def give_up_unsynced(self) -> None:
        """Nobody reads it, nor asks what became of it."""
        self._has_unsynced = False

    def write_again(self, position: int, length: int) -> None:
        """Bytes that only the page cache may hold, durably. Raises OSError."""
        with self._lock:
            data = self.file.read(position, length)
            self._disk.write_and_sync(self.file, position, data)

    @classmethod
    def written_anew(
        cls, disk: Disk, directory: str, base: int, blocks: Iterable[tuple[int, bytes]]
    ) -> DataFile:
        """A file of these blocks, each with its first offset, in place of the one that is there:
        after a crash the old one or the new one. Raises OSError: then the old one stands."""
        anew = cls(disk, directory, base, size=0)
        temporary = anew._stem + REWRITTEN_SUFFIX
        if disk.exists(temporary):
            disk.remove(temporary)
        file = disk.open(temporary, create=True)
        try:
            index, size = OffsetIndex(), 0
            for offset, data in blocks:
                disk.write_unsynced(file, size, data)
                index.saw(offset, size)
                size += len(data)
            disk.sync(file)
        finally:
            file.close()
        anew._drop_index_file()
        disk.rename(temporary, anew.path)
        anew._index, anew._size = index, size
        return anew

    def take_place_of(self, old: list[DataFile]) -> None:
        """Of what it covers, ascending: they go, the last one first, and it gets the name of the
        first one. Raises OSError: then it is tried again, with those that are left."""
        while len(old) > 1:
            old[-1].remove()
            old.pop()
        with self._lock:
            # Who reads keeps the file that is open, whatever it is called.
            self._opened(create=False)
            self._drop_index_file()
            old[0].retire()
            path = self._stem + DATA_SUFFIX
            if self.path != path:
                self._disk.rename(self.path, path)
                self.path = path

    def truncate(self, size: int, *, end_offset: int) -> None:
        """Durably, to blocks below `end_offset`. Raises OSError."""
        with self._lock:
            self._drop_index_file()
            self.index.cut(end_offset)
            self._disk.truncate_and_sync(self.file, size)
            self._size = size

    # --------------------------------------------------------------------------------- its index

    @property
    def index(self) -> OffsetIndex:
        if self._index is None:
            self._index = OffsetIndex(read_all(self._disk, self.index_path))
        return self._index

    def _save_index(self) -> None:
        """Into the page cache. What cannot be saved is found again by a walk."""
        index = self._index
        if index is None or self._is_retired:
            return
        with contextlib.suppress(OSError):
            entries = index.unsaved(below=1 << 63)
            if entries:
                file = self._disk.open(self.index_path, create=True)
                try:
                    self._disk.write_unsynced(file, index.saved_bytes, entries)
                finally:
                    file.close()
                index.saved_bytes += len(entries)

    def _drop_index_file(self) -> None:
        """Durably, before what it points to goes."""
        if self._disk.exists(self.index_path):
            self._disk.remove(self.index_path)
        if self._index is not None:
            self._index.saved_bytes = 0

    # -------------------------------------------------------------------------------- its ending

    def rest(self) -> None:
        """Lets go of file and index until they are needed. A read under way keeps its file. What is
        not synced keeps its descriptor, which hears of errors; who syncs it says this again."""
        if self._lock.acquire(blocking=False):
            try:
                if not self._has_unsynced:
                    self._save_index()
                    self._file = self._index = None
            finally:
                self._lock.release()

    def retire(self) -> None:
        """Nobody begins to read it any more; a read that is under way keeps its file. `remove` is
        next."""
        self._file = self._index = None
        self._is_retired = True

    def remove(self) -> None:
        """Durably; the index first, so that it never speaks of another file."""
        self.retire()
        self._drop_index_file()
        if self._disk.exists(self.path):
            self._disk.remove(self.path)

    def set_aside(self) -> None:
        """Durably: under a name that no data log reads. Raises OSError."""
        file = self._file
        self.retire()
        if file is not None:
            file.close()
        self._drop_index_file()
        set_aside(self._disk, self.path)

    def close(self) -> None:
        """Of a log that is closed: its directory may be another's soon."""
        file = self._file
        self.retire()
        if file is not None:
            file.close()


class RewrittenFile:
    """A file that is to stand in the place of neighbours, block by block. Blocking; raises
    OSError."""

    def __init__(self, disk: Disk, directory: str, base: int, end: int) -> None:
        """It covers these offsets."""
        self.base = base
        self.end = end
        self._disk = disk
        self._directory = directory
        self._stem = f"{directory}/{base:020d}"
        self._path = self._stem + REWRITTEN_SUFFIX
        if disk.exists(self._path):
            disk.remove(self._path)
        self._file: File | None = disk.open(self._path, create=True)
        self._index = OffsetIndex()
        self.size = 0

    def add(self, offset: int, data: bytes) -> None:
        """A block, behind the last one. Into the page cache."""
        assert self._file is not None, "it is not dropped"
        self._disk.write_unsynced(self._file, self.size, data)
        self._index.saw(offset, self.size)
        self.size += len(data)

    def sync(self) -> None:
        assert self._file is not None, "it is not dropped"
        self._disk.sync(self._file)

    def stand_beside(self, *, is_joined: bool) -> DataFile:
        """As it is read from now on. `is_joined`: it is in the place of several, so from here on a
        start finishes what was begun."""
        assert self._file is not None, "it is not dropped"
        if is_joined:
            path = f"{self._stem}-{self.end:020d}{JOINED_SUFFIX}"
            self._disk.rename(self._path, path)
            self._path = path
        self._file.close()
        self._file = None
        anew = DataFile(self._disk, self._directory, self.base, size=self.size)
        anew.path, anew._index = self._path, self._index
        return anew

    def abandon(self) -> None:
        """It will not be used, and goes with the next sweep. Once it stands this does nothing."""
        if self._file is not None:
            self._file.close()
            self._file = None


class OpenDataFiles:
    """Of all data logs that share it, on one event loop: the file read longest ago rests."""

    def __init__(self, count_max: int = DATA_FILES_OPEN_MAX) -> None:
        self._count_max = count_max
        self._files: OrderedDict[int, DataFile] = OrderedDict()

    def use(self, file: DataFile) -> None:
        self._files[id(file)] = file
        self._files.move_to_end(id(file))
        if len(self._files) > self._count_max:
            _, oldest = self._files.popitem(last=False)
            oldest.rest()
