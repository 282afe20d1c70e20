"""What else the machine did while we measured: CPU seconds of everybody, and of ourselves."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

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
