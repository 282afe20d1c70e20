"""`python -m benchmarks.kill_writer SIDE BOOTSTRAP TOPIC FIRST COUNT`: a process with a named
producer for each of its partitions, which commits one record after the other, whatever happens to
the services. A record says when it was sent. Who starts this process again gives its producers the
names of those that died with it. It ends when its input does."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import oncelog
from benchmarks.crowd import KAFKA

# Between two transactions of one producer, and after one that failed.
EVERY_S: Final = 0.02
# No transaction waits longer: then the next one is tried.
TIMEOUT_S: Final = 10.0
# Of Kafka's library, which says of each connection that it is gone: that is what is measured.
SILENT: Final = {"log_level": 2}


def main() -> None:
    side, bootstrap, topic, *numbers = sys.argv[1:]
    first, count = map(int, numbers)
    write = _write_kafka if side == KAFKA else _write_ours
    for partition in range(first, first + count):
        threading.Thread(target=write, args=(bootstrap, topic, partition), daemon=True).start()
    sys.stdin.read()


def now() -> bytes:
    """One clock for all processes of a machine."""
    return b"%.6f" % time.monotonic()


def _write_ours(bootstrap: str, topic: str, partition: int) -> None:
    while True:
        with (
            suppress(oncelog.OncelogError),
            oncelog.connect(bootstrap) as log,
            log.transactional_producer(f"writer-{partition}") as producer,
        ):
            _repeat(lambda: _commit_ours(producer, topic, partition))
        time.sleep(EVERY_S)


def _commit_ours(producer: oncelog.TransactionalProducer, topic: str, partition: int) -> None:
    with producer.transaction() as tx:
        tx.send(topic, now(), partition=partition)


def _write_kafka(bootstrap: str, topic: str, partition: int) -> None:
    from confluent_kafka import KafkaException, Producer

    name = f"writer-{partition}"
    settings = {"bootstrap.servers": bootstrap, "transactional.id": name, **SILENT}
    while True:
        with suppress(KafkaException):
            producer = Producer(settings)
            producer.init_transactions(TIMEOUT_S)
            _repeat(lambda: _commit_kafka(producer, topic, partition))  # noqa: B023 (called here)
        time.sleep(EVERY_S)


def _commit_kafka(producer: Any, topic: str, partition: int) -> None:
    producer.begin_transaction()
    producer.produce(topic, now(), partition=partition)
    producer.commit_transaction(TIMEOUT_S)


def _repeat(commit: Callable[[], None]) -> None:
    """Until it fails: then its producer is made anew."""
    while True:
        commit()
        time.sleep(EVERY_S)


if __name__ == "__main__":
    main()
