"""The twins of `ours.py`, for Kafka: the same records and questions, through confluent-kafka, the
quickest client that Kafka has for Python.

Producers keep the client's defaults (`acks=all`, linger 5 ms) but for a larger queue; one that is
full is waited for, as ours waits by itself. Consumers fetch in large pieces.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks.crowd import KAFKA, crowded
from benchmarks.inputs import Inputs
from benchmarks.measure import Result, Task
from benchmarks.ours import CHUNK, FOLLOW_S, ROUNDS_BEFORE, SECONDS_MAX, names

INIT_SECONDS_MAX: Final = 30.0
# Records of one call of `consume`.
CONSUME_MAX: Final = 10_000
# Its library tells at its end what it throws away: nothing that anybody waits for.
QUIET: Final = {"log_level": 3}
# Served so long when the producer's queue is full.
ROOM_S: Final = 0.005
QUEUE: Final = {
    **QUIET,
    "queue.buffering.max.messages": 1_000_000,
    "queue.buffering.max.kbytes": 512 * 1024,
}
FETCH: Final = {
    **QUIET,
    "auto.offset.reset": "earliest",
    "enable.auto.commit": False,
    "fetch.message.max.bytes": 4 * 1024 * 1024,
    "queued.max.messages.kbytes": 256 * 1024,
    # Else the client fetches nothing for a second whenever 100,000 records wait in it.
    "queued.min.messages": 1_000_000,
    "fetch.queue.backoff.ms": 10,
}
# What a round wrote is gone before many others have filled the disk (a minute by default).
DELETE_AFTER_MS: Final = 1_000


@dataclass(frozen=True, slots=True)
class Broker:
    """Where the workloads run."""

    bootstrap: str
    inputs: Inputs


def plain(broker: Broker, task: Task) -> Result:
    sent = 0
    keys = itertools.cycle(names(task.shape.keys))
    producer = Producer({"bootstrap.servers": broker.bootstrap, **QUEUE})
    with task.meter as meter:
        while meter.goes_on():
            _send(producer, task, CHUNK, keys)
            sent += CHUNK
        _flush(producer)
    return Result(sent, meter.seconds, sent * task.shape.value_bytes)


def transactions(broker: Broker, task: Task) -> Result:
    producer = transactional(broker.bootstrap, task.topic)
    sent, shape, keys = 0, task.shape, itertools.cycle(names(0))
    took = []
    with task.meter as meter:
        while meter.goes_on():
            start = time.perf_counter()
            producer.begin_transaction()
            if shape.records:
                _send(producer, task, shape.records, keys)
                sent += shape.records
            until = start + shape.every_ms / 1000
            while time.perf_counter() < until and meter.goes_on():
                _send(producer, task, CHUNK, keys)
                sent += CHUNK
            producer.commit_transaction()
            took.append(time.perf_counter() - start)
    latencies = tuple(took) if shape.records else ()
    return Result(sent, meter.seconds, sent * shape.value_bytes, latencies_s=latencies)


def one_record(broker: Broker, task: Task) -> Result:
    producer = transactional(broker.bootstrap, task.topic)

    def commit() -> None:
        producer.begin_transaction()
        producer.produce(task.topic, task.value)
        producer.commit_transaction()

    took = []
    for _ in range(ROUNDS_BEFORE):
        commit()
    with task.meter as meter:
        while meter.goes_on():
            start = time.perf_counter()
            commit()
            took.append(time.perf_counter() - start)
    return Result(len(took), meter.seconds, latencies_s=tuple(took))


def many_producers(broker: Broker, task: Task) -> Result:
    return crowded(KAFKA, broker.bootstrap, task)


def pipeline(broker: Broker, task: Task) -> Result:
    source, out = broker.inputs.of(task.shape, task.seconds), f"{task.topic}-out"
    create_topic(broker.bootstrap, out, task.shape.partitions, replicas=1)
    producer = transactional(broker.bootstrap, task.topic)
    consumer = _consumer(broker.bootstrap, task.topic, source.topic)
    done, took = 0, []
    with task.meter as meter:
        _assign(consumer, source.topic, task.shape.partitions)
        while meter.goes_on() and done < source.records:
            start = time.perf_counter()
            records = consumer.consume(
                min(task.shape.records, source.records - done), timeout=SECONDS_MAX
            )
            assert records, "the input is there"
            producer.begin_transaction()
            for record in records:
                producer.produce(out, record.value(), record.key())
            producer.send_offsets_to_transaction(
                consumer.position(consumer.assignment()), consumer.consumer_group_metadata()
            )
            producer.commit_transaction()
            done += len(records)
            took.append(time.perf_counter() - start)
    consumer.close()
    delete_topic(broker.bootstrap, out)
    return Result(done, meter.seconds, done * task.shape.value_bytes, latencies_s=tuple(took))


def read(broker: Broker, task: Task) -> Result:
    source = broker.inputs.of(task.shape, task.seconds)
    done, seconds, number = 0, 0.0, itertools.count()
    with task.meter as meter:
        while meter.goes_on():
            consumer = _consumer(broker.bootstrap, f"{task.topic}-{next(number)}", source.topic)
            seen = 0
            start = time.perf_counter()
            _assign(consumer, source.topic, task.shape.partitions)
            while seen < source.records:
                batch = consumer.consume(CONSUME_MAX, 0.1)
                seen += sum(1 for record in batch if record.value() is not None)
                assert time.perf_counter() - start < SECONDS_MAX, "the records are there"
            seconds += time.perf_counter() - start
            consumer.close()
            done += seen
    return Result(done, seconds, done * task.shape.value_bytes)


def end_to_end(broker: Broker, task: Task) -> Result:
    producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 0, **QUIET})
    consumer = _consumer(broker.bootstrap, task.topic, task.topic)
    _assign(consumer, task.topic, task.shape.partitions)
    took = []
    with _followed(consumer) as arrived:

        def send() -> None:
            producer.produce(task.topic, task.value)
            producer.poll(0)
            assert arrived.acquire(timeout=SECONDS_MAX), "the reader saw nothing"

        for _ in range(ROUNDS_BEFORE):
            send()
        with task.meter as meter:
            while meter.goes_on():
                start = time.perf_counter()
                send()
                took.append(time.perf_counter() - start)
    _flush(producer)
    consumer.close()
    return Result(len(took), meter.seconds, latencies_s=tuple(took))


@contextmanager
def _followed(consumer: Any) -> Iterator[threading.Semaphore]:
    arrived, over = threading.Semaphore(0), threading.Event()

    def follow() -> None:
        while not over.is_set():
            if consumer.poll(FOLLOW_S) is not None:
                arrived.release()

    reader = threading.Thread(target=follow, daemon=True)
    reader.start()
    try:
        yield arrived
    finally:
        over.set()
        reader.join(SECONDS_MAX)


def create_topic(bootstrap: str, topic: str, partitions: int, *, replicas: int) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    settings = {
        "min.insync.replicas": str(min(replicas, 2)),
        "file.delete.delay.ms": str(DELETE_AFTER_MS),
    }
    wanted = NewTopic(topic, partitions, replicas, config=settings)
    for created in admin.create_topics([wanted]).values():
        created.result()


def delete_topic(bootstrap: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for deleted in admin.delete_topics([topic]).values():
        deleted.result()


def fill(bootstrap: str, topic: str, value: bytes, records: int) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, **QUEUE})
    for number in range(records):
        _produce(producer, topic, value, None)
        if number % CHUNK == 0:
            producer.poll(0)
    _flush(producer)


def transactional(bootstrap: str, name: str) -> Any:
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": name, **QUEUE})
    producer.init_transactions(INIT_SECONDS_MAX)
    return producer


def _send(producer: Any, task: Task, count: int, keys: Iterator[bytes | None]) -> None:
    topic, value, produce = task.topic, task.value, producer.produce
    for key in itertools.islice(keys, count):
        try:
            produce(topic, value, key)
        except BufferError:
            _produce(producer, topic, value, key)
    producer.poll(0)


def _produce(producer: Any, topic: str, value: bytes, key: bytes | None) -> None:
    """Waits for room where there is none."""
    give_up = time.monotonic() + SECONDS_MAX
    while True:
        try:
            producer.produce(topic, value, key)
            return
        except BufferError:
            assert time.monotonic() < give_up, "the broker takes nothing any more"
            producer.poll(ROOM_S)


def _consumer(bootstrap: str, group: str, topic: str) -> Any:
    """Connected, and not assigned yet: it reads from when `_assign` is called."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, **FETCH})
    consumer.list_topics(topic, SECONDS_MAX)
    return consumer


def _assign(consumer: Any, topic: str, partitions: int) -> None:
    """All of them, from their starts: no group has to form."""
    consumer.assign([TopicPartition(topic, each, 0) for each in range(partitions)])


def _flush(producer: Any) -> None:
    assert producer.flush(SECONDS_MAX) == 0, "not everything was acknowledged"
