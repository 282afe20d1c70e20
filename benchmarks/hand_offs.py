"""What one piece of work costs: CPU, context switches and page faults of the client, the
coordinator and the partition leader, per transaction, record, or MiB of records of 1 KiB.

    python -m benchmarks.hand_offs                          this checkout
    python -m benchmarks.hand_offs --against ../base        and another one, in interleaved pairs
    python -m benchmarks.hand_offs --python ../venv/bin/python      and by another interpreter
    python -m benchmarks.hand_offs --threads                by thread, too

A hand-off is a thread that waits for another one: it shows as a voluntary context switch, in
/proc/<pid>/task/*/status; those that the scheduler forces are shown apart, for they come from what
else the machine does. CPU is that of /proc/<pid>/task/*/schedstat, in nanoseconds. Both are summed
over the threads that there are at the end. Page faults are the minor ones of /proc/<pid>/stat: of
bulk, memory that went back to the system and is fetched again. Beside them stand latencies, and how
many pieces came in a second.

Each checkout is served by a process of its own, with a cluster of its own, all the time; the rounds
take turns. A pair is two rounds next to each other: what else the machine does hits both, so the
ratio of a pair is what to trust. The other checkout runs with this one's interpreter, unless
another one is named, for which the same is installed.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import click

import oncelog
from oncelog import aio
from oncelog_spark.jobs.local_cluster import local_cluster

VALUE: Final = b"v" * 100
TOPIC: Final = "hand-offs"
PARTITIONS: Final = 4
PRODUCERS: Final = 64
# Records that are read, and sent in one transaction with their offsets.
OF_A_TABLE: Final = 75
# Of bulk: a topic of one partition, and one of six.
KIB: Final = b"v" * 1024
BULK_TOPICS: Final = {1: "bulk", 6: "bulk-6"}
SECONDS_MAX: Final = 20.0
# What is imported of a checkout, before what is installed.
SOURCES: Final = ("protos/src", "clients/python/src", "services", "spark/src")
ROLES: Final = ("coordinator", "partition_leader", "offset_manager")


class Used(NamedTuple):
    """By one thread, so far."""

    cpu_ns: int
    waits: int
    forced: int


# Who it is of, and its name.
Thread = tuple[str, str]
Round = dict[str, Any]


def threads_of(pid: int) -> dict[int, tuple[str, Used]]:
    """By thread id."""
    found: dict[int, tuple[str, Used]] = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            status = (task / "status").read_text()
            cpu_ns = int((task / "schedstat").read_text().split()[0])
        except OSError:
            continue
        fields = dict(line.split(":", 1) for line in status.splitlines())
        waits = int(fields["voluntary_ctxt_switches"])
        forced = int(fields["nonvoluntary_ctxt_switches"])
        name = "main" if int(task.name) == pid else fields["Name"].strip()
        if name not in ("main", "event_engine"):
            # gRPC's poller, the loop of the client, the writer of a disk, a reader's thread.
            name = f"{name}-{len(found)}"
        found[int(task.name)] = (name, Used(cpu_ns, waits, forced))
    return found


def faults_of(pid: int) -> int:
    """Minor page faults so far."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[7])


def servers() -> dict[str, int]:
    """The processes of the cluster that this process has started, by role."""
    parents = {}
    for entry in Path("/proc").iterdir():
        try:
            stat = (entry / "stat").read_text()
        except OSError:
            continue
        if entry.name.isdigit():
            parents[int(entry.name)] = int(stat.rpartition(")")[2].split()[1])
    ours, grew = {os.getpid()}, True
    while grew:
        more = {pid for pid, parent in parents.items() if parent in ours} - ours
        ours |= more
        grew = bool(more)
    found = {}
    for pid in ours - {os.getpid()}:
        command = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
        for role in ROLES:
            if any(part == role or part.endswith(f".{role}") for part in command):
                found[role] = pid
    return found


# ---------------------------------------------------------------------------------- the workloads


