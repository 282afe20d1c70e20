"""A data directory, as the log uses it. `disk` is the real one; tests give theirs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

# Of a file that cannot be read, or in which nothing is intact, and whose name another one takes.
ASIDE_SUFFIX: Final = ".damaged"


class File(Protocol):
    """An open file of a Disk."""

    path: str
    # Some of what was read of it the disk did not give back, and no CRC of it is right.
    has_unreadable: bool

    def read(self, position: int, length: int) -> bytes:
        """pread: fewer bytes than asked only at the end of the file. See `unreadable`."""
        ...

    def size(self) -> int: ...

    def is_blank_from(self, position: int) -> bool:
        """Nothing but zeros stands there and behind, and all of it can be read. Holes are not."""
        ...

    def close(self) -> None: ...


class Write(NamedTuple):
    """Bytes for one place in one file."""

    file: File
    position: int
    chunks: Sequence[bytes | memoryview]


class Disk(Protocol):
    """One data directory. Paths are relative to it. Blocking calls are for start-up and rare
    events; `commit` is the hot path. Raises OSError; a short write is an OSError(EIO)."""

    async def commit(self, writes: Sequence[Write]) -> None:
        """Writes all in order, then syncs every touched file. Durable when it returns; when it
        raises, all of the bytes are in doubt."""
        ...

    async def read(self, file: File, position: int, length: int) -> bytes:
        """As File.read, off the loop where that may block."""
        ...

    def open(self, path: str, *, create: bool = False, grows_to: int = 0) -> File:
        """Where it is created, its name is durable once a commit or sync of the file is.

        `grows_to` is a hint: it will be written from front to end up to about that size, so
        `commit` allocates ahead of the writes. Bytes allocated and not written are zeros."""
        ...

    def write_and_sync(self, file: File, position: int, data: bytes) -> None:
        """Blocking form of commit."""
        ...

    def write_unsynced(self, file: File, position: int, data: bytes) -> None:
        """Into the page cache only; `sync` makes it durable."""
        ...

    def sync(self, file: File) -> None: ...

    def truncate_and_sync(self, file: File, length: int) -> None: ...

    def replace_file(self, path: str, data: bytes) -> None:
        """Write-temp, sync, rename, sync-directory: after a crash old or new, never a mix."""
        ...

    def remove_cut_off(self, path: str) -> None:
        """Removes from a directory what a crash left of `replace_file`. No list shows it."""
        ...

    def make_directory(self, path: str) -> None:
        """With parents, each synced into its parent. No error where it exists."""
        ...

    def rename(self, source: str, target: str) -> None:
        """And syncs both directories."""
        ...

    def remove(self, path: str) -> None:
        """A file, durable at return."""
        ...

    def list(self, path: str) -> list[str]:
        """Names in a directory, sorted; empty where there is none."""
        ...

    def exists(self, path: str) -> bool: ...

    def taken_bytes(self, path: str) -> int:
        """What a file takes, without its holes; 0 where there is none."""
        ...

    def free_bytes(self) -> int: ...

    def lock(self) -> None:
        """Takes the directory for this process (flock). Raises OSError naming the directory."""
        ...

    def close(self) -> None: ...


def read_all(disk: Disk, path: str) -> bytes:
    """A file that is read as one; empty where there is none. Blocking. Raises OSError."""
    return _read_all(disk, path)[0]


def read_if_readable(disk: Disk, path: str) -> bytes | None:
    """As `read_all`; None where the disk does not give all of it. Blocking. Raises OSError."""
    data, is_whole = _read_all(disk, path)
    return data if is_whole else None


def _read_all(disk: Disk, path: str) -> tuple[bytes, bool]:
    if not disk.exists(path):
        return b"", True
    file = disk.open(path)
    try:
        data = file.read(0, file.size())
        return data, not file.has_unreadable
    finally:
        file.close()


def set_aside(disk: Disk, path: str) -> None:
    """Durably: what cannot be read can often not be written in part, either. Raises OSError."""
    disk.rename(path, path + ASIDE_SUFFIX)
