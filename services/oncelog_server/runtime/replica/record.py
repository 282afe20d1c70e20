"""`replica.json`: what a replica's directory says of itself, for the day when etcd is lost
(docs/adr/0004).

A journal knows its bytes; whose it is, only etcd knows. So each replica that leads or is in sync
keeps, beside its journal, the topic that it belongs to, who else has a replica, and the incarnation
under which it was last in sync: one that has another incarnation since was emptied or damaged
meanwhile, and lacks acknowledged records.

Invariant: it never says more than etcd granted. It may lag: it is written when an election was won,
when who is in sync or has a replica changes, and when the topic does, about a second later at most,
and a failed write is tried again.
"""

from __future__ import annotations

from typing import Final

import msgspec

from oncelog_server.core.ids import PartitionId, TopicId
from oncelog_server.core.ports import PartitionInfo, TopicInfo
from oncelog_server.runtime.storage.port import Disk

FILE: Final = "replica.json"
FILE_BYTES_MAX: Final = 1 << 20


class TopicRecord(msgspec.Struct, frozen=True):
    """As etcd had it."""

    name: str
    partitions: int
    replication_factor: int
    configs: dict[str, str]
    created_ms: int
    version: int


class ReplicaRecord(msgspec.Struct, frozen=True):
    """One replica."""

    topic_id: str
    number: int
    # Hex. Under which it last won an election, or was in sync.
    incarnation: str
    # An epoch in which that was; later ones are not written down while nothing else changes.
    epoch: int
    # None: a control topic, or the topic's key was not seen yet.
    topic: TopicRecord | None = None
    # The nodes that had a replica then, and those of them that a move was adding; empty where a
    # process wrote it that did not know.
    replicas: tuple[str, ...] = ()
    adding: tuple[str, ...] = ()
    # Of the partition's key, at that time: of two records with other replicas, the higher epoch,
    # then the higher revision, is the newer.
    revision: int = 0

    @property
    def partition(self) -> PartitionId:
        return PartitionId(TopicId(bytes.fromhex(self.topic_id)), self.number)

    def says_as_much_as(self, newer: ReplicaRecord) -> bool:
        """It need not be written again for `newer`."""
        return self == msgspec.structs.replace(newer, epoch=self.epoch, revision=self.revision)


# Built at import: threads open replicas, and msgspec reads a half-built description of a type
# that another thread is at for the first time, which is a segmentation fault.
_DECODER: Final = msgspec.json.Decoder(ReplicaRecord)


def make_record(
    partition: PartitionId,
    *,
    incarnation: bytes,
    epoch: int,
    topic: TopicInfo | None,
    known: PartitionInfo | None = None,
) -> ReplicaRecord:
    """`known`: what etcd shows of the partition."""
    described = None
    if topic is not None and not topic.name.startswith("__"):
        described = TopicRecord(
            topic.name,
            topic.partitions,
            topic.replication_factor,
            dict(topic.configs),
            topic.created_ms,
            topic.version,
        )
    return ReplicaRecord(
        partition.topic_id.hex(),
        partition.number,
        incarnation.hex(),
        epoch,
        described,
        () if known is None else tuple(known.replicas),
        () if known is None else tuple(known.adding),
        0 if known is None else known.revision,
    )


def save_record(disk: Disk, directory: str, record: ReplicaRecord) -> None:
    """Blocking; durable at return. Raises OSError."""
    data = msgspec.json.format(msgspec.json.encode(record), indent=2)
    disk.replace_file(f"{directory}/{FILE}", data)


def load_record(disk: Disk, directory: str) -> ReplicaRecord | None:
    """None where there is none, or none that can be read: it is made anew by the next election."""
    path = f"{directory}/{FILE}"
    if not disk.exists(path):
        return None
    file = disk.open(path)
    try:
        return _DECODER.decode(file.read(0, FILE_BYTES_MAX))
    except msgspec.DecodeError:
        return None
    finally:
        file.close()
