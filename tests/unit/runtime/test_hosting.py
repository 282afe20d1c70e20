"""What a start does with replicas on disk that etcd does not know, and with those of a directory
that is older than it was."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from oncelog_server.core.ids import PartitionId, TopicId
from oncelog_server.core.ports import PartitionInfo
from oncelog_server.runtime.etcd.cluster_view import ClusterView
from oncelog_server.runtime.etcd.refusal import EtcdRefused
from oncelog_server.runtime.hosting import Hosting
from oncelog_server.runtime.replica.record import make_record, save_record
from oncelog_server.runtime.replicas import directory_of
from oncelog_server.runtime.storage.identity import read_incarnation, take_incarnation
from oncelog_server.runtime.storage.tail import TailBudget
from tests.simulation.disk import FakeDisk
from tests.unit.etcd.world import Log

KNOWN, FORGOTTEN = PartitionId(TopicId(b"k" * 16), 0), PartitionId(TopicId(b"f" * 16), 0)
FORGOTTEN_NAME = directory_of(FORGOTTEN).rsplit("/", 1)[-1]


def info(epoch: int, revision: int, node_id: str = "n1") -> PartitionInfo:
    return PartitionInfo(KNOWN, [node_id], [], None, epoch, revision=revision)


def start(shown: PartitionInfo, noted: PartitionInfo | None) -> FakeDisk:
    """Of two replicas etcd knows one, as is shown; that one's directory has noted something."""
    disk = FakeDisk()
    for partition in (KNOWN, FORGOTTEN):
        disk.make_directory(directory_of(partition))
        disk.replace_file(f"{directory_of(partition)}/file", b"kept")
    if noted is not None:
        record = make_record(
            KNOWN, incarnation=b"i" * 16, epoch=noted.epoch, topic=None, known=noted
        )
        save_record(disk, directory_of(KNOWN), record)
    outside: Any = SimpleNamespace(disk=disk, reporter=Log())
    view = SimpleNamespace(partition={KNOWN: shown}.get)
    hosting = Hosting((), outside, TailBudget())
    try:
        hosting.put_orphans_aside(cast(ClusterView, view), node_id="n1")
    except EtcdRefused:
        assert not disk.exists("orphans"), "something was moved"
        raise
    return disk


@pytest.mark.parametrize(
    ("shown", "noted"),
    [
        (info(3, 40), info(3, 40)),
        (info(3, 50), info(3, 40)),
        (info(3, 40), None),
        # Rebuilt: revisions are counted anew, epochs go on.
        (info(1 << 20, 4), info(3, 40)),
    ],
)
def test_what_etcd_does_not_know_is_moved(shown: PartitionInfo, noted: PartitionInfo) -> None:
    disk = start(shown, noted)
    assert disk.bytes_of(f"orphans/{FORGOTTEN_NAME}/file") == b"kept"
    assert disk.exists(directory_of(KNOWN))


@pytest.mark.parametrize("shown", [info(2, 50), info(3, 39), info(3, 39, "n2")])
def test_i25_nothing_is_moved_where_etcd_is_behind_what_a_replica_has_noted(
    shown: PartitionInfo,
) -> None:
    """It was restored from a backup, and forgot the topic."""
    with pytest.raises(EtcdRefused, match="has noted epoch 3 and revision 40"):
        start(shown, info(3, 40))


def test_i25_every_replica_of_an_older_directory_has_a_new_name() -> None:
    """Durably, when it is done."""
    disk, log, numbers = FakeDisk(), Log(), iter(range(1, 100))

    def random_bytes(size: int) -> bytes:
        return bytes([next(numbers)]) * size

    directories = [directory_of(partition) for partition in (KNOWN, FORGOTTEN)]
    for directory in directories:
        disk.make_directory(directory)
        take_incarnation(disk, directory, random_bytes)
    before = {read_incarnation(disk, directory) for directory in directories}
    outside: Any = SimpleNamespace(disk=disk, reporter=log, random_bytes=random_bytes)
    Hosting((), outside, TailBudget()).count_as_new()
    disk.crash()
    disk = disk.reopen()
    after = {read_incarnation(disk, directory) for directory in directories}
    assert len(after) == 2
    assert not after & before
    assert "data directory is older than it was" in log.names()
