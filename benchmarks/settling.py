"""`python -m benchmarks.settling`: what settling a topic (materialization `copy`) gains and costs.

    one transaction ──► topic `reference`   each transaction writes the same rows to both, so that
                    └─► topic `copy`        readers of both have the same before them
    plain batches   ──► topic `plain`       as well as it can be read

Each kind of transaction (so many rows of 100 B) is read back from all three in turns, as far as it
is settled; then the same producer writes to a topic of each kind in turns, while settling runs.
With `--alone` each topic has transactions of its own, which come as one message each. `--times` as
many of them: what opening a consumer takes (5 to 15 ms) is most of a small topic's time. With
`--old` the leader begins anew before they are read: else the newest of `plain` and `reference`
comes from its memory, and what is settled from its disk.
Left out: disks that are slower than memory, for all of it is in the page cache; several machines.
"""

from __future__ import annotations

import asyncio
import functools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import click

import oncelog
from benchmarks.ending import end_as_by_ctrl_c
from benchmarks.idle import ended, processes
from benchmarks.machine import cpu_seconds
from oncelog import aio
from oncelog_spark.jobs.local_cluster import local_cluster

# Rows of a transaction -> how many transactions.
KINDS: Final = {1: 6_000, 10: 2_000, 30: 1_200, 100: 600, 300: 300, 1_000: 120}
VALUE: Final = b"v" * 100
PRODUCERS: Final = 16
PRODUCED: Final = 100_000
LATENCIES: Final = 300
PARTITION_LEADER: Final = "partition_leader"
REFERENCE, COPY, AUTO, PLAIN = "reference", "copy", "auto", "plain"
TOPICS: Final = (PLAIN, REFERENCE, COPY)
PRODUCED_TO: Final = (REFERENCE, AUTO, COPY)
# Small, so that there is much to settle soon; both kinds of topics pay for the snapshots.
SNAPSHOT_EVERY_BYTES: Final = 256 << 10
SETTLED_S_MAX: Final = 90.0
POLL_S: Final = 10.0
PAUSE_S: Final = 0.5
# So much of a topic must be settled before it is read.
SETTLED_SHARE: Final = 0.7


class Took(NamedTuple):
    """Seconds, and CPU seconds of the client and all servers."""

    seconds: float
    cpu_s: float


class ReadBack(NamedTuple):
    """Of one kind of transactions: microseconds a record, by topic, and what their disks hold."""

    rows: int
    records: int
    us: dict[str, float]
    cpu_us: dict[str, float]
    disk: dict[str, dict[str, int]]


@click.command()
@click.option("--rounds", default=5, show_default=True, type=click.IntRange(1, 100))
@click.option("--rows", multiple=True, type=click.Choice([str(rows) for rows in KINDS]))
@click.option("--times", default=1, show_default=True, type=click.IntRange(1, 1_000))
@click.option("--alone/--together", default=False)
@click.option("--old/--fresh", default=False)
@click.option("--reading/--no-reading", default=True)
@click.option("--producing/--no-producing", default=True)
def main(
    rounds: int,
    rows: tuple[str, ...],
    times: int,
    alone: bool,
    old: bool,
    reading: bool,
    producing: bool,
) -> None:
    """Measure what settling gains and costs. See benchmarks/README.md."""
    options = ("--set", f"node.snapshot_every_bytes={SNAPSHOT_EVERY_BYTES}")
    with tempfile.TemporaryDirectory(prefix="oncelog-settling-") as folder:
        cluster = Path(folder) / "cluster"
        with local_cluster(cluster, options=options) as bootstrap:
            if reading:
                chosen = [int(each) for each in rows] or list(KINDS)
                forget = functools.partial(_begin_anew, cluster) if old else None
                found = [
                    _read_back(bootstrap, kind, rounds, KINDS[kind] * times, forget, alone=alone)
                    for kind in chosen
                ]
                print(_reading_table(found), _disk_table(found), sep="\n\n", flush=True)
            if producing:
                print(f"\n{_producing_table(bootstrap, rounds)}", flush=True)


# ------------------------------------------------------------------------------------- reading back


