"""`python -m benchmarks.commit_order`: who puts records in commit order, the leader or the reader.

Each case is written once, and read by a process of its own, by each delivery in turns: CPU of the
reader and of the partition leader, and the reader's memory. `--large GIB` reads one transaction of
that size under the usual limit of memory, and compares what both deliveries give. Last, a reader
that is there while a transaction is written: how long after its commit it has all of it.
"""

from __future__ import annotations

import hashlib
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import click
import pyarrow as pa
from rich.console import Console
from rich.table import Table

import oncelog
from benchmarks.ending import end_as_by_ctrl_c
from benchmarks.machine import process_cpu_seconds
from oncelog_spark.jobs.local_cluster import local_cluster

DELIVERIES: Final = ("leader", "buffered")
MIB: Final = 1024 * 1024
VALUE_BYTES: Final = 1024
SECONDS_MAX: Final = 600.0
# Transactions that are open at one time, where there are several.
OPEN: Final = 8
LIVE_BYTES: Final = (10 * 1024, 10 * MIB, 200 * MIB)


class Case(NamedTuple):
    """What lies in a topic of one partition."""

    transactions: int
    records: int
    aborted: int


CASES: Final[Mapping[str, Case]] = {
    "40 MiB in transactions of 10 KiB": Case(4_000, 10, 0),
    "200 MiB in transactions of 1 MiB": Case(200, 1_024, 0),
    "the same, every second one aborted": Case(200, 1_024, 2),
    "200 MiB in transactions of 100 MiB": Case(2, 100 * 1_024, 0),
}


class Read(NamedTuple):
    """What one reader says."""

    records: int
    cpu_s: float
    leader_cpu_s: float
    # Resident at most, and before the first record.
    peak_mib: float
    begin_mib: float
    spilled_mib: float
    digest: str
    # Monotonic time of its last record.
    last_s: float


@click.command()
@click.option("--rounds", default=3, show_default=True, type=click.IntRange(1, 100))
@click.option("--large", default=0.0, help="GiB of one transaction, read by both deliveries.")
@click.option("--only-large", is_flag=True, help="Nothing else.")
def main(rounds: int, large: float, only_large: bool) -> None:
    """Measure on this machine. See benchmarks/README.md."""
    with tempfile.TemporaryDirectory(prefix="oncelog-bench-") as made:
        folder = Path(made)
        with local_cluster(folder / "cluster") as bootstrap, oncelog.connect(bootstrap) as log:
            bench = Bench(log, bootstrap, folder)
            if not only_large:
                Console(width=150).print(bench.cases(rounds))
                Console(width=150).print(bench.live(rounds))
            if large:
                Console(width=150).print(bench.large(int(large * 1024 * MIB)))


