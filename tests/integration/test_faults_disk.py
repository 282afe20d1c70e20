"""Disks that fill up: data is refused by name, nothing acknowledged is lost, reads go on (I28)."""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

import oncelog
from oncelogpb import errors
from oncelogpb.v1 import coordinator_pb2
from oncelogpb.v1 import types_pb2 as pb
from tests.integration.by_hand import PREPARED, VISIBLE, ByHand, rows_batch
from tests.integration.cluster import (
    PARTITION_LEADER,
    Cluster,
    running,
    until,
)
from tests.integration.reading import values
from tests.integration.stubs import TIMEOUT_S, Stubs, info_of, produce

pytestmark = pytest.mark.integration

KIB, MIB = 1 << 10, 1 << 20
DISK_BYTES = 12 * MIB
# More than any disk has free.
FLOOR_ABOVE_ALL = "node.disk_free_floor_bytes=1152921504606846976"


# ------------------------------------------------------------------------------------ a full disk


def test_i28_below_the_floor_data_is_refused_and_all_else_goes_on(
    cluster: Cluster, log: oncelog.Log, topic: str
) -> None:
    with ByHand(cluster.bootstrap, topic) as hand, Stubs(cluster) as stubs:
        with log.producer() as plain:
            plain.send(topic, b"acknowledged", partition=1)
        committed, aborted = hand.begin(), None
        committed.produce(topic, 0, b"open")
        with ByHand(cluster.bootstrap, f"{topic}-other") as other:
            aborted = other.begin()
            aborted.produce(topic, 0, b"never")
            cluster.of_role[PARTITION_LEADER] = [FLOOR_ABOVE_ALL]
            cluster.restart(PARTITION_LEADER)
            cluster.wait_ready()
            partition = hand.partition(topic, 1)
            until(lambda: produce(stubs, partition) == "DISK_FULL", "it leads, and refuses")
            # Reads, commits, aborts and their markers go on.
            assert values(log, topic) == [b"acknowledged"]
            assert committed.commit(VISIBLE).visible
            aborted.abort()
            until(lambda: not other.journal(topic, 0).open_transactions, "its marker arrives")
        # A marker that carries records is data: it waits, and once the coordinator was told so,
        # it takes no more of them for this leader.
        waiting = 0
        while (why := transact(stubs, hand, partition, waiting + 1)) == "":
            waiting += 1
        assert why == "DISK_FULL"
        assert waiting, "the coordinator cannot know before the first"
        assert values(log, topic) == [b"open", b"acknowledged"]
        cluster.of_role[PARTITION_LEADER] = []
        cluster.restart(PARTITION_LEADER)
        until(lambda: log.admin.offsets(topic) == [1, 1 + waiting], "what waited goes on")
        until(lambda: produce(stubs, partition) == "", "data is taken again")
        until(lambda: transact(stubs, hand, partition, waiting + 1) == "", "one-shots, too")
        until(lambda: log.admin.offsets(topic) == [1, waiting + 3], "it appears")
        seen = values(log, topic)
        assert sorted(seen[2:]) == sorted([b"plain", *(b"%d" % n for n in range(1, waiting + 2))])


def transact(stubs: Stubs, hand: ByHand, partition: pb.Partition, number: int) -> str:
    """The same for a one-shot transaction with one record, its number."""
    request = coordinator_pb2.TransactRequest(
        producer=hand.producer,
        request_number=number,
        batches=[rows_batch(partition, b"%d" % number)],
        wait=PREPARED,
    )
    try:
        stubs.coordinator.Transact(request, timeout=TIMEOUT_S)
    except grpc.RpcError as error:
        return info_of(error).reason or str(error)
    return ""


@contextlib.contextmanager
def small_disk(folder: Path, size: int = DISK_BYTES) -> Iterator[None]:
    """A file system of so many bytes at that folder."""
    folder.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    try:
        done = subprocess.run(mount, capture_output=True, text=True, check=False)
        refused = done.stderr if done.returncode else ""
    except OSError as error:
        refused = str(error)
    if refused:
        pytest.skip(f"NO DISK COULD BE FILLED: a tmpfs cannot be mounted here: {refused.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def fill_up(log: oncelog.Log, topic: str) -> list[bytes]:
    """Sends until the disk is full: what was acknowledged. Raises what the client is told."""
    acknowledged: list[bytes] = []
    with pytest.raises(errors.OncelogError) as caught:
        for number in itertools.count():
            value = b"%08d" % number + os.urandom(64 * KIB)
            assert number * 64 * KIB < 2 * DISK_BYTES, "it never fills up"
            with log.producer(delivery_timeout_ms=3_000) as plain:
                plain.send(topic, value, partition=0)
                plain.flush()
            acknowledged.append(value)
    assert caught.value.reason in ("DISK_FULL", "NOT_LEADER", "UNKNOWN_OUTCOME"), caught.value
    return acknowledged


def test_i28_a_disk_fills_up_and_gets_more_room(tmp_path: Path) -> None:
    folder = tmp_path / "cluster"
    with (
        small_disk(folder / PARTITION_LEADER),
        running(folder, f"node.disk_free_floor_bytes={4 * MIB}") as cluster,
        cluster.connect() as log,
    ):
        log.admin.create_topic("t", partitions=1)
        with ByHand(cluster.bootstrap, "before") as hand:
            tx = hand.begin()
            tx.produce("t", 0, b"open")
            acknowledged = fill_up(log, "t")
            assert acknowledged
            assert values(log, "t")[: len(acknowledged)] == acknowledged
            assert tx.commit(VISIBLE).visible
            assert values(log, "t")[-1] == b"open"
            # More room, and it goes on by itself.
            remount(folder / PARTITION_LEADER, 2 * DISK_BYTES)
            with log.producer() as plain:
                plain.send("t", b"after", partition=0)
        assert not cluster.events(PARTITION_LEADER, "write failed, resigning")
        assert values(log, "t")[-1] == b"after"


def test_i28_i29_a_disk_without_a_byte_left_loses_nothing_acknowledged(tmp_path: Path) -> None:
    folder = tmp_path / "cluster"
    with (
        small_disk(folder / PARTITION_LEADER),
        running(folder) as cluster,
        cluster.connect() as log,
    ):
        log.admin.create_topic("t", partitions=1)
        with log.producer() as plain:
            plain.send("t", b"first", partition=0)
        # No floor, so that the writes of the log itself fail.
        acknowledged = fill_up(log, "t")
        assert cluster.events(PARTITION_LEADER, "write failed, resigning")
        for attempt in ("as it goes on", "after kill -9"):
            if attempt == "after kill -9":
                cluster.restart(PARTITION_LEADER)
            remount(folder / PARTITION_LEADER, 2 * DISK_BYTES)
            with log.producer() as plain:
                plain.send("t", attempt.encode(), partition=0)
        seen = values(log, "t")
        assert seen[: 1 + len(acknowledged)] == [b"first", *acknowledged]
        # What got no answer may stand there, once.
        doubtful = seen[1 + len(acknowledged) : -2]
        assert len(doubtful) <= 1
        assert seen[-2:] == [b"as it goes on", b"after kill -9"]


def remount(folder: Path, size: int) -> None:
    subprocess.run(["mount", "-o", f"remount,size={size}", str(folder)], check=True)
