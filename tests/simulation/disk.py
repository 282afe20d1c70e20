"""A disk in memory, for the virtual-time loop: the Disk port with faults.

It knows what a real disk forgets when the power goes: bytes that were not synced, and names of
files that were made and not synced. One seed decides every delay and every tear.

    disk = FakeDisk(seed=7)
    disk.fail_next(errno.EIO)        the next durable step fails, its bytes stay in doubt
    disk.fail_files(".slots", errno.EIO)   writes and syncs of such files fail
    disk.short_write_next()          the next write takes half of its bytes, then fails
    disk.cannot_read("log", 0, 512)  reads of these bytes fail, as of a bad sector
    disk.full = True                 every write that needs room fails with ENOSPC
    disk.left_bytes = 4096           so much room is left, whatever is written
    disk.capacity_bytes = 1 << 20    so much room there is in all
    disk.hold_commits()              what is committed from now on stays in the page cache
    disk.kill()                      the process ends: unsynced bytes stay in the page cache
    disk.crash(Tear.SCATTER)         the power goes
    disk = disk.reopen()             the next process on the same platter
"""

from __future__ import annotations

import asyncio
import copy
import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from errno import EAGAIN, EBADF, EIO, ENOENT, ENOSPC
from typing import Final

from oncelog_server.runtime.storage.port import File, Write
from oncelog_server.runtime.storage.unreadable import read_around

# A file that grows gets so many zeros behind what is written, as a real disk allocates ahead.
ALLOCATED_AHEAD_BYTES: Final = 4096
# What a torn write is torn into.
SECTOR_BYTES: Final = 512
UNLIMITED_BYTES: Final = 1 << 40


class Tear(Enum):
    """What of the unsynced bytes survives a loss of power."""

    # Nothing.
    NOTHING = "nothing"
    # The first writes, and a part of the next one.
    PREFIX = "prefix"
    # Any sectors of any write: a disk reorders.
    SCATTER = "scatter"


class Survived(Enum):
    """What became of a file's unsynced writes in a loss of power."""

    ALL = "all of them are there, or there were none"
    PART = "they are torn"
    NOT = "they are lost"


@dataclass(slots=True)
class _Inode:
    """A file on the platter: what processes see, what is safe, and the steps in between."""

    content: bytearray = field(default_factory=bytearray)
    durable: bytearray = field(default_factory=bytearray)
    # (position, bytes), or (length, None) for a truncation.
    unsynced: list[tuple[int, bytes | None]] = field(default_factory=list)
    # Bytes that a read of fails with EIO, from and to.
    unreadable: tuple[int, int] = (0, 0)

    def read(self, position: int, length: int) -> bytes:
        begin, end = self.unreadable
        if begin < position + length and position < end:
            raise OSError(EIO, "the fake disk cannot read this")
        return bytes(self.content[position : position + length])

    def require_writable(self, position: int, length: int) -> None:
        """What is written over as a whole can be read again; who writes a part of it reads it."""
        begin, end = self.unreadable
        if position <= begin and end <= position + length:
            self.unreadable = (0, 0)
        elif begin < position + length and position < end:
            raise OSError(EIO, "the fake disk cannot read what stands beside this")

    def write(self, position: int, data: bytes) -> None:
        _put(self.content, position, data)
        self.unsynced.append((position, data))

    def truncate(self, length: int) -> None:
        begin, end = self.unreadable
        if length <= begin:
            self.unreadable = (0, 0)
        elif length < end:
            raise OSError(EIO, "the fake disk cannot read what stands beside this")
        _put(self.content, length, None)
        self.unsynced.append((length, None))

    def sync(self) -> None:
        for position, data in self.unsynced:
            _put(self.durable, position, data)
        self.unsynced.clear()
        # What was allocated ahead is zeros on both sides.
        _put(self.durable, len(self.content), b"")

    def fail_sync(self, chance: random.Random) -> None:
        """As Linux: what could not be written counts as clean, and no later sync writes it."""
        self.unsynced = [step for step in self.unsynced if chance.random() < 0.5]

    def lose_power(self, tear: Tear, chance: random.Random) -> Survived:
        before, wanted = bytes(self.durable), bytes(self.content)
        if tear is Tear.PREFIX and self.unsynced:
            whole = chance.randrange(len(self.unsynced))
            for position, data in self.unsynced[:whole]:
                _put(self.durable, position, data)
            position, data = self.unsynced[whole]
            if data is not None:
                _put(self.durable, position, data[: chance.randrange(len(data) + 1)])
        elif tear is Tear.SCATTER:
            for position, data in self.unsynced:
                for at in range(0, len(data or b""), SECTOR_BYTES):
                    if data is not None and chance.random() < 0.5:
                        _put(self.durable, position + at, data[at : at + SECTOR_BYTES])
        lost = bool(self.unsynced) and self.durable != wanted
        self.content = bytearray(self.durable)
        self.unsynced.clear()
        if not lost:
            return Survived.ALL
        return Survived.NOT if self.durable == before else Survived.PART


