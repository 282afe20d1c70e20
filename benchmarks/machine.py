"""What else the machine did while we measured: CPU seconds of everybody, and of ourselves. And what
its disk can: a sync stands in every latency of ours, and in none of Kafka's. And in what state its
memory is when we begin."""

from __future__ import annotations

import mmap
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Final, NamedTuple

SYNC_BYTES: Final = 512
SYNCS: Final = 300
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


class CpuSeconds(NamedTuple):
    """Busy CPU seconds so far."""

    machine: float
    ours: float

    def since(self, before: CpuSeconds) -> CpuSeconds:
        return CpuSeconds(self.machine - before.machine, self.ours - before.ours)

    @property
    def foreign(self) -> float:
        return max(self.machine - self.ours, 0.0)


def cpu_seconds(root_pids: list[int]) -> CpuSeconds:
    """`root_pids` and all their living descendants are ours."""
    busy = Path("/proc/stat").read_text().splitlines()[0].split()[1:]
    # user nice system idle iowait irq softirq steal
    machine = sum(int(busy[i]) for i in (0, 1, 2, 5, 6)) / _TICKS_PER_SECOND
    parents, used = _processes()
    ours: set[int] = set(root_pids)
    grew = True
    while grew:
        more = {pid for pid, parent in parents.items() if parent in ours} - ours
        ours |= more
        grew = bool(more)
    return CpuSeconds(machine, sum(used.get(pid, 0.0) for pid in ours))


def process_cpu_seconds(pid: int) -> float:
    """Of this process alone, so far."""
    return _processes()[1][pid]


def syncs_ms(folder: Path) -> float:
    """Median of one small write and sync into allocated space."""
    took = []
    with tempfile.TemporaryFile(dir=folder) as file:
        fd = file.fileno()
        os.posix_fallocate(fd, 0, SYNCS * SYNC_BYTES)
        os.fsync(fd)
        for number in range(SYNCS):
            start = time.perf_counter()
            os.pwrite(fd, bytes(SYNC_BYTES), number * SYNC_BYTES)
            os.fdatasync(fd)
            took.append(time.perf_counter() - start)
    return statistics.median(took) * 1000


def use_free_memory(size: int) -> None:
    """To be called right before a round that may need so many bytes of new memory, page cache for
    what it writes included. On a virtual machine that reports free pages to its host
    (balloon) whoever touches one next waits until the host has found another: up to ten times what
    a page costs otherwise, and more for the side that needs more memory in less time. Here it is
    touched by nobody's round."""
    page = mmap.PAGESIZE
    free = os.sysconf("SC_AVPHYS_PAGES") * page
    size = min(size, free // 2) // page * page
    if size:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE
        mmap.mmap(-1, size, flags=flags).close()


def _processes() -> tuple[dict[int, int], dict[int, float]]:
    parents: dict[int, int] = {}
    used: dict[int, float] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            # The command may hold spaces and brackets: what follows the last ')' is regular.
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents[int(entry.name)] = int(fields[1])
        used[int(entry.name)] = (int(fields[11]) + int(fields[12])) / _TICKS_PER_SECOND
    return parents, used
