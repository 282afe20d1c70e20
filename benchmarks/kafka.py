"""The workloads of `workloads.py`, for Kafka: the same records, counts and questions, through
confluent-kafka, the quickest client that Kafka has for Python.

Producers keep the client's defaults (`acks=all`, linger 5 ms) but for a queue that takes a whole
workload, so that `produce` never has to be retried; consumers fetch in large pieces.

Left out: `arrow-100` (Kafka has no such call) and `beside-open`, where Kafka's readers would wait
for the end of the transaction that stays open.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Final

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks import workloads as ours
from benchmarks.workloads import Result

INIT_SECONDS_MAX: Final = 30.0
# Records of one call of `consume`.
CONSUME_MAX: Final = 10_000
POLL_EVERY: Final = 1_000
QUEUE: Final = {
    "queue.buffering.max.messages": 2_000_000,
    "queue.buffering.max.kbytes": 1024 * 1024,
}
FETCH: Final = {
    "auto.offset.reset": "earliest",
    "enable.auto.commit": False,
    "fetch.message.max.bytes": 4 * 1024 * 1024,
    "queued.max.messages.kbytes": 256 * 1024,
    # Else the client fetches nothing for a second whenever 100,000 records wait in it.
    "queued.min.messages": 1_000_000,
    "fetch.queue.backoff.ms": 10,
}

KafkaWorkload = Callable[[str, str], Result]


def plain(size: int, records: int, *, keys: int = 0) -> KafkaWorkload:
    def run(bootstrap: str, topic: str) -> Result:
        value = b"v" * size
        names = [b"key-%d" % i for i in range(keys)]
        producer = Producer({"bootstrap.servers": bootstrap, **QUEUE})
        start = time.perf_counter()
        for i in range(records):
            producer.produce(topic, value, names[i % keys] if keys else None)
            if i % POLL_EVERY == 0:
                producer.poll(0)
        _flush(producer)
        return Result(records, records * size, time.perf_counter() - start)

    return run


def transactions(bootstrap: str, topic: str) -> Result:
    value = b"v" * 100
    producer = _transactional(bootstrap, topic)
    sent = 0
    start = time.perf_counter()
    while sent < ours.RECORDS:
        producer.begin_transaction()
        until = time.perf_counter() + ours.COMMIT_EVERY_SECONDS
        while sent < ours.RECORDS and time.perf_counter() < until:
            for _ in range(500):
                producer.produce(topic, value)
            producer.poll(0)
            sent += 500
        producer.commit_transaction()
    return Result(sent, sent * 100, time.perf_counter() - start)


def one_record(bootstrap: str, topic: str) -> Result:
    producer = _transactional(bootstrap, topic)
    rounds = []
    for _ in range(ours.LATENCY_ROUNDS):
        start = time.perf_counter()
        producer.begin_transaction()
        producer.produce(topic, b"v" * 100)
        producer.commit_transaction()
        rounds.append(time.perf_counter() - start)
    return Result(rounds=tuple(rounds))


def many_producers(bootstrap: str, topic: str) -> Result:
    producers = [_transactional(bootstrap, f"{topic}-{i}") for i in range(ours.PRODUCERS)]

    def commit_all(producer: Any) -> None:
        for _ in range(ours.TRANSACTIONS_EACH):
            producer.begin_transaction()
            for partition in range(ours.PARTITIONS):
                producer.produce(topic, b"v" * 100, partition=partition)
            producer.commit_transaction()

    threads = [threading.Thread(target=commit_all, args=(each,)) for each in producers]
    start = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return Result(
        ours.PRODUCERS * ours.TRANSACTIONS_EACH,
        seconds=time.perf_counter() - start,
        unit="tx_per_s",
    )


def pipeline(bootstrap: str, topic: str) -> Result:
    create_topic(bootstrap, f"{topic}-out", 1, replicas=1)
    _fill(bootstrap, topic, ours.PIPELINE_RECORDS, 100)
    producer = _transactional(bootstrap, topic)
    consumer = _consumer(bootstrap, topic)
    done = 0
    start = time.perf_counter()
    _assign(consumer, topic)
    while done < ours.PIPELINE_RECORDS:
        records = consumer.consume(ours.PIPELINE_BATCH, ours.SECONDS_MAX)
        assert records, "the input is there"
        producer.begin_transaction()
        for record in records:
            producer.produce(f"{topic}-out", record.value(), record.key())
        following = TopicPartition(topic, 0, records[-1].offset() + 1)
        producer.send_offsets_to_transaction([following], consumer.consumer_group_metadata())
        producer.commit_transaction()
        done += len(records)
    seconds = time.perf_counter() - start
    consumer.close()
    return Result(done, done * 100, seconds)


def read(size: int, records: int) -> KafkaWorkload:
    def run(bootstrap: str, topic: str) -> Result:
        _fill(bootstrap, topic, records, size)
        consumer = _consumer(bootstrap, topic)
        done = 0
        start = time.perf_counter()
        _assign(consumer, topic)
        while done < records:
            batch = consumer.consume(CONSUME_MAX, 0.1)
            done += sum(1 for record in batch if record.value() is not None)
            assert time.perf_counter() - start < ours.SECONDS_MAX, "the records are there"
        seconds = time.perf_counter() - start
        consumer.close()
        return Result(done, done * size, seconds)

    return run


def end_to_end(bootstrap: str, topic: str) -> Result:
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})
    consumer = _consumer(bootstrap, topic)
    _assign(consumer, topic)
    arrived = threading.Semaphore(0)

    def follow() -> None:
        for _ in range(ours.LATENCY_ROUNDS + 1):
            if consumer.poll(ours.SECONDS_MAX) is None:
                return
            arrived.release()

    reader = threading.Thread(target=follow, daemon=True)
    reader.start()
    rounds = []
    # The first waits for the consumer's position, and is not counted.
    for _ in range(ours.LATENCY_ROUNDS + 1):
        start = time.perf_counter()
        producer.produce(topic, b"v" * 100)
        producer.poll(0)
        assert arrived.acquire(timeout=ours.SECONDS_MAX), "the reader saw nothing"
        rounds.append(time.perf_counter() - start)
    reader.join(ours.SECONDS_MAX)
    consumer.close()
    return Result(rounds=tuple(rounds[1:]))


def create_topic(bootstrap: str, topic: str, partitions: int, *, replicas: int) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    wanted = NewTopic(
        topic, partitions, replicas, config={"min.insync.replicas": str(min(replicas, 2))}
    )
    for created in admin.create_topics([wanted]).values():
        created.result()


def delete_topic(bootstrap: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for deleted in admin.delete_topics([topic]).values():
        deleted.result()


def _transactional(bootstrap: str, name: str) -> Any:
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": name, **QUEUE})
    producer.init_transactions(INIT_SECONDS_MAX)
    return producer


def _consumer(bootstrap: str, topic: str) -> Any:
    """Connected, and not assigned yet: it reads from when `_assign` is called."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": topic, **FETCH})
    consumer.list_topics(topic, ours.SECONDS_MAX)
    return consumer


def _assign(consumer: Any, topic: str) -> None:
    """The one partition, from its start: no group has to form."""
    consumer.assign([TopicPartition(topic, 0, 0)])


def _fill(bootstrap: str, topic: str, records: int, size: int) -> None:
    plain(size, records)(bootstrap, topic)


def _flush(producer: Any) -> None:
    assert producer.flush(ours.SECONDS_MAX) == 0, "not everything was acknowledged"


# Workload of ours -> its twin.
KAFKA_WORKLOADS: Final[dict[str, KafkaWorkload]] = {
    "plain-100": plain(100, ours.RECORDS),
    "plain-keys-100": plain(100, ours.RECORDS, keys=1000),
    "plain-1k": plain(1024, ours.RECORDS_1K),
    "transactions-100": transactions,
    "one-record": one_record,
    "begun": one_record,
    "many-producers": many_producers,
    "pipeline": pipeline,
    "read-arrow-100": read(100, ours.RECORDS),
    "read-records-100": read(100, ours.RECORDS),
    "read-arrow-1k": read(1024, ours.RECORDS_1K),
    "end-to-end": end_to_end,
}
