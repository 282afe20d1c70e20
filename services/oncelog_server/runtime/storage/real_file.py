"""A file of a real disk, and the descriptors of all of them: a disk has more files than a process
may have open, three for each log of a partition.

    used ──► has a descriptor ── too many, not used for long, all of it synced ──► rests
                 ▲                                                                 │
                 └──────────────── the next use: its path is opened again ◄────────┘

Invariants:
  * a file that was written to and not synced keeps its descriptor: a disk tells an error of writing
    back to who had the file open then;
  * who uses a descriptor has it until they let go, whichever thread;
  * what is opened again is the same file (device and inode), or OSError(ESTALE): another one may
    have taken its name.
"""

from __future__ import annotations

import itertools
import os
import sys
import threading
import weakref
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from errno import EAGAIN, EBADF, EOPNOTSUPP, ESTALE
from functools import partial
from typing import Final

from oncelog_server.runtime.storage.syscalls import next_data
from oncelog_server.runtime.storage.unreadable import is_unreadable, read_around

# Of what is not a hole, where zeros are looked for.
BLANK_READ_BYTES: Final = 64 << 10
# Files of which one may have to rest, each time that one is opened.
LOOKS_AT_ONCE: Final = 64

_FLAGS: Final = os.O_RDWR | os.O_CLOEXEC
_NOWAIT: Final = getattr(os, "RWF_NOWAIT", None)
_writes: Final = itertools.count(1)


class Descriptor:
    """Owns a file descriptor: it is closed when the last who uses it lets go, whichever thread."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def __del__(self) -> None:
        with suppress(OSError):
            os.close(self.fd)


class RealFile:
    """The File port."""

    def __init__(
        self,
        path: str,
        full_path: str,
        fd: int,
        *,
        grows_to: int = 0,
        descriptors: Descriptors | None = None,
    ) -> None:
        """`descriptors`: of the disk, where it may rest."""
        self.path = path
        self.full_path = full_path
        self.grows_to = grows_to
        found = os.fstat(fd)
        # Size of the file, allocated zeros included. Used by who writes alone.
        self.allocated = found.st_size
        # Since the file was looked at last, by who looks for one that may rest.
        self.was_used = True
        self.has_unreadable = False
        self._identity = (found.st_dev, found.st_ino)
        self._descriptor: Descriptor | None = Descriptor(fd)
        self._descriptors = descriptors
        # Of the last write that began or ended, and of the one that a sync came after.
        self._written = self._synced = 0
        self._is_closed = False

    @property
    def descriptor(self) -> Descriptor:
        """Hold it for as long as its number is used. Raises OSError."""
        self.was_used = True
        held = self._descriptor
        return held if held is not None else self._opened_again()

    def _opened_again(self) -> Descriptor:
        if self._descriptors is None:
            # It never rests.
            raise self._closed()
        return self._descriptors.again(self)

    # -------------------------------------------------------------------------------- its contents

    def read(self, position: int, length: int) -> bytes:
        held = self.descriptor
        try:
            return _read(held.fd, position, length)
        except OSError as error:
            if not is_unreadable(error):
                raise
        size = os.fstat(held.fd).st_size
        data, is_filled = read_around(partial(_read, held.fd), position, length, size=size)
        self.has_unreadable |= is_filled
        return data

    def read_cached(self, position: int, length: int) -> bytes | None:
        """None unless all of it is in the page cache (or this system cannot tell)."""
        if _NOWAIT is None:
            return None
        held, buffer = self.descriptor, bytearray(length)
        try:
            got = os.preadv(held.fd, [buffer], position, _NOWAIT)
        except OSError as error:
            if error.errno in (EAGAIN, EOPNOTSUPP) or is_unreadable(error):
                return None
            raise
        return bytes(buffer) if got == length else None

    def size(self) -> int:
        held = self.descriptor
        return os.fstat(held.fd).st_size

    def is_blank_from(self, position: int) -> bool:
        held = self.descriptor
        while (position := next_data(held.fd, position)) >= 0:
            try:
                block = os.pread(held.fd, BLANK_READ_BYTES, position)
            except OSError as error:
                if is_unreadable(error):
                    return False
                raise
            if block != bytes(len(block)):
                return False
            if not block:
                break
            position += len(block)
        return True

    # ------------------------------------------------------------------------- whether it may rest

    def writes(self) -> None:
        """Say it before a write, and before its descriptor is asked for, and after the write."""
        self._written = next(_writes)

    @property
    def written(self) -> int:
        """Ask before a sync, and say `synced` when that has succeeded."""
        return self._written

    def synced(self, written: int) -> None:
        self._synced = written

    @property
    def is_open(self) -> bool:
        return self._descriptor is not None

    @property
    def may_rest(self) -> bool:
        """Nobody would miss its descriptor."""
        return self._written == self._synced

    def rest(self) -> None:
        """Said by Descriptors."""
        held, self._descriptor = self._descriptor, None
        if not self.may_rest and not self._is_closed:
            # Somebody began to write meanwhile.
            self._descriptor = held

    def open_again(self) -> Descriptor:
        """Said by Descriptors. Raises OSError."""
        if self._is_closed:
            raise self._closed()
        if self._descriptor is None:
            held = Descriptor(os.open(self.full_path, _FLAGS))
            found = os.fstat(held.fd)
            if (found.st_dev, found.st_ino) != self._identity:
                raise OSError(ESTALE, "another file has its name now", self.full_path)
            self._descriptor = held
        return self._descriptor

    def _closed(self) -> OSError:
        return OSError(EBADF, "the file is closed", self.full_path)

    def close(self) -> None:
        self._is_closed = True
        self._descriptor = None


def _read(fd: int, position: int, length: int) -> bytes:
    parts: list[bytes] = []
    while length > 0:
        part = os.pread(fd, length, position)
        if not part:
            break
        parts.append(part)
        position += len(part)
        length -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


class Descriptors:
    """Of one disk. All of it may be called from any thread."""

    def __init__(self, count_max: int = sys.maxsize) -> None:
        """Files that keep what they have not synced may be more."""
        self._count_max = count_max
        self._files: weakref.WeakSet[RealFile] = weakref.WeakSet()
        # Those that were opened, and may have been closed; who was looked at longest ago is first.
        self._open: deque[weakref.ref[RealFile]] = deque()
        self._lock = threading.Lock()

    def opened(self, file: RealFile) -> None:
        """It has a descriptor: another one may have to rest."""
        with self._lock:
            self._files.add(file)
            self._has_one(file)

    def again(self, file: RealFile) -> Descriptor:
        """Raises OSError."""
        with self._lock:
            was_open = file.is_open
            held = file.open_again()
            if not was_open:
                self._has_one(file)
        return held

    def _has_one(self, file: RealFile) -> None:
        self._open.append(weakref.ref(file))
        self._make_room()

    def _make_room(self) -> None:
        """One that was used since the last look stays."""
        for _ in range(LOOKS_AT_ONCE):
            if len(self._open) <= self._count_max:
                return
            reference = self._open.popleft()
            file = reference()
            if file is None or not file.is_open:
                continue
            if file.was_used or not file.may_rest:
                file.was_used = False
                self._open.append(reference)
            else:
                file.rest()

    @contextmanager
    def renaming(self, old: str, new: str) -> Iterator[None]:
        """Meanwhile nothing is opened again; afterwards it is opened by its new name."""
        with self._lock:
            yield
            for file in self._files:
                if f"{file.full_path}/".startswith(f"{old}/"):
                    file.full_path = new + file.full_path[len(old) :]
