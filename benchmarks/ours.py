"""Each kind of workload with our client, used as users do. Beside them stand their twins in
`kafka.py`; which shapes there are is said in `workloads.py`."""

from __future__ import annotations

import inspect
import itertools
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any, Final

import pyarrow as pa

import oncelog
from benchmarks.crowd import OURS, crowded
from benchmarks.inputs import Inputs
from benchmarks.measure import Result, Task

# For what must come at once, when nothing is wrong.
SECONDS_MAX: Final = 60.0
# Records between two looks at the clock, of both sides.
CHUNK: Final = 500
ARROW_ROWS: Final = 10_000
# Before the first one that counts, where single rounds count.
ROUNDS_BEFORE: Final = 20
# A thread that follows looks so often whether it is over.
FOLLOW_S: Final = 0.2


@dataclass(frozen=True, slots=True)
class Cluster:
    """Where the workloads run: a connection that all of them share, and the way to others."""

    log: oncelog.Log
    bootstrap: str
    inputs: Inputs


def plain(cluster: Cluster, task: Task) -> Result:
    sent, topic, value = 0, task.topic, task.value
    keys = itertools.cycle(names(task.shape.keys))
    with cluster.log.producer() as producer, task.meter as meter:
        while meter.goes_on():
            for key in itertools.islice(keys, CHUNK):
                producer.send(topic, value, key)
            sent += CHUNK
        producer.flush()
    return Result(sent, meter.seconds, sent * len(value))


def arrow(cluster: Cluster, task: Task) -> Result:
    table = pa.table({"value": pa.array([task.value] * ARROW_ROWS, pa.binary())})
    sent = 0
    with cluster.log.producer() as producer, task.meter as meter:
        while meter.goes_on():
            producer.send_arrow(task.topic, table)
            sent += ARROW_ROWS
        producer.flush()
    return Result(sent, meter.seconds, sent * task.shape.value_bytes)


def transactions(cluster: Cluster, task: Task) -> Result:
    """One after the other, or several on their way: of so many records each, or of what comes in so
    many milliseconds."""
    sent, topic, value, shape = 0, task.topic, task.value, task.shape
    took = []
    options = _in_flight(shape.in_flight)
    with cluster.log.transactional_producer(**options) as producer, task.meter as meter:
        while meter.goes_on():
            start = time.perf_counter()
            with producer.transaction() as tx:
                if shape.records:
                    for _ in range(shape.records):
                        tx.send(topic, value)
                    sent += shape.records
                until = start + shape.every_ms / 1000
                while time.perf_counter() < until and meter.goes_on():
                    for _ in range(CHUNK):
                        tx.send(topic, value)
                    sent += CHUNK
            took.append(time.perf_counter() - start)
        if shape.in_flight > 1:
            producer.flush()
    latencies = tuple(took) if shape.records else ()
    return Result(sent, meter.seconds, sent * len(value), latencies_s=latencies)


def one_record(cluster: Cluster, task: Task) -> Result:
    took = []
    with cluster.log.transactional_producer() as producer:

        def commit() -> None:
            with producer.transaction() as tx:
                tx.send(task.topic, task.value)
                if task.shape.flushed:
                    tx.flush()

        for _ in range(ROUNDS_BEFORE):
            commit()
        with task.meter as meter:
            while meter.goes_on():
                start = time.perf_counter()
                commit()
                took.append(time.perf_counter() - start)
    return Result(len(took), meter.seconds, latencies_s=tuple(took))


def many_producers(cluster: Cluster, task: Task) -> Result:
    return crowded(OURS, cluster.bootstrap, task)


def pipeline(cluster: Cluster, task: Task) -> Result:
    """Read, send, offsets, commit: of so many records each."""
    source, out = cluster.inputs.of(task.shape, task.seconds), f"{task.topic}-out"
    cluster.log.admin.create_topic(out, partitions=task.shape.partitions)
    done, took = 0, []
    with (
        cluster.log.transactional_producer() as producer,
        cluster.log.consumer(
            [source.topic], group=task.topic, batch_records_max=task.shape.records
        ) as consumer,
        task.meter as meter,
    ):
        while meter.goes_on() and done < source.records:
            start = time.perf_counter()
            batch = consumer.poll(SECONDS_MAX)
            assert batch is not None, "the input is there"
            with producer.transaction(consumer) as tx:
                _transform(batch, tx, out, arrow=task.shape.arrow)
            done += len(batch)
            took.append(time.perf_counter() - start)
    cluster.log.admin.delete_topic(out)
    return Result(done, meter.seconds, done * task.shape.value_bytes, latencies_s=tuple(took))


