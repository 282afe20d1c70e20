"""What stands in etcd: names of keys and the JSON in them. ARCHITECTURE.md draws the table.

JSON, because people read it with etcdctl when things are bad; ids are hex for the same reason.
Unknown fields are ignored, so that a newer process may add one.

Left out: the cluster's prefix, which the Etcd adapter adds.
"""

from __future__ import annotations

from typing import Final

import msgspec

from oncelog_server.core.ids import (
    BootId,
    PartitionId,
    TopicId,
)
from oncelog_server.core.ports import Address, NodeInfo, PartitionInfo, TopicInfo

CLUSTER: Final = "cluster"
BOOTS: Final = "boots/"
PARTITIONS: Final = "partitions/"
TOPICS: Final = "topics/"
# Positions of the oldest open transaction of each journal, for tools.
HINTS: Final = "journal-hints/"
# Names whose topic is being created; each under its creator's lease.
CREATING: Final = "creating/"
# What each node's data directory has noted, at least.
DIRECTORIES: Final = "directories/"

# etcd refuses a transaction with more operations, or compares, than its --max-txn-ops.
TXN_OPS_MAX: Final = 128
# What we put into one, which leaves room for the compares beside the keys.
TXN_KEYS_MAX: Final = 100
assert TXN_KEYS_MAX + 2 <= TXN_OPS_MAX, "an election also compares two boot keys"


class ClusterValue(msgspec.Struct, frozen=True):
    """`cluster`: what must agree. Written once, by the first process."""

    cluster_id: str
    transaction_partitions: int
    offset_partitions: int
    min_insync_replicas: int
    lease_ms: int
    # How often `oncelog cluster recover` rebuilt what stands here. A data directory works only with
    # the one that it took part in (see `identity`).
    recovery: int = 0


class BootValue(msgspec.Struct, frozen=True):
    """`boots/<boot id>`: one process run, for as long as its lease lives."""

    node_id: str
    host: str
    port: int
    roles: tuple[str, ...]
    version: str
    # These are absent in the keys of processes that did not know them.
    rack: str = ""
    started_ms: int = 0
    external_host: str = ""
    external_port: int = 0
    # It is about to stop.
    leaving: bool = False


class LeaderValue(msgspec.Struct, frozen=True):
    """Who was elected. It leads only while `boots/<boot_id>` stands."""

    node_id: str
    boot_id: str
    host: str
    port: int


class FoundValue(msgspec.Struct, frozen=True):
    """What a recovery found of a replica."""

    node_id: str
    # Hex; "" where its journal cannot be opened.
    incarnation: str
    last_epoch: int
    synced_end: int
    # It was in sync under this incarnation, so it has what it had then.
    is_intact: bool


class PartitionState(msgspec.Struct, frozen=True):
    """`partitions/<topic id>/<number>`: changed by compare-and-set only.

    Invariant: epoch 0 exactly while nobody was ever elected; then the ISR is empty and nothing was
    ever acknowledged.
    """

    replicas: tuple[str, ...]
    # Incarnations, hex.
    isr: tuple[str, ...] = ()
    # None: never elected, or resigned.
    leader: LeaderValue | None = None
    epoch: int = 0
    # Epoch of the last unclean election; 0 for none. A leader whose journal ends in an earlier
    # epoch has not skipped its control offsets yet.
    unclean_epoch: int = 0
    # While replicas are moved: those of `replicas` that were added, and where all shall be, the one
    # that should lead first (`leadership/moving`).
    adding: tuple[str, ...] = ()
    target: tuple[str, ...] = ()
    # While a recovery has not found enough replicas to choose from; then nobody is in sync.
    found: tuple[FoundValue, ...] = ()


class HintValue(msgspec.Struct, frozen=True):
    """`journal-hints/<number>`: where the oldest open transaction of a journal began."""

    journal_offset: int
    epoch: int


class TopicValue(msgspec.Struct, frozen=True):
    """`topics/<name>`: last at creation, first at deletion; so where it stands, all of it does."""

    topic_id: str
    partitions: int
    replication_factor: int
    configs: dict[str, str]
    created_ms: int
    # How often it was altered.
    version: int = 0


