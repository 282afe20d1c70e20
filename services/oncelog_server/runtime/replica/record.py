"""`replica.json`: what a replica's directory says of itself, for the day when etcd is lost
(docs/adr/0004).

A journal knows its bytes; whose it is, only etcd knows. So each led replica keeps, beside its
journal, the topic that it belongs to, and the incarnation under which it last won an election: one
that has another incarnation since was emptied or damaged meanwhile, and lacks acknowledged records.

Invariant: it never says more than etcd granted. It may lag: it is written when an election was won
and when the topic changes, about a second later at most, and a failed write is tried again.
"""

from __future__ import annotations

from typing import Final

import msgspec

from oncelog_server.core.ids import PartitionId, TopicId
from oncelog_server.core.ports import TopicInfo
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
    # Hex. Under which it last won an election.
    incarnation: str
    # An epoch that it won; later ones with the same incarnation are not written down.
    epoch: int
    # None: a control topic, or the topic's key was not seen yet.
    topic: TopicRecord | None = None

    @property
    def partition(self) -> PartitionId:
        return PartitionId(TopicId(bytes.fromhex(self.topic_id)), self.number)

    def says_as_much_as(self, newer: ReplicaRecord) -> bool:
        """It need not be written again for `newer`."""
        return self == msgspec.structs.replace(newer, epoch=self.epoch)


# Built at import: threads open replicas, and msgspec reads a half-built description of a type
# that another thread is at for the first time, which is a segmentation fault.
_DECODER: Final = msgspec.json.Decoder(ReplicaRecord)


def make_record(
    partition: PartitionId, *, incarnation: bytes, epoch: int, topic: TopicInfo | None
) -> ReplicaRecord:
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
        partition.topic_id.hex(), partition.number, incarnation.hex(), epoch, described
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
