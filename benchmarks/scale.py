"""`python -m benchmarks.scale [--open 100000] [--partitions 10000] [--log-mb 100000]`: whether an
operation costs the same however much there is: open transactions, partitions, log.

A cluster of its own for each. It grows in three steps (nothing, a tenth, all), and at each of them
the same is measured: one record in a transaction of one message, in the topic that grew where one
did; what the servers take when nobody asks anything; and, of a long log, how a reader gets its end.
What holds transactions open is a process of its own, so that its signs of life are not the
client's.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final, NamedTuple

import click

import oncelog
from benchmarks import ours
from benchmarks.crowd import READY
from benchmarks.ending import end_as_by_ctrl_c
from benchmarks.inputs import Inputs
from benchmarks.measure import Meter, Shape, Task, Used
from benchmarks.observer import Observer
from benchmarks.sides import OURS, Measured, pid_over
from benchmarks.summary import CPU, P50, P99, SWITCHES, of_round, percentile
from benchmarks.tables import Row, markdown, shown
from oncelog import aio
from oncelog_spark.jobs.local_cluster import local_cluster

GROWTHS: Final[Mapping[str, str]] = {
    "open-transactions": "one record in a transaction, beside open transactions (--open)",
    "many-partitions": "the same, beside partitions that hold nothing (--partitions)",
    "much-log": "the same, at the end of much log, and a reader's way there (--log-mb)",
}
TOPIC: Final = "grown"
HELD_PARTITIONS: Final = 8
PARTITIONS_A_TOPIC: Final = 100
VALUE_BYTES: Final = 1_000
# Begun at a time.
AT_A_TIME: Final = 64
# How long they stay open: as long as a coordinator lets them by default.
HELD_MS: Final = 3_600_000
# What the servers do beside nothing is looked at for so long.
IDLE_S: Final = 3.0
LATE_READS: Final = 20
LATE_RECORDS: Final = 1_000
COLUMNS: Final = (
    *("what grew", "to", "p50_ms", "p99_ms", "cpu_us", "switches"),
    *("idle, % of a core", "read its end, p50_ms"),
)


class Sizes(NamedTuple):
    """How much there is in the end."""

    open_transactions: int
    partitions: int
    log_mb: int

    def steps(self, growth: str) -> list[int]:
        most = dict(zip(GROWTHS, self, strict=True))[growth]
        return sorted({0, most // 10, most})


class Place(NamedTuple):
    """The cluster that grows, and how it is measured."""

    log: oncelog.Log
    bootstrap: str
    observer: Observer
    stack: ExitStack


def growth_table(folder: Path, growths: Sequence[str], sizes: Sizes, seconds: float) -> str:
    """Markdown: of each growth, for each of its steps."""
    found: list[Row] = []
    for growth in growths:
        with _cluster(folder / growth) as place:
            so_far = 0
            for size in sizes.steps(growth):
                GROW[growth](place, so_far, size)
                so_far = size
                found.append(_measured(place, growth, size, seconds))
    return markdown(COLUMNS, found)


@contextmanager
def _cluster(folder: Path) -> Iterator[Place]:
    with ExitStack() as stack:
        bootstrap = stack.enter_context(local_cluster(folder))
        log = stack.enter_context(oncelog.connect(bootstrap, timeout_ms=600_000))
        log.admin.create_topic(TOPIC, partitions=1)
        observer = stack.enter_context(Observer({OURS: [pid_over(folder)]}))
        yield Place(log, bootstrap, observer, stack)


# ------------------------------------------------------------------------------------------ grow


def _open_more(place: Place, so_far: int, size: int) -> None:
    if size > so_far:
        if not so_far:
            place.log.admin.create_topic("held", partitions=HELD_PARTITIONS)
        place.stack.enter_context(_holder(place.bootstrap, size - so_far))


@contextmanager
def _holder(bootstrap: str, count: int) -> Iterator[None]:
    command = (sys.executable, "-m", "benchmarks.scale", "--hold", bootstrap, "--open", str(count))
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[1],
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        if process.stdout.readline().strip() != READY:
            raise RuntimeError("the transactions could not be opened; see the output above")
        yield
    finally:
        process.kill()
        process.communicate()


async def _hold(bootstrap: str, count: int) -> None:
    """Begins so many, each with a record that is written, and waits to be killed, or for whoever
    started this process to be gone."""
    async with aio.connect(bootstrap, timeout_ms=600_000) as log:
        turns = asyncio.Semaphore(AT_A_TIME)
        held: list[aio.Transaction] = []

        async def begin(number: int) -> None:
            async with turns:
                producer = await log.transactional_producer(transaction_timeout_ms=HELD_MS)
                tx = producer.transaction()
                await tx.__aenter__()
                await tx.send("held", b"v" * 100, partition=number % HELD_PARTITIONS)
                await tx.flush()
                held.append(tx)

        await asyncio.gather(*map(begin, range(count)))
        print(READY, flush=True)
        await asyncio.to_thread(sys.stdin.read)


def _add_partitions(place: Place, so_far: int, size: int) -> None:
    for first in range(so_far, size, PARTITIONS_A_TOPIC):
        count = min(PARTITIONS_A_TOPIC, size - first)
        place.log.admin.create_topic(f"idle-{first}", partitions=count)
    if size > so_far:
        # All of them have leaders, and say where they end.
        for first in range(so_far, size, PARTITIONS_A_TOPIC):
            place.log.admin.offsets(f"idle-{first}")


def _add_log(place: Place, so_far: int, size: int) -> None:
    ours.fill(place.log, TOPIC, b"v" * VALUE_BYTES, (size - so_far) * 1_000_000 // VALUE_BYTES)


GROW: Final[Mapping[str, Callable[[Place, int, int], None]]] = {
    "open-transactions": _open_more,
    "many-partitions": _add_partitions,
    "much-log": _add_log,
}


# --------------------------------------------------------------------------------------- measure


def _measured(place: Place, growth: str, size: int, seconds: float) -> Row:
    cluster = ours.Cluster(place.log, place.bootstrap, Inputs(_never, _never))
    meter = Meter(seconds, place.observer.look, os.cpu_count() or 1, OURS)
    result = ours.one_record(cluster, Task(TOPIC, Shape(), meter))
    figures = of_round(Measured(result, _used(meter)))
    idle = Meter(IDLE_S, place.observer.look, os.cpu_count() or 1, OURS)
    with idle:
        time.sleep(idle.left_s())
    servers = sum(usage.cpu_s for usage in _used(idle).servers.values())
    return (
        growth,
        f"{size:,}",
        *(shown(figures[unit]) for unit in (P50, P99, CPU, SWITCHES)),
        f"{servers / idle.seconds:.1%}",
        shown(percentile(_late_reads_s(place.log), 50) * 1000),
    )


def _used(meter: Meter) -> Used:
    assert meter.used is not None, "it was entered"
    return meter.used


def _late_reads_s(log: oncelog.Log) -> list[float]:
    """A new reader that begins shortly before the end, until it has all."""
    took = []
    (end,) = log.admin.offsets(TOPIC)
    for _ in range(LATE_READS):
        seen, wanted = 0, min(LATE_RECORDS, end)
        start = time.perf_counter()
        with log.consumer([TOPIC]) as consumer:
            consumer.seek(TOPIC, 0, end - wanted)
            while seen < wanted:
                batch = consumer.poll(ours.SECONDS_MAX)
                assert batch is not None, "the records are there"
                seen += len(batch)
        took.append(time.perf_counter() - start)
    return took


def _never(*arguments: object) -> None:
    raise AssertionError("nothing is read that has to be filled first")


@click.command()
@click.option("--only", multiple=True, type=click.Choice(list(GROWTHS)), help="Repeatable.")
@click.option("--open", "open_transactions", default=1_000, show_default=True)
@click.option("--partitions", default=200, show_default=True)
@click.option("--log-mb", default=200, show_default=True)
@click.option("--seconds", default=5.0, show_default=True, help="Of each measurement.")
@click.option("--folder", type=click.Path(path_type=Path, file_okay=False), help="Whose disk.")
@click.option("--hold", metavar="BOOTSTRAP", hidden=True)
def main(
    only: tuple[str, ...],
    open_transactions: int,
    partitions: int,
    log_mb: int,
    seconds: float,
    folder: Path | None,
    hold: str | None,
) -> None:
    """Measure whether an operation costs the same however much there is.

    A hundred thousand open transactions take some ten minutes to be opened, ten thousand partitions
    as long to be made, and a log needs its size and a quarter of disk.
    """
    if hold is not None:
        asyncio.run(_hold(hold, open_transactions))
        return
    sizes = Sizes(open_transactions, partitions, log_mb)
    with tempfile.TemporaryDirectory(prefix="oncelog-scale-", dir=folder) as made:
        print(growth_table(Path(made), list(only) or list(GROWTHS), sizes, seconds))


if __name__ == "__main__":
    end_as_by_ctrl_c()
    main()
