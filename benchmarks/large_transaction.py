"""`python -m benchmarks.large_transaction [--gb 10] [--materialization copy]`: one transaction that
is as large as one likes, others that are committed beside it, and what all of it takes in memory.

A cluster of its own, of three processes. The large transaction is written to each partition of a
topic in turn, in MiBs; a second producer commits one record after the other to the same partitions
meanwhile. Then the large one is committed, and read whole: every record is there, once, in its
place. Where the topic is settled it is read whole once more when that is done. Memory is what each
process has resident at most in each tenth of it, above what it had after a transaction of
WARM_UP_BYTES.

Needs twice the bytes on disk, three times where it is settled, in the folder that `--folder` names.
"""

from __future__ import annotations

import functools
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import click
import pyarrow as pa

import oncelog
from benchmarks.ending import end_as_by_ctrl_c
from benchmarks.machine import process_cpu_seconds
from oncelog_server.core.roles import ROLES
from oncelog_spark.jobs.local_cluster import local_cluster

MIB: Final = 1 << 20
VALUE_BYTES: Final = 1_000
PARTITIONS: Final = 2
WARM_UP_BYTES: Final = 64 * MIB
# Between two small transactions beside the large one, and two looks at memory, seconds.
BESIDE_EVERY_S: Final = 0.02
LOOK_EVERY_S: Final = 0.1
# Records of both kinds begin so.
LARGE: Final = b"large"
SMALL: Final = b"small"
GB: Final = 10**9
# Nothing comes for so long: then something is wrong, seconds.
SILENT_S: Final = 60.0
# How often is said how memory is, while it is written.
SHARES: Final = 10
# Of so many bytes a second is settled at least, or it is given up.
SETTLED_BYTES_S_MIN: Final = 4 * MIB
SETTLED_LOOK_S: Final = 1.0


