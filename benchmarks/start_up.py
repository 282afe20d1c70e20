"""`python -m benchmarks.start_up [--transactions N] [--days D]`: how long a coordinator's and an
offset manager's partition take to start after many transactions, and what they hold on disk and in
memory, with logs that keep everything and with logs that begin later.

Each partition is written as its leader would write it, on a real disk, the syncs left out: a
million transactions over so many days by the clock that frames carry. So ages count as they would,
and the front of the log goes when it would. Then a process of its own opens it, restores the
machine and replays what is behind the snapshot.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import click

from oncelog_server.coordinator.config import CoordinatorConfig
from oncelog_server.coordinator.machine import CoordinatorMachine
from oncelog_server.coordinator.outcomes import SLOT_BYTES, SLOT_FILE, Outcomes
from oncelog_server.coordinator.records import CODEC as COORDINATOR_CODEC
from oncelog_server.coordinator.records import Begun, Committed, PreparedCommit, ProducerInitialized
from oncelog_server.coordinator.values import Manifest, TopicParts
from oncelog_server.core.frame import Frame, FrameKind
from oncelog_server.core.ids import (
    TRANSACTION_CONTROL_ID,
    Generation,
    PartitionId,
    ProducerId,
    TopicId,
    TxId,
    compose_tx_id,
)
from oncelog_server.core.machine import EpochStart, Machine, Projection, needs_of
from oncelog_server.offset_manager.commands import OffsetCommit
from oncelog_server.offset_manager.config import OffsetManagerConfig
from oncelog_server.offset_manager.machine import OffsetManagerMachine
from oncelog_server.offset_manager.records import CODEC as OFFSETS_CODEC
from oncelog_server.offset_manager.records import OffsetsCommitted
from oncelog_server.runtime.node_config import NodeConfig
from oncelog_server.runtime.replica.snapshots import FRAME_BYTES_GUESS, SNAPSHOT_EVERY_FRAMES
from oncelog_server.runtime.storage.disk import RealDisk
from oncelog_server.runtime.storage.journal import Journal

SETTINGS: Final = NodeConfig()
# Of a log so short that segments of the usual size would hold all of it.
SEGMENT_BYTES: Final = 16 << 20
DIRECTORY: Final = "partitions/p"
ORDERS: Final = TopicId(b"orders-topic-id.")
DAY_MS: Final = 24 * 60 * 60 * 1000
WALL_START_MS: Final = 1_767_225_600_000
PRODUCERS: Final = 100
GROUPS: Final = 100
PARTITIONS: Final = 10
# Transactions between two looks at what may go.
WRITTEN_AT_ONCE: Final = 2_000
ROLES: Final = ("coordinator", "offset_manager")
COLUMNS: Final = (
    "role",
    "log",
    "transactions",
    "start ms",
    "frames replayed",
    "memory MB",
    "journal MB",
    "slots MB",
    "files",
)


class Start(NamedTuple):
    """What a start took, and what it found."""

    ms: float
    replayed: int
    memory_mb: float


class Written:
    """One partition whose leader appends, on a real disk."""

    def __init__(self, folder: Path, role: str) -> None:
        self._disk = RealDisk(folder)
        self.journal = open_journal(self._disk)
        self.machine, self.codec, self.projection = parts_of(role, self.journal)
        self._since = self._bytes_since = 0
        self.append(EpochStart(), WALL_START_MS)

    def append(self, record: Any, time_ms: int) -> int:
        frame = Frame(FrameKind.EPOCH_START)
        if not isinstance(record, EpochStart):
            frame = self.codec.encode(record)
        at = self.journal.append(frame, epoch=1, time_ms=time_ms)
        self.machine.apply(record, at)
        if self.projection is not None and not isinstance(record, EpochStart):
            self.projection.project(record, at)
        self._since += 1
        self._bytes_since += len(frame.payload) + FRAME_BYTES_GUESS
        return at.offset

    def sync(self) -> None:
        """What a group commit does, but for the sync."""
        writes, end = self.journal.take_writes()
        for write in writes:
            self._disk.write_unsynced(write.file, write.position, b"".join(write.chunks))
        self.journal.mark_synced(end)
        if (
            self._since >= SNAPSHOT_EVERY_FRAMES
            or self._bytes_since >= SETTINGS.snapshot_every_bytes
        ):
            self._since = self._bytes_since = 0
            self.save_snapshot()

    def save_snapshot(self) -> None:
        taken = self.machine.snapshot(self.journal.rows_saved)
        self.journal.save_snapshot(
            self.journal.log_end, taken._replace(needs=needs_of(self.machine))
        )

    def trim(self) -> None:
        """As a leader would that has nobody to wait for."""
        journal, needs = self.journal, needs_of(self.machine)
        journal.slots.let_go(needs.slots_from)
        journal.slots.remove_gone()
        limit = SETTINGS.control_journal_bytes_max
        start = journal.next_log_start(needs, wanted_bytes_max=limit)
        if start is None:
            return
        journal.prepare_start(start, journal.index_before_start(start))
        journal.move_start(start, allowed_at=journal.log_end)
        journal.note_synced_end()
        self.sync()
        journal.retire_front()
        journal.remove_front()

    def close(self) -> None:
        self.sync()
        self.journal.close()
        self._disk.close()


def open_journal(disk: RealDisk) -> Journal:
    return Journal.open(disk, DIRECTORY, segment_bytes=SEGMENT_BYTES)


def parts_of(
    role: str, journal: Journal
) -> tuple[Machine[Any, Any, Any], Any, Projection[Any] | None]:
    """Machine, codec and projection."""
    if role == "coordinator":
        machine = CoordinatorMachine(PartitionId(TRANSACTION_CONTROL_ID, 0), CoordinatorConfig())
        return machine, COORDINATOR_CODEC, Outcomes(journal.slots.open(SLOT_FILE, SLOT_BYTES))
    manager = OffsetManagerMachine(OffsetManagerConfig())
    return manager, OFFSETS_CODEC, None


def write(folder: Path, role: str, transactions: int, days: float, *, trims: bool) -> None:
    written = Written(folder, role)
    append = {"coordinator": _transactions, "offset_manager": _commits}[role]
    for number in append(written, transactions, int(days * DAY_MS)):
        if number % WRITTEN_AT_ONCE == 0:
            written.sync()
            if trims:
                written.trim()
    written.close()


def _transactions(written: Written, transactions: int, span_ms: int) -> Iterator[int]:
    """Of named producers, each a record to each of ten partitions."""
    numbers = tuple(range(PARTITIONS))
    topic = TopicParts(ORDERS, numbers, (0,) * PARTITIONS, (1,) * PARTITIONS)
    manifest = Manifest((topic,))
    generation = Generation(1 << 32 | 1)
    producers = []
    for number in range(PRODUCERS):
        producer_id = ProducerId(compose_tx_id(0, written.journal.log_end))
        name = f"producer-{number}"
        first = ProducerInitialized(producer_id, generation, "group", name, b"i" * 16)
        written.append(first, WALL_START_MS)
        producers.append(producer_id)
    for number in range(transactions):
        now_ms = WALL_START_MS + number * span_ms // transactions
        producer_id = producers[number % PRODUCERS]
        tx_id = TxId(compose_tx_id(0, written.journal.log_end))
        begun = Begun(tx_id, producer_id, generation, number + 1, 60_000, None, ())
        written.append(begun, now_ms)
        prepared = PreparedCommit(tx_id, producer_id, generation, now_ms, 60_000, None, manifest)
        written.append(prepared, now_ms)
        written.append(Committed(tx_id), now_ms)
        yield number


def _commits(written: Written, transactions: int, span_ms: int) -> Iterator[int]:
    """Plain ones, of ten partitions each."""
    for number in range(transactions):
        now_ms = WALL_START_MS + number * span_ms // transactions
        at = number // GROUPS
        steps = tuple(
            OffsetCommit(PartitionId(ORDERS, partition), at, at + 1)
            for partition in range(PARTITIONS)
        )
        written.append(OffsetsCommitted(f"group-{number % GROUPS}", steps), now_ms)
        yield number


def start(folder: Path, role: str) -> Start:
    """In a process that has done nothing else."""
    before = resident_mb()
    began = time.perf_counter()
    journal = open_journal(RealDisk(folder))
    machine, codec, projection = parts_of(role, journal)
    saved = journal.load_snapshot()
    begin = journal.log_start
    if saved is not None:
        begin, state, tables = saved
        machine.restore(state, tables)
    replayed = 0
    for stored in journal.replay(begin):
        is_start = stored.frame.kind is FrameKind.EPOCH_START
        record = EpochStart() if is_start else codec.decode(stored.frame)
        machine.apply(record, stored.at)
        if projection is not None and not is_start:
            projection.project(record, stored.at)
        replayed += 1
    took_ms = (time.perf_counter() - began) * 1000
    return Start(took_ms, replayed, resident_mb() - before)


def resident_mb() -> float:
    """Memory that this process has now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


