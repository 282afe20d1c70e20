"""Every kind of reader over a topic that is compacted, on real processes: each gives what is left,
at its offset, from wherever it begins."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
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
CONFIGS = {"cleanup.policy": "compact"}
SIZE = 1_500
KEYS = 40
# Between two looks whether compaction has come to rest, seconds; and how many looks must show the
# same: how much there is to do is looked at every ten seconds.
QUIET_S = 4.0
QUIET_LOOKS = 5


class Written(NamedTuple):
    """A topic of one partition: what is left of it, what its keys had last, and its end."""

    topic: str
    records: list[Record]
    values: dict[bytes, bytes]
    end: int


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running(tmp_path_factory.mktemp("cluster"), *SETTINGS) as made:
        yield made


@pytest.fixture(scope="module")
def written(cluster: Cluster) -> Written:
    """Small transactions and larger ones, some aborted, plain records between them."""
    chance = random.Random(7)
    values: dict[bytes, bytes] = {}
    with cluster.connect() as log:
        topic = log.admin.create_topic("compacted", partitions=1, configs=CONFIGS).name
        with log.transactional_producer() as producer, log.producer() as plain:
            for number in range(900):
                tx = producer.transaction(wait="visible")
                wrote: dict[bytes, bytes | None] = {}
                with tx:
                    for _ in range(chance.choice([1, 1, 1, 2, 30])):
                        key = b"key-%d" % chance.randrange(KEYS)
                        is_tombstone = chance.random() < 0.2
                        wrote[key] = None if is_tombstone else b"%d " % number + b"x" * SIZE
                        tx.send(topic, wrote[key], key=key)
                    if number % 7 == 3:
                        tx.flush()
                        tx.abort()
                if number % 7 != 3:
                    for key, value in wrote.items():
                        values.pop(key, None)
                        if value is not None:
                            values[key] = value
                if number % 5 == 0:
                    values[b"plain"] = b"%d" % number
                    plain.send(topic, values[b"plain"], key=b"plain")
                    plain.flush()
        end = log.admin.offsets(topic)[0]
        seen: list[int] = []

        def is_quiet() -> bool:
            seen.append(len(read(log, topic, 0, end)))
            time.sleep(QUIET_S)
            return seen[-1] < end // 4 and seen[-QUIET_LOOKS:] == [seen[-1]] * QUIET_LOOKS

        until(is_quiet, "compaction has come to rest", within_s=120)
        return Written(topic, read(log, topic, 0, end), values, end)


def read(
    log: oncelog.Log, topic: str, start: int, end: int, *, delivery: str = "leader", most: int = 500
) -> list[Record]:
    """To the end."""
    found: list[Record] = []
    with log.consumer([topic], delivery=delivery, batch_records_max=most) as consumer:
        consumer.seek(topic, 0, start)
        while consumer.position(topic, 0) < end:
            batch = consumer.poll(20.0)
            assert batch is not None, (
                f"nothing more comes at {consumer.position(topic, 0)} of {end}"
            )
            assert batch.table.column("offset").to_pylist() == [it.offset for it in batch]
            found += batch
        assert consumer.lag() == {TopicPartition(topic, 0): 0}
    return found


def test_i33_what_is_left_has_the_last_value_of_each_key(written: Written) -> None:
    found: dict[bytes, bytes] = {}
    for record in written.records:
        assert record.key is not None
        found.pop(record.key, None)
        if record.value is not None:
            found[record.key] = record.value
    assert found == written.values
    offsets = [record.offset for record in written.records]
    assert offsets == sorted(set(offsets))


@pytest.mark.parametrize("delivery", ["leader", "buffered"])
def test_i15_both_deliveries_give_what_is_left_from_any_offset(
    log: oncelog.Log, written: Written, delivery: str
) -> None:
    topic, records, _, end = written
    chance = random.Random(1)
    for start in (0, 1, end - 1, end, *chance.sample(range(end), 8)):
        wanted = [record for record in records if record.offset >= start]
        most = chance.choice([1, 3, 500])
        found = read(log, topic, start, end, delivery=delivery, most=most)
        assert found == wanted, (delivery, start, most)


def test_i15_a_group_goes_on_from_whatever_it_has_committed(
    log: oncelog.Log, written: Written
) -> None:
    topic, records, _, end = written
    found: list[Record] = []
    at = 0
    while at < end:
        with log.consumer([topic], "lives", batch_records_max=7, start="earliest") as consumer:
            batch = consumer.poll(20.0)
            assert batch is not None
            found += batch
            consumer.commit()
            at = consumer.position(topic, 0)
    assert found == records


@pytest.mark.parametrize("across", [False, True])
def test_i3_whole_transactions_are_what_is_left_of_them(
    log: oncelog.Log, written: Written, across: bool
) -> None:
    topic, records, _, end = written
    found: list[Record] = []
    seen: set[int] = set()
    with log.consumer([topic]) as consumer:
        consumer.seek(topic, 0, 0)
        transactions = (
            consumer.transactions(across=True) if across else consumer.transactions(across=False)
        )
        while consumer.position(topic, 0) < end:
            one = transactions.poll(20.0)
            assert one is not None
            assert not one.tx_id or one.tx_id not in seen
            seen.add(one.tx_id)
            found += one.read()
    assert found == records


def test_i14_a_spark_task_reads_any_range(cluster: Cluster, written: Written) -> None:
    topic, records, _, end = written
    chance = random.Random(4)
    with Protocol(cluster.bootstrap) as protocol:
        partition = types_pb2.Partition(topic_id=protocol.topic(topic).topic_id, number=0)
        for edges in ((0, end), *(chance.sample(range(end), 2) for _ in range(10))):
            low, high = sorted(edges)
            part = RangeOf(partition, OffsetRange(SparkPartition("t", 0), low, high))
            found = [
                (offset, value)
                for chunk in RangeReader(
                    protocol, [part], fail_on_data_loss=True, timeout_ms=60_000
                )
                for offset, value in zip(
                    chunk.offsets.to_pylist(), chunk.rows.column("value").to_pylist(), strict=True
                )
            ]
            assert found == [(it.offset, it.value) for it in records if low <= it.offset < high]


def test_i33_a_table_shows_the_last_value_of_each_key(log: oncelog.Log, written: Written) -> None:
    with log.table(written.topic) as table:
        table.caught_up()
        assert table.snapshot() == written.values
        assert table.positions == {TopicPartition(written.topic, 0): written.end}


def test_i14_the_command_line_prints_what_is_left(cluster: Cluster, written: Written) -> None:
    line = [sys.executable, "-m", "oncelog_server.cli", "consume", written.topic, "--json"]
    told = subprocess.run(
        [*line, "--bootstrap", cluster.bootstrap], check=True, capture_output=True, timeout=120
    )
    found = [json.loads(row) for row in told.stdout.splitlines()]
    assert [(row["offset"], row["key"]) for row in found] == [
        (record.offset, (record.key or b"").decode()) for record in written.records
    ]