def _read_back(
    bootstrap: str,
    rows: int,
    rounds: int,
    count: int,
    forget: Callable[[], None] | None,
    *,
    alone: bool,
) -> ReadBack:
    """`count`: of transactions. `forget` is done before they are read."""
    names = {kind: f"{kind}-{rows}" for kind in TOPICS}
    with oncelog.connect(bootstrap) as log:
        for kind, name in names.items():
            configs = {"materialization": COPY if kind == COPY else REFERENCE}
            log.admin.create_topic(name, partitions=1, configs=configs)
        written = [names[REFERENCE], names[COPY]]
        for topics in [[name] for name in written] if alone else [written]:
            asyncio.run(_write(bootstrap, topics, rows, count))
        with log.producer() as producer:
            for _ in range(rows * count):
                producer.send(names[PLAIN], VALUE)
            producer.flush()
        if forget is not None:
            # Its last snapshot says that all can be settled, so nobody reads ahead of that.
            forget()
        records = _until_settled(bootstrap, names[COPY], rows * count)
        took: dict[str, list[Took]] = {kind: [] for kind in TOPICS}
        for turn in range(rounds + 1):
            for kind in TOPICS:
                # What the leader does yet for the reader before is not this one's.
                time.sleep(PAUSE_S)
                one = _timed(lambda kind=kind: _read(log, names[kind], records))  # type: ignore[misc]
                # The first round warms up.
                if turn:
                    took[kind].append(one)
        disk = {kind: _disk_of(bootstrap, name) for kind, name in names.items()}
        for name in names.values():
            log.admin.delete_topic(name)
    return ReadBack(
        rows,
        records,
        {kind: _median(one.seconds for one in of) / records * 1e6 for kind, of in took.items()},
        # The system counts CPU in hundredths of a second, so all rounds together.
        {kind: sum(one.cpu_s for one in of) / rounds / records * 1e6 for kind, of in took.items()},
        disk,
    )


async def _write(bootstrap: str, topics: list[str], rows: int, count: int) -> None:
    """Transactions of several producers at once, each with so many rows in every topic."""
    async with aio.connect(bootstrap) as log:
        left = iter(range(count))

        async def work() -> None:
            producer = await log.transactional_producer()
            for _ in left:
                async with producer.transaction() as tx:
                    for topic in topics:
                        for _ in range(rows):
                            await tx.send(topic, VALUE)
            await producer.close()

        await asyncio.gather(*(work() for _ in range(PRODUCERS)))


def _begin_anew(cluster: Path) -> None:
    """The partition leader: nothing is in its memory then. `oncelog up` starts it again."""
    ended(processes(cluster)[PARTITION_LEADER])


def _read(log: oncelog.Log, topic: str, records: int) -> None:
    done = 0
    with log.consumer([topic]) as consumer:
        while done < records:
            batch = consumer.poll(POLL_S)
            assert batch is not None, "the records are there"
            done += len(batch.to_arrow())


def _until_settled(bootstrap: str, topic: str, records: int) -> int:
    """How many of them are settled, once no more come."""
    end, before = time.monotonic() + SETTLED_S_MAX, -1
    while time.monotonic() < end:
        settled = _disk_of(bootstrap, topic).get("settled_end") or 0
        if settled >= records * SETTLED_SHARE and settled == before:
            return settled
        before = settled
        time.sleep(1)
    raise click.ClickException(f"{before} of {records} records of {topic} are settled, no more")