class Bench:
    """One run."""

    def __init__(self, log: oncelog.Log, bootstrap: str, folder: Path) -> None:
        self._log = log
        self._bootstrap = bootstrap
        self._folder = folder
        self._leader = leader_pid(folder)

    def cases(self, rounds: int) -> Table:
        table = Table("what", "delivery", "reader CPU s", "leader CPU s", "peak MiB", "to disk MiB")
        for name, case in CASES.items():
            topic = self._log.admin.create_topic(
                f"case-{case.records}-{case.aborted}", partitions=1
            ).name
            records = self._write(topic, case)
            reads: dict[str, list[Read]] = {delivery: [] for delivery in DELIVERIES}
            for _ in range(rounds):
                for delivery in DELIVERIES:
                    reads[delivery].append(self._read(topic, records, delivery))
            for delivery, found in reads.items():
                print(name, delivery, *_cells(found), sep=" | ", file=sys.stderr, flush=True)
                table.add_row(name, delivery, *_cells(found))
            self._log.admin.delete_topic(topic)
        return table

    def large(self, size: int) -> Table:
        """One transaction, and whether both say the same."""
        table = Table(
            f"{size / MIB:.0f} MiB", "reader CPU s", "leader CPU s", "peak MiB", "to disk MiB"
        )
        topic = self._log.admin.create_topic("large", partitions=1).name
        records = self._write(topic, Case(1, size // VALUE_BYTES, 0))
        reads = [self._read(topic, records, delivery, "verify") for delivery in DELIVERIES]
        assert len({(read.records, read.digest) for read in reads}) == 1, "another sequence"
        for delivery, read in zip(DELIVERIES, reads, strict=True):
            table.add_row(delivery, *_cells([read]))
        return table

    def live(self, rounds: int) -> Table:
        table = Table("transaction KiB", *(f"{delivery}: all of it, ms" for delivery in DELIVERIES))
        for size in LIVE_BYTES:
            cells = []
            for delivery in DELIVERIES:
                took = [self._live(size, delivery) for _ in range(rounds)]
                cells.append(f"{statistics.median(took) * 1000:.0f}")
            table.add_row(f"{size // 1024:,}", *cells)
        return table

    def _live(self, size: int, delivery: str) -> float:
        topic = self._log.admin.create_topic(f"live-{time.monotonic_ns()}", partitions=1).name
        with self._log.producer() as plain:
            plain.send(topic, b"ready")
        reader = self._reader(topic, size // VALUE_BYTES + 1, delivery)
        assert reader.stdout is not None
        assert reader.stdout.readline() == "ready\n"
        producer = self._log.transactional_producer()
        with producer.transaction(wait="visible") as tx:
            for table in tables(size // VALUE_BYTES):
                tx.send_arrow(topic, table)
            tx.flush()
            # A reader of journals may take it in meanwhile.
            time.sleep(1.0)
            begin = time.monotonic()
        took = _said(reader).last_s - begin
        self._log.admin.delete_topic(topic)
        return took

    def _write(self, topic: str, case: Case) -> int:
        """How many records can be read."""
        producers = [self._log.transactional_producer() for _ in range(OPEN)]
        count = 0
        for first in range(0, case.transactions, OPEN):
            some = producers[: case.transactions - first]
            open_ = [producer.transaction() for producer in some]
            for tx in open_:
                tx.__enter__()
                for table in tables(case.records):
                    tx.send_arrow(topic, table)
                if case.records > OPEN * OPEN:
                    tx.flush()
            for number, tx in enumerate(open_, first):
                if case.aborted and number % case.aborted:
                    tx.abort()
                else:
                    tx.commit()
                    count += case.records
        return count

    def _read(self, topic: str, records: int, delivery: str, verify: str = "") -> Read:
        before = process_cpu_seconds(self._leader)
        read = _said(self._reader(topic, records, delivery, verify))
        return read._replace(leader_cpu_s=process_cpu_seconds(self._leader) - before)

    def _reader(
        self, topic: str, records: int, delivery: str, verify: str = ""
    ) -> subprocess.Popen[str]:
        arguments = [self._bootstrap, topic, str(records), delivery, str(self._folder), verify]
        command = [sys.executable, "-c", "from benchmarks.commit_order import read; read()"]
        return subprocess.Popen([*command, *arguments], stdout=subprocess.PIPE, text=True)


def read() -> None:
    """The reader's process."""
    bootstrap, topic, records, delivery, folder, verify = sys.argv[1:]
    # Apart: the two cut what they give into other batches.
    offsets, values = hashlib.blake2b(), hashlib.blake2b()
    with oncelog.connect(bootstrap) as log:
        consumer = log.consumer([topic], delivery=delivery, buffer_dir=Path(folder) / "buffers")
        begin_mib = peak_mib()
        count, begin = 0, time.process_time()
        while count < int(records):
            batch = consumer.poll(SECONDS_MAX)
            assert batch is not None, "nothing comes"
            if count == 0 and len(batch) == 1:
                print("ready", flush=True)
            count += len(batch)
            table = batch.table
            if verify:
                offsets.update(table.column("offset").to_numpy().tobytes())
                values.update(b"".join(table.column("value").to_pylist()))
        last_s, cpu_s = time.monotonic(), time.process_time() - begin
        held = getattr(consumer.twin._prefetcher, "held", None)
        spilled = held.written_bytes / MIB if held is not None else 0.0
        digest = offsets.hexdigest() + values.hexdigest()
        said = Read(count, cpu_s, 0.0, peak_mib(), begin_mib, spilled, digest, last_s)
        print(json.dumps(said._asdict()))


def tables(records: int) -> Iterator[pa.Table]:
    """Of a MiB, or less."""
    for first in range(0, records, MIB // VALUE_BYTES):
        count = min(MIB // VALUE_BYTES, records - first)
        values = [b"%0*d" % (VALUE_BYTES, number) for number in range(first, first + count)]
        yield pa.table({"value": values})


def leader_pid(folder: Path) -> int:
    """Of the partition leader that runs over this folder."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if str(folder).encode() in words and b"partition_leader" in words:
                return int(entry.name)
    raise click.ClickException("no partition leader runs there")


def peak_mib() -> float:
    """Resident at most, so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _said(reader: subprocess.Popen[str]) -> Read:
    out, _ = reader.communicate(timeout=SECONDS_MAX)
    assert reader.returncode == 0, "the reader failed"
    fields: dict[str, Any] = json.loads(out.splitlines()[-1])
    return Read(**fields)


def _cells(reads: list[Read]) -> list[str]:
    def median(name: str) -> float:
        return float(statistics.median(getattr(read, name) for read in reads))

    return [
        f"{median('cpu_s'):.2f}",
        f"{median('leader_cpu_s'):.2f}",
        f"{median('peak_mib'):.0f} (from {median('begin_mib'):.0f})",
        f"{median('spilled_mib'):.0f}",
    ]


if __name__ == "__main__":
    end_as_by_ctrl_c()
    main()
