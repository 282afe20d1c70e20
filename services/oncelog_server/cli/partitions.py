"""`oncelog cluster partitions`, and what `cluster status` says of partitions: who leads each, how
many of its replicas are in sync, and why one is offline.

All of it is what the answering process sees in etcd. What only a process knows of its own replica
(that its files are damaged, say) stands in that process's log; the events to look for are named.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import click

from oncelog_server.cli import names
from oncelog_server.cli.examples import examples
from oncelog_server.cli.output import print_json, print_table
from oncelog_server.cli.places import Place
from oncelog_server.cli.session import Session, connected
from oncelogpb.v1 import cluster_pb2 as pb
from oncelogpb.v1 import partition_leader_pb2 as leader_pb


class ListedPartition(NamedTuple):
    """One partition."""

    place: Place
    partition: leader_pb.PartitionDescription
    # "": it is led.
    why_offline: str

    @property
    def lacks_replicas(self) -> bool:
        """Some are not in sync."""
        return len(self.partition.isr) < len(self.partition.replicas)

    def as_json(self) -> dict[str, Any]:
        partition = self.partition
        return {
            "partition": str(self.place),
            "leader_node": partition.leader.node_id or None,
            "epoch": partition.epoch,
            "unclean_epoch": partition.unclean_epoch or None,
            "replicas": list(partition.replicas),
            "isr": list(partition.isr),
            "target": list(partition.target) or None,
            "why_offline": self.why_offline or None,
        }


def standings(
    topics: Iterable[leader_pb.TopicDescription], nodes: Iterable[pb.Node]
) -> list[ListedPartition]:
    """By topic, as listed."""
    living = {node.node_id: f"{node.endpoint.host}:{node.endpoint.port}" for node in nodes}
    return [
        ListedPartition(
            Place(topic.name, partition.number), partition, why_offline(partition, living)
        )
        for topic in topics
        for partition in topic.partitions
    ]


def why_offline(partition: leader_pb.PartitionDescription, living: Mapping[str, str]) -> str:
    """`living` has the address of each node that runs; "": the partition has a leader."""
    if partition.HasField("leader"):
        return ""
    here = [f"{node} ({living[node]})" for node in partition.replicas if node in living]
    if not partition.replicas:
        return "nothing is known of it yet"
    if not here:
        gone = ", ".join(partition.replicas)
        return f"no living replica: start the process of node {gone}, with its data"
    if not partition.epoch:
        return f"never led so far: its first election is due on {', '.join(here)}"
    return (
        f"{', '.join(here)} runs and does not lead it: it starts, or its replica is damaged or not "
        "in sync; look for `replica cannot be opened` and `partition offline` in its log"
    )


def leaderships(found: Sequence[ListedPartition]) -> Counter[str]:
    """How many partitions each node leads."""
    return Counter(one.partition.leader.node_id for one in found if not one.why_offline)


def replica_counts(found: Sequence[ListedPartition]) -> Counter[str]:
    """How many replicas each node has."""
    return Counter(node for one in found for node in one.partition.replicas)


@click.command(
    epilog=examples(
        "oncelog cluster partitions",
        "oncelog cluster partitions payments --json",
        "oncelog cluster partitions --offline",
    )
)
@click.argument("topics", nargs=-1, metavar="[TOPIC]...", shell_complete=names.topics)
@click.option("--offline", is_flag=True, help="Only those without a leader.")
@click.option("--lacking", is_flag=True, help="Only those with a replica that is not in sync.")
@click.option("--moving", is_flag=True, help="Only those whose replicas are moved.")
@connected
def partitions(
    session: Session, topics: tuple[str, ...], offline: bool, lacking: bool, moving: bool
) -> None:
    """Show who leads each partition, its epoch, and its replicas.

    Of the topics named, else of all, with the two control topics.
    """
    listed: leader_pb.ListTopicsReply = session.call(
        "partition_leader.list_topics", leader_pb.ListTopicsRequest(internal=True)
    )
    metadata: pb.GetMetadataReply = session.call("cluster.get_metadata", pb.GetMetadataRequest())
    missing = sorted(set(topics) - {topic.name for topic in listed.topics})
    if missing:
        raise click.UsageError(f"There is no topic {missing[0]}; see `oncelog topic list`.")
    chosen = [topic for topic in listed.topics if not topics or topic.name in topics]
    found = [
        one
        for one in standings(chosen, metadata.nodes)
        if (one.why_offline or not offline)
        and (one.lacks_replicas or not lacking)
        and (one.partition.target or not moving)
    ]
    if session.as_json:
        print_json([one.as_json() for one in found])
        return
    print_table(
        ["PARTITION", "LEADER", "EPOCH", "UNCLEAN", "IN SYNC", "REPLICAS", "GO TO", "WHY OFFLINE"],
        [
            [
                str(one.place),
                one.partition.leader.node_id or "none",
                one.partition.epoch,
                one.partition.unclean_epoch or None,
                in_sync(one.partition),
                " ".join(one.partition.replicas),
                " ".join(one.partition.target) or None,
                one.why_offline or None,
            ]
            for one in found
        ],
        empty="none: all is well" if offline or lacking else "no partitions",
    )


def in_sync(partition: leader_pb.PartitionDescription) -> str:
    """How many of its replicas are."""
    return f"{len(partition.isr)} of {len(partition.replicas)}"