class DirectoryValue(msgspec.Struct, frozen=True):
    """`directories/<node id>`: see `directory_mark`."""

    # Of etcd, the highest that the directory had noted.
    revision: int
    # Recoveries of the cluster by then: revisions of others are not to be compared.
    recovery: int = 0


class CreatingValue(msgspec.Struct, frozen=True):
    """`creating/<name>`: partition keys of this topic id belong to a creation under way."""

    topic_id: str


# Built at import, for some are used off the loop: see `runtime/replica/record`.
_CLUSTER: Final = msgspec.json.Decoder(ClusterValue)
_BOOT: Final = msgspec.json.Decoder(BootValue)
_PARTITION: Final = msgspec.json.Decoder(PartitionState)
_TOPIC: Final = msgspec.json.Decoder(TopicValue)
_CREATING: Final = msgspec.json.Decoder(CreatingValue)
_DIRECTORY: Final = msgspec.json.Decoder(DirectoryValue)


def boot_key(boot_id: bytes | str) -> str:
    return BOOTS + (boot_id if isinstance(boot_id, str) else boot_id.hex())


def partition_key(partition: PartitionId) -> str:
    return f"{PARTITIONS}{partition.topic_id.hex()}/{partition.number}"


def partition_of_key(key: str) -> PartitionId:
    topic_id, _, number = key.removeprefix(PARTITIONS).partition("/")
    return PartitionId(TopicId(bytes.fromhex(topic_id)), int(number))


def topic_key(name: str) -> str:
    return TOPICS + name


def creating_key(name: str) -> str:
    return CREATING + name


def directory_key(node_id: str) -> str:
    return DIRECTORIES + node_id


def directory_value(value: bytes) -> DirectoryValue:
    return _DIRECTORY.decode(value)


def encode(value: msgspec.Struct) -> bytes:
    return msgspec.json.encode(value)


def hint_key(number: int) -> str:
    """Of a journal partition."""
    return f"{HINTS}{number}"


def cluster_value(value: bytes) -> ClusterValue:
    return _CLUSTER.decode(value)


def boot_value(value: bytes) -> BootValue:
    return _BOOT.decode(value)


def topic_value(value: bytes) -> TopicValue:
    return _TOPIC.decode(value)


def decode_boot(key: str, value: bytes) -> NodeInfo:
    boot = boot_value(value)
    boot_id = BootId(bytes.fromhex(key.removeprefix(BOOTS)))
    return NodeInfo(
        node_id=boot.node_id,
        boot_id=boot_id,
        host=boot.host,
        port=boot.port,
        roles=boot.roles,
        version=boot.version,
        rack=boot.rack,
        started_ms=boot.started_ms,
        external_host=boot.external_host,
        external_port=boot.external_port,
        leaving=boot.leaving,
    )


def decode_partition(value: bytes) -> PartitionState:
    return _PARTITION.decode(value)


def decode_topic(name: str, value: bytes) -> TopicInfo:
    topic = topic_value(value)
    return TopicInfo(
        name=name,
        topic_id=TopicId(bytes.fromhex(topic.topic_id)),
        partitions=topic.partitions,
        replication_factor=topic.replication_factor,
        configs=topic.configs,
        created_ms=topic.created_ms,
        version=topic.version,
    )


def decode_creating(value: bytes) -> TopicId:
    return TopicId(bytes.fromhex(_CREATING.decode(value).topic_id))


def address_of(state: PartitionState) -> Address | None:
    """The leader that etcd names, alive or not."""
    leader = state.leader
    if leader is None:
        return None
    boot_id = BootId(bytes.fromhex(leader.boot_id))
    return Address(leader.node_id, boot_id, leader.host, leader.port, state.epoch)


def describe(partition: PartitionId, state: PartitionState, revision: int = 0) -> PartitionInfo:
    """`revision`: of the key."""
    return PartitionInfo(
        partition,
        state.replicas,
        state.isr,
        address_of(state),
        state.epoch,
        state.unclean_epoch,
        state.adding,
        state.target,
        revision,
    )
