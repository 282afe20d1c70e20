"""`python -m benchmarks.many_partitions [--partitions 2000] [--mb 100]`: how long a node with very
many partitions takes to start, and what it has in memory then.

    a topic of one partition ── so many MB, real ──► its files ──┐  a sample, all of it real
                                                                 │  opened once, every read noted
    a topic of N partitions ◄── what was read, and the ends ─────┘  the rest of each file: a hole

Every partition is made of the same sample: a cluster wrote it, by transactions of 64 KB, and all of
it is settled where the topic is. Of frames and blocks a start reads little; those bytes, and
TAIL_BYTES at the end of each file, are copied, and the rest is left out, so that 200 GB fit on a
small disk. Small files (indexes, epochs, snapshots, tables, notes) are copied whole. Then `oncelog
up` starts again over the folder, and all N partitions are asked for their ends.

Left out: disks that are slower than memory, for all that is read was just written; replication.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

import click
import pyarrow as pa

import oncelog
from benchmarks.ending import end_as_by_ctrl_c
from benchmarks.large_transaction import pids_over, resident_mib
from benchmarks.machine import process_cpu_seconds
from oncelog_server.core.frame import FrameKind
from oncelog_server.core.machine import EpochStart
from oncelog_server.partition_leader.machine import PartitionMachine
from oncelog_server.partition_leader.records import PartitionCodec
from oncelog_server.runtime.storage.disk import RealDisk
from oncelog_server.runtime.storage.journal import Journal
from oncelog_server.runtime.storage.port import File
from oncelog_server.runtime.storage.real_file import RealFile
from oncelog_spark.jobs.local_cluster import local_cluster

EMPTY, REFERENCE, COPY = "empty", "reference", "copy"
KINDS: Final = (EMPTY, REFERENCE, COPY)
PARTITIONS_MAX: Final = 10_000
SMALL: Final = (8, 2)
SAMPLE: Final = "sample"
TOPIC: Final = "many"
ROLE: Final = "partition_leader"
VALUE_BYTES: Final = 1_000
# Of a transaction: it is a row of the index.
ROWS: Final = 64
SNAPSHOT_EVERY_BYTES: Final = 4 << 20
# What of the end of each file is there, whether it is read or not.
TAIL_BYTES: Final = 128 << 10
BLOCK_BYTES: Final = 4_096
# Of files with these names the middle may be a hole.
LARGE: Final = (".log", ".data")
# They say whose directory it is.
OWN: Final = ("incarnation", "replica.json")
SETTLED_S_MAX: Final = 120.0
STARTED_S_MAX: Final = 900.0
COLUMNS: Final = (
    "topics",
    "partitions",
    "GB",
    "GB on disk",
    "files",
    "start s",
    "CPU s",
    "CPU ms a partition",
    "memory MiB",
    "KiB a partition",
    "read MB",
)

# Bytes of a file, half-open.
Ranges = dict[str, list[tuple[int, int]]]


class Sample(NamedTuple):
    """One partition's directory, and what a start reads of it."""

    folder: Path
    read: Ranges

    @property
    def size(self) -> int:
        return sum(path.stat().st_size for path in self.folder.rglob("*") if path.is_file())


class Started(NamedTuple):
    """A node that has opened all its logs and answers for them. Of the process of partition
    leaders."""

    seconds: float
    cpu_s: float
    resident_mib: float
    read_mb: float


# ---------------------------------------------------------------------------------- what is read


class _Noted(RealFile):
    """Notes what is read of it, by its path."""

    ranges: Ranges

    def read(self, position: int, length: int) -> bytes:
        found = super().read(position, length)
        if found:
            self.ranges[self.path].append((position, position + len(found)))
        return found