def started_apart(folder: Path, role: str) -> Start:
    command = [sys.executable, "-m", "benchmarks.start_up", "--start", str(folder), role]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return Start(*json.loads(done.stdout))


def taken_mb(paths: Iterator[Path]) -> float:
    """On the disk: what is sparse takes less than it is long."""
    return sum(path.stat().st_blocks * 512 for path in paths) / 1e6


def row(role: str, transactions: int, days: float, rounds: int, *, trims: bool) -> tuple[str, ...]:
    with tempfile.TemporaryDirectory(prefix="oncelog-start-") as name:
        folder = Path(name)
        write(folder, role, transactions, days, trims=trims)
        starts = [started_apart(folder, role) for _ in range(rounds)]
        files = [path for path in folder.rglob("*") if path.is_file()]
        slots = taken_mb(path for path in files if path.suffix == ".slots")
        quickest = min(starts)
        return (
            role,
            "trimmed" if trims else "whole",
            f"{transactions:,}",
            f"{quickest.ms:.0f}",
            f"{quickest.replayed:,}",
            f"{quickest.memory_mb:.0f}",
            f"{taken_mb(iter(files)) - slots:.0f}",
            f"{slots:.0f}",
            f"{len(files):,}",
        )


@click.command()
@click.option("--transactions", default=200_000, show_default=True)
@click.option("--days", default=30.0, show_default=True, help="That they are spread over.")
@click.option("--rounds", default=3, show_default=True, help="Starts; the quickest one counts.")
@click.option("--only", default=None, type=click.Choice(ROLES), help="One role.")
@click.option("--start", "started", nargs=2, default=None, hidden=True)
def main(
    transactions: int,
    days: float,
    rounds: int,
    only: str | None,
    started: tuple[str, str] | None,
) -> None:
    """How long partitions of the control topics take to start."""
    if started is not None:
        print(json.dumps(start(Path(started[0]), started[1])))
        return
    print(f"| {' | '.join(COLUMNS)} |\n| {' | '.join('---' for _ in COLUMNS)} |")
    for role in ROLES if only is None else (only,):
        for trims in (False, True):
            cells = row(role, transactions, days, rounds, trims=trims)
            print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
