"""A member of a group that is measured: consume, transform, produce, here and with Kafka.

    python -m benchmarks.rebalance_member SIDE BOOTSTRAP GROUP SESSION_MS

Says on its standard output when it had committed something, of which partitions. SIGTERM: it closes
its consumer, which leaves the group.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, Final

import oncelog

OURS: Final = "oncelog"
KAFKA: Final = "kafka"
SIDES: Final = (OURS, KAFKA)
# Of one transaction, at most.
BATCH: Final = 500
WAIT_S: Final = 0.2
CALL_S: Final = 60.0

IsTold = Callable[[], bool]


def main(side: str, bootstrap: str, group: str, session_ms: str) -> None:
    told = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: told.set())
    copy = {OURS: copy_here, KAFKA: copy_with_kafka}[side]
    copy(bootstrap, group, int(session_ms), told.is_set)


def copy_here(bootstrap: str, group: str, session_ms: int, is_told: IsTold) -> None:
    with oncelog.connect(bootstrap) as log:
        producer = log.transactional_producer()
        with log.consumer(
            [f"{group}-in"], group=group, session_timeout_ms=session_ms, batch_records_max=BATCH
        ) as consumer:
            while not is_told():
                try:
                    batch = consumer.poll(WAIT_S)
                    if batch is None:
                        continue
                    with producer.transaction(consumer) as tx:
                        for record in batch:
                            place = record.partition
                            tx.send(f"{group}-out", record.value, record.key, partition=place)
                except (oncelog.errors.GroupMoved, oncelog.errors.TransactionEnded):
                    continue
                committed(place.partition for place in batch.next_offsets())


def copy_with_kafka(bootstrap: str, group: str, session_ms: int, is_told: IsTold) -> None:
    # There only after `make bench-kafka`.
    from confluent_kafka import Consumer, KafkaException, Producer

    common = {"bootstrap.servers": bootstrap}
    # As ours does it by itself: a transaction does not outlive its member's session (KIP-447).
    transactional = {
        "transactional.id": f"{group}-{time.monotonic_ns()}",
        "transaction.timeout.ms": session_ms,
    }
    producer = Producer({**common, **transactional})
    producer.init_transactions(CALL_S)
    reading = {
        "group.id": group,
        "group.protocol": "consumer",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "isolation.level": "read_committed",
    }
    consumer = Consumer({**common, **reading})
    consumer.subscribe([f"{group}-in"])
    while not is_told():
        records = [r for r in consumer.consume(BATCH, WAIT_S) if r.error() is None]
        if not records:
            continue
        try:
            producer.begin_transaction()
            for record in records:
                place = record.partition()
                producer.produce(f"{group}-out", record.value(), record.key(), place)
            producer.send_offsets_to_transaction(
                _behind(records), consumer.consumer_group_metadata(), CALL_S
            )
            producer.commit_transaction(CALL_S)
        except KafkaException as failure:
            if failure.args[0].fatal():
                raise
            producer.abort_transaction(CALL_S)
            _rewind(consumer)
            continue
        committed(record.partition() for record in records)
    consumer.close()


def _behind(records: Iterable[Any]) -> list[Any]:
    """Where to go on, of each partition."""
    from confluent_kafka import TopicPartition

    ends = {(record.topic(), record.partition()): record.offset() + 1 for record in records}
    return [TopicPartition(topic, number, end) for (topic, number), end in ends.items()]


def _rewind(consumer: Any) -> None:
    """To what is committed, of all that it has."""
    from confluent_kafka import OFFSET_BEGINNING

    for place in consumer.committed(consumer.assignment(), CALL_S):
        if place.offset < 0:
            place.offset = OFFSET_BEGINNING
        consumer.seek(place)


def committed(partitions: Iterable[int]) -> None:
    numbers = " ".join(str(number) for number in sorted(set(partitions)))
    print(f"{time.monotonic():.4f} {numbers}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
