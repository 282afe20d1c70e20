"""Every kind of reader over topics that are settled and whose journal is gone in front, on real
processes: each gives what was written, whole, from wherever it begins."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import NamedTuple

import pytest

import oncelog
from oncelog.batch import Record, TopicPartition
from oncelog.protocol import Protocol
from oncelog_spark.fetch import RangeOf, RangeReader
from oncelog_spark.offsets import OffsetRange
from oncelog_spark.offsets import TopicPartition as SparkPartition
from oncelogpb.v1 import types_pb2
from tests.integration.cluster import Cluster, running, until

SETTINGS = (
    "node.segment_bytes=1048576",
    "node.snapshot_every_bytes=131072",
)
SIZE = 1_500
DELIVERIES = ["leader", "buffered"]
KEYS = 40


class Written(NamedTuple):
    """A topic: by transaction, in which partitions it has how many records."""

    topic: str
    transactions: dict[int, dict[int, int]]
    # Of partition 0.
    records: list[Record]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running(tmp_path_factory.mktemp("cluster"), *SETTINGS) as made:
        yield made


@pytest.fixture(scope="module")
def written(cluster: Cluster) -> Written:
    """Small transactions and larger ones over two partitions, some aborted, plain records between
    them. All but the end is settled, and the front of the journal is gone."""
    chance = random.Random(7)
    with cluster.connect() as log:
        topic = log.admin.create_topic(
            "settled", partitions=2, configs={"materialization": "copy"}
        ).name
        transactions: dict[int, dict[int, int]] = {}
        with log.transactional_producer() as producer, log.producer() as plain:
            for number in range(900):
                tx = producer.transaction(wait="visible")
                with tx:
                    parts: dict[int, int] = {}
                    for _ in range(chance.choice([1, 1, 1, 2, 30])):
                        partition = chance.choice([0, 0, 1])
                        parts[partition] = parts.get(partition, 0) + 1
                        value = b"%d " % number + b"x" * SIZE
                        key = b"key-%d" % (chance.randrange(KEYS) * 2 + partition)
                        is_tombstone = chance.random() < 0.2
                        tx.send(
                            topic, None if is_tombstone else value, key=key, partition=partition
                        )
                    if number % 7 == 3:
                        tx.flush()
                        tx.abort()
                if number % 7 != 3:
                    transactions[tx.tx_id] = parts
                if number % 5 == 0:
                    plain.send(topic, b"plain", key=b"key-0", partition=0)
                    plain.flush()
        until(lambda: journal_start(log, topic) > 500, "the front of the journal goes")
        records = read(log, topic, 0, "leader")
        # Something that is not settled yet.
        with log.producer() as plain:
            plain.send(topic, b"last", key=b"last", partition=0)
        return Written(topic, transactions, records + read(log, topic, len(records), "leader"))


def journal_start(log: oncelog.Log, topic: str) -> int:
    return log.admin.offsets(topic, "earliest", isolation="uncommitted")[0]


def read(
    log: oncelog.Log, topic: str, start: int, delivery: str, end: int | None = None
) -> list[Record]:
    """Of partition 0, to its end."""
    end = log.admin.offsets(topic)[0] if end is None else end
    found: list[Record] = []
    with log.consumer([topic], partitions=[(topic, 0)], delivery=delivery) as consumer:
        consumer.seek(topic, 0, start)
        while len(found) < end - start:
            batch = consumer.poll(20.0)
            assert batch is not None, "nothing more comes"
            found += batch
    assert [record.offset for record in found] == list(range(start, end))
    return found


def test_i15_both_deliveries_give_what_was_written_from_any_offset(
    cluster: Cluster, log: oncelog.Log, written: Written
) -> None:
    topic, _, records = written
    chance = random.Random(1)
    for delivery in DELIVERIES:
        for start in (0, 1, len(records) - 1, *chance.sample(range(len(records)), 12)):
            assert read(log, topic, start, delivery) == records[start:], (delivery, start)
    cluster.kill("partition_leader")
    cluster.start("partition_leader")
    cluster.wait_ready()
    for delivery in DELIVERIES:
        assert read(log, topic, 0, delivery) == records


@pytest.mark.parametrize("delivery", DELIVERIES)
def test_i3_whole_transactions_are_those_that_were_committed(
    log: oncelog.Log, written: Written, delivery: str
) -> None:
    topic, transactions, records = written
    found: dict[int, int] = {}
    given: list[Record] = []
    with log.consumer([topic], partitions=[(topic, 0)], delivery=delivery) as consumer:
        whole = consumer.transactions()
        while len(given) < len(records):
            one = whole.poll(20.0)
            assert one is not None, "nothing more comes"
            given += one.read()
            assert given[-1].offset == one.first_offset + one.record_count - 1
            if one.tx_id:
                assert one.tx_id not in found, "a transaction is given once"
                assert one.producer_id
                assert one.committed_ms > 1_600_000_000_000
                found[one.tx_id] = one.record_count
    assert given == records
    assert found == {tx: parts[0] for tx, parts in transactions.items() if 0 in parts}


def test_i3_transactions_across_partitions_are_whole(log: oncelog.Log, written: Written) -> None:
    topic, transactions, _ = written
    found: dict[int, dict[int, int]] = {}
    left = sum(log.admin.offsets(topic))
    with log.consumer([topic]) as consumer:
        whole = consumer.transactions(across=True)
        while left > 0:
            one = whole.poll(20.0)
            assert one is not None, "nothing more comes"
            assert len(one.read()) == one.record_count
            left -= one.record_count
            if one.tx_id:
                found[one.tx_id] = {part.partition: part.record_count for part in one.parts}
    assert found == transactions
    # One that has no partition in common with another may come before it.
    for number in (0, 1):
        in_order = [tx_id for tx_id, parts in transactions.items() if number in parts]
        assert [tx_id for tx_id, parts in found.items() if number in parts] == in_order


def test_i15_a_group_goes_on_by_either_delivery(log: oncelog.Log, written: Written) -> None:
    topic, _, records = written
    place = TopicPartition(topic, 0)
    chance = random.Random(2)
    found: list[Record] = []
    while len(found) < len(records):
        delivery = chance.choice(DELIVERIES)
        with log.consumer(
            [topic], "both", partitions=[place], delivery=delivery, batch_records_max=50
        ) as consumer:
            for _ in range(chance.randint(1, 6)):
                batch = consumer.poll(20.0) if len(found) < len(records) else None
                found += batch or ()
            consumer.commit()
    assert found == records


def test_i14_a_spark_task_reads_any_range(cluster: Cluster, written: Written) -> None:
    """By what a task calls: no JVM is needed for that."""
    topic, _, records = written
    chance = random.Random(4)
    with Protocol(cluster.bootstrap) as protocol:
        partition = types_pb2.Partition(topic_id=protocol.topic(topic).topic_id, number=0)
        whole = (0, len(records))
        for edges in (whole, *(chance.sample(range(len(records)), 2) for _ in range(10))):
            start, end = sorted(edges)
            part = RangeOf(partition, OffsetRange(SparkPartition("t", 0), start, end))
            found = [
                (offset, value)
                for chunk in RangeReader(
                    protocol, [part], fail_on_data_loss=True, timeout_ms=60_000
                )
                for offset, value in zip(
                    chunk.offsets.tolist(), chunk.rows.column("value").to_pylist(), strict=True
                )
            ]
            assert found == [(record.offset, record.value) for record in records[start:end]]


def test_i33_a_table_shows_the_last_value_of_each_key(log: oncelog.Log, written: Written) -> None:
    topic, _, records = written
    expected: dict[bytes, bytes] = {}
    for record in records:
        assert record.key is not None
        if record.value is None:
            expected.pop(record.key, None)
        else:
            expected[record.key] = record.value
    with log.table(topic) as table:
        table.caught_up()
        assert {key: value for key, value in table.items() if key in expected} == expected
        odd = {key for key in table if key not in expected}
        assert all(int(key.removeprefix(b"key-")) % 2 for key in odd), "they are of partition 1"
        assert len(odd) > 5