def _put(target: bytearray, position: int, data: bytes | None) -> None:
    if data is None:
        del target[position:]
        return
    if len(target) < position:
        target.extend(bytes(position - len(target)))
    target[position : position + len(data)] = data


@dataclass(slots=True)
class _Platter:
    """What outlives a process."""

    chance: random.Random
    names: dict[str, _Inode] = field(default_factory=dict)
    durable_names: dict[str, _Inode] = field(default_factory=dict)
    directories: set[str] = field(default_factory=lambda: {""})
    locked_by: FakeDisk | None = None


class FakeFile:
    """The File port."""

    def __init__(self, path: str, inode: _Inode, grows_to: int) -> None:
        self.path = path
        self.grows_to = grows_to
        self.has_unreadable = False
        self._inode: _Inode | None = inode

    @property
    def inode(self) -> _Inode:
        if self._inode is None:
            raise OSError(EBADF, "the file is closed", self.path)
        return self._inode

    def read(self, position: int, length: int) -> bytes:
        inode = self.inode
        with suppress(OSError):
            return inode.read(position, length)
        data, is_filled = read_around(inode.read, position, length, size=self.size())
        self.has_unreadable |= is_filled
        return data

    def size(self) -> int:
        return len(self.inode.content)

    def is_blank_from(self, position: int) -> bool:
        is_readable = self.inode.unreadable[1] <= position
        return is_readable and not self.inode.content[position:].strip(b"\0")

    def close(self) -> None:
        self._inode = None


