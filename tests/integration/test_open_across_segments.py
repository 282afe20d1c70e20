"""One transaction stays open over fifty segments of each topic that it writes to, while retention,
settling and compaction do their work beside it, over real processes and a kill -9: then it is
committed, and is there whole, where it was committed (I3, I8, I32, I33)."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

import oncelog
from tests.integration.cluster import PARTITION_LEADER, Cluster, running, until
from tests.integration.format_reader import Directory
from tests.integration.shell import Shell
from tests.integration.test_log_format_reader import consumed, folder_of

SEGMENT_BYTES = 128 << 10
SETTINGS = (
    f"node.segment_bytes={SEGMENT_BYTES}",
    "node.snapshot_every_bytes=65536",
)
SEGMENTS = 50
# In all of a topic: its oldest records go while the transaction is open.
KEPT_BYTES = 1 << 20
TOPICS = {
    "kept": {"materialization": "copy"},
    "deleted": {"materialization": "copy", "retention.bytes": str(KEPT_BYTES)},
    "compacted": {"cleanup.policy": "compact"},
}
KEYS = 40
SIZE = 1_500
# Of a round, each in a transaction of ten.
ROUND = 80
HELD = 7
COMPACTED_S = 240.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running(tmp_path_factory.mktemp("cluster"), *SETTINGS) as made:
        yield made


def test_i3_i8_i32_i33_a_transaction_that_is_open_over_fifty_segments_loses_nothing(
    cluster: Cluster, log: oncelog.Log
) -> None:
    shell = Shell(cluster.bootstrap)
    folders = {}
    for name, configs in TOPICS.items():
        log.admin.create_topic(name, partitions=1, configs=configs)
        folders[name] = folder_of(log, cluster.data_of(PARTITION_LEADER), name)
    values: list[bytes] = []
    with log.transactional_producer(transaction_timeout_ms=600_000) as holder:
        tx = holder.transaction()
        with tx:
            hold(tx, 0)
            first = {name: newest_segment(folder) for name, folder in folders.items()}
            seen: dict[str, set[int]] = {name: set() for name in TOPICS}
            with log.transactional_producer() as producer:
                while any(len(found) < SEGMENTS for found in seen.values()):
                    values += write(producer, len(values))
                    for name, folder in folders.items():
                        seen[name] |= {base for base in segments(folder) if base > first[name]}
            hold(tx, 1)
            until(lambda: has_begun_later(log), "retention deletes")
            until(lambda: is_compacted(shell), "something is compacted", within_s=COMPACTED_S)
            cluster.restart(PARTITION_LEADER)
            for name, folder in folders.items():
                assert min(segments(folder)) <= first[name], "what is pending stays"
                assert log.admin.offsets(name)[0] == len(values), "nothing of it is visible"
        # It is committed, behind all of them.
    until(lambda: log.admin.offsets("compacted")[0] == len(values) + 2 * HELD, "it is visible")
    held = [b"held %d" % number for number in range(2 * HELD)]
    for name in TOPICS:
        until(
            lambda: log.admin.offsets(name)[0] == len(values) + 2 * HELD,  # noqa: B023
            "it is visible",
        )
    shown = {name: consumed(shell, name) for name in TOPICS}
    for name, records in shown.items():
        assert [record.content.value for record in records[-2 * HELD :]] == held, name
        assert len({record.tx_id for record in records[-2 * HELD :]}) == 1
        for record in records[: -2 * HELD]:
            assert record.content.value == values[record.offset]
    assert len(shown["kept"]) == len(values) + 2 * HELD
    assert {record.content.key for record in shown["compacted"]} >= {
        b"key %d" % number for number in range(KEYS)
    }
    # Now nothing of it is pending, and the front of each journal goes, with the next snapshots.
    with log.transactional_producer() as producer:
        until(
            lambda: bool(write(producer, 0)) and begins_behind(folders, first),
            "the segments that it held go",
            within_s=COMPACTED_S,
        )
        # The last of them, and so all, can be read before the disk is looked at.
        with producer.transaction(wait="visible") as last:
            for name in TOPICS:
                last.send(name, b"the last", key=b"key 0", partition=0)
    shown = {name: consumed(shell, name) for name in TOPICS}
    cluster.stop(PARTITION_LEADER)
    for name, folder in folders.items():
        found = Directory(folder)
        found.require([record for record in shown[name] if record.offset >= found.begin], name)
    cluster.start(PARTITION_LEADER)
    cluster.wait_ready()


def hold(tx: oncelog.Transaction, number: int) -> None:
    """Some records of the transaction that stays open."""
    for name in TOPICS:
        for at in range(number * HELD, (number + 1) * HELD):
            tx.send(name, b"held %d" % at, key=b"held %d" % at, partition=0)
    tx.flush()


def write(producer: oncelog.TransactionalProducer, begin: int) -> list[bytes]:
    """The same to each topic; every fifth transaction is aborted. What is committed."""
    chance = random.Random(begin)
    values: list[bytes] = []
    for number in range(ROUND // 10):
        tx = producer.transaction()
        with tx:
            some = [b"%d " % (begin + at) + chance.randbytes(SIZE) for at in range(10)]
            for value in some:
                key = b"key %d" % chance.randrange(KEYS)
                for name in TOPICS:
                    tx.send(name, value, key=key, partition=0)
            if number % 5 == 4:
                tx.flush()
                tx.abort()
        if number % 5 != 4:
            values += some
    return values


def segments(folder: Path) -> list[int]:
    return [int(path.stem) for path in folder.glob("*.log")]


def newest_segment(folder: Path) -> int:
    return max(segments(folder))


def begins_behind(folders: dict[str, Path], first: dict[str, int]) -> bool:
    return all(base > first[name] for name in TOPICS for base in segments(folders[name]))


def has_begun_later(log: oncelog.Log) -> bool:
    return log.admin.offsets("deleted", "earliest")[0] > 0


def is_compacted(shell: Shell) -> bool:
    offsets = [record.offset for record in consumed(shell, "compacted")]
    return len(offsets) < offsets[-1]
