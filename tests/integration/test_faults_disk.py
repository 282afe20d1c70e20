"""Disks that fill up, and data directories that are not what they should be."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import grpc
import pytest

import oncelog
from oncelogpb import errors
from oncelogpb.v1 import coordinator_pb2, partition_leader_pb2
from oncelogpb.v1 import types_pb2 as pb
from services.cli.processes import Service
from tests.integration.by_hand import PREPARED, VISIBLE, ByHand, rows_batch
from tests.integration.cluster import (
    OFFSET_MANAGER,
    PARTITION_LEADER,
    Cluster,
    free_ports,
    running,
    until,
)
from tests.integration.reading import next_values, values
from tests.integration.stubs import TIMEOUT_S, Stubs, info_of

pytestmark = pytest.mark.integration

KIB, MIB = 1 << 10, 1 << 20
DISK_BYTES = 12 * MIB
# More than any disk has free.
FLOOR_ABOVE_ALL = "node.disk_free_floor_bytes=1152921504606846976"
# Of a producer of its own for plain batches: the top bit is set.
PLAIN = pb.Producer(producer_id=1 << 63 | 7)

_names = itertools.count()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running(tmp_path_factory.mktemp("cluster")) as made:
        yield made


@pytest.fixture
def log(cluster: Cluster) -> Iterator[oncelog.Log]:
    with cluster.connect() as made:
        yield made


@pytest.fixture
def topic(log: oncelog.Log) -> str:
    return log.admin.create_topic(f"topic-{next(_names)}", partitions=2).name


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
            until(lambda: produce(stubs, partition, 0) != "NOT_LEADER", "it leads again")
            assert produce(stubs, partition, 0) == "DISK_FULL"
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
        until(lambda: produce(stubs, partition, 0) == "", "data is taken again")
        until(lambda: transact(stubs, hand, partition, waiting + 1) == "", "one-shots, too")
        until(lambda: log.admin.offsets(topic) == [1, waiting + 3], "it appears")
        seen = values(log, topic)
        assert sorted(seen[2:]) == sorted([b"plain", *(b"%d" % n for n in range(1, waiting + 2))])


def produce(stubs: Stubs, partition: pb.Partition, sequence: int) -> str:
    """Reason of the refusal; "" where it is acknowledged."""
    batch = rows_batch(partition, b"plain")
    batch.base_sequence = sequence
    request = partition_leader_pb2.ProduceRequest(producer=PLAIN, batches=[batch])
    (result,) = stubs.leader.Produce(request, timeout=TIMEOUT_S, wait_for_ready=True).results
    return errors.from_status(result.error).reason if result.HasField("error") else ""


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
def small_disk(folder: Path) -> Iterator[None]:
    """A file system of DISK_BYTES at that folder."""
    folder.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(folder)]
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


# -------------------------------------------------------------------------------- rot (I26)


class Rot(NamedTuple):
    """One byte of a partition's journal is another one after a restart."""

    # Where: part of the journal's only segment, 0 to 1.
    at: float
    # A clean stop leaves one at the log end; without it everything is replayed.
    snapshot: bool


ROT = {
    "in the tail, found as it is opened": Rot(0.98, snapshot=True),
    "in the middle, found as it is replayed": Rot(0.5, snapshot=False),
}


@pytest.mark.parametrize("rot", ROT.values(), ids=ROT)
def test_i26_a_flipped_byte_takes_one_partition_offline_and_is_named(
    cluster: Cluster, log: oncelog.Log, topic: str, rot: Rot
) -> None:
    sent = fill(log, topic)
    with ByHand(cluster.bootstrap, topic) as hand, Stubs(cluster) as stubs:
        partition = hand.partition(topic, 0)
        cluster.stop(PARTITION_LEADER)
        segment, position = flip_a_byte(cluster, partition, rot)
        cluster.start(PARTITION_LEADER)
        until(lambda: damage_of(cluster, partition), "it is found")
        said = damage_of(cluster, partition)[0]
        assert segment in said
        assert abs(int(re.findall(r"damaged at byte (\d+)", said)[0]) - position) <= 2 * VALUE_BYTES
        # Nobody else is the worse for it.
        cluster.wait_ready()
        assert next_values(log.consumer([topic], partitions=[(topic, 1)]), len(sent)) == sent
        with log.producer() as plain:
            plain.send(topic, b"after", partition=1)
        assert produce(stubs, partition, 0) == "NOT_LEADER"
        assert log.admin.describe_topic(topic).partitions[0].leader is None
        assert log.admin.describe_topic(topic).partitions[1].leader is not None
        # It stays so: a restart does not make it better.
        cluster.restart(PARTITION_LEADER)
        cluster.wait_ready()
        until(lambda: produce(stubs, hand.partition(topic, 1), 0) == "", "the other one leads")
        assert produce(stubs, partition, 0) == "NOT_LEADER"