def one_record(log: oncelog.Log, bootstrap: str, count: int, *, begun: bool) -> list[float]:
    took = []
    with log.transactional_producer() as producer:
        for _ in range(count):
            start = time.perf_counter()
            with producer.transaction() as tx:
                tx.send(TOPIC, VALUE, partition=0)
                if begun:
                    tx.flush()
            took.append(time.perf_counter() - start)
    return took


def end_to_end(log: oncelog.Log, bootstrap: str, count: int) -> list[float]:
    """From `send` to the reader, who waits in a thread of its own."""
    arrived, ready = threading.Semaphore(0), threading.Semaphore(0)

    def follow() -> None:
        with log.consumer([TOPIC], partitions=[(TOPIC, 1)], start="latest") as consumer:
            consumer.poll(0.5)
            ready.release()
            seen = 0
            while seen < count:
                batch = consumer.poll(SECONDS_MAX)
                if batch is None:
                    return
                for _ in batch.records():
                    seen += 1
                    arrived.release()

    reader = threading.Thread(target=follow, daemon=True)
    reader.start()
    assert ready.acquire(timeout=SECONDS_MAX), "the reader did not begin"
    took = []
    with log.producer(linger_ms=0) as producer:
        for _ in range(count):
            start = time.perf_counter()
            producer.send(TOPIC, VALUE, partition=1)
            assert arrived.acquire(timeout=SECONDS_MAX), "the reader saw nothing"
            took.append(time.perf_counter() - start)
    reader.join(SECONDS_MAX)
    return took


def with_offsets(log: oncelog.Log, bootstrap: str, count: int) -> list[float]:
    """Read, send, offsets, commit, of small tables; the reading is in it."""
    topic = "read-and-sent"
    _fill_once(log, topic, VALUE, count * OF_A_TABLE)
    took = []
    with (
        log.transactional_producer() as producer,
        log.consumer([topic], group=uuid.uuid4().hex, batch_records_max=OF_A_TABLE) as consumer,
    ):
        for _ in range(count):
            start = time.perf_counter()
            batch = consumer.poll(SECONDS_MAX)
            assert batch is not None, "the records are there"
            with producer.transaction(consumer) as tx:
                tx.send_arrow(TOPIC, batch.table.select(["key", "value"]))
            took.append(time.perf_counter() - start)
    return took


def _fill_once(log: oncelog.Log, topic: str, value: bytes, records: int) -> None:
    if topic not in {found.name for found in log.admin.topics()}:
        log.admin.create_topic(topic)
        with log.producer() as producer:
            for _ in range(records):
                producer.send(topic, value)


