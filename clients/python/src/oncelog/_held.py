"""Where batches of open transactions are held: in memory up to a limit, above it on disk.

Belongs to one consumer, and is shared by its partitions. What goes to disk is the largest that is
in memory, part after part, until half of the limit is free: so it is rare, and small parts stay. Of
very many small ones only some go at once.
Each part (of a TxId and a writer) has a file of its own, to which is appended, and which is removed
with the part. Nothing is synced: after a crash the files are worthless, the journal has it all.

    a file:    batch*
    a batch:   record count, encoding, CRC32C, length of each of what follows (4 bytes each,
               little-endian) │ payload │ offsets

The directory of a consumer lies in `buffer_dir`, is readable by its user alone, and goes when the
consumer is closed. Its process has locked the directory itself, which cleaners of temporary files
respect: one whose lock is free is of a process that died, and is removed by the next consumer that
begins there.

Invariants:
- at most `bytes_max` are in memory, or one batch where it is larger; indexes of what is on disk are
  not held at all;
- a write that failed has changed nothing: its bytes lie behind what counts, and are overwritten;
- at most two files are open: the lock, and the one that is read.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import stat
import struct
import tempfile
import uuid
from collections.abc import Iterator
from heapq import nlargest
from pathlib import Path
from typing import BinaryIO, Final

from oncelog._core.pending import HeldBatch, Part
from oncelog.errors import BufferFailed
from oncelogpb import records

# What a batch in memory costs beside its payload: objects and list entries.
BATCH_OVERHEAD_BYTES: Final = 256
# Parts that go to disk one after the other, at most, where that makes enough room: each is a file.
SPILLED_AT_ONCE_MAX: Final = 32
READ_BYTES: Final = 1024 * 1024
_HEAD: Final = struct.Struct("<IIIII")
_NAME: Final = "consumer-"
_ABANDONED: Final = "abandoned-"


class HeldBatches:
    """See the module."""

    def __init__(self, bytes_max: int, directory: str | Path | None = None) -> None:
        """`directory` None: a folder of this user's among the system's temporary files."""
        self._bytes_max = bytes_max
        self._parent = Path(directory) if directory is not None else default_directory()
        self._own: Path | None = None
        self._lock: int | None = None
        # Parts with batches in memory.
        self._resident: dict[Part, None] = {}
        self.memory_bytes = 0
        # Of all files now; and all that was ever written, for who wants to know.
        self.disk_bytes = 0
        self.written_bytes = 0
        self._files = 0
        self._reading: tuple[Part, BinaryIO] | None = None
        remove_abandoned(self._parent)

    # ----------------------------------------------------------------------------------- filling

    def make_room(self, payload_bytes: int) -> None:
        """For one batch more. Raises BufferFailed where that needs a disk that takes nothing; the
        batches that are held are none the worse."""
        wanted = payload_bytes + BATCH_OVERHEAD_BYTES
        while self._resident and self.memory_bytes + wanted > self._bytes_max:
            for part in nlargest(
                SPILLED_AT_ONCE_MAX, self._resident, key=lambda part: part.held_bytes
            ):
                if self.memory_bytes + wanted <= self._bytes_max // 2:
                    break
                self._spill(part)

    def hold(self, part: Part, batch: HeldBatch) -> None:
        """At the end of its part."""
        part.records += batch.record_count
        part.held.append(batch)
        self._count(part, _cost(batch))

    # ---------------------------------------------------------------------------------- emptying

    def take(self, part: Part, record_count: int) -> Iterator[HeldBatch]:
        """The batches of the first so many records, each once; read as they are asked for. Raises
        BufferFailed where the disk does not give back what it was given."""
        left = record_count
        while left > 0:
            batch = self._read(part) if part.read_bytes < part.spilled_bytes else None
            if batch is None:
                batch = part.held.popleft()
                self._count(part, -_cost(batch))
            left -= batch.record_count
            yield batch

    def release(self, part: Part) -> None:
        """The part is over. Safe to repeat."""
        part.held.clear()
        self._count(part, -part.held_bytes)
        if not part.file:
            return
        if self._reading is not None and self._reading[0] is part:
            self._stop_reading()
        if self._own is not None:
            # What cannot be removed now goes with its folder.
            with contextlib.suppress(OSError):
                self._path(part).unlink(missing_ok=True)
        self.disk_bytes -= part.spilled_bytes
        part.file = part.spilled_bytes = part.read_bytes = 0

    def close(self) -> None:
        """Removes all that is on disk. Safe to repeat."""
        self._stop_reading()
        own, self._own = self._own, None
        if own is not None:
            shutil.rmtree(own, ignore_errors=True)
        lock, self._lock = self._lock, None
        if lock is not None:
            os.close(lock)

    # ------------------------------------------------------------------------------------- inside

    def _count(self, part: Part, change: int) -> None:
        part.held_bytes += change
        self.memory_bytes += change
        if part.held_bytes:
            self._resident[part] = None
        else:
            self._resident.pop(part, None)

    def _spill(self, part: Part) -> None:
        """All that is in memory of it goes to the end of its file."""
        if not part.file:
            self._files += 1
            part.file = self._files
        if self._reading is not None and self._reading[0] is part:
            # Its buffer may hold what a write that failed has left.
            self._stop_reading()
        size = 0
        try:
            if not self.disk_bytes and self._is_gone():
                # Nothing was in it.
                self._begin_anew()
            with open(self._path(part), "r+b" if part.spilled_bytes else "wb") as file:
                file.seek(part.spilled_bytes)
                for batch in part.held:
                    head = _HEAD.pack(*batch[:3], len(batch.payload), len(batch.offsets))
                    size += file.write(head) + file.write(batch.payload)
                    size += file.write(batch.offsets)
        except OSError as error:
            raise BufferFailed(
                f"{part.held_bytes} bytes of open transactions cannot be written to "
                f"{self._parent}: {error.strerror}; make room there, or give the consumer another "
                f"buffer_dir or more than buffer_memory_bytes = {self._bytes_max}; nothing is "
                "lost, reading goes on when there is room",
            ) from error
        part.spilled_bytes += size
        self.disk_bytes += size
        self.written_bytes += size
        part.held.clear()
        self._count(part, -part.held_bytes)

    def _read(self, part: Part) -> HeldBatch:
        try:
            file = self._reader(part)
            head = file.read(_HEAD.size)
            count, encoding, crc32c, length, offsets_length = _HEAD.unpack(head)
            payload = file.read(length)
            offsets = file.read(offsets_length)
        except (OSError, struct.error) as error:
            raise self._damaged(part, str(error)) from error
        is_whole = len(payload) == length and len(offsets) == offsets_length
        if not is_whole or records.checksum(payload) != crc32c:
            raise self._damaged(part, "a batch does not match its checksum")
        part.read_bytes += _HEAD.size + length + offsets_length
        return HeldBatch(count, encoding, crc32c, payload, offsets)

    def _reader(self, part: Part) -> BinaryIO:
        if self._reading is None or self._reading[0] is not part:
            self._stop_reading()
            file = self._path(part).open("rb", buffering=READ_BYTES)
            self._reading = (part, file)
            file.seek(part.read_bytes)
        return self._reading[1]

    def _stop_reading(self) -> None:
        reading, self._reading = self._reading, None
        if reading is not None:
            reading[1].close()

    def _damaged(self, part: Part, why: str) -> BufferFailed:
        self._stop_reading()
        return BufferFailed(
            f"what was written to {self._path(part)} cannot be read back ({why}): look at that "
            "disk; nothing is lost, the journal is read again from where this consumer stands"
        )

    def _path(self, part: Part) -> Path:
        if self._own is None:
            self._begin()
        assert self._own is not None
        return self._own / f"part-{part.file}"

    def _begin(self) -> None:
        """A directory of our own. Who looks for abandoned ones may take it before it is locked:
        then another one is made."""
        if self._parent == default_directory():
            self._parent.mkdir(mode=0o700, exist_ok=True)
            if not _is_own(self._parent):
                raise PermissionError(errno.EACCES, "that folder is another user's")
        self._parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        while self._own is None:
            own = self._parent / f"{_NAME}{os.getpid()}-{uuid.uuid4().hex}"
            own.mkdir(mode=0o700)
            self._lock = _locked(own)
            if self._lock is not None:
                self._own = own

    def _is_gone(self) -> bool:
        """Somebody has removed the directory."""
        return self._own is not None and not self._own.exists()

    def _begin_anew(self) -> None:
        self.close()
        self._begin()


def default_directory() -> Path:
    """Of this user alone."""
    return Path(tempfile.gettempdir()) / f"oncelog-buffers-{os.getuid()}"


def remove_abandoned(parent: Path) -> None:
    """What processes of this user that died have left there. Waits for nobody."""
    # Somebody else's, or on a disk that is away: whoever needs it will be told.
    with contextlib.suppress(OSError):
        if parent == default_directory() and not _is_own(parent):
            return
        for left in sorted(parent.glob(f"{_NAME}*")):
            _set_aside(left)
        for left in sorted(parent.glob(f"{_ABANDONED}*")):
            if _is_own(left):
                shutil.rmtree(left, ignore_errors=True)


def _set_aside(left: Path) -> None:
    """Out of the way of who looks for it, while its lock is held; it is removed after that."""
    with contextlib.suppress(OSError):
        if not _is_own(left):
            return
        lock = _locked(left)
        if lock is not None:
            try:
                left.rename(left.with_name(_ABANDONED + left.name))
            finally:
                os.close(lock)


def _is_own(directory: Path) -> bool:
    """It is there, is no link, and is this user's."""
    try:
        found = directory.lstat()
    except FileNotFoundError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()


def _locked(directory: Path) -> int | None:
    """It is locked until this is closed. None: somebody else has it, or has removed it."""
    with contextlib.ExitStack() as opened, contextlib.suppress(BlockingIOError, FileNotFoundError):
        lock = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        opened.callback(os.close, lock)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(lock), directory.lstat()):
            opened.pop_all()
            return lock
    return None


def _cost(batch: HeldBatch) -> int:
    return len(batch.payload) + len(batch.offsets) + BATCH_OVERHEAD_BYTES