class Memory:
    """What processes have resident, looked at by a thread. `with Memory(pids) as memory:`
    `others`: what is no single process, and how to ask how many MiB it has."""

    def __init__(
        self, pids: Mapping[str, int], others: Mapping[str, Callable[[], float]] | None = None
    ) -> None:
        self._pids = pids
        self._ask: dict[str, Callable[[], float]] = {
            name: functools.partial(resident_mib, pid) for name, pid in pids.items()
        }
        self._ask |= others or {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        # MiB, by name.
        self.before = {name: ask() for name, ask in self._ask.items()}
        self.peak = dict(self.before)
        # What was going on, and the most that each had in that time, above what it had before.
        self.marks: list[tuple[str, dict[str, float]]] = []
        self._peak_since = dict(self.before)
        self._cpu_s = {name: process_cpu_seconds(pid) for name, pid in pids.items()}

    @property
    def grown_mib(self) -> dict[str, float]:
        return {name: self.peak[name] - self.before[name] for name in self._ask}

    @property
    def cpu_s(self) -> dict[str, float]:
        """That each has used since."""
        return {
            name: process_cpu_seconds(self._pids[name]) - was for name, was in self._cpu_s.items()
        }

    def mark(self, what: str) -> None:
        """All since the last mark was about that."""
        grown = {name: self._peak_since[name] - self.before[name] for name in self._ask}
        self.marks.append((what, grown))
        self._peak_since = {name: ask() for name, ask in self._ask.items()}

    def _look(self) -> None:
        while not self._over.wait(LOOK_EVERY_S):
            for name, ask in self._ask.items():
                now = ask()
                self.peak[name] = max(self.peak[name], now)
                self._peak_since[name] = max(self._peak_since[name], now)

    def __enter__(self) -> Memory:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()


class Beside:
    """Somebody who commits one record after the other, by a client of its own, in a thread."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._bootstrap = bootstrap
        self._topic = topic
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._commit, daemon=True)
        # Of each transaction, until it was committed and visible.
        self.took_ms: list[float] = []
        self.error: BaseException | None = None

    def _commit(self) -> None:
        try:
            with oncelog.connect(self._bootstrap) as log:
                producer = log.transactional_producer()
                while not self._over.wait(BESIDE_EVERY_S):
                    number = len(self.took_ms)
                    begin = time.monotonic()
                    with producer.transaction(wait="visible") as tx:
                        tx.send(self._topic, SMALL, partition=number % PARTITIONS)
                    self.took_ms.append((time.monotonic() - begin) * 1000)
        except BaseException as error:
            self.error = error

    def __enter__(self) -> Beside:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()
        if self.error is not None and error[0] is None:
            raise self.error


class Written(NamedTuple):
    """One large transaction."""

    # In each partition.
    records: int
    open_s: float
    commit_ms: float


def write(
    log: oncelog.Log, topic: str, size: int, *, wrote: Callable[[int], None] = lambda _: None
) -> Written:
    """So many bytes in one transaction, in turn to each partition; visible when it returns.
    `wrote` is told how many tenths (SHARES) are sent."""
    producer = log.transactional_producer()
    begin = time.monotonic()
    with producer.transaction(wait="visible") as tx:
        records = told = 0
        wanted = size // PARTITIONS // VALUE_BYTES
        for table in tables(wanted):
            for partition in range(PARTITIONS):
                number = pa.array([partition] * len(table), pa.int32())
                tx.send_arrow(topic, table.append_column("partition", number))
            records += len(table)
            if records * SHARES // wanted > told:
                told = records * SHARES // wanted
                wrote(told)
        tx.flush()
        written = time.monotonic()
    producer.close()
    return Written(records, written - begin, (time.monotonic() - written) * 1000)


def tables(records: int) -> Iterator[pa.Table]:
    """Numbered, of a MiB, or less."""
    for first in range(0, records, MIB // VALUE_BYTES):
        count = min(MIB // VALUE_BYTES, records - first)
        values = [LARGE + b"%0*d" % (VALUE_BYTES - len(LARGE), first + n) for n in range(count)]
        yield pa.table({"value": values})


def read_whole(log: oncelog.Log, topic: str, records: int) -> int:
    """Reads everything, until each partition has given the large transaction's records: in their
    order, with nothing between them. How many others came. Raises AssertionError."""
    consumer = log.consumer([topic], start="earliest")
    begins: dict[int, int] = {}
    found = dict.fromkeys(range(PARTITIONS), 0)
    others = 0
    while any(count < records for count in found.values()):
        batch = consumer.poll(SILENT_S)
        assert batch is not None, f"nothing comes, and there are {found} of {records}"
        for record in batch:
            assert record.value is not None
            if not record.value.startswith(LARGE):
                others += 1
                continue
            number = found[record.partition]
            assert int(record.value[len(LARGE) :]) == number, f"another one stands at {number}"
            begin = begins.setdefault(record.partition, record.offset)
            assert record.offset == begin + number, "I9: something stands in the middle of it"
            found[record.partition] = number + 1
    consumer.close()
    assert set(found.values()) == {records}, f"{found} came, and {records} were written"
    return others


def until_settled(folder: Path, log: oncelog.Log, topic: str, size: int) -> float:
    """Until the data log has so many bytes, seconds. Raises AssertionError."""
    topic_id = log.admin.describe_topic(topic).topic_id
    begin = time.monotonic()
    while time.monotonic() - begin < SILENT_S + size / SETTLED_BYTES_S_MIN:
        files = folder.glob(f"**/partitions/{topic_id}-*/data/*.data")
        if sum(path.stat().st_size for path in files) >= size:
            return time.monotonic() - begin
        time.sleep(SETTLED_LOOK_S)
    raise AssertionError("it is not settled by now")


def resident_mib(pid: int) -> float:
    """Now."""
    status = Path(f"/proc/{pid}/status").read_text()
    [line] = [line for line in status.splitlines() if line.startswith("VmRSS")]
    return int(line.split()[1]) / 1024


def pids_over(folder: Path) -> dict[str, int]:
    """By role, of the processes that run over a folder, and of this one."""
    found = {"this client": os.getpid()}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if any(str(folder).encode() in word for word in words):
                found |= {role: int(entry.name) for role in ROLES if role.encode() in words}
    return found


@click.command()
@click.option("--gb", default=10.0, show_default=True, help="Payload of the transaction.")
@click.option("--materialization", default="copy", show_default=True)
@click.option("--folder", type=click.Path(path_type=Path), help="Where its data goes.")
def main(gb: float, materialization: str, folder: Path | None) -> None:
    """One very large transaction, others beside it. See benchmarks/README.md."""
    size = int(gb * GB)
    configs = {"materialization": materialization}
    with (
        tempfile.TemporaryDirectory(dir=folder) as data,
        local_cluster(Path(data)) as bootstrap,
        oncelog.connect(bootstrap) as log,
    ):
        for topic in ("warm-up", "large"):
            log.admin.create_topic(topic, partitions=PARTITIONS, configs=configs)
        read_whole(log, "warm-up", write(log, "warm-up", WARM_UP_BYTES).records)
        took: list[tuple[str, float]] = []
        with Memory(pids_over(Path(data))) as memory:

            def wrote(tenths: int) -> None:
                memory.mark(f"written, {tenths} of {SHARES}")
                click.echo(memory.marks[-1], err=True)

            with Beside(bootstrap, "large") as beside:
                written = write(log, "large", size, wrote=wrote)
            memory.mark("committed")
            took.append(("read whole", timed(lambda: read_whole(log, "large", written.records))))
            memory.mark("read whole")
            if materialization == "copy":
                took.append(("settled after that", until_settled(Path(data), log, "large", size)))
                memory.mark("settled")
                again = timed(lambda: read_whole(log, "large", written.records))
                took.append(("read whole, settled", again))
                memory.mark("read whole, settled")
            cpu_s = memory.cpu_s
    print(_table(size, written, took, beside, cpu_s), memory_table(memory), sep="\n\n")


def timed(work: Callable[[], object]) -> float:
    """Seconds."""
    begin = time.monotonic()
    work()
    return time.monotonic() - begin


def _table(
    size: int,
    written: Written,
    took: list[tuple[str, float]],
    beside: Beside,
    cpu_s: Mapping[str, float],
) -> str:
    rows = [
        ("written, MB", f"{size / 10**6:,.0f}"),
        ("open, s", f"{written.open_s:.1f}"),
        ("committed and visible, ms", f"{written.commit_ms:.0f}"),
        *((f"{what}, s", f"{seconds:.1f}") for what, seconds in took),
        ("transactions beside it", f"{len(beside.took_ms):,}"),
        ("their p50, ms", f"{statistics.median(beside.took_ms):.1f}"),
        ("their p99, ms", f"{statistics.quantiles(beside.took_ms, n=100)[98]:.1f}"),
        ("their worst, ms", f"{max(beside.took_ms):.0f}"),
        *((f"{name}, CPU s", f"{used:.1f}") for name, used in cpu_s.items()),
    ]
    return markdown([("figure", "value"), *rows])


def memory_table(memory: Memory) -> str:
    """MiB above what each had before."""
    header = ("at most, MiB above", *memory.before)
    rows = [(what, *(f"{mib:.0f}" for mib in grown.values())) for what, grown in memory.marks]
    return markdown([header, *rows])


def markdown(rows: Sequence[Sequence[str]]) -> str:
    header, *others = rows
    lines = [header, ["---"] * len(header), *others]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    end_as_by_ctrl_c()
    main()