def many(log: oncelog.Log, bootstrap: str, count: int) -> list[float]:
    """64 producers of one client, all at once."""
    took: list[float] = []

    async def commit_all(producer: aio.TransactionalProducer) -> None:
        for _ in range(count // PRODUCERS):
            start = time.perf_counter()
            async with producer.transaction() as tx:
                for partition in range(PARTITIONS):
                    await tx.send(TOPIC, VALUE, partition=partition)
            took.append(time.perf_counter() - start)

    async def run() -> None:
        async with aio.connect(bootstrap) as own:
            producers = [await own.transactional_producer() for _ in range(PRODUCERS)]
            for producer in producers:
                await producer.start()
            await asyncio.gather(*map(commit_all, producers))

    asyncio.run(run())
    return took


def bulk_sends(log: oncelog.Log, bootstrap: str, count: int, *, partitions: int) -> list[float]:
    """So many MiB, flat out; all are acknowledged in the end."""
    took, topic = [], BULK_TOPICS[partitions]
    with log.producer() as producer:
        for _ in range(count):
            start = time.perf_counter()
            for _ in range(len(KIB)):
                producer.send(topic, KIB)
            took.append(time.perf_counter() - start)
        producer.flush()
    return took


def bulk_reads(log: oncelog.Log, bootstrap: str, count: int, *, objects: bool) -> list[float]:
    """So many MiB from the front of a log that was written before, out of the page cache."""
    topic = "bulk-read"
    _fill_once(log, topic, KIB, count * len(KIB))
    took, left = [], count * len(KIB)
    with log.consumer([topic]) as consumer:
        while left:
            start = time.perf_counter()
            batch = consumer.poll(SECONDS_MAX)
            assert batch is not None, "the records are there"
            left -= sum(1 for _ in batch.records()) if objects else len(batch.to_arrow())
            took.append(time.perf_counter() - start)
    return took


WORKLOADS: Final[dict[str, Callable[[oncelog.Log, str, int], list[float]]]] = {
    "one record": lambda log, at, count: one_record(log, at, count, begun=False),
    "flushed": lambda log, at, count: one_record(log, at, count, begun=True),
    "with offsets": with_offsets,
    "end to end": end_to_end,
    "64 producers": many,
    "bulk sends": partial(bulk_sends, partitions=1),
    "bulk sends, 6": partial(bulk_sends, partitions=6),
    "bulk reads": partial(bulk_reads, objects=False),
    "bulk reads, objects": partial(bulk_reads, objects=True),
}
# How many of each are a round of one second or two; of bulk, MiB.
COUNTS: Final = {
    "one record": 500,
    "flushed": 300,
    "with offsets": 200,
    "end to end": 500,
    "64 producers": 1_280,
    "bulk sends": 160,
    "bulk sends, 6": 160,
    "bulk reads": 192,
    "bulk reads, objects": 192,
}


# ------------------------------------------------------------------------------ one checkout's side


def measure(log: oncelog.Log, bootstrap: str, workload: str) -> Round:
    """What a round has used, per piece of work."""
    pids = {"client": os.getpid(), **servers()}
    count = COUNTS[workload]
    run = WORKLOADS[workload]
    before = {who: threads_of(pid) for who, pid in pids.items()}
    faults_before = {who: faults_of(pid) for who, pid in pids.items()}
    began = time.perf_counter()
    took = run(log, bootstrap, count)
    seconds = time.perf_counter() - began
    used: Counter[Thread] = Counter()
    waits: Counter[Thread] = Counter()
    forced: Counter[Thread] = Counter()
    for who, pid in pids.items():
        for tid, (name, after) in threads_of(pid).items():
            was = before[who].get(tid, ("", Used(0, 0, 0)))[1]
            used[who, name] += after.cpu_ns - was.cpu_ns
            waits[who, name] += after.waits - was.waits
            forced[who, name] += after.forced - was.forced
    took.sort()
    return {
        "p50_ms": took[len(took) // 2] * 1000,
        "p99_ms": took[int(len(took) * 0.99)] * 1000,
        "per_s": count / seconds,
        "faults": {who: (faults_of(pid) - faults_before[who]) / count for who, pid in pids.items()},
        "threads": [
            [*thread, used[thread] / count / 1000, waits[thread] / count, forced[thread] / count]
            for thread in used
        ],
    }


def serve() -> None:
    """Rounds on demand: a workload's name a line, its figures a line."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="oncelog-bench-")))
        bootstrap = stack.enter_context(local_cluster(folder))
        log = stack.enter_context(oncelog.connect(bootstrap))
        log.admin.create_topic(TOPIC, partitions=PARTITIONS)
        for partitions, topic in BULK_TOPICS.items():
            log.admin.create_topic(topic, partitions=partitions)
        print("ready", oncelog.__file__, flush=True)
        for line in sys.stdin:
            print(json.dumps(measure(log, bootstrap, line.strip())), flush=True)


class Side:
    """A process that serves one checkout."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._read()

    def round(self, workload: str) -> Round:
        assert self._process.stdin is not None
        self._process.stdin.write(workload + "\n")
        self._process.stdin.flush()
        found: Round = json.loads(self._read())
        return found

    def _read(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise click.ClickException("the process that measures has ended")
        return line


@contextmanager
def side(checkout: Path, python: str) -> Iterator[Side]:
    paths = os.pathsep.join(str(checkout.resolve() / part) for part in SOURCES)
    process = subprocess.Popen(
        [python, str(Path(__file__).resolve()), "--serve"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": paths},
    )
    try:
        yield Side(process)
    finally:
        assert process.stdin is not None
        process.stdin.close()
        process.wait(60)


# --------------------------------------------------------------------------------- what is printed


def _cpu_us(threads: Sequence[Sequence[Any]], who: str) -> float:
    return sum(float(thread[2]) for thread in threads if thread[0] == who)


def totals(found: Round) -> dict[str, float]:
    threads = found["threads"]
    return {
        "cpu_us": sum(thread[2] for thread in threads),
        "switches": sum(thread[3] for thread in threads),
        "forced": sum(thread[4] for thread in threads),
        **{f"cpu_us {who}": _cpu_us(threads, who) for who in ("client", *ROLES)},
        **{f"faults {who}": found["faults"][who] for who in ("client", "partition_leader")},
        "per_s": found["per_s"],
        "p50_ms": found["p50_ms"],
        "p99_ms": found["p99_ms"],
    }


def show(workload: str, ours: Sequence[Round], others: Sequence[Round]) -> None:
    click.echo(f"\n{workload}")
    for figure in totals(ours[0]):
        here = [totals(found)[figure] for found in ours]
        line = f"  {figure:23} {statistics.median(here):9.2f}"
        if others:
            there = [totals(found)[figure] for found in others]
            ratios = sorted(a / b for a, b in zip(here, there, strict=True) if b)
            if ratios:
                line += (
                    f"   other {statistics.median(there):9.2f}   ratio of pairs "
                    f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
                )
        click.echo(line)


def show_threads(rounds: Sequence[Round], title: str) -> None:
    by_thread: dict[Thread, list[tuple[float, float, float]]] = {}
    for found in rounds:
        for who, name, cpu, waits, forced in found["threads"]:
            by_thread.setdefault((who, name), []).append((cpu, waits, forced))
    click.echo(f"  {title}")
    for (who, name), figures in sorted(by_thread.items()):
        cpu, waits, forced = (sum(column) / len(rounds) for column in zip(*figures, strict=True))
        if cpu >= 1 or waits >= 0.05:
            click.echo(f"    {who:17} {name:16} {cpu:8.1f} us {waits:6.2f} {forced:6.2f}")


@click.command()
@click.option("--against", type=click.Path(exists=True, path_type=Path), help="A checkout.")
@click.option("--python", help="The interpreter of the other side, this checkout's by default.")
@click.option("--only", multiple=True, type=click.Choice(list(WORKLOADS)), help="Repeatable.")
@click.option("--rounds", default=7, show_default=True, type=click.IntRange(1, 200))
@click.option("--threads", is_flag=True, help="By thread, too.")
@click.option("--serve", "serves", is_flag=True, hidden=True)
def main(
    against: Path | None,
    python: str | None,
    only: tuple[str, ...],
    rounds: int,
    threads: bool,
    serves: bool,
) -> None:
    """Count hand-offs. See the module."""
    if serves:
        # By the sources of another checkout, in which this package may be another one.
        serve()
        return
    from benchmarks.ending import end_as_by_ctrl_c

    end_as_by_ctrl_c()
    with ExitStack() as stack:
        here = Path(__file__).resolve().parent.parent
        sides = [stack.enter_context(side(here, sys.executable))]
        if against or python:
            other = side(against or here, python or sys.executable)
            sides.append(stack.enter_context(other))
        for workload in only or WORKLOADS:
            found: list[list[Round]] = [[] for _ in sides]
            # The first one warms up.
            for turn in range(rounds + 1):
                order = list(zip(sides, found, strict=True))
                for one, kept in order if turn % 2 else reversed(order):
                    figures = one.round(workload)
                    if turn:
                        kept.append(figures)
            show(workload, found[0], found[1] if len(found) > 1 else ())
            if threads:
                for kept, title in zip(found, ("here", "there"), strict=False):
                    show_threads(kept, title)


if __name__ == "__main__":
    main()
