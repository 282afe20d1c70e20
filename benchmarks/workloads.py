"""One function per workload: it uses the client as users do and returns what it measured.

Every workload gets the cluster and the name of a fresh topic, and gives a Result. Loops are
bounded by count or by `SECONDS_MAX`.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

import oncelog
from oncelog import aio

SECONDS_MAX: Final = 20.0
RECORDS: Final = 200_000
RECORDS_1K: Final = 60_000
COMMIT_EVERY_SECONDS: Final = 0.1
LATENCY_ROUNDS: Final = 500
PIPELINE_RECORDS: Final = 30_000
PIPELINE_BATCH: Final = 750
ARROW_ROWS: Final = 10_000
PRODUCERS: Final = 64
TRANSACTIONS_EACH: Final = 30
PARTITIONS: Final = 4


@dataclass(frozen=True, slots=True)
class Result:
    """Records (or what `unit` says) and bytes in so many seconds, or the durations of single
    rounds."""

    records: int = 0
    value_bytes: int = 0
    seconds: float = 0.0
    # Seconds of each round; empty for throughput.
    rounds: tuple[float, ...] = ()
    unit: str = "records_per_s"


@dataclass(frozen=True, slots=True)
class Cluster:
    """Where the workloads run: a connection that all of them share, and the way to others."""

    log: oncelog.Log
    bootstrap: str


Workload = Callable[[Cluster, str], Result]


def plain(size: int, records: int, *, keys: int = 0) -> Workload:
    def run(cluster: Cluster, topic: str) -> Result:
        value = b"v" * size
        names = [b"key-%d" % i for i in range(keys)]
        with cluster.log.producer() as producer:
            start = time.perf_counter()
            for i in range(records):
                producer.send(topic, value, names[i % keys] if keys else None)
            producer.flush()
            return Result(records, records * size, time.perf_counter() - start)

    return run


def arrow(cluster: Cluster, topic: str) -> Result:
    table = pa.table({"value": pa.array([b"v" * 100] * ARROW_ROWS, pa.binary())})
    with cluster.log.producer() as producer:
        start = time.perf_counter()
        for _ in range(RECORDS // ARROW_ROWS):
            producer.send_arrow(topic, table)
        producer.flush()
        return Result(RECORDS, RECORDS * 100, time.perf_counter() - start)


def transactions(cluster: Cluster, topic: str) -> Result:
    value = b"v" * 100
    sent = 0
    with cluster.log.transactional_producer() as producer:
        start = time.perf_counter()
        while sent < RECORDS:
            with producer.transaction() as tx:
                until = time.perf_counter() + COMMIT_EVERY_SECONDS
                while sent < RECORDS and time.perf_counter() < until:
                    for _ in range(500):
                        tx.send(topic, value)
                    sent += 500
        return Result(sent, sent * 100, time.perf_counter() - start)


def one_record(*, begun: bool) -> Workload:
    def run(cluster: Cluster, topic: str) -> Result:
        rounds = []
        with cluster.log.transactional_producer() as producer:
            for _ in range(LATENCY_ROUNDS):
                start = time.perf_counter()
                with producer.transaction() as tx:
                    tx.send(topic, b"v" * 100)
                    if begun:
                        tx.flush()
                rounds.append(time.perf_counter() - start)
        return Result(rounds=tuple(rounds))

    return run


def many_producers(cluster: Cluster, topic: str) -> Result:
    """Each commits a record to each partition, over and over; all share one connection."""

    async def commit_all(producer: aio.TransactionalProducer) -> None:
        for _ in range(TRANSACTIONS_EACH):
            async with producer.transaction() as tx:
                for partition in range(PARTITIONS):
                    await tx.send(topic, b"v" * 100, partition=partition)

    async def run() -> float:
        async with aio.connect(cluster.bootstrap) as log:
            producers = [await log.transactional_producer() for _ in range(PRODUCERS)]
            for producer in producers:
                await producer.start()
            start = time.perf_counter()
            await asyncio.gather(*map(commit_all, producers))
            return time.perf_counter() - start

    return Result(PRODUCERS * TRANSACTIONS_EACH, seconds=asyncio.run(run()), unit="tx_per_s")


def pipeline(cluster: Cluster, topic: str) -> Result:
    cluster.log.admin.create_topic(f"{topic}-out", partitions=1)
    _fill(cluster, topic, PIPELINE_RECORDS, 100)
    done = 0
    with (
        cluster.log.transactional_producer() as producer,
        cluster.log.consumer([topic], group=topic, batch_records_max=PIPELINE_BATCH) as consumer,
    ):
        start = time.perf_counter()
        while done < PIPELINE_RECORDS:
            batch = consumer.poll(SECONDS_MAX)
            assert batch is not None, "the input is there"
            with producer.transaction(consumer) as tx:
                for record in batch.records():
                    tx.send(f"{topic}-out", record.value, record.key)
            done += len(batch)
        return Result(done, done * 100, time.perf_counter() - start)


def read(size: int, records: int, *, as_records: bool) -> Workload:
    def run(cluster: Cluster, topic: str) -> Result:
        _fill(cluster, topic, records, size)
        done = 0
        with cluster.log.consumer([topic]) as consumer:
            start = time.perf_counter()
            while done < records:
                batch = consumer.poll(SECONDS_MAX)
                assert batch is not None, "the records are there"
                done += sum(1 for _ in batch.records()) if as_records else len(batch.to_arrow())
            return Result(done, done * size, time.perf_counter() - start)

    return run


def end_to_end(*, beside_open: bool) -> Workload:
    def run(cluster: Cluster, topic: str) -> Result:
        with (
            cluster.log.producer(linger_ms=0) as producer,
            cluster.log.consumer([topic]) as consumer,
            cluster.log.transactional_producer() as holder,
        ):
            if not beside_open:
                return Result(rounds=_echo(producer, consumer, topic))
            with holder.transaction() as tx:
                tx.send(topic, b"open")
                tx.flush()
                return Result(rounds=_echo(producer, consumer, topic))

    return run


def _echo(producer: oncelog.Producer, consumer: oncelog.Consumer, topic: str) -> tuple[float, ...]:
    arrived = threading.Semaphore(0)

    def follow() -> None:
        seen = 0
        while seen < LATENCY_ROUNDS:
            batch = consumer.poll(SECONDS_MAX)
            if batch is None:
                return
            for _ in batch.records():
                seen += 1
                arrived.release()

    reader = threading.Thread(target=follow, daemon=True)
    reader.start()
    rounds = []
    for _ in range(LATENCY_ROUNDS):
        start = time.perf_counter()
        producer.send(topic, b"v" * 100)
        assert arrived.acquire(timeout=SECONDS_MAX), "the reader saw nothing"
        rounds.append(time.perf_counter() - start)
    reader.join(SECONDS_MAX)
    return tuple(rounds)


def _fill(cluster: Cluster, topic: str, records: int, size: int) -> None:
    value = b"v" * size
    with cluster.log.producer() as producer:
        for _ in range(records):
            producer.send(topic, value)
        producer.flush()


WORKLOADS: Final[dict[str, Workload]] = {
    "plain-100": plain(100, RECORDS),
    "plain-keys-100": plain(100, RECORDS, keys=1000),
    "plain-1k": plain(1024, RECORDS_1K),
    "arrow-100": arrow,
    "transactions-100": transactions,
    "one-record": one_record(begun=False),
    "begun": one_record(begun=True),
    "many-producers": many_producers,
    "pipeline": pipeline,
    "read-arrow-100": read(100, RECORDS, as_records=False),
    "read-records-100": read(100, RECORDS, as_records=True),
    "read-arrow-1k": read(1024, RECORDS_1K, as_records=False),
    "end-to-end": end_to_end(beside_open=False),
    "beside-open": end_to_end(beside_open=True),
}
# Partitions of the topic of a workload, where it is not one.
PARTITIONS_OF: Final = {"many-producers": PARTITIONS}
# Workload -> the one whose figure it is shown as a ratio of.
RATIO_TO: Final = {
    "transactions-100": "plain-100",
    "beside-open": "end-to-end",
    "begun": "one-record",
}
