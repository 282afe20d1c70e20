"""What a data directory holds, for a cluster that lost its etcd. Its process must be stopped.

Opening a journal here is what the start of its process does: torn tails are cut, what was kept is
synced, and a replica that turns out to be damaged takes a new incarnation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from oncelog_server.core.ids import PartitionId
from oncelog_server.runtime.etcd.identity import Remembered, load_remembered
from oncelog_server.runtime.replica.record import ReplicaRecord, load_record
from oncelog_server.runtime.replicas import (
    ORPHANS_DIRECTORY,
    PARTITIONS_DIRECTORY,
    partition_of,
)
from oncelog_server.runtime.storage.identity import SyncedEnd, read_incarnation
from oncelog_server.runtime.storage.journal import Journal, JournalDamaged
from oncelog_server.runtime.storage.node_id import NODE_FILE, read_node_id
from oncelog_server.runtime.storage.port import Disk


class RecoveryRefused(Exception):
    """It was not begun, or stopped at this: nothing else was changed. Says what to do."""


@dataclass(frozen=True, slots=True)
class FoundReplica:
    """One replica on a disk."""

    # Of the data directory.
    path: str
    node_id: str
    partition: PartitionId
    # None: it never led, or what it noted is gone.
    record: ReplicaRecord | None
    # Hex; "" where the journal cannot be opened.
    incarnation: str
    last_epoch: int
    synced_end: int
    # File, position and reason; "" for a sound one.
    damage: str = ""


@dataclass(frozen=True, slots=True)
class DataDirectory:
    """One node's data, held by this process until `disk` is closed."""

    path: str
    disk: Disk
    node_id: str
    remembered: Remembered
    replicas: list[FoundReplica] = field(default_factory=list)
    # In `orphans/`; they are never taken for replicas.
    set_aside: list[FoundReplica] = field(default_factory=list)


def take(path: str, disk: Disk) -> DataDirectory:
    """Locks it and reads whose it is. Raises RecoveryRefused, OSError (another process has it)."""
    disk.lock()
    try:
        remembered = load_remembered(disk)
    except ValueError as error:
        raise RecoveryRefused(f"{path}: {error}") from None
    if not remembered.cluster_id or not disk.exists(NODE_FILE):
        raise RecoveryRefused(
            f"{path} holds no data of a cluster; name the directories that `oncelog serve --data` "
            "had, or the folder of `oncelog up`"
        )
    return DataDirectory(path, disk, read_node_id(disk), remembered)


def look(directory: DataDirectory, progress: Callable[[PartitionId], None]) -> None:
    """Opens every replica, one after the other, and notes what it is. Raises OSError."""
    for name in directory.disk.list(PARTITIONS_DIRECTORY):
        partition = partition_of(name)
        progress(partition)
        directory.replicas.append(_look_at(directory, partition, f"{PARTITIONS_DIRECTORY}/{name}"))
    for name in directory.disk.list(ORPHANS_DIRECTORY):
        aside = _set_aside(directory, f"{ORPHANS_DIRECTORY}/{name}")
        if aside is not None:
            directory.set_aside.append(aside)


def _look_at(directory: DataDirectory, partition: PartitionId, path: str) -> FoundReplica:
    record = load_record(directory.disk, path)
    if record is not None and record.partition != partition:
        raise RecoveryRefused(
            f"{directory.path}/{path} holds the replica of {record.partition}: directories were "
            "moved or renamed by hand; move them back"
        )
    try:
        journal = Journal.open(directory.disk, path)
    except JournalDamaged as damaged:
        return FoundReplica(
            directory.path, directory.node_id, partition, record, "", 0, 0, str(damaged)
        )
    try:
        return FoundReplica(
            directory.path,
            directory.node_id,
            partition,
            record,
            journal.incarnation.hex(),
            journal.last_epoch,
            journal.synced_end,
        )
    finally:
        journal.close()


def _set_aside(directory: DataDirectory, path: str) -> FoundReplica | None:
    """What it says of itself: it is not opened, for nothing in `orphans/` is changed. None where
    nothing says whose it was."""
    record = load_record(directory.disk, path)
    if record is None:
        return None
    noted = SyncedEnd(directory.disk, path)
    try:
        return FoundReplica(
            f"{directory.path}/{path}",
            directory.node_id,
            record.partition,
            record,
            (read_incarnation(directory.disk, path) or b"").hex(),
            record.epoch,
            0 if noted.noted is None else noted.noted.synced_end,
        )
    finally:
        noted.close()
