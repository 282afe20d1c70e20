"""What stands in the directories of replicas, read by docs/log_format.md alone, is what
`oncelog consume` shows: of every policy, of rows and Arrow, settled or not, over real processes."""

from __future__ import annotations

import base64
import datetime
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import oncelog
from oncelogpb.records import ARROW_V1, ROWS
from tests.integration import format_reader
from tests.integration.cluster import PARTITION_LEADER, Cluster, running, until
from tests.integration.format_reader import Content, Directory, Record
from tests.integration.shell import Shell

SETTINGS = (
    "node.segment_bytes=1048576",
    "node.snapshot_every_bytes=131072",
)
TOPICS = {
    "referred": {"materialization": "reference"},
    "settled": {"materialization": "copy"},
    "compacted": {"cleanup.policy": "compact", "delete.retention.ms": "0"},
}
# Some look like control records, Kafka's and ours, and like what begins a frame or a block.
CONTROL_KEYS = (b"", b"\0\0\0\0", b"\0\0\0\1", b"ONCE", b"ODB1", b"COMMITTED", b"\xff\xff\xff\xff")
KEYS = (*CONTROL_KEYS, *(b"key %d" % number for number in range(60)))
ROUNDS = 60
# Of one transaction: one is a one-shot of rows; 16 and more are Arrow.
SIZES = (1, 1, 2, 5, 20, 200)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running(tmp_path_factory.mktemp("cluster"), *SETTINGS) as made:
        yield made


def test_the_page_of_the_log_format_tells_what_consumers_are_shown(cluster: Cluster) -> None:
    shell = Shell(cluster.bootstrap)
    with cluster.connect() as log:
        folders = {}
        for name, configs in TOPICS.items():
            log.admin.create_topic(name, partitions=1, configs=configs)
            folders[name] = folder_of(log, cluster.data_of(PARTITION_LEADER), name)
        with log.transactional_producer() as held:
            tx = held.transaction(wait="visible")
            with tx:
                send(tx, random.Random(1), 20)
                tx.flush()
                write(log, random.Random(2))
                until(lambda: is_compacted(shell), "something is compacted", within_s=240.0)
            write(log, random.Random(3))
        until(
            lambda: log.admin.offsets("settled", "earliest", isolation="uncommitted")[0] > 0,
            "the front of a journal goes",
        )
        log.admin.truncate("settled", before=100, partition=0)
    for _ in range(2):
        shown = {name: consumed(shell, name) for name in TOPICS}
        cluster.stop(PARTITION_LEADER)
        found = {name: Directory(folder) for name, folder in folders.items()}
        for name, directory in found.items():
            directory.require(shown[name], name)
            assert directory.begin == (100 if name == "settled" else 0)
        require_of_all_kinds(found)
        cluster.start(PARTITION_LEADER)
        cluster.wait_ready()


def require_of_all_kinds(found: dict[str, Directory]) -> None:
    """Else it proves little."""
    kinds = {(frame.kind, frame.control) for frame in found["referred"].frames}
    assert kinds >= {
        (format_reader.EPOCH_START, 0),
        (format_reader.DATA, 0),
        (format_reader.MARKER, format_reader.COMMITTED),
        (format_reader.MARKER, format_reader.ABORTED),
        (format_reader.ONE_SHOT, 0),
    }
    assert {frame.encoding for frame in found["referred"].frames} == {0, ROWS, ARROW_V1}
    assert not found["referred"].blocks
    for name in ("settled", "compacted"):
        assert found[name].log_start > 0
        assert found[name].settled_end > 0
    for block in found["settled"].blocks:
        assert len(block.records) == block.end - block.begin, "nothing was taken out"
    assert any(len(block.records) < block.end - block.begin for block in found["compacted"].blocks)


def write(log: oncelog.Log, chance: random.Random) -> None:
    """Transactions of all kinds, plain records between them. All can be read when it returns."""
    packed = log.producer(compression="zstd")
    with log.transactional_producer() as producer, log.producer() as plain, packed:
        for number in range(ROUNDS):
            tx = producer.transaction(wait="visible")
            with tx:
                send(tx, chance, chance.choice(SIZES))
                if chance.random() < 0.3:
                    tx.flush()
                    send(tx, chance, chance.choice(SIZES))
                if number % 7 == 3:
                    tx.flush()
                    tx.abort()
            if number % 5 == 0:
                sender = chance.choice((plain, packed))
                send(sender, chance, chance.choice(SIZES))
                sender.flush()


def send(to: Any, chance: random.Random, count: int) -> None:
    """The same to each topic."""
    for _ in range(count):
        value = None if chance.random() < 0.1 else chance.randbytes(chance.choice((0, 5, 2000)))
        headers = [("name", None), ("name", b"x")] if chance.random() < 0.2 else None
        for topic in TOPICS:
            to.send(topic, value, key=chance.choice(KEYS), headers=headers, partition=0)


def folder_of(log: oncelog.Log, data: Path, name: str) -> Path:
    topic_id = log.admin.describe_topic(name).topic_id
    (found,) = (data / "partitions").glob(f"{topic_id}-0")
    return found


def is_compacted(shell: Shell) -> bool:
    offsets = [record.offset for record in consumed(shell, "compacted")]
    return len(offsets) < offsets[-1]


def consumed(shell: Shell, topic: str) -> list[Record]:
    """What `oncelog consume` shows."""
    return [
        Record(
            told["offset"],
            Content(
                bytes_of(told, "key"),
                bytes_of(told, "value"),
                told["timestamp_us"],
                tuple((header["key"], bytes_of(header, "value")) for header in told["headers"]),
            ),
            int(told.get("tx_id", "0"), 16),
            int(told.get("producer_id", 0)),
            milliseconds(told["visible"]),
        )
        for told in shell.lines("consume", topic, "--partition=0")
    ]


def bytes_of(told: dict[str, Any], name: str) -> bytes | None:
    if f"{name}_base64" in told:
        return base64.b64decode(told[f"{name}_base64"])
    value = told[name]
    return None if value is None else str(value).encode()


def milliseconds(shown: str) -> int:
    moment = datetime.datetime.fromisoformat(shown)
    return int(moment.timestamp() * 1000 + 0.5)
