"""Traffic of more than the disk holds, over a real process: retention, settling and compaction keep
up, and who writes waits at most. Then nothing is deleted any more, and the disk fills up: reads go
on, and writes do once something is truncated (I5, I28, I29, I32, I33)."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator

import pytest

import oncelog
from oncelog.errors import OncelogError
from tests.integration.cluster import PARTITION_LEADER, Cluster, running, until
from tests.integration.test_faults_disk import small_disk

MIB = 1 << 20
DISK_BYTES = 48 * MIB
SETTINGS = (
    f"node.segment_bytes={MIB}",
    f"node.snapshot_every_bytes={MIB // 8}",
    f"node.disk_free_floor_bytes={8 * MIB}",
)
# Of values; each is written to both topics, and settled there.
TRAFFIC_BYTES = DISK_BYTES
KEPT_BYTES = 4 * MIB
SIZE = 8_000
LARGE = 64 << 10
KEYS = 100
# Of a transaction.
ROWS = 10
TOPICS = {
    "aging": {"materialization": "copy", "retention.bytes": str(KEPT_BYTES)},
    "table": {"cleanup.policy": "compact"},
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("cluster")
    with small_disk(folder / PARTITION_LEADER, DISK_BYTES), running(folder, *SETTINGS) as made:
        yield made


def test_i28_i32_i33_a_small_disk_takes_traffic_of_many_times_its_size(
    cluster: Cluster, log: oncelog.Log
) -> None:
    for name, configs in TOPICS.items():
        log.admin.create_topic(name, partitions=1, configs=configs)
    written = Written()
    with log.transactional_producer() as producer:
        while written.count * SIZE < TRAFFIC_BYTES:
            written.send(producer)
        until(lambda: start_of(log) > 0, "retention deletes")
        require_all_there(log, written)
        log.admin.alter_topic("aging", configs={"retention.bytes": "-1"})
        with pytest.raises(OncelogError) as caught:
            fill_up(log, written)
        assert caught.value.reason == "DISK_FULL", caught.value
        require_all_there(log, written)
        cluster.restart(PARTITION_LEADER)
        require_all_there(log, written)
        log.admin.truncate("aging", before=log.admin.offsets("aging")[0], partition=0)
        until(lambda: takes(log, written), "writes go on")
    require_all_there(log, written)


class Written:
    """What was committed."""

    def __init__(self) -> None:
        self.count = 0
        self.last: dict[bytes, bytes] = {}
        # Of "aging", by offset.
        self.values: list[bytes] = []
        self._chance = random.Random(1)

    def send(self, producer: oncelog.TransactionalProducer) -> None:
        """Raises OncelogError: then nothing of it was committed."""
        rows: list[tuple[bytes, bytes]] = []
        with producer.transaction(wait="visible") as tx:
            for _ in range(ROWS):
                number = self.count + len(rows)
                key = b"key %d" % self._chance.randrange(KEYS)
                rows.append((key, b"%d " % number + os.urandom(SIZE)))
                for name in TOPICS:
                    tx.send(name, rows[-1][1], key=key, partition=0)
        self.count += len(rows)
        self.last.update(rows)
        self.values += [value for _, value in rows]


def fill_up(log: oncelog.Log, written: Written) -> None:
    """Raises what who writes is told."""
    for number in range(2 * DISK_BYTES // LARGE):
        value = b"%d " % number + os.urandom(LARGE)
        with log.producer(delivery_timeout_ms=5_000) as plain:
            plain.send("aging", value, partition=0)
            plain.flush()
        written.values.append(value)


def takes(log: oncelog.Log, written: Written) -> bool:
    try:
        with log.transactional_producer() as producer:
            written.send(producer)
    except OncelogError as error:
        if error.reason != "DISK_FULL":
            raise
        return False
    return True


def start_of(log: oncelog.Log) -> int:
    return log.admin.offsets("aging", "earliest")[0]


def require_all_there(log: oncelog.Log, written: Written) -> None:
    aging = {offset: value for offset, _, value in read(log, "aging", start_of(log))}
    # Retention goes on meanwhile: what is there now was there all the time.
    kept = range(start_of(log), len(written.values))
    assert list(aging) == sorted(aging)
    assert [aging.get(offset) for offset in kept] == written.values[kept.start :]
    assert [offset for offset, value in aging.items() if value != written.values[offset]] == []
    table = {key: value for _, key, value in read(log, "table", 0)}
    assert table == written.last


def read(log: oncelog.Log, topic: str, begin: int) -> list[tuple[int, bytes | None, bytes | None]]:
    end = log.admin.offsets(topic)[0]
    found: list[tuple[int, bytes | None, bytes | None]] = []
    position = begin
    with log.consumer([topic], partitions=[(topic, 0)], if_deleted="earliest") as consumer:
        consumer.seek(topic, 0, begin)
        while position < end:
            batch = consumer.poll(20.0)
            assert batch is not None, "nothing more comes"
            for record in batch:
                found.append((record.offset, record.key, record.value))
                position = record.offset + 1
    return found