class FakeDisk:
    """The Disk port. See the module."""

    def __init__(
        self,
        *,
        seed: int = 0,
        delay_ms: tuple[float, float] = (0.1, 2.0),
        capacity_bytes: int | None = None,
        platter: _Platter | None = None,
    ) -> None:
        self._platter = platter or _Platter(random.Random(seed))
        self._delay_ms = delay_ms
        self._alive = True
        self._writer: asyncio.Lock | None = None
        self._next_errno = 0
        self._fail_after = 0
        self._next_is_short = False
        self._failing = ("", 0)
        self._commits_go_on = asyncio.Event()
        self._commits_go_on.set()
        # Every write that needs room fails.
        self.full = False
        # None: there is no end.
        self.capacity_bytes = capacity_bytes
        # None: what `capacity_bytes` leaves.
        self.left_bytes: int | None = None
        # Commits that returned, and syncs of single files, for tests that count them.
        self.commits = 0
        self.syncs = 0

    # ------------------------------------------------------------------------------------- faults

    def fail_next(self, errno: int = EIO, *, after: int = 0) -> None:
        """The next commit, sync, replace, rename or remove raises, or the one `after` so many. Its
        bytes are in doubt, though reads show them."""
        self._next_errno, self._fail_after = errno, after

    def fail_files(self, ending: str, errno: int) -> None:
        """Every write and sync of a file whose name ends so fails, until told otherwise."""
        self._failing = (ending, errno)

    def short_write_next(self) -> None:
        self._next_is_short = True

    def takes_ms(self, delay_ms: float) -> None:
        """Each commit, from now on."""
        self._delay_ms = (delay_ms, delay_ms)

    def hold_commits(self) -> None:
        """They write, and their syncs do not end until `let_commits`: a disk that hangs."""
        self._commits_go_on.clear()

    def let_commits(self) -> None:
        self._commits_go_on.set()

    def kill(self) -> None:
        """The process is gone; nothing else happens to the disk."""
        self._alive = False
        if self._platter.locked_by is self:
            self._platter.locked_by = None

    def crash(self, tear: Tear = Tear.NOTHING) -> set[Survived]:
        """The power goes. What of unsynced writes survived, of all files."""
        self.kill()
        platter = self._platter
        for path in sorted(platter.names.keys() - platter.durable_names.keys()):
            if tear is Tear.SCATTER and platter.chance.random() < 0.5:
                platter.durable_names[path] = platter.names[path]
        platter.names = dict(sorted(platter.durable_names.items()))
        return {inode.lose_power(tear, platter.chance) for inode in platter.names.values()}

    def reopen(self) -> FakeDisk:
        """The disk as the next process finds it."""
        if self._alive:
            self.kill()
        again = FakeDisk(
            delay_ms=self._delay_ms, capacity_bytes=self.capacity_bytes, platter=self._platter
        )
        again.full, again.left_bytes = self.full, self.left_bytes
        again._failing = self._failing
        return again

    def copied(self) -> FakeDisk:
        """Another one that holds the same, as the next process finds it."""
        again = self.reopen()
        again._platter = copy.deepcopy(self._platter)
        return again

    def bytes_of(self, path: str) -> bytes:
        """A file as processes see it."""
        return bytes(self._platter.names[path].content)

    def damage(self, path: str, change: Callable[[bytearray], None]) -> None:
        """Changes the bytes of a file behind everybody's back, for good."""
        inode = self._platter.names[path]
        change(inode.content)
        inode.durable = bytearray(inode.content)
        inode.unsynced.clear()

    def cannot_read(self, path: str, begin: int, end: int) -> None:
        """From now on, for good: these bytes of a file, as of a bad sector."""
        self._platter.names[path].unreadable = (begin, end)

    def lose_all(self, *, but: str) -> None:
        """An empty disk, with a copy of this one file."""
        platter = self._platter
        kept = {path: inode for path, inode in platter.durable_names.items() if path == but}
        platter.names, platter.durable_names = dict(kept), kept
        platter.directories = {""}

    # ------------------------------------------------------------------------------ the Disk port

    async def commit(self, writes: Sequence[Write]) -> None:
        self._require_alive()
        if self._writer is None:
            self._writer = asyncio.Lock()
        inodes = [_fake(write.file) for write in writes]
        held = [file.inode for file in inodes]
        # Beside the sync of the one before, which may make some of it durable, or fail over it.
        for write, file, inode in zip(writes, inodes, held, strict=True):
            self._write(file, inode, write.position, b"".join(write.chunks))
        async with self._writer:
            self._require_alive()
            low, high = self._delay_ms
            await asyncio.sleep(self._platter.chance.uniform(low, high) / 1000)
            if not self._commits_go_on.is_set():
                await self._commits_go_on.wait()
            self._require_alive()
            self._fail_if_told(*held)
            for file, inode in zip(inodes, held, strict=True):
                inode.sync()
                self._make_name_durable(file.path, inode)
            self.commits += 1

    async def read(self, file: File, position: int, length: int) -> bytes:
        self._require_alive()
        real = _fake(file)
        await asyncio.sleep(0)
        self._require_alive()
        return real.read(position, length)

    def open(self, path: str, *, create: bool = False, grows_to: int = 0) -> FakeFile:
        self._require_alive()
        inode = self._platter.names.get(path)
        if inode is None:
            if not create or path.rpartition("/")[0] not in self._platter.directories:
                raise OSError(ENOENT, "no such file", path)
            inode = self._platter.names[path] = _Inode()
        return FakeFile(path, inode, grows_to)

    def write_and_sync(self, file: File, position: int, data: bytes) -> None:
        self.write_unsynced(file, position, data)
        self.sync(file)

    def write_unsynced(self, file: File, position: int, data: bytes) -> None:
        self._require_alive()
        fake = _fake(file)
        self._write(fake, fake.inode, position, data)

    def sync(self, file: File) -> None:
        self._require_alive()
        fake = _fake(file)
        self._require_fit(fake.path)
        self._fail_if_told(fake.inode)
        fake.inode.sync()
        self._make_name_durable(fake.path, fake.inode)
        self.syncs += 1

    def truncate_and_sync(self, file: File, length: int) -> None:
        self._require_alive()
        _fake(file).inode.truncate(length)
        self.sync(file)

    def replace_file(self, path: str, data: bytes) -> None:
        self._require_alive()
        self._require_room(len(data))
        self._fail_if_told()
        inode = _Inode(bytearray(data), bytearray(data))
        self._platter.names[path] = self._platter.durable_names[path] = inode

    def remove_cut_off(self, path: str) -> None:
        self._require_alive()

    def make_directory(self, path: str) -> None:
        self._require_alive()
        made = ""
        for name in path.split("/"):
            made = f"{made}/{name}" if made else name
            self._platter.directories.add(made)

    def rename(self, source: str, target: str) -> None:
        self._require_alive()
        self._fail_if_told()
        platter = self._platter
        for names in (platter.names, platter.durable_names):
            for path in [path for path in names if _is_below(path, source)]:
                names[target + path[len(source) :]] = names.pop(path)
        moved = {path for path in platter.directories if _is_below(path, source)}
        platter.directories -= moved
        platter.directories |= {target + path[len(source) :] for path in moved}

    def remove(self, path: str) -> None:
        self._require_alive()
        if path not in self._platter.names:
            raise OSError(ENOENT, "no such file", path)
        self._fail_if_told()
        del self._platter.names[path]
        self._platter.durable_names.pop(path, None)

    def list(self, path: str) -> list[str]:
        self._require_alive()
        prefix = f"{path}/" if path else ""
        paths = [*self._platter.names, *self._platter.directories - {""}]
        below = {name[len(prefix) :] for name in paths if name.startswith(prefix)}
        return sorted({name.partition("/")[0] for name in below})

    def exists(self, path: str) -> bool:
        self._require_alive()
        return path in self._platter.names or path in self._platter.directories

    def taken_bytes(self, path: str) -> int:
        inode = self._platter.names.get(path)
        return 0 if inode is None else len(inode.content)

    def free_bytes(self) -> int:
        if self.full:
            return 0
        if self.left_bytes is not None:
            return self.left_bytes
        if self.capacity_bytes is None:
            return UNLIMITED_BYTES
        return max(self.capacity_bytes - self.used_bytes(), 0)

    def used_bytes(self) -> int:
        return sum(len(inode.content) for inode in self._platter.names.values())

    def lock(self) -> None:
        self._require_alive()
        if self._platter.locked_by not in (None, self):
            raise OSError(EAGAIN, "another process uses this data directory", "fake disk")
        self._platter.locked_by = self

    def close(self) -> None:
        self.kill()

    # ----------------------------------------------------------------------------------- the rules

    def _write(self, file: FakeFile, inode: _Inode, position: int, data: bytes) -> None:
        self._require_fit(file.path)
        end = position + len(data)
        self._require_room(end - len(inode.content))
        inode.require_writable(position, len(data))
        if self._next_is_short:
            self._next_is_short = False
            inode.write(position, data[: len(data) // 2])
            raise OSError(EIO, f"short write: {len(data) // 2} of {len(data)} bytes", file.path)
        inode.write(position, data)
        ahead = min(end + ALLOCATED_AHEAD_BYTES, file.grows_to) - len(inode.content)
        if ahead > 0:
            inode.content.extend(bytes(ahead))

    def _require_fit(self, path: str) -> None:
        ending, errno = self._failing
        if errno and path.endswith(ending):
            raise OSError(errno, "the fake disk was told to fail", path)

    def _require_room(self, needed: int) -> None:
        if needed > self.free_bytes():
            raise OSError(ENOSPC, "no space left on the fake disk")

    def _make_name_durable(self, path: str, inode: _Inode) -> None:
        if self._platter.names.get(path) is inode:
            self._platter.durable_names[path] = inode

    def _fail_if_told(self, *inodes: _Inode) -> None:
        if self._next_errno and self._fail_after:
            self._fail_after -= 1
            return
        errno, self._next_errno = self._next_errno, 0
        if errno:
            for inode in inodes:
                inode.fail_sync(self._platter.chance)
            raise OSError(errno, "the fake disk was told to fail")

    def _require_alive(self) -> None:
        if not self._alive:
            raise OSError(EIO, "this process is gone: use reopen()")


def _fake(file: File) -> FakeFile:
    assert isinstance(file, FakeFile), "a disk writes its own files"
    return file


def _is_below(path: str, directory: str) -> bool:
    return path == directory or path.startswith(directory + "/")
