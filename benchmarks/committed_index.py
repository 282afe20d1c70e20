"""`python -m benchmarks.committed_index`: what the index of a committed log takes, and how long a
start reads it, for a partition of many transactions of one row.

    rows as a leader would have made them ──► a snapshot on the disk ──► a process that restores it

Sixteen transactions are open at once, so their rows lie before and behind each other in the
journal. Left out: the journal behind the snapshot; reads from a disk that is not in the page cache.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
import time
from array import array
from pathlib import Path
from typing import Any, Final

import click

from benchmarks.ending import end_as_by_ctrl_c
from oncelog_server.core.ids import JournalOffset, Offset
from oncelog_server.partition_leader.committed_log import (
    ROW,
    ROW_BYTES,
    CommittedLog,
    DumpedLog,
)
from oncelog_server.partition_leader.machine import PartitionMachine
from oncelog_server.runtime.storage.disk import RealDisk
from oncelog_server.runtime.storage.snapshots import SnapshotFiles

DIRECTORY: Final = "partition"
OPEN_AT_ONCE: Final = 16
BEGIN_MS: Final = 1_790_000_000_000
PAYLOAD_BYTES: Final = 110
LOOKUPS: Final = 20_000


@click.command()
@click.option("--rows", default=5_000_000, show_default=True)
@click.option("--restore", hidden=True, type=click.Path(path_type=Path))
def main(rows: int, restore: Path | None) -> None:
    """Measure the index of a committed log. See benchmarks/README.md."""
    if restore is not None:
        click.echo(json.dumps(_restore(restore)))
        return
    with tempfile.TemporaryDirectory(prefix="oncelog-index-") as folder:
        _write(Path(folder), rows)
        command = [sys.executable, "-m", "benchmarks.committed_index", "--restore", folder]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    print("| rows | table MB | read and restored, s | CPU s | index MB | a lookup, us |")
    print("| --- | --- | --- | --- | --- | --- |")
    cells = [f"{found[name]:.2f}" for name in ("seconds", "cpu_s")]
    cells += [f"{found['index_bytes'] / 1e6:.0f}", f"{found['lookup_us']:.1f}"]
    print(f"| {rows:,} | {rows * ROW_BYTES / 1e6:.0f} | {' | '.join(cells)} |")


def _write(folder: Path, rows: int) -> None:
    machine = PartitionMachine()
    machine.committed.load(*_log(rows))
    machine.next_offset = JournalOffset(2 * rows + 100)
    files = SnapshotFiles(RealDisk(folder), DIRECTORY)
    files.save(machine.next_offset, machine.snapshot())


def _log(count: int) -> tuple[DumpedLog, bytes]:
    chance = random.Random(1)
    table = array("q", bytes(ROW_BYTES * (count + 1)))
    time_ms, highest = BEGIN_MS, 0
    for number in range(count + 1):
        marker = 2 * number + 2 * OPEN_AT_ONCE
        time_ms += chance.random() < 0.3
        highest = max(highest, 1_000 * time_ms + chance.randrange(1_000))
        journal = marker - 1 - chance.randrange(2 * OPEN_AT_ONCE - 1)
        size = PAYLOAD_BYTES + chance.randrange(20)
        row = (number, 0, journal, marker, size, highest, time_ms)
        table[len(ROW) * number : len(ROW) * (number + 1)] = array("q", row)
    last = tuple(table[-len(ROW) :])
    dumped = DumpedLog(Offset(count + 1), 2 * count + 2 * OPEN_AT_ONCE + 1, last)
    return dumped, table[: -len(ROW)].tobytes()


def _restore(folder: Path) -> dict[str, Any]:
    files = SnapshotFiles(RealDisk(folder), DIRECTORY)
    machine = PartitionMachine()
    begun, cpu = time.perf_counter(), time.process_time()
    loaded = files.load()
    assert loaded is not None, "it was written"
    machine.restore(loaded[1], loaded[2])
    took, cpu_s = time.perf_counter() - begun, time.process_time() - cpu
    return {
        "seconds": took,
        "cpu_s": cpu_s,
        "index_bytes": machine.committed.memory_bytes,
        "lookup_us": _lookup_us(machine.committed),
    }


def _lookup_us(log: CommittedLog) -> float:
    chance = random.Random(2)
    offsets = [chance.randrange(log.end_offset) for _ in range(LOOKUPS)]
    begun = time.process_time()
    for offset in offsets:
        log.stretches(offset, below=log.end_offset, max_bytes=1, max_entries=1)
    return (time.process_time() - begun) / LOOKUPS * 1e6


if __name__ == "__main__":
    end_as_by_ctrl_c()
    main()
