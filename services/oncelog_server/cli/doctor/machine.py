"""This machine: the disks of data directories, open files, and what `oncelog up` needs."""

from __future__ import annotations

import os
import resource
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from oncelog_server.cli.doctor.findings import Finding, fail, ok, skip, warn

MIB: Final = 1 << 20
# Half of them may be connections, of which a process takes up to 8,192.
FILES_WANTED: Final = 16_384
SYNCED_TIMES: Final = 20
SYNCED_BYTES: Final = 4_096
# Every acknowledgement waits for a sync.
SLOW_SYNC_MS: Final = 20
TOO_SLOW_SYNC_MS: Final = 500
# Free space, as a multiple of the floor below which data is refused.
FLOORS_WANTED: Final = 4
_MOUNTS: Final = Path("/proc/self/mounts")
_NETWORK: Final = frozenset({"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "fuse.sshfs"})
_MEMORY: Final = frozenset({"tmpfs", "ramfs"})


def open_files() -> Finding:
    """What a process that is started from here may open."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY or hard >= FILES_WANTED:
        shown = "any number" if hard == resource.RLIM_INFINITY else f"{hard:,}"
        return ok("files", f"a process started here may open {shown} files")
    return warn(
        "files",
        f"a process started here may open {hard:,} files, so {hard // 2:,} connections",
        f"raise the hard limit (ulimit -Hn, LimitNOFILE) to {FILES_WANTED:,}",
    )


def etcd_for_up() -> Finding:
    """Could `oncelog up` start one?"""
    from oncelog_server.runtime.etcd.embedded import EtcdNotFound, look_for

    try:
        found = look_for()
    except EtcdNotFound as error:
        return warn("up", f"`oncelog up` could not start: {error}", "see the message")
    return ok("up", f"`oncelog up` would use {found}")


def disk(directory: Path, *, floor_bytes: int | None, whose: str) -> Iterator[Finding]:
    """Of a data directory, or of where one shall be. `floor_bytes` as its process has it."""
    from oncelog_server.runtime.node_config import NodeConfig

    floor = NodeConfig().disk_free_floor_bytes if floor_bytes is None else floor_bytes
    try:
        space = os.statvfs(directory)
    except OSError as error:
        yield fail("disk", f"{whose} {directory}: {error.strerror}", "name a directory that is")
        return
    free = space.f_bavail * space.f_frsize
    told = f"{whose} {directory}: {free // MIB:,} MiB free, data is refused below {floor // MIB:,}"
    if free < floor:
        yield fail("disk", told, "free some space: reads and open transactions go on meanwhile")
    elif free < FLOORS_WANTED * floor:
        yield warn("disk", told, "add space before it is full")
    else:
        yield ok("disk", told)
    yield from _file_system(directory, whose)
    yield from _orphans(directory, whose)
    yield _sync(directory, whose)


def _file_system(directory: Path, whose: str) -> Iterator[Finding]:
    kind = file_system_of(directory)
    if kind in _NETWORK:
        yield fail(
            "disk",
            f"{whose} {directory} lies on {kind}: locks and syncs cannot be relied on",
            "use a disk of this machine",
        )
    elif kind in _MEMORY:
        yield warn(
            "disk",
            f"{whose} {directory} lies in memory ({kind})",
            "use a disk, unless it may all be lost",
        )


def file_system_of(directory: Path) -> str:
    """Its name; empty where the system does not say."""
    try:
        lines = _MOUNTS.read_text().splitlines()
    except OSError:
        return ""
    path, best, kind = str(directory.resolve()), "", ""
    for line in lines:
        _, mount, found, *_ = line.split()
        mount = mount.replace("\\040", " ")
        inside = path == mount or path.startswith(mount.rstrip("/") + "/")
        if inside and len(mount) >= len(best):
            best, kind = mount, found
    return kind


def _orphans(directory: Path, whose: str) -> Iterator[Finding]:
    orphans = directory / "orphans"
    count = len(list(orphans.iterdir())) if orphans.is_dir() else 0
    if count:
        yield warn(
            "disk",
            f"{whose} {orphans} holds {count} replicas that etcd does not know",
            "of topics that were deleted? then remove them; nothing else does",
        )


def _sync(directory: Path, whose: str) -> Finding:
    """How long a small write takes to be durable there."""
    path = directory / f".oncelog-doctor-{os.getpid()}"
    took_ms = []
    try:
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        try:
            # Nobody finds it, and it goes with this process whatever happens.
            path.unlink()
            for _ in range(SYNCED_TIMES):
                began = time.perf_counter()
                os.write(descriptor, b"\0" * SYNCED_BYTES)
                os.fdatasync(descriptor)
                took_ms.append((time.perf_counter() - began) * 1000)
        finally:
            os.close(descriptor)
    except PermissionError:
        return skip("disk", f"{whose} {directory}: you may not write there, so syncs are not timed")
    except OSError as error:
        return fail("disk", f"{whose} {directory} cannot be written: {error.strerror}", "repair it")
    median = statistics.median(took_ms)
    told = f"{whose} {directory}: a sync takes {median:.1f} ms (slowest {max(took_ms):.1f})"
    do = "use a faster disk: every acknowledgement waits for one"
    if median >= TOO_SLOW_SYNC_MS:
        return fail("disk", told, do)
    return warn("disk", told, do) if median >= SLOW_SYNC_MS else ok("disk", told)
