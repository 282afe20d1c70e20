"""Data directories that are not what they should be: rotten, lost, in use, of another cluster."""

from __future__ import annotations

import itertools
import re
import shutil
from pathlib import Path
from typing import NamedTuple

import pytest

import oncelog
from oncelog_server.cli.processes import Service
from oncelog_server.runtime.loopback_ports import free_ports
from oncelogpb import errors
from oncelogpb.v1 import types_pb2 as pb
from tests.integration.by_hand import ByHand
from tests.integration.cluster import (
    OFFSET_MANAGER,
    PARTITION_LEADER,
    Cluster,
    until,
)
from tests.integration.reading import next_values, values
from tests.integration.shell import UNREACHABLE, WRONG_USAGE, Shell
from tests.integration.stubs import Stubs, produce

pytestmark = pytest.mark.integration

# Of each record that is written where a byte is flipped.
VALUE_BYTES = 4 << 10

_names = itertools.count()


# ------------------------------------------------------------------------------------ rot (I26)


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
        assert produce(stubs, partition) == "NOT_LEADER"
        assert log.admin.describe_topic(topic).partitions[0].leader is None
        assert log.admin.describe_topic(topic).partitions[1].leader is not None
        # It stays so: a restart does not make it better.
        cluster.restart(PARTITION_LEADER)
        cluster.wait_ready()
        until(lambda: produce(stubs, hand.partition(topic, 1)) == "", "the other one leads")
        assert produce(stubs, partition) == "NOT_LEADER"


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
    directory = directory_of(cluster, partition)
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


def directory_of(cluster: Cluster, partition: pb.Partition) -> Path:
    name = f"{partition.topic_id.hex()}-{partition.number}"
    return cluster.data_of(PARTITION_LEADER) / "partitions" / name


def damage_of(cluster: Cluster, partition: pb.Partition) -> list[str]:
    """What the log of the leader says of damage in that partition."""
    return [
        str(event["error"])
        for event in cluster.events(PARTITION_LEADER, "replica cannot be opened")
        if event["partition"] == f"{partition.topic_id.hex()}/{partition.number}"
    ]


# ------------------------------------------------------------------------------ wrong directories


def test_a_partition_whose_directory_was_lost_is_led_again_by_an_unclean_election(
    cluster: Cluster, log: oncelog.Log, topic: str
) -> None:
    shell, lost = Shell(cluster.bootstrap), f"{topic}/1"
    with log.producer() as plain:
        for number in (0, 1):
            plain.send(topic, b"%d" % number, partition=number)
    topic_id = bytes.fromhex(log.admin.describe_topic(topic).topic_id)
    cluster.stop(PARTITION_LEADER)
    shutil.rmtree(directory_of(cluster, pb.Partition(topic_id=topic_id, number=1)))
    cluster.start(PARTITION_LEADER)
    cluster.wait_ready()
    until(lambda: lost in shell.ask("cluster", "status")["partitions_without_leader"], "it is told")
    assert shell.lines("consume", topic, "--partition", "0")[0]["value"] == "0"
    why = shell.refused("consume", topic, "--partition", "1", "--timeout", "1", code=UNREACHABLE)
    assert why == "UNAVAILABLE"
    assert shell.run("cluster", "unclean-elect", lost).exit_code == WRONG_USAGE
    (elected,) = shell.ask("cluster", "unclean-elect", lost, "--accept-loss")["elected"]
    assert (elected["partition"], elected["epoch"], elected["kept_end"]) == (lost, 2, 0)
    assert lost not in shell.ask("cluster", "status")["partitions_without_leader"]
    with log.producer() as plain:
        plain.send(topic, b"anew", partition=1)
    assert values(log, topic) == [b"0", b"anew"]
    # Only for partitions that nobody leads.
    refused = shell.refused("cluster", "unclean-elect", f"{topic}/0", "--accept-loss")
    assert refused == "INVALID_ARGUMENT"


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
        until(lambda: "node started" in other.log.read_text(), "another cluster is made")
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
