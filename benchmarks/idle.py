"""`python -m benchmarks.idle [--partitions 1000] [--nodes 3]`: what a cluster costs that nobody
uses, how long it takes to stop, and to start again.

    oncelog up ─► a topic of N partitions ─► everything settles ─► CPU of each process for a while
              ─► SIGTERM to one partition leader: how long it takes to end
              ─► all stop ─► all start: until every partition has said where it ends

CPU and context switches are those of each process, from /proc. A client is there only to make the
topic, and to ask all partitions at the end of the start.

Left out: partitions with data, whose start reads more (`many_partitions`).
"""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

import click

import oncelog
from benchmarks.ending import end_as_by_ctrl_c
from oncelog_spark.jobs.local_cluster import local_cluster

TOPIC: Final = "idle"
PARTITIONS_MAX: Final = 10_000
NODES_MAX: Final = 5
ROLE: Final = "partition_leader"
SECONDS: Final = 30.0
# What was just made comes to rest: notes of synced ends, records of directories, snapshots. It does
# once none of them uses less than this part of what it used in the window before.
WINDOW_SECONDS: Final = 10.0
RESTING_SHARE: Final = 0.7
REST_SECONDS_MAX: Final = 240.0
ASKED_SECONDS_MAX: Final = 900.0
ENDED_SECONDS_MAX: Final = 120.0
POLL_SECONDS: Final = 0.02
TICKS_PER_SECOND: Final = os.sysconf("SC_CLK_TCK")
COLUMNS: Final = (
    "nodes",
    "partitions",
    "what",
    "etcd",
    "coordinator",
    "partition_leader",
    "offset_manager",
)


class Used(NamedTuple):
    """By a process so far."""

    cpu_s: float
    switches: int

    def since(self, before: Used) -> Used:
        return Used(self.cpu_s - before.cpu_s, self.switches - before.switches)