def _disk_of(bootstrap: str, topic: str) -> dict[str, int]:
    """What `--disk` says of its only replica."""
    command = [sys.executable, "-m", "oncelog_server.cli", "topic", "describe", topic]
    command += ["--disk", "--json", f"--bootstrap={bootstrap}"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    (row,) = json.loads(done.stdout)[0]["disk"]
    return {name: value or 0 for name, value in row.items() if not isinstance(value, str)}


def _reading_table(found: list[ReadBack]) -> str:
    lines = [
        "| rows a transaction | records | plain us | reference us | settled us | settled to plain "
        "| reference to plain | reference to settled | CPU us: plain | reference | settled |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for one in found:
        plain, reference, settled = (one.us[kind] for kind in TOPICS)
        cpu = " | ".join(f"{one.cpu_us[kind]:.2f}" for kind in TOPICS)
        lines.append(
            f"| {one.rows:,} | {one.records:,} | {plain:.2f} | {reference:.2f} | {settled:.2f} | "
            f"{settled / plain:.2f} | {reference / plain:.2f} | {reference / settled:.2f} | "
            f"{cpu} |"
        )
    return "\n".join(lines)


def _disk_table(found: list[ReadBack]) -> str:
    """Bytes for each byte of value: what is written at all, and what stays once journals go."""
    lines = [
        "| rows a transaction | journal | index and snapshots | data log | written, reference | "
        "written, copy | stays, reference | stays, copy |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for one in found:
        row = one.disk[COPY]
        values = one.rows * KINDS[one.rows] * len(VALUE)
        settled = one.records * len(VALUE)
        journal = row["segment_bytes"] / values
        beside = (row["table_bytes"] + row["snapshot_bytes"]) / values
        data = row["data_bytes"] / settled
        lines.append(
            f"| {one.rows:,} | {journal:.2f} | {beside:.2f} | {data:.2f} | "
            f"{journal + beside:.2f} | {journal + beside + data:.2f} | "
            f"{journal + beside:.2f} | {data + beside:.2f} |"
        )
    return "\n".join(lines)


# ---------------------------------------------------------------------------------------- producing


def _producing_table(bootstrap: str, rounds: int) -> str:
    took: dict[tuple[str, str], list[Took]] = {}
    with oncelog.connect(bootstrap) as log:
        for turn in range(rounds + 1):
            for kind in PRODUCED_TO:
                name = f"produce-{kind}-{turn}"
                log.admin.create_topic(name, partitions=1, configs={"materialization": kind})
                with _warmed_up(log, name):
                    for what, work in (
                        ("plain, 100 B", _produce),
                        ("a row a transaction", _commit),
                    ):
                        one = _timed(lambda work=work, name=name: work(log, name))  # type: ignore[misc]
                        if turn:
                            took.setdefault((what, kind), []).append(one)
    lines = [
        "| what | of | reference us | auto us | copy us | auto: ratio | copy: ratio "
        "| auto: CPU | copy: CPU |",
        "| - | - | - | - | - | - | - | - | - |",
    ]
    for what, of in (("plain, 100 B", PRODUCED), ("a row a transaction", LATENCIES)):
        each = [took[what, kind] for kind in PRODUCED_TO]
        us = [_median(one.seconds for one in of_kind) / of * 1e6 for of_kind in each]
        cpu = [_median(one.cpu_s for one in of_kind) for of_kind in each]
        cells = [f"{value:.2f}" for value in us]
        cells += [f"{value / us[0]:.2f}" for value in us[1:]]
        cells += [f"{value / cpu[0]:.2f}" for value in cpu[1:]]
        lines.append(f"| {what} | {of:,} | {' | '.join(cells)} |")
    return "\n".join(lines)


@contextmanager
def _warmed_up(log: oncelog.Log, topic: str) -> Iterator[None]:
    """Something to settle, while the block runs; the topic is gone after it."""
    _produce(log, topic)
    try:
        yield
    finally:
        log.admin.delete_topic(topic)


def _produce(log: oncelog.Log, topic: str) -> None:
    with log.producer() as producer:
        for _ in range(PRODUCED):
            producer.send(topic, VALUE)
        producer.flush()


def _commit(log: oncelog.Log, topic: str) -> None:
    with log.transactional_producer() as producer:
        for _ in range(LATENCIES):
            with producer.transaction() as tx:
                tx.send(topic, VALUE)


# ---------------------------------------------------------------------------------------- measuring


def _timed(work: Callable[[], Any]) -> Took:
    cpu, begun = cpu_seconds([os.getpid()]), time.perf_counter()
    work()
    return Took(time.perf_counter() - begun, cpu_seconds([os.getpid()]).since(cpu).ours)


def _median(values: Iterator[float]) -> float:
    return statistics.median(values)


if __name__ == "__main__":
    end_as_by_ctrl_c()
    main()
