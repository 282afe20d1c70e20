"""A topic with materialization `copy` over real processes: what was committed stays where it was,
and the journal that it came in goes (I9, I14, I32)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import oncelog
from tests.integration.cluster import Cluster, running, until

SETTINGS = (
    "node.segment_bytes=1048576",
    "node.snapshot_every_bytes=262144",
)
RECORDS = 3_000
SIZE = 1_000


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running(tmp_path_factory.mktemp("cluster"), *SETTINGS) as made:
        yield made


def journal_start(log: oncelog.Log, topic: str) -> int:
    return log.admin.offsets(topic, "earliest", isolation="uncommitted")[0]


def test_i32_a_settled_topic_keeps_its_records_and_lets_its_journal_go(
    cluster: Cluster, log: oncelog.Log, topic: str
) -> None:
    log.admin.alter_topic(topic, configs={"materialization": "copy"})
    expected: list[bytes] = []
    with log.transactional_producer() as producer:
        for number in range(RECORDS):
            value = b"%d " % number + b"x" * SIZE
            tx = producer.transaction()
            with tx:
                tx.send(topic, value, partition=0)
                if number % 10 == 0:
                    tx.flush()
                    tx.abort()
            if number % 10:
                expected.append(value)
    until(lambda: log.admin.offsets(topic)[0] == len(expected), "all is visible")
    assert values(log, topic) == expected
    until(lambda: journal_start(log, topic) > 0, "the front of the journal goes")
    assert values(log, topic) == expected
    cluster.restart("partition_leader")
    assert values(log, topic) == expected
    assert journal_start(log, topic) > 0


def values(log: oncelog.Log, topic: str) -> list[bytes | None]:
    end = log.admin.offsets(topic)[0]
    found: list[bytes | None] = []
    with log.consumer([topic], start="earliest") as consumer:
        while len(found) < end:
            batch = consumer.poll(20.0)
            assert batch is not None, "nothing more comes"
            for record in batch:
                assert record.offset == len(found), "offsets are dense"
                found.append(record.value)
    return found