def processes(folder: Path) -> dict[str, int]:
    """Pids of those that run over a folder, by name: coordinator, coordinator-2, ..., etcd."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            words = (entry / "cmdline").read_bytes().decode().split("\0")
        except OSError:
            continue
        data = [word for word in words if word.startswith((f"--data={folder}", "--data-dir="))]
        if not data or str(folder) not in data[0]:
            continue
        if "serve" in words:
            found[Path(data[0]).name] = int(entry.name)
        elif "etcd" in Path(words[0]).name:
            found["etcd"] = int(entry.name)
    return found


def used(pid: int) -> Used:
    """Raises FileNotFoundError where it has ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    switches = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            lines = (task / "status").read_text().splitlines()
        except OSError:
            continue
        switches += sum(int(line.split()[1]) for line in lines if "ctxt_switches" in line)
    return Used((int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND, switches)


def idle(folder: Path, seconds: float) -> dict[str, Used]:
    """What each process uses in so many seconds."""
    pids = processes(folder)
    before = {name: used(pid) for name, pid in pids.items()}
    time.sleep(seconds)
    return {name: used(pid).since(before[name]) for name, pid in pids.items()}


def until_at_rest(folder: Path) -> None:
    """What was just made is still written down, and read again."""
    give_up = time.monotonic() + REST_SECONDS_MAX
    before: dict[str, Used] = {}
    while time.monotonic() < give_up:
        found = idle(folder, WINDOW_SECONDS)
        if before.keys() == found.keys() and all(
            one.cpu_s >= RESTING_SHARE * before[name].cpu_s for name, one in found.items()
        ):
            return
        before = found


def ended(pid: int) -> Used:
    """Asks a process to stop; how long it takes, and what CPU it uses for it (the rest is waiting).
    `switches` are milliseconds of neither."""
    before = last = used(pid).cpu_s
    began = time.monotonic()
    os.kill(pid, signal.SIGTERM)
    while time.monotonic() - began < ENDED_SECONDS_MAX:
        try:
            last = used(pid).cpu_s
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                break
        except (FileNotFoundError, ProcessLookupError):
            break
        time.sleep(POLL_SECONDS)
    return Used(last - before, round((time.monotonic() - began) * 1000))


def ask_all(bootstrap: str, partitions: int) -> None:
    """Returns when every partition has said where it ends."""
    give_up = time.monotonic() + ASKED_SECONDS_MAX
    with oncelog.connect(bootstrap) as log:
        while time.monotonic() < give_up:
            try:
                found = log.admin.offsets(TOPIC)
            except oncelog.OncelogError:
                time.sleep(0.2)
                continue
            assert len(found) == partitions, f"{len(found)} of {partitions} answered"
            return
    raise click.ClickException(f"not all partitions answer after {ASKED_SECONDS_MAX} s")


@contextmanager
def running(folder: Path, nodes: int) -> Iterator[str]:
    options = ["--nodes", str(nodes), "--set", "node.disk_free_floor_bytes=0"]
    with local_cluster(folder, options=options) as bootstrap:
        yield bootstrap


def of_role(found: dict[str, Used], role: str) -> list[Used]:
    return [one for name, one in sorted(found.items()) if name == role or name[:-2] == role]


def row(nodes: int, partitions: int, what: str, cells: list[str]) -> None:
    print(f"| {nodes} | {partitions:,} | {what} | {' | '.join(cells)} |", flush=True)


def measure(folder: Path, nodes: int, partitions: int, seconds: float, *, stops: bool) -> None:
    roles = COLUMNS[3:]
    with running(folder, nodes) as bootstrap:
        with oncelog.connect(bootstrap) as log:
            began = time.monotonic()
            log.admin.create_topic(TOPIC, partitions, replication_factor=min(nodes, 3))
        ask_all(bootstrap, partitions)
        made = time.monotonic() - began
        until_at_rest(folder)
        found = idle(folder, seconds)
        for what, shown in (
            ("% of a core", lambda one: f"{one.cpu_s / seconds * 100:.2f}"),
            ("switches/s", lambda one: f"{one.switches / seconds:.0f}"),
        ):
            cells = [" · ".join(map(shown, of_role(found, role))) for role in roles]
            row(nodes, partitions, what, cells)
        row(nodes, partitions, "made, s", ["", "", f"{made:.1f}", ""])
        if stops:
            one = ended(processes(folder)[ROLE])
            cell = f"{one.switches / 1000:.2f} (CPU {one.cpu_s:.2f})"
            row(nodes, partitions, "one stops, s", ["", "", cell, ""])
            ask_all(bootstrap, partitions)
            until_at_rest(folder)
        began = time.monotonic()
    row(nodes, partitions, "all stop, s", ["", "", f"{time.monotonic() - began:.2f}", ""])
    if stops:
        start(folder, nodes, partitions)


def start(folder: Path, nodes: int, partitions: int) -> None:
    began = time.monotonic()
    with running(folder, nodes) as bootstrap:
        ask_all(bootstrap, partitions)
        seconds = time.monotonic() - began
        now = {name: used(pid) for name, pid in processes(folder).items()}
        cells = [
            " · ".join(f"{one.cpu_s:.1f}" for one in of_role(now, role)) for role in COLUMNS[3:]
        ]
        row(nodes, partitions, f"start, {seconds:.1f} s: CPU s", cells)


@click.command()
@click.option(
    "--partitions",
    "counts",
    multiple=True,
    default=(1, 1_000),
    show_default=True,
    type=click.IntRange(1, PARTITIONS_MAX),
    help="May be said several times.",
)
@click.option("--nodes", default=1, show_default=True, type=click.IntRange(1, NODES_MAX))
@click.option("--seconds", default=SECONDS, show_default=True, help="That CPU is counted for.")
@click.option("--stops/--no-stops", default=True, show_default=True, help="Stop and start, too.")
@click.option("--folder", type=click.Path(path_type=Path), help="Where the data goes.")
def main(
    counts: tuple[int, ...], nodes: int, seconds: float, stops: bool, folder: Path | None
) -> None:
    """What a cluster costs that nobody uses. See benchmarks/README.md."""
    print(f"| {' | '.join(COLUMNS)} |\n| {' | '.join('---' for _ in COLUMNS)} |", flush=True)
    for partitions in counts:
        with tempfile.TemporaryDirectory(dir=folder, prefix="oncelog-idle-") as name:
            measure(Path(name), nodes, partitions, seconds, stops=stops)


if __name__ == "__main__":
    end_as_by_ctrl_c()
    main()