class NotingDisk(RealDisk):
    """A disk that knows what was read of it."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.ranges: Ranges = defaultdict(list)

    def open(self, path: str, *, create: bool = False, grows_to: int = 0) -> RealFile:
        file = super().open(path, create=create, grows_to=grows_to)
        file.__class__ = _Noted
        file.ranges = self.ranges  # type: ignore[attr-defined]
        return file

    async def read(self, file: File, position: int, length: int) -> bytes:
        return file.read(position, length)


def read_at_start(folder: Path) -> Ranges:
    """What opening a partition's log, restoring its machine and the replay read of a copy of it, by
    path below it."""
    with tempfile.TemporaryDirectory(dir=folder.parent.parent) as name:
        shutil.copytree(folder, Path(name) / "p")
        disk = NotingDisk(Path(name))
        journal = Journal.open(disk, "p")
        machine, codec = PartitionMachine(), PartitionCodec()
        begin = journal.log_start
        if (saved := journal.load_snapshot()) is not None:
            begin, state, tables = saved
            machine.restore(state, tables)
        for stored in journal.replay(begin):
            is_start = stored.frame.kind is FrameKind.EPOCH_START
            machine.apply(EpochStart() if is_start else codec.decode(stored.frame), stored.at)
        # What settling looks at, in the background.
        list(journal.snapshots.settled(has_data=journal.data.settled_end > 0))
        found = dict(disk.ranges)
        journal.close()
        disk.close()
    return {path.removeprefix("p/"): ranges for path, ranges in found.items()}


def read_bytes(read: Ranges) -> dict[str, int]:
    """How much, by the kind of file: what stands behind the last dot, or its name."""
    found: dict[str, int] = defaultdict(int)
    for path, ranges in read.items():
        name = Path(path).name
        kind = "snapshot" if name.startswith("snapshot-") else Path(name).suffix or name
        found[kind] += sum(end - begin for begin, end in ranges)
    return dict(found)


# --------------------------------------------------------------------------------- what is there


def fill(bootstrap: str, topic: str, size: int) -> None:
    """So many bytes, in transactions of ROWS records."""
    values = pa.table({"value": [b"v" * VALUE_BYTES] * ROWS})
    with oncelog.connect(bootstrap) as log, log.transactional_producer() as producer:
        for _ in range(size // (ROWS * VALUE_BYTES)):
            with producer.transaction(wait="visible") as tx:
                tx.send_arrow(topic, values)


def until_settled(bootstrap: str, topic: str) -> None:
    """Returns when no more of it is settled."""
    before, give_up = -1, time.monotonic() + SETTLED_S_MAX
    while time.monotonic() < give_up:
        row = disk_of(bootstrap, topic)
        end = row["settled_end"]
        if 0 < end == before:
            return
        before = end
        time.sleep(5)
    raise click.ClickException(f"settling goes on for more than {SETTLED_S_MAX} s")


def disk_of(bootstrap: str, topic: str) -> dict[str, int]:
    """What `--disk` says of its only replica."""
    command = [sys.executable, "-m", "oncelog_server.cli", "topic", "describe", topic]
    command += ["--disk", "--json", f"--bootstrap={bootstrap}"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    row = json.loads(done.stdout)[0]["disk"][0]
    return {name: value or 0 for name, value in row.items() if not isinstance(value, str)}


def spread(sample: Sample, target: Path) -> None:
    """Makes a partition's directory hold what the sample's does, with holes."""
    for path in sorted(sample.folder.rglob("*")):
        name = str(path.relative_to(sample.folder))
        if path.is_dir():
            (target / name).mkdir(exist_ok=True)
        elif name not in OWN:
            if path.suffix in LARGE:
                _copy_holes(path, target / name, sample.read.get(name, []))
            else:
                shutil.copyfile(path, target / name)
    kept = {str(path.relative_to(sample.folder)) for path in sample.folder.rglob("*")}
    for path in sorted(target.rglob("*")):
        name = str(path.relative_to(target))
        if path.is_file() and name not in kept and name not in OWN:
            path.unlink()


def _copy_holes(source: Path, target: Path, ranges: list[tuple[int, int]]) -> None:
    size = source.stat().st_size
    # Behind the frames there may be zeros, which are read as the end.
    with source.open("rb") as file, target.open("wb") as copy:
        copy.truncate(size)
        for begin, end in [*ranges, (size - TAIL_BYTES, size)]:
            begin, end = max(begin, 0), min(end, size)
            begin -= begin % BLOCK_BYTES
            file.seek(begin)
            while begin < end:
                data = file.read(min(1 << 20, end - begin))
                if data.strip(b"\0"):
                    copy.seek(begin)
                    copy.write(data)
                begin += len(data)


def directory(cluster: Path, topic_id: str, number: int) -> Path:
    (found,) = cluster.glob(f"**/{ROLE}/**/partitions/{topic_id}-{number}")
    return found


# -------------------------------------------------------------------------------------- measuring


@contextmanager
def running(cluster: Path) -> Iterator[str]:
    pairs = (f"node.snapshot_every_bytes={SNAPSHOT_EVERY_BYTES}", "node.disk_free_floor_bytes=0")
    options = [word for pair in pairs for word in ("--set", pair)]
    with local_cluster(cluster, options=options) as bootstrap:
        yield bootstrap


def ask_all(bootstrap: str, end: int) -> None:
    """Returns when every partition has said that it ends there."""
    give_up = time.monotonic() + STARTED_S_MAX
    with oncelog.connect(bootstrap) as log:
        while time.monotonic() < give_up:
            try:
                found = log.admin.offsets(TOPIC)
            except oncelog.OncelogError:
                time.sleep(0.2)
                continue
            assert set(found) == {end}, f"each should end at {end}: {sorted(set(found))}"
            return
    raise click.ClickException(f"not all partitions answer after {STARTED_S_MAX} s")


def started(cluster: Path, end: int) -> Started:
    """How long it takes until all partitions of a cluster that stands still say that they end
    there."""
    began = time.monotonic()
    with running(cluster) as bootstrap:
        ask_all(bootstrap, end)
        seconds = time.monotonic() - began
        pid = pids_over(cluster)[ROLE]
        cpu_s, resident = process_cpu_seconds(pid), resident_mib(pid)
        lines = Path(f"/proc/{pid}/io").read_text().splitlines()
        (read,) = (line.split()[1] for line in lines if line.startswith("rchar:"))
        return Started(seconds, cpu_s, resident, int(read) / 1e6)


def measure(folder: Path, kind: str, partitions: int, size: int) -> tuple[list[str], str]:
    """A row of the table, and what was read of one partition."""
    cluster = folder / kind
    configs = {"materialization": kind} if kind != EMPTY else {}
    with running(cluster) as bootstrap, oncelog.connect(bootstrap) as log:
        many = log.admin.create_topic(TOPIC, partitions, configs=configs).topic_id
        source = log.admin.create_topic(SAMPLE, 1, configs=configs).topic_id
        ask_all(bootstrap, 0)
        if kind != EMPTY:
            fill(bootstrap, SAMPLE, size)
        if kind == COPY:
            until_settled(bootstrap, SAMPLE)
        (end,) = log.admin.offsets(SAMPLE)
    sample_folder = directory(cluster, source, 0)
    sample = Sample(sample_folder, read_at_start(sample_folder))
    parent = sample_folder.parent
    if kind != EMPTY:
        for number in range(partitions):
            spread(sample, parent / f"{many}-{number}")
            if number % 500 == 0:
                click.echo(f"{kind}: {number} of {partitions} made", err=True)
        os.sync()
    click.echo(f"{kind}: starting", err=True)
    found = started(cluster, end)
    files = [path.stat() for path in parent.rglob("*") if path.is_file()]
    row = [
        kind,
        f"{partitions:,}",
        f"{sum(file.st_size for file in files) / 1e9:.1f}",
        f"{sum(file.st_blocks for file in files) * 512 / 1e9:.1f}",
        f"{len(files):,}",
        f"{found.seconds:.1f}",
        f"{found.cpu_s:.1f}",
        f"{found.cpu_s / partitions * 1000:.1f}",
        f"{found.resident_mib:.0f}",
        f"{found.resident_mib / partitions * 1024:.0f}",
        f"{found.read_mb:.0f}",
    ]
    parts = sorted(read_bytes(sample.read).items(), key=lambda item: -item[1])
    said = ", ".join(f"{name} {count:,}" for name, count in parts)
    return row, f"{kind}: of {sample.size:,} bytes of a partition a start reads: {said}"


@click.command()
@click.option(
    "--partitions", default=2_000, show_default=True, type=click.IntRange(1, PARTITIONS_MAX)
)
@click.option("--mb", default=100, show_default=True, type=click.IntRange(1, 1_000))
@click.option("--kind", "kinds", multiple=True, type=click.Choice(KINDS), help="Only these.")
@click.option("--small", is_flag=True, help="{} partitions of {} MB.".format(*SMALL))
@click.option("--folder", type=click.Path(path_type=Path), help="Where the data goes.")
def main(
    partitions: int, mb: int, kinds: tuple[str, ...], small: bool, folder: Path | None
) -> None:
    """How long a node with very many partitions takes to start. See benchmarks/README.md."""
    if small:
        partitions, mb = SMALL
    print(f"| {' | '.join(COLUMNS)} |\n| {' | '.join('---' for _ in COLUMNS)} |", flush=True)
    said = []
    for kind in kinds or KINDS:
        with tempfile.TemporaryDirectory(dir=folder, prefix="oncelog-many-") as name:
            row, reads = measure(Path(name), kind, partitions, mb * 10**6)
        print(f"| {' | '.join(row)} |", flush=True)
        said.append(reads)
    print("", *said, sep="\n")


if __name__ == "__main__":
    end_as_by_ctrl_c()
    main()
