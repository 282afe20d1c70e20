"""The real Disk: one data directory, and two writer threads: one may write a commit while the other
still syncs the one before. They are not troubled with a commit that is small while the disk is
quick (`quick_syncs`).

Invariants:
  * a commit is durable when it returns: bytes, file sizes and the names of new files;
  * a short write is an error, never a record; no space is ENOSPC, everything else stays what it is;
  * a file that is closed while a job of a writer still uses it is closed when that job is done;
  * one commit is written at a time; and one is synced at a time, in the order in which they were
    given: in the loop's thread only while no writer has one.

Measured: handing a commit to the thread and back costs 0.1 ms; into allocated space a
small write syncs in 2/3 of the time; of many files one `syncfs` is the quickest, but it also
writes what others left dirty on that volume, so it is used only where the volume is ours.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from errno import EBADF, EIO, ENOSPC
from pathlib import Path
from queue import SimpleQueue
from typing import Final, NamedTuple, TypeVar

from oncelog_server.runtime.storage.port import File, Write
from oncelog_server.runtime.storage.quick_syncs import QuickSyncs
from oncelog_server.runtime.storage.real_file import Descriptor, Descriptors, RealFile
from oncelog_server.runtime.storage.syscalls import (
    datasync,
    fallocate,
    sync_directory,
    syncfs_call,
)

# Above that many files one syncfs is quicker than as many fdatasyncs in parallel.
PARALLEL_SYNCS_MAX: Final = 4
# One writes while the other syncs.
WRITER_THREADS: Final = 2
SYNC_THREADS: Final = 8
READ_THREADS: Final = 4
# Reads up to this size are first tried in the loop's thread, from the page cache alone.
CACHED_READ_BYTES_MAX: Final = 256 << 10
# A growing file is allocated ahead in steps that double.
ALLOCATION_STEP_BYTES_MIN: Final = 256 << 10
ALLOCATION_STEP_BYTES_MAX: Final = 16 << 20
# IOV_MAX and the most that one write takes, of Linux.
# In which `stat` counts, whatever the file system does (stat(2)).
STAT_BLOCK_BYTES: Final = 512
CHUNKS_PER_WRITE_MAX: Final = 1024
WRITE_BYTES_MAX: Final = 1 << 30
TEMPORARY_SUFFIX: Final = ".new"


T = TypeVar("T")

# What is written, where, and the descriptor for it.
_Held = tuple[RealFile, Descriptor, int, Sequence[bytes | memoryview]]


class _Job(NamedTuple):
    """A commit on its way. It holds the descriptors, so that nobody closes them under it."""

    writes: Sequence[_Held]
    loop: asyncio.AbstractEventLoop
    done: asyncio.Future[None]
    # Of the one that was given before it, where that may be under way; and its own.
    before: threading.Event | None
    synced: threading.Event


class RealDisk:
    """The Disk port over a directory of this machine. Made where there is none."""

    def __init__(self, path: str | Path, *, descriptors_max: int = sys.maxsize) -> None:
        """`descriptors_max`: of the files that have nothing to sync, so many stay open."""
        self._root = str(path)
        self._descriptors = Descriptors(descriptors_max)
        _make_root(os.path.abspath(self._root))
        self._root_fd = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY)
        self._syncfs = syncfs_call(self._root)
        # Names that are durable for sure. One that a process found may be another's that was killed
        # before it synced the directory, so at first none is.
        self._durable_names: set[str] = set()
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        # That no writer has settled yet. Only the loop's thread counts.
        self._under_way = 0
        # Of the last commit that was given to a writer. Only the loop's thread asks.
        self._last: threading.Event | None = None
        self._writing = threading.Lock()
        self._quick = QuickSyncs()
        self._syncs = ThreadPoolExecutor(SYNC_THREADS, "oncelog-sync")
        self._reads = ThreadPoolExecutor(READ_THREADS, "oncelog-read")
        self._writers = [
            threading.Thread(target=self._serve, name=f"oncelog-writer-{number}", daemon=True)
            for number in range(WRITER_THREADS)
        ]
        for writer in self._writers:
            writer.start()
        self._closed = False

    # ------------------------------------------------------------------------------ the hot path

    async def commit(self, writes: Sequence[Write]) -> None:
        if self._closed:
            raise OSError(EBADF, "the disk is closed", self._root)
        held = [_held(write) for write in writes]
        if not self._under_way and self._is_quick(held):
            error, took_ms = self._do(held, None)
            self._quick.took(took_ms)
            if error is not None:
                raise error
            return
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        before = self._last if self._under_way else None
        self._last = threading.Event()
        self._under_way += 1
        self._jobs.put(_Job(held, loop, done, before, self._last))
        await done

    def _is_quick(self, writes: Sequence[_Held]) -> bool:
        """One small write into space that is there, and its sync."""
        if len(writes) != 1:
            return False
        file, _, position, chunks = writes[0]
        size_bytes = sum(map(len, chunks))
        return (
            self._quick.may_wait(size_bytes)
            and (not file.grows_to or position + size_bytes <= file.allocated)
            and file.full_path in self._durable_names
        )

    async def read(self, file: File, position: int, length: int) -> bytes:
        real = _real(file)
        if length <= CACHED_READ_BYTES_MAX:
            cached = real.read_cached(position, length)
            if cached is not None:
                return cached
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._reads, real.read, position, length)

    def _serve(self) -> None:
        """A writer thread."""
        while (job := self._jobs.get()) is not None:
            error, took_ms = self._do(job.writes, job.before)
            job.synced.set()
            # The loop may be gone at shutdown; then nobody waits.
            with suppress(RuntimeError):
                job.loop.call_soon_threadsafe(self._settle, job.done, error, took_ms)
            del job

    def _do(
        self, writes: Sequence[_Held], before: threading.Event | None
    ) -> tuple[BaseException | None, float]:
        """The commit: its error, and how long it took, milliseconds, without its turn to sync."""
        began = time.perf_counter()
        waited_s = 0.0
        error: BaseException | None = None
        try:
            try:
                with self._writing:
                    touched = self._write_all(writes)
            finally:
                # Also where there is nothing to sync: who comes next waits for this one alone.
                waited_s = _waited_s(before)
            self._sync_touched(touched)
        except BaseException as caught:
            error = caught
        return error, (time.perf_counter() - began - waited_s) * 1000

    def _settle(
        self, done: asyncio.Future[None], error: BaseException | None, took_ms: float
    ) -> None:
        """On the loop: a writer has done a job, whether anybody still waits for it or not."""
        self._under_way -= 1
        self._quick.took(took_ms)
        if done.done():
            return
        if error is None:
            done.set_result(None)
        else:
            done.set_exception(error)

    def _write_all(self, writes: Sequence[_Held]) -> dict[int, RealFile]:
        """The files, by the descriptors that are held."""
        touched: dict[int, RealFile] = {}
        for file, held, position, chunks in writes:
            self._write(file, held.fd, position, chunks)
            file.writes()
            touched[held.fd] = file
        return touched

    def _sync_touched(self, touched: dict[int, RealFile]) -> None:
        written = [(file, file.written) for file in touched.values()]
        has_names = self._sync_all(list(touched))
        for file, last in written:
            file.synced(last)
        paths = [file.full_path for file in touched.values()]
        if has_names:
            self._durable_names.update(paths)
        else:
            self._sync_names(paths)

    def _write(
        self, file: RealFile, fd: int, position: int, chunks: Sequence[bytes | memoryview]
    ) -> None:
        if file.grows_to:
            _allocate_ahead(file, fd, position + sum(map(len, chunks)))
        for first in range(0, len(chunks), CHUNKS_PER_WRITE_MAX):
            part = chunks[first : first + CHUNKS_PER_WRITE_MAX]
            position += self._write_part(file, fd, position, part)

    def _write_part(
        self, file: RealFile, fd: int, position: int, chunks: Sequence[bytes | memoryview]
    ) -> int:
        wanted = sum(map(len, chunks))
        if wanted > WRITE_BYTES_MAX:
            half = len(chunks) // 2
            assert half, f"a chunk is below {WRITE_BYTES_MAX} bytes"
            done = self._write_part(file, fd, position, chunks[:half])
            return done + self._write_part(file, fd, position + done, chunks[half:])
        written = os.pwritev(fd, chunks, position) if chunks else 0
        if written != wanted:
            # The system says why only when it is asked to go on; too little room is the usual why.
            errno = ENOSPC if self.free_bytes() < wanted - written else EIO
            raise OSError(errno, f"short write: {written} of {wanted} bytes", file.full_path)
        return written

    def _sync_all(self, fds: Sequence[int]) -> bool:
        """True: and the names of all files with them."""
        if len(fds) > PARALLEL_SYNCS_MAX and self._syncfs is not None:
            self._syncfs(self._root_fd)
            return True
        self._at_once(datasync, fds)
        return False

    def _at_once(self, sync: Callable[[T], None], all_of: Sequence[T]) -> None:
        """The first one by this thread. Returns, or raises OSError, when all are done."""
        others = [self._syncs.submit(sync, each) for each in all_of[1:]]
        try:
            for each in all_of[:1]:
                sync(each)
        finally:
            wait(others)
        for other in others:
            other.result()

    def _sync_names(self, full_paths: Iterable[str]) -> None:
        unknown = [path for path in full_paths if path not in self._durable_names]
        self._at_once(sync_directory, sorted({os.path.dirname(path) for path in unknown}))
        self._durable_names.update(unknown)

    # ------------------------------------------------------------------------- start, rare events

    def open(self, path: str, *, create: bool = False, grows_to: int = 0) -> RealFile:
        full = self._full(path)
        try:
            fd = os.open(full, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            if not create:
                raise
            self._durable_names.discard(full)
            fd = os.open(full, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        file = RealFile(path, full, fd, grows_to=grows_to, descriptors=self._descriptors)
        self._descriptors.opened(file)
        return file

    def write_and_sync(self, file: File, position: int, data: bytes) -> None:
        self.write_unsynced(file, position, data)
        self.sync(file)

    def write_unsynced(self, file: File, position: int, data: bytes) -> None:
        real, held, position, chunks = _held(Write(file, position, (data,)))
        self._write_part(real, held.fd, position, chunks)
        real.writes()

    def sync(self, file: File) -> None:
        real = _real(file)
        held, written = real.descriptor, real.written
        datasync(held.fd)
        real.synced(written)
        self._sync_names([real.full_path])

    def truncate_and_sync(self, file: File, length: int) -> None:
        real = _real(file)
        real.writes()
        held, written = real.descriptor, real.written
        os.ftruncate(held.fd, length)
        real.allocated = length
        os.fsync(held.fd)
        real.synced(written)
        self._sync_names([real.full_path])

    def replace_file(self, path: str, data: bytes) -> None:
        full = self._full(path)
        temporary = full + TEMPORARY_SUFFIX
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        file = RealFile(path, temporary, fd)
        try:
            self._write_part(file, fd, 0, (data,))
            os.fsync(fd)
            file.close()
            os.rename(temporary, full)
        except BaseException:
            # Nobody lists it, and the next one may have another name: on a full disk it would keep
            # room that others need.
            file.close()
            with suppress(OSError):
                os.unlink(temporary)
            raise
        sync_directory(os.path.dirname(full))

    def remove_cut_off(self, path: str) -> None:
        directory = self._full(path)
        for name in os.listdir(directory):
            if name.endswith(TEMPORARY_SUFFIX):
                os.unlink(os.path.join(directory, name))

    def make_directory(self, path: str) -> None:
        made = ""
        for name in path.split("/"):
            parent = self._full(made)
            made = f"{made}/{name}" if made else name
            full, names = self._full(made), [name]
            try:
                os.mkdir(full)
                self._durable_names.discard(full)
            except FileExistsError:
                if full not in self._durable_names:
                    # One sync is for all that others left there.
                    names = os.listdir(parent)
            if full not in self._durable_names:
                sync_directory(parent)
                self._durable_names.update(os.path.join(parent, name) for name in names)

    def rename(self, source: str, target: str) -> None:
        old, new = self._full(source), self._full(target)
        with self._descriptors.renaming(old, new):
            os.rename(old, new)
        # Each in one step, and in place: writers add names meanwhile, and others take some out.
        known = self._durable_names.copy()
        gone = [name for name in known if name == old or name.startswith(old + "/")]
        self._durable_names.difference_update(gone)
        for directory in sorted({os.path.dirname(old), os.path.dirname(new)}):
            sync_directory(directory)

    def remove(self, path: str) -> None:
        full = self._full(path)
        os.unlink(full)
        sync_directory(os.path.dirname(full))

    def list(self, path: str) -> list[str]:
        try:
            names = os.listdir(self._full(path))
        except FileNotFoundError:
            return []
        return sorted(name for name in names if not name.endswith(TEMPORARY_SUFFIX))

    def exists(self, path: str) -> bool:
        return os.path.exists(self._full(path))

    def taken_bytes(self, path: str) -> int:
        try:
            return os.stat(self._full(path)).st_blocks * STAT_BLOCK_BYTES
        except FileNotFoundError:
            return 0

    def free_bytes(self) -> int:
        free = os.fstatvfs(self._root_fd)
        return free.f_bavail * free.f_frsize

    def lock(self) -> None:
        try:
            fcntl.flock(self._root_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            text = "another process uses this data directory; stop it, or choose another directory"
            raise OSError(error.errno, text, self._root) from error

    def close(self) -> None:
        """Finishes the commits under way and lets go of the lock."""
        if self._closed:
            return
        self._closed = True
        for _ in self._writers:
            self._jobs.put(None)
        for writer in self._writers:
            writer.join()
        self._syncs.shutdown()
        self._reads.shutdown()
        os.close(self._root_fd)

    def _full(self, path: str) -> str:
        return os.path.join(self._root, path) if path else self._root


def _make_root(full: str) -> None:
    """With its parents, each synced into its own. The last one that is found is synced, too: a
    process may have been killed before it did that."""
    parent = os.path.dirname(full)
    is_new = not os.path.isdir(full)
    if is_new:
        _make_root(parent)
        with suppress(FileExistsError):
            os.mkdir(full)
    # Where its parent is not ours to open, somebody else made the directory.
    with suppress(PermissionError if is_new else OSError):
        sync_directory(parent)


def _waited_s(before: threading.Event | None) -> float:
    """How long it took until the commit before was synced, if there is one."""
    if before is None:
        return 0.0
    began = time.perf_counter()
    before.wait()
    return time.perf_counter() - began


def _held(write: Write) -> _Held:
    """From here on the file keeps the descriptor until what is written is synced."""
    real = _real(write.file)
    real.writes()
    return real, real.descriptor, write.position, write.chunks


def _real(file: File) -> RealFile:
    assert isinstance(file, RealFile), "a disk writes its own files"
    return file


def _allocate_ahead(file: RealFile, fd: int, end: int) -> None:
    """Makes room for the write and some that will follow. A hint: where it fails, the write itself
    says what is wrong."""
    if end <= file.allocated:
        return
    step = min(max(file.allocated, ALLOCATION_STEP_BYTES_MIN), ALLOCATION_STEP_BYTES_MAX)
    target = max(end, min(file.allocated + step, file.grows_to))
    if fallocate(fd, file.allocated, target - file.allocated):
        file.allocated = target
    else:
        file.allocated = end
