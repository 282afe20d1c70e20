"""What every command says of partitions: who leads each, which of
its replicas are in sync, and what is wrong with it.

    offline            it has no leader: nothing is read or written
    unwritable         its leader refuses writes: too few replicas in sync keep up, or it loads
    under-replicated   fewer of its replicas are in sync and run than it should have

Who leads, and who is in sync, is what the answering process sees in etcd. The rest is what the
processes say themselves, each of its own replicas (`asking`, `replicas`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from oncelog_server.cli.asking import Key, Told, address_of, ask_replicas
from oncelog_server.cli.output import print_table
from oncelog_server.cli.places import Place
from oncelog_server.cli.replicas import (
    Living,
    ShownReplica,
    show_replicas,
    why_offline,
    why_unwritable,
)
from oncelog_server.cli.session import Session
from oncelogpb.v1 import cluster_pb2 as pb
from oncelogpb.v1 import partition_leader_pb2 as leader_pb

# Columns of partitions that are left out where there is nothing to say.
SELDOM: Final = ("PREFERRED", "GO TO", "UNCLEAN", "WHY")


class ListedPartition(NamedTuple):
    """One partition."""

    place: Place
    partition: leader_pb.PartitionDescription
    replicas: tuple[ShownReplica, ...]
    # "": it is led.
    why_offline: str
    # "": it takes writes; None: nobody says.
    why_unwritable: str | None
    # As its leader says; None: it does not.
    high_watermark: int | None
    # Of its replicas, those whose nodes run.
    running: int

    @property
    def is_under_replicated(self) -> bool:
        """Those in sync are never fewer than `min_insync_replicas`, whether they run or not. A copy
        that is being added is not missing."""
        wanted = len(self.partition.replicas) - len(self.partition.adding)
        return min(len(self.partition.isr), self.running) < wanted

    @property
    def preferred(self) -> str | None:
        """The node that should lead."""
        return self.partition.replicas[0] if self.partition.replicas else None

    def as_json(self) -> dict[str, Any]:
        partition = self.partition
        return {
            "partition": str(self.place),
            "leader_node": partition.leader.node_id or None,
            "preferred_node": self.preferred,
            "epoch": partition.epoch,
            "unclean_epoch": partition.unclean_epoch or None,
            "high_watermark": self.high_watermark,
            "replicas": list(partition.replicas),
            "isr": list(partition.isr),
            "adding": list(partition.adding) or None,
            "target": list(partition.target) or None,
            "writable": self.is_writable,
            "under_replicated": self.is_under_replicated,
            "why_offline": self.why_offline or None,
            "why_unwritable": self.why_unwritable or None,
            "replica_states": [one.as_json() for one in self.replicas],
        }

    @property
    def is_writable(self) -> bool | None:
        """None: nobody says."""
        if self.why_offline:
            return False
        return None if self.why_unwritable is None else not self.why_unwritable


class Wrong(NamedTuple):
    """What is wrong with partitions. One may be in several."""

    offline: list[ListedPartition]
    unwritable: list[ListedPartition]
    under_replicated: list[ListedPartition]
    # Their leaders did not say whether they take writes.
    not_known: list[ListedPartition]


def what_is_wrong(found: Iterable[ListedPartition]) -> Wrong:
    listed = list(found)
    return Wrong(
        offline=[one for one in listed if one.why_offline],
        unwritable=[one for one in listed if one.why_unwritable],
        under_replicated=[one for one in listed if one.is_under_replicated],
        not_known=[one for one in listed if not one.why_offline and one.why_unwritable is None],
    )


def list_partitions(
    topics: Iterable[leader_pb.TopicDescription], nodes: Iterable[pb.Node], told: Told
) -> list[ListedPartition]:
    """By topic, as listed."""
    living = {node.node_id: Living(address_of(node), node.rack) for node in nodes}
    return [
        _listed(topic, partition, living, told)
        for topic in topics
        for partition in topic.partitions
    ]


def _listed(
    topic: leader_pb.TopicDescription,
    partition: leader_pb.PartitionDescription,
    living: Mapping[str, Living],
    told: Told,
) -> ListedPartition:
    key = (topic.topic_id, partition.number)
    replicas = show_replicas(key, partition, living, told)
    leader = told.replicas.get(partition.leader.node_id, {}).get(key)
    return ListedPartition(
        place=Place(topic.name, partition.number),
        partition=partition,
        replicas=replicas,
        why_offline=why_offline(partition, replicas, living),
        why_unwritable=why_unwritable(key, partition, told),
        high_watermark=None if leader is None or not leader.epoch else leader.high_watermark,
        running=sum(node in living for node in partition.replicas),
    )


def survey(
    session: Session,
    topics: Sequence[leader_pb.TopicDescription],
    metadata: pb.GetMetadataReply,
    *,
    only: bool = False,
    with_disk: bool = False,
) -> tuple[list[ListedPartition], Told]:
    """Asks all processes at once, and says which did not answer. `only`: just those that have
    replicas of these topics, and of these. `with_disk`: see `ask_replicas`."""
    with session.direct() as direct:
        told = ask_replicas(
            direct,
            metadata.cluster_id,
            metadata.nodes,
            _held(topics) if only else None,
            with_disk=with_disk,
        )
    if told.is_refused:
        session.say("how far replicas are is told to operators only")
    for node, why in sorted(told.unreachable.items()):
        session.say(f"node {node} is unreachable: {why}")
    return list_partitions(topics, metadata.nodes, told), told


def _held(topics: Iterable[leader_pb.TopicDescription]) -> dict[str, list[Key]]:
    """Partitions by the node that has a replica."""
    held: dict[str, list[Key]] = {}
    for topic in topics:
        for partition in topic.partitions:
            for node in partition.replicas:
                held.setdefault(node, []).append((topic.topic_id, partition.number))
    return held


def leaderships(found: Sequence[ListedPartition]) -> Counter[str]:
    """How many partitions each node leads."""
    return Counter(one.partition.leader.node_id for one in found if not one.why_offline)


def replica_counts(found: Sequence[ListedPartition]) -> Counter[str]:
    """How many replicas each node has."""
    return Counter(node for one in found for node in one.partition.replicas)


def print_partitions(found: Iterable[ListedPartition], *, empty: str) -> None:
    """A line for each."""
    print_table(
        [
            "PARTITION", "LEADER", "PREFERRED", "EPOCH", "HIGH WATERMARK", "WRITABLE", "IN SYNC",
            "REPLICAS", "GO TO", "UNCLEAN", "WHY",
        ],
        [
            [
                str(one.place),
                one.partition.leader.node_id or "none",
                preferred_instead(one),
                one.partition.epoch,
                one.high_watermark,
                show_known(one.is_writable),
                in_sync(one.partition),
                " ".join(one.partition.replicas),
                " ".join(one.partition.target) or None,
                one.partition.unclean_epoch or None,
                one.why_offline or one.why_unwritable or None,
            ]
            for one in found
        ],
        empty=empty,
        only_where_told=SELDOM,
    )  # fmt: skip


def print_replicas(found: Iterable[ListedPartition]) -> None:
    """A line for each replica, by partition."""
    print_table(
        [
            "PARTITION", "NODE", "RACK", "IN SYNC", "STATE", "LAST EPOCH", "LOG END", "SYNCED",
            "LAG", "WHY",
        ],
        [
            [
                str(one.place),
                replica.node_id,
                replica.rack or None,
                show_known(replica.is_in_sync),
                replica.state.value,
                replica.last_epoch,
                replica.log_end,
                replica.synced_end,
                replica.lag,
                replica.why or None,
            ]
            for one in found
            for replica in one.replicas
        ],
        empty="no replicas",
        only_where_told=("RACK", "WHY"),
    )  # fmt: skip


def preferred_instead(one: ListedPartition) -> str | None:
    """The node that should lead; None: it does."""
    return None if one.preferred == one.partition.leader.node_id else one.preferred


def show_known(value: bool | None) -> str:
    """A question mark: nobody says."""
    return "?" if value is None else "yes" if value else "no"


def in_sync(partition: leader_pb.PartitionDescription) -> str:
    """How many of its replicas are."""
    return f"{len(partition.isr)} of {len(partition.replicas)}"