def test_i26_a_flipped_byte_that_is_only_found_by_a_reader_is_never_served(
    cluster: Cluster, log: oncelog.Log, topic: str
) -> None:
    sent = fill(log, topic)
    with ByHand(cluster.bootstrap, topic) as hand:
        partition = hand.partition(topic, 0)
        cluster.stop(PARTITION_LEADER)
        segment, _ = flip_a_byte(cluster, partition, Rot(0.5, snapshot=True))
        cluster.start(PARTITION_LEADER)
        consumer = log.consumer([topic], partitions=[(topic, 0)])
        seen: list[bytes] = []
        with pytest.raises(errors.CorruptLog, match=segment):
            while True:
                seen += next_values(consumer, 1)
        assert seen == sent[: len(seen)], "what stands before the damage is what was sent"
        assert len(seen) < len(sent)
        assert next_values(log.consumer([topic], partitions=[(topic, 1)]), len(sent)) == sent


VALUE_BYTES = 4 * KIB


def fill(log: oncelog.Log, topic: str) -> list[bytes]:
    """The same in both partitions, a batch for each record."""
    sent = [b"%04d" % number + bytes(VALUE_BYTES - 4) for number in range(50)]
    with log.producer(linger_ms=0) as plain:
        for value in sent:
            for partition in (0, 1):
                plain.send(topic, value, partition=partition)
            plain.flush()
    return sent


def flip_a_byte(cluster: Cluster, partition: pb.Partition, rot: Rot) -> tuple[str, int]:
    """The segment's name, and where in it."""
    directory = (
        cluster.data_of(PARTITION_LEADER)
        / "partitions"
        / f"{partition.topic_id.hex()}-{partition.number}"
    )
    if not rot.snapshot:
        for snapshot in directory.glob("snapshot-*"):
            snapshot.unlink()
    (segment,) = directory.glob("*.log")
    content = bytearray(segment.read_bytes().rstrip(b"\0"))
    position = int(len(content) * rot.at)
    with segment.open("r+b") as file:
        file.seek(position)
        file.write(bytes([content[position] ^ 0x40]))
    return segment.name, position


def damage_of(cluster: Cluster, partition: pb.Partition) -> list[str]:
    """What the log of the leader says of damage in that partition."""
    return [
        str(event["error"])
        for event in cluster.events(PARTITION_LEADER, "replica cannot be opened")
        if event["partition"] == f"{partition.topic_id.hex()}/{partition.number}"
    ]


# ------------------------------------------------------------------------------ wrong directories


def test_a_data_directory_in_use_is_refused_by_name(cluster: Cluster, tmp_path: Path) -> None:
    code, said = serve(cluster, tmp_path, data=cluster.data_of(OFFSET_MANAGER))
    assert code == 1
    assert "another process uses this data directory" in said
    assert str(cluster.data_of(OFFSET_MANAGER)) in said
    assert "Traceback" not in said


@pytest.mark.parametrize("elsewhere", ["an empty etcd", "another cluster"])
def test_a_directory_of_another_cluster_is_refused(
    cluster: Cluster, log: oncelog.Log, tmp_path: Path, elsewhere: str
) -> None:
    prefix = f"/elsewhere-{next(_names)}/"
    if elsewhere == "another cluster":
        other = service(cluster, tmp_path, data=tmp_path / "other", prefix=prefix)
        other.start()
        until(lambda: "node started" in other.tail(), "another cluster is made")
        assert other.stop()
    cluster.stop(OFFSET_MANAGER)
    before = list_files(cluster.data_of(OFFSET_MANAGER))
    code, said = serve(cluster, tmp_path, data=cluster.data_of(OFFSET_MANAGER), prefix=prefix)
    assert code != 0
    assert "oncelog cluster recover" in said
    assert "Traceback" not in said
    assert list_files(cluster.data_of(OFFSET_MANAGER)) == before
    cluster.start(OFFSET_MANAGER)
    cluster.wait_ready()


def service(cluster: Cluster, folder: Path, *, data: Path, prefix: str = "/oncelog/") -> Service:
    """An offset manager beside those of the cluster."""
    address = f"127.0.0.1:{free_ports(1)[0]}"
    arguments = [
        "serve",
        OFFSET_MANAGER,
        f"--data={data}",
        f"--listen={address}",
        f"--etcd={cluster.etcd.endpoint}",
        f"--set=node.etcd_prefix={prefix}",
    ]
    return Service("beside", arguments, address=address, log=folder / "beside.log")


def serve(
    cluster: Cluster, folder: Path, *, data: Path, prefix: str = "/oncelog/"
) -> tuple[int, str]:
    """Its exit code and what it said. It must end by itself."""
    beside = service(cluster, folder, data=data, prefix=prefix)
    beside.log.unlink(missing_ok=True)
    beside.start()
    try:
        until(lambda: beside.exit_code is not None, "it ends")
    finally:
        beside.stop()
    assert beside.exit_code is not None
    return beside.exit_code, " ".join(beside.log.read_text().split())


def list_files(folder: Path) -> list[tuple[str, bytes]]:
    return sorted((str(path), path.read_bytes()) for path in folder.rglob("*") if path.is_file())
