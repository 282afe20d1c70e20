"""CPU and context switches of servers, looked at by a process of its own, so that looking neither
holds the interpreter of the client that is measured nor counts as the client's work.

    with Observer({"oncelog": [pid]}) as observer:
        before = observer.look()
        ...
        used = observer.look().since(before)

Threads end: /proc keeps nothing of their switches. So the observer looks at all threads every
LOOK_EVERY_S, and what a thread had when it was last seen stays counted (`Tally`). What it did after
that look is lost, and a thread that lives between two looks is never seen. The kernel keeps the CPU
of threads that ended, so of CPU that is true of processes alone. The client does not need this: of
itself a process knows all, ended threads too (`own_usage`).
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

LOOK_EVERY_S: Final = 0.5
_TICKS_PER_SECOND: Final = os.sysconf("SC_CLK_TCK")
_SWITCHES: Final = ("voluntary_ctxt_switches:", "nonvoluntary_ctxt_switches:")
# What tells the processes of ours apart; anything else is called as its command.
_ROLES: Final = ("coordinator", "partition_leader", "offset_manager")


class Usage(NamedTuple):
    """CPU seconds and context switches, voluntary or not."""

    cpu_s: float = 0.0
    switches: int = 0

    def since(self, before: Usage) -> Usage:
        return Usage(self.cpu_s - before.cpu_s, self.switches - before.switches)

    def plus(self, other: Usage) -> Usage:
        return Usage(self.cpu_s + other.cpu_s, self.switches + other.switches)


class Look(NamedTuple):
    """All so far: busy seconds of the machine, and what each kind of process used, by root."""

    machine_s: float
    # Root -> role -> usage.
    roots: Mapping[str, Mapping[str, Usage]]

    def since(self, before: Look) -> Look:
        return Look(
            self.machine_s - before.machine_s,
            {
                root: {
                    role: usage.since(before.roots.get(root, {}).get(role, Usage()))
                    for role, usage in roles.items()
                }
                for root, roles in self.roots.items()
            },
        )


class Tally:
    """The sum of counters that only grow, of members that come and go. A counter that is smaller
    than it was is that of another member under the same number."""

    def __init__(self) -> None:
        self._last: dict[tuple[int, ...], int] = {}
        self._ended: dict[int, int] = {}

    def look(self, seen: Mapping[tuple[int, ...], int]) -> None:
        """All members that live now. A key begins with the number of the process."""
        for key, last in list(self._last.items()):
            if key not in seen or seen[key] < last:
                self._ended[key[0]] = self._ended.get(key[0], 0) + last
                del self._last[key]
        self._last.update(seen)

    def of(self, pid: int) -> int:
        """Of one process, with what ended in it."""
        living = sum(count for key, count in self._last.items() if key[0] == pid)
        return living + self._ended.get(pid, 0)


class Watch:
    """What the observer knows: of each process that was ever below a root, to which one it belongs,
    what it is, and its counters."""

    def __init__(self, roots: Mapping[str, Sequence[int]]) -> None:
        self._roots = roots
        self._cpu = Tally()
        self._switches = Tally()
        self._known: dict[int, tuple[str, str]] = {}

    def look(self) -> Look:
        processes = processes_now()
        living = {
            pid: name
            for name, roots in self._roots.items()
            for root in roots
            for pid in below(root, processes)
        }
        for pid, name in living.items():
            if pid not in self._known:
                self._known[pid] = (name, role_of(pid))
        self._cpu.look({(pid,): processes[pid].ticks for pid in living})
        self._switches.look(dict(switches_of(living)))
        used_by: dict[str, dict[str, Usage]] = {name: {} for name in self._roots}
        for pid, (name, role) in self._known.items():
            used = Usage(self._cpu.of(pid) / _TICKS_PER_SECOND, self._switches.of(pid))
            used_by[name][role] = used_by[name].get(role, Usage()).plus(used)
        return Look(machine_busy_s(), used_by)


class Observer:
    """The other process, as this one knows it."""

    def __init__(self, roots: Mapping[str, Sequence[int]]) -> None:
        self._roots = roots

    def look(self) -> Look:
        """Now. The answer comes after a full look, so that it is never older than the question."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("look\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the observer ended with {self._process.wait()}")
        machine_s, roots = json.loads(answer)
        return Look(
            machine_s,
            {
                root: {role: Usage(*used) for role, used in roles.items()}
                for root, roles in roots.items()
            },
        )

    def __enter__(self) -> Observer:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.observer", json.dumps(self._roots)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            # Ctrl-C is for whoever observes.
            start_new_session=True,
        )
        return self

    def __exit__(self, *error: object) -> None:
        # It ends when nobody can ask any more.
        self._process.communicate()


def own_usage() -> Usage:
    """Of this process, all threads that it ever had included."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return Usage(used.ru_utime + used.ru_stime, used.ru_nvcsw + used.ru_nivcsw)


class Seen(NamedTuple):
    """A process as /proc shows it."""

    parent: int
    ticks: int


def processes_now() -> dict[int, Seen]:
    processes = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        with contextlib.suppress(OSError):
            # The command may hold spaces and brackets: what follows the last ')' is regular.
            fields = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()
            processes[int(name)] = Seen(int(fields[1]), int(fields[11]) + int(fields[12]))
    return processes


def below(root: int, processes: Mapping[int, Seen]) -> set[int]:
    """The root and all its descendants that live."""
    found = {root} & processes.keys()
    grew = True
    while grew:
        more = {pid for pid, seen in processes.items() if seen.parent in found} - found
        found |= more
        grew = bool(more)
    return found


def switches_of(pids: Mapping[int, object]) -> Iterator[tuple[tuple[int, int], int]]:
    """Of each thread that lives: /proc/PID/status alone would be that of the first thread."""
    for pid in pids:
        with contextlib.suppress(OSError):
            for thread in os.listdir(f"/proc/{pid}/task"):
                with contextlib.suppress(OSError):
                    status = Path(f"/proc/{pid}/task/{thread}/status").read_text()
                    yield (pid, int(thread)), switches_in(status)


def switches_in(status: str) -> int:
    return sum(int(line.split()[1]) for line in status.splitlines() if line.startswith(_SWITCHES))


def role_of(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return "ended"
    for role in _ROLES:
        if role in words:
            return role
    return "up" if "up" in words else Path(words[0]).name


def machine_busy_s() -> float:
    """With what the host took (steal): nobody here could use it."""
    busy = Path("/proc/stat").read_text().splitlines()[0].split()[1:]
    # user nice system idle iowait irq softirq steal
    return sum(int(busy[column]) for column in (0, 1, 2, 5, 6, 7)) / _TICKS_PER_SECOND


def main() -> None:
    watch = Watch(json.loads(sys.argv[1]))
    while True:
        look = watch.look()
        if select.select([sys.stdin], [], [], LOOK_EVERY_S)[0]:
            if not sys.stdin.readline():
                return
            look = watch.look()
            print(json.dumps(look), flush=True)


if __name__ == "__main__":
    main()
