"""A service restarts in the middle: the client goes on, nothing is lost or twice (I5, I6, I21)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

import oncelog
import oncelog.testing


@pytest.fixture
def cluster() -> Iterator[oncelog.testing.Cluster]:
    with oncelog.testing.cluster() as made:
        yield made


def committed(log: oncelog.Log, topic: str, count: int) -> list[int]:
    consumer = log.consumer([topic])
    found: list[int] = []
    while len(found) < count:
        batch = consumer.poll(15.0)
        assert batch is not None, f"{len(found)} of {count} came"
        found += [int(record.value or b"") for record in batch]
    assert consumer.poll(0.2) is None, "and nothing more"
    return found


@pytest.mark.parametrize("role", oncelog.testing.ROLES)
def test_a_transaction_goes_on_over_the_restart_of_a_service(
    cluster: oncelog.testing.Cluster, role: str
) -> None:
    with oncelog.connect(cluster.bootstrap) as log:
        log.admin.create_topic("in", partitions=2)
        log.admin.create_topic("out", partitions=2)
        with log.producer() as plain:
            for number in range(100):
                plain.send("in", b"%d" % number)
        consumer = log.consumer(["in"], group="g", batch_records_max=20)
        producer = log.transactional_producer("worker")
        restarts = itertools.count()

        def step(batch: oncelog.Batch, tx: oncelog.Transaction) -> None:
            records = list(batch)
            for record in records[:10]:
                tx.send("out", record.value)
            tx.flush()
            if next(restarts) == 1:
                cluster.restart(role)
            for record in records[10:]:
                tx.send("out", record.value)

        log.run(consumer, step, producer, idle_timeout_s=3.0)
        assert sorted(committed(log, "out", 100)) == list(range(100))


def test_a_plain_producer_and_a_consumer_go_on_over_restarts(
    cluster: oncelog.testing.Cluster,
) -> None:
    with oncelog.connect(cluster.bootstrap) as log:
        log.admin.create_topic("t", partitions=2)
        consumer = log.consumer(["t"])
        found: list[int] = []
        with log.producer() as producer:
            for round_number in range(3):
                for number in range(100):
                    producer.send("t", b"%d" % (100 * round_number + number))
                producer.flush()
                while len(found) < 100 * (round_number + 1):
                    batch = consumer.poll(15.0)
                    assert batch is not None
                    found += [int(record.value or b"") for record in batch]
                cluster.restart("partition_leader")
        assert sorted(found) == list(range(300))
