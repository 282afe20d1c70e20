"""`python -m benchmarks.start_up [--transactions N] [--days D]`: how long a partition of each role
takes to start after many transactions, and what it holds on disk and in memory, with logs that keep
everything and with logs that begin later.

Each partition is written as its leader would write it, on a real disk, the syncs left out: so many
transactions over so many days by the clock that frames carry. So ages count as they would, and the
front of the log goes when it would: that of a topic's partition by `retention.ms`, a week. Then a
process of its own opens it, restores the machine and replays what is behind the snapshot.

Left out: gRPC, elections, and the other partitions of a process (`many_partitions`).
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

from benchmarks.ending import end_as_by_ctrl_c
from oncelog_server.coordinator.config import CoordinatorConfig
from oncelog_server.coordinator.machine import CoordinatorMachine
from oncelog_server.coordinator.outcomes import SLOT_BYTES, SLOT_FILE, Outcomes
from oncelog_server.coordinator.records import CODEC as COORDINATOR_CODEC
from oncelog_server.coordinator.records import Begun, Committed, PreparedCommit, ProducerInitialized
from oncelog_server.coordinator.values import Manifest, TopicParts
from oncelog_server.core.frame import ControlCode, Frame, FrameKind
from oncelog_server.core.ids import (
    TRANSACTION_CONTROL_ID,
    Generation,
    JournalOffset,
    LeaderEpoch,
    PartitionId,
    ProducerId,
    TopicId,
    TxId,
    Writer,
    compose_tx_id,
)
from oncelog_server.core.machine import EpochStart, Instant, Machine, Projection, Tick, needs_of
from oncelog_server.offset_manager.commands import OffsetCommit
from oncelog_server.offset_manager.config import OffsetManagerConfig
from oncelog_server.offset_manager.machine import OffsetManagerMachine
from oncelog_server.offset_manager.records import CODEC as OFFSETS_CODEC
from oncelog_server.offset_manager.records import OffsetsCommitted
from oncelog_server.participant.commands import Look, WriterPart
from oncelog_server.partition_leader.commands import Durable, Settings
from oncelog_server.partition_leader.machine import PartitionMachine
from oncelog_server.partition_leader.records import MarkerWritten, PartitionCodec
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
RETENTION_MS: Final = 7 * DAY_MS
# Of a transaction in a topic's partition: one record.
PAYLOAD: Final = b"v" * 100
# Transactions between two looks at what may go.
WRITTEN_AT_ONCE: Final = 2_000
TRANSACTIONS_MAX: Final = 20_000_000
SMALL: Final = 3_000
# How often is said how far it is, seconds.
SAID_EVERY_S: Final = 10.0
ROLES: Final = ("coordinator", "offset_manager", "partition_leader")
LOGS: Final = ("whole", "trimmed")
COLUMNS: Final = (
    "role",
    "log",
    "transactions",
    "start ms",
    "CPU ms",
    "read MB",
    "frames replayed",
    "memory MB",
    "peak MB",
    "journal MB",
    "slots MB",
    "files",
)


class Start(NamedTuple):
    """What a start took, and what it found."""

    ms: float
    cpu_ms: float
    # Of files, whether they were in the page cache or not.
    read_mb: float
    replayed: int
    memory_mb: float
    # While it started.
    peak_mb: float


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

    def tick(self, now_ms: int) -> None:
        """What is due, as a leader would decide it."""
        now = Instant(now_ms - WALL_START_MS, now_ms)
        self.machine.seen(Durable(JournalOffset(self.journal.synced_end)), now)
        self.machine.seen(Look(), now)
        self.machine.seen(Tick(), now)
        for record in self.machine.decide(Tick(), now).records:
            self.append(record, now_ms)

    def trim(self) -> None:
        """As a leader would that has nobody to wait for."""
        journal, needs = self.journal, needs_of(self.machine)
        journal.slots.let_go(needs.slots_from)
        journal.slots.remove_gone()
        if journal.has_old_front:
            # The note has two slots, and both must say where the log begins.
            if not journal.start_is_durable:
                journal.note_synced_end()
                self.sync()
            if journal.start_is_durable:
                journal.retire_front()
                journal.remove_front()
            return
        limit = SETTINGS.control_journal_bytes_max
        start = journal.next_log_start(needs, wanted_bytes_max=limit)
        if start is None:
            return
        journal.prepare_start(start, journal.index_before_start(start))
        journal.move_start(start, allowed_at=journal.log_end)
        journal.note_synced_end()
        self.sync()

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
    if role == "partition_leader":
        return PartitionMachine(), PartitionCodec(), None
    manager = OffsetManagerMachine(OffsetManagerConfig())
    return manager, OFFSETS_CODEC, None


def write(folder: Path, role: str, transactions: int, days: float, *, trims: bool) -> None:
    written = Written(folder, role)
    if role == "partition_leader":
        written.append(Settings(1, RETENTION_MS if trims else -1), WALL_START_MS)
    append = {
        "coordinator": _transactions,
        "offset_manager": _commits,
        "partition_leader": _records,
    }[role]
    said = time.monotonic()
    for number in append(written, transactions, int(days * DAY_MS)):
        if number % WRITTEN_AT_ONCE == 0:
            written.sync()
            if trims:
                if role == "partition_leader":
                    written.tick(written.journal.last_time_ms)
                    written.sync()
                written.trim()
        if time.monotonic() - said > SAID_EVERY_S:
            said = time.monotonic()
            click.echo(f"{role}: {number:,} of {transactions:,} written", err=True)
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


def _records(written: Written, transactions: int, span_ms: int) -> Iterator[int]:
    """Of one record each, which a marker exposes."""
    generation = Generation(1 << 32 | 1)
    for number in range(transactions):
        now_ms = WALL_START_MS + number * span_ms // transactions
        producer_id = ProducerId(compose_tx_id(0, 1 + number % PRODUCERS))
        # As one coordinator's journal numbers them: BEGUN, PREPARED_COMMIT, COMMITTED.
        begun_at = 1_000 + 3 * number
        tx_id = TxId(compose_tx_id(0, begun_at))
        batch = Frame(
            FrameKind.DATA,
            PAYLOAD,
            record_count=1,
            producer_id=producer_id,
            generation=generation,
            tx_id=tx_id,
            max_timestamp_us=now_ms * 1_000,
        )
        written.append(batch, now_ms)
        marker = MarkerWritten(
            tx_id,
            producer_id,
            generation,
            ControlCode.COMMITTED,
            prepare_offset=JournalOffset(begun_at + 1),
            coordinator_epoch=LeaderEpoch(1),
            parts=(WriterPart(Writer(0), 1),),
        )
        written.append(marker, now_ms)
        yield number


def start(folder: Path, role: str) -> Start:
    """In a process that has done nothing else."""
    before, read_before = resident_mb(), read_mb()
    began, cpu_began = time.perf_counter(), time.process_time()
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
    cpu_ms = (time.process_time() - cpu_began) * 1000
    read = read_mb() - read_before
    status = Path("/proc/self/status").read_text().splitlines()
    (most,) = (line.split()[1] for line in status if line.startswith("VmHWM:"))
    peak = int(most) * 1024 / 1e6
    return Start(took_ms, cpu_ms, read, replayed, resident_mb() - before, peak - before)


def resident_mb() -> float:
    """Memory that this process has now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


