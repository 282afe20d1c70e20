"""System calls that Python lacks, or that mean less on some system than their name says."""

from __future__ import annotations

import ctypes
import fcntl
import os
from collections.abc import Callable
from errno import EINVAL, ENXIO
from typing import Any, Final

# syncfs reports failed writes of data since Linux 5.8, and what the file system itself could not
# write, as its journal, since 5.17 (Linux commits 5679897eb104, 2d86293c7075).
SYNCFS_KERNEL_MIN: Final = (5, 17)

_libc: Final = ctypes.CDLL(None, use_errno=True)


def fallocate(fd: int, position: int, length: int) -> bool:
    # Not os.posix_fallocate: where a file system has no fallocate, that writes every block.
    call = getattr(_libc, "fallocate", None)
    if call is None:
        return False
    size = ctypes.c_long
    return bool(call(fd, 0, size(position), size(length)) == 0)


def datasync(fd: int) -> None:
    # macOS: fsync reaches the drive's cache only, and there is no fdatasync.
    full = getattr(fcntl, "F_FULLFSYNC", None)
    if full is not None:
        fcntl.fcntl(fd, full)
    else:
        os.fdatasync(fd)


def next_data(fd: int, position: int) -> int:
    """Where something may stand that was written, at or behind `position`; -1: nothing does."""
    seek_data = getattr(os, "SEEK_DATA", None)
    if seek_data is None:
        return position
    try:
        return os.lseek(fd, position, seek_data)
    except OSError as error:
        if error.errno == ENXIO:
            return -1
        if error.errno == EINVAL:
            # This file system does not know.
            return position
        raise


def sync_directory(full_path: str) -> None:
    fd = os.open(full_path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def syncfs_call(root: str) -> Callable[[int], None] | None:
    """None unless the directory is the root of its volume and the kernel reports every error."""
    call: Any = getattr(_libc, "syncfs", None)
    if call is None or not os.path.ismount(root) or _kernel() < SYNCFS_KERNEL_MIN:
        return None

    def syncfs(fd: int) -> None:
        if call(fd) != 0:
            errno = ctypes.get_errno()
            raise OSError(errno, os.strerror(errno), root)

    return syncfs


def _kernel() -> tuple[int, int]:
    major, minor = os.uname().release.split(".")[:2]
    digits = "".join(digit for digit in minor if digit.isdigit())
    return int(major), int(digits or 0)
