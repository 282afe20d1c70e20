"""A topic that is compacted, over a real process: of each key the last committed value is there,
and what it superseded is gone; an open transaction holds up nothing (I8, I33)."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

import oncelog
from oncelog_server.runtime.replica.compacting import DIRTY_WORTH_BYTES
from oncelog_server.runtime.replica.settling import SNAPSHOT_AFTER_MS
from oncelogpb import errors
from tests.integration.cluster import Cluster, running, until

SNAPSHOT_EVERY_BYTES = 256 << 10
SETTINGS = (
    "node.segment_bytes=1048576",
    f"node.snapshot_every_bytes={SNAPSHOT_EVERY_BYTES}",
)
KEYS = 50
ROUNDS = 80
SIZE = 1_500
# The last rounds, which may stay for an hour: a pass is not worth it for them, or no snapshot
# counts them.
YOUNG_ROUNDS = (DIRTY_WORTH_BYTES + 2 * SNAPSHOT_EVERY_BYTES) // (KEYS * SIZE) + 1

# A log that is quiet may wait a minute for the snapshot that counts what was written last, where
# the one before was still being written then.
COMPACTED_S = 3 * SNAPSHOT_AFTER_MS / 1000


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running(tmp_path_factory.mktemp("cluster"), *SETTINGS) as made:
        yield made


def test_i08_i33_the_last_values_stay_and_an_open_transaction_holds_up_nothing(
    cluster: Cluster, log: oncelog.Log, topic: str
) -> None:
    """Kafka's cleaner ends at the last stable offset: at the first record of what is open."""
    log.admin.alter_topic(topic, configs={"cleanup.policy": "compact"})
    producer = log.transactional_producer()
    # Longer than everything below waits for.
    timeout_ms = int(4 * COMPACTED_S * 1000)
    other = log.transactional_producer(transaction_timeout_ms=timeout_ms)
    with producer, other:
        held = other.transaction()
        with held:
            held.send(topic, b"won", key=b"key 7", partition=0)
            held.flush()
            # More than once: what is compacted already is passed over.
            for end in (ROUNDS, 2 * ROUNDS, 3 * ROUNDS):
                rewrite(producer, topic, end - ROUNDS, end)
                young = end - YOUNG_ROUNDS
                until(
                    lambda: not of_rounds(read(log, topic), young),  # noqa: B023
                    "what is superseded goes",
                    within_s=COMPACTED_S,
                )
                found = dict(read(log, topic))
                assert {key: value[:6] for key, value in found.items()} == {
                    b"key %d" % number: b"%05d " % (end - 1) for number in range(KEYS)
                }
        # It is committed now, behind all that was compacted.
    until(lambda: dict(read(log, topic))[b"key 7"] == b"won", "what was open wins")
    assert len(dict(read(log, topic))) == KEYS
    cluster.restart("partition_leader")
    found = dict(read(log, topic))
    assert found[b"key 7"] == b"won"
    assert len(found) == KEYS


def test_a_record_without_a_key_is_refused(cluster: Cluster, log: oncelog.Log, topic: str) -> None:
    log.admin.alter_topic(topic, configs={"cleanup.policy": "compact"})
    with log.transactional_producer() as producer:
        with (
            pytest.raises(oncelog.errors.OncelogError, match="has no key"),
            producer.transaction() as tx,
        ):
            tx.send(topic, b"value", partition=0)
            tx.flush()
        with producer.transaction() as tx:
            tx.send(topic, b"value", key=b"k", partition=0)
    with pytest.raises(errors.InvalidArgument, match=r"cleanup\.policy"):
        log.admin.alter_topic(topic, configs={"cleanup.policy": "compacted"})


def of_rounds(found: list[tuple[bytes, bytes]], below: int) -> list[bytes]:
    """Keys of the records that were written in the first rounds."""
    return [key for key, value in found if int(value[:5]) < below]


def rewrite(producer: oncelog.TransactionalProducer, topic: str, begin: int, end: int) -> None:
    """Each key in each of these rounds, in transactions of ten. Values do not compress."""
    chance = random.Random(begin)
    for round_ in range(begin, end):
        for first in range(0, KEYS, 10):
            with producer.transaction() as tx:
                for number in range(first, first + 10):
                    value = b"%05d " % round_ + chance.randbytes(SIZE)
                    tx.send(topic, value, key=b"key %d" % number, partition=0)


def read(log: oncelog.Log, topic: str) -> list[tuple[bytes, bytes]]:
    """All that is left of the first partition, in order."""
    end = log.admin.offsets(topic)[0]
    found: list[tuple[bytes, bytes]] = []
    with log.consumer([topic], start="earliest") as consumer:
        position = 0
        while position < end:
            batch = consumer.poll(20.0)
            assert batch is not None, "nothing more comes"
            for record in batch:
                assert record.offset >= position, "offsets ascend"
                assert record.key is not None
                assert record.value is not None
                found.append((record.key, record.value))
                position = record.offset + 1
    return found