def read_mb() -> float:
    """What this process has read so far, by system calls."""
    (line,) = (
        line for line in Path("/proc/self/io").read_text().splitlines() if line.startswith("rchar:")
    )
    return int(line.split()[1]) / 1e6


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
            f"{quickest.cpu_ms:.0f}",
            f"{quickest.read_mb:.1f}",
            f"{quickest.replayed:,}",
            f"{quickest.memory_mb:.0f}",
            f"{quickest.peak_mb:.0f}",
            f"{taken_mb(iter(files)) - slots:.0f}",
            f"{slots:.0f}",
            f"{len(files):,}",
        )


@click.command()
@click.option(
    "--transactions",
    multiple=True,
    default=(200_000,),
    show_default=True,
    type=click.IntRange(1, TRANSACTIONS_MAX),
    help="May be said several times.",
)
@click.option("--days", default=30.0, show_default=True, help="That they are spread over.")
@click.option("--rounds", default=3, show_default=True, help="Starts; the quickest one counts.")
@click.option("--only", default=None, type=click.Choice(ROLES), help="One role.")
@click.option("--log", "logs", multiple=True, type=click.Choice(LOGS), help="One kind of log.")
@click.option("--small", is_flag=True, help=f"{SMALL:,} transactions, one start.")
@click.option("--start", "started", nargs=2, default=None, hidden=True)
def main(
    transactions: tuple[int, ...],
    days: float,
    rounds: int,
    only: str | None,
    logs: tuple[str, ...],
    small: bool,
    started: tuple[str, str] | None,
) -> None:
    """How long partitions take to start. See benchmarks/README.md."""
    if started is not None:
        print(json.dumps(start(Path(started[0]), started[1])))
        return
    if small:
        transactions, rounds = (SMALL,), 1
    print(f"| {' | '.join(COLUMNS)} |\n| {' | '.join('---' for _ in COLUMNS)} |")
    for role in ROLES if only is None else (only,):
        for log in logs or LOGS:
            for count in transactions:
                cells = row(role, count, days, rounds, trims=log == "trimmed")
                print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    end_as_by_ctrl_c()
    main()