def pipeline_in_flight(cluster: Cluster, task: Task) -> Result:
    """The same by `Log.run`, with several transactions on their way. Its end is told by a signal,
    as that of a service is."""
    source, out = cluster.inputs.of(task.shape, task.seconds), f"{task.topic}-out"
    cluster.log.admin.create_topic(out, partitions=task.shape.partitions)
    done = 0

    def step(batch: oncelog.Batch, tx: oncelog.Transaction) -> None:
        nonlocal done
        _transform(batch, tx, out, arrow=task.shape.arrow)
        done += len(batch)
        if done >= source.records or not meter.goes_on():
            signal.raise_signal(signal.SIGALRM)

    run: Any = cluster.log.run
    with (
        cluster.log.transactional_producer(**_in_flight(task.shape.in_flight)) as producer,
        cluster.log.consumer(
            [source.topic], group=task.topic, batch_records_max=task.shape.records
        ) as consumer,
        task.meter as meter,
    ):
        run(consumer, step, producer, in_flight=task.shape.in_flight, stop_on=[signal.SIGALRM])
    cluster.log.admin.delete_topic(out)
    return Result(done, meter.seconds, done * task.shape.value_bytes)


def has_in_flight() -> bool:
    """Whether this client can have several transactions of one producer on their way."""
    return "in_flight" in inspect.signature(oncelog.Log.run).parameters


def _in_flight(count: int) -> dict[str, Any]:
    option = {field.name for field in fields(oncelog.ProducerOptions)}
    option |= inspect.signature(oncelog.Log.transactional_producer).parameters.keys()
    return {"in_flight": count} if "in_flight" in option else {}


def _transform(batch: oncelog.Batch, tx: oncelog.Transaction, out: str, *, arrow: bool) -> None:
    if arrow:
        tx.send_arrow(out, batch.to_arrow().select(["key", "value"]).combine_chunks())
        return
    for record in batch.records():
        tx.send(out, record.value, record.key)


def read(cluster: Cluster, task: Task) -> Result:
    """From the front to the end, over and over, each time by a new consumer. How long one takes
    to be made is not counted."""
    source = cluster.inputs.of(task.shape, task.seconds)
    done, seconds = 0, 0.0
    with task.meter as meter:
        while meter.goes_on():
            seen = 0
            with cluster.log.consumer([source.topic]) as consumer:
                start = time.perf_counter()
                while seen < source.records:
                    batch = consumer.poll(SECONDS_MAX)
                    assert batch is not None, "the records are there"
                    if task.shape.arrow:
                        seen += len(batch.to_arrow())
                    else:
                        seen += sum(1 for _ in batch.records())
                seconds += time.perf_counter() - start
            done += seen
    return Result(done, seconds, done * task.shape.value_bytes)


def end_to_end(cluster: Cluster, task: Task) -> Result:
    """One record after the other, from `send` until a reader has it."""
    with (
        cluster.log.producer(linger_ms=0) as producer,
        cluster.log.consumer([task.topic]) as consumer,
        cluster.log.transactional_producer(transaction_timeout_ms=600_000) as holder,
    ):
        if not task.shape.beside_open:
            return _echo(producer, consumer, task)
        with holder.transaction() as tx:
            tx.send(task.topic, b"open")
            tx.flush()
            return _echo(producer, consumer, task)


def _echo(producer: oncelog.Producer, consumer: oncelog.Consumer, task: Task) -> Result:
    took = []
    with followed(consumer) as arrived:

        def send() -> None:
            producer.send(task.topic, task.value)
            assert arrived.acquire(timeout=SECONDS_MAX), "the reader saw nothing"

        for _ in range(ROUNDS_BEFORE):
            send()
        with task.meter as meter:
            while meter.goes_on():
                start = time.perf_counter()
                send()
                took.append(time.perf_counter() - start)
    return Result(len(took), meter.seconds, latencies_s=tuple(took))


@contextmanager
def followed(consumer: oncelog.Consumer) -> Iterator[threading.Semaphore]:
    """A thread that reads and releases for each record."""
    arrived, over = threading.Semaphore(0), threading.Event()

    def follow() -> None:
        while not over.is_set():
            batch = consumer.poll(FOLLOW_S)
            for _ in batch.records() if batch is not None else ():
                arrived.release()

    reader = threading.Thread(target=follow, daemon=True)
    reader.start()
    try:
        yield arrived
    finally:
        over.set()
        reader.join(SECONDS_MAX)


def names(count: int) -> list[bytes | None]:
    """Keys of so many values; one that is none."""
    return [b"key-%d" % number for number in range(count)] or [None]


def fill(log: oncelog.Log, topic: str, value: bytes, records: int) -> None:
    with log.producer() as producer:
        for _ in range(records):
            producer.send(topic, value)
        producer.flush()
