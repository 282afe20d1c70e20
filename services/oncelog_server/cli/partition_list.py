"""`oncelog cluster partitions`: all partitions, or those with which something is the matter."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import click

from oncelog_server.cli import names
from oncelog_server.cli.disk_use import print_disk, survey_disk
from oncelog_server.cli.examples import examples
from oncelog_server.cli.output import print_json
from oncelog_server.cli.partitions import print_partitions, print_replicas, survey
from oncelog_server.cli.session import Session, connected
from oncelogpb.v1 import cluster_pb2 as pb
from oncelogpb.v1 import partition_leader_pb2 as leader_pb


@click.command(
    epilog=examples(
        "oncelog cluster partitions",
        "oncelog cluster partitions payments --replicas",
        "oncelog cluster partitions --offline",
        "oncelog cluster partitions --node 1f3a90b2 --under-replicated --json",
        "oncelog cluster partitions --disk",
    )
)
@click.argument("topics", nargs=-1, metavar="[TOPIC]...", shell_complete=names.topics)
@click.option("--offline", is_flag=True, help="Only those without a leader.")
@click.option("--unwritable", is_flag=True, help="Only those that are led and refuse writes.")
@click.option(
    "--under-replicated",
    is_flag=True,
    help="Only those of whose replicas fewer are in sync and run than there should be.",
)
@click.option("--moving", is_flag=True, help="Only those whose replicas are moved.")
@click.option("--node", "node_id", metavar="NODE", help="Only those with a replica on this node.")
@click.option("--replicas", is_flag=True, help="A line for each replica: what it does, its lag.")
@click.option(
    "--disk",
    is_flag=True,
    help="A line for each replica, largest first: what it takes, and what holds it.",
)
@connected
def partitions(
    session: Session,
    topics: tuple[str, ...],
    offline: bool,
    unwritable: bool,
    under_replicated: bool,
    moving: bool,
    node_id: str | None,
    replicas: bool,
    disk: bool,
) -> None:
    """Show who leads each partition, its epoch, and its replicas.

    Of the topics named, else of all, with the two control topics. All processes are asked at once;
    one that does not answer is said to be unreachable, and the rest is shown.
    """
    listed: leader_pb.ListTopicsReply = session.call(
        "partition_leader.list_topics", leader_pb.ListTopicsRequest(internal=True)
    )
    metadata: pb.GetMetadataReply = session.call("cluster.get_metadata", pb.GetMetadataRequest())
    chosen = _chosen(listed.topics, topics)
    _require_known(node_id, metadata, listed.topics)
    surveyed, told = survey(session, chosen, metadata, with_disk=disk)
    found = [
        one
        for one in surveyed
        if (one.why_offline or not offline)
        and (one.why_unwritable or not unwritable)
        and (one.is_under_replicated or not under_replicated)
        and (one.partition.target or not moving)
        and (node_id is None or node_id in one.partition.replicas)
    ]
    if disk:
        rows = survey_disk(session, found, chosen, metadata, told)
        rows.sort(key=lambda row: row.total_bytes or 0, reverse=True)
        if session.as_json:
            print_json([row.as_json() for row in rows])
        else:
            print_disk(rows)
    elif session.as_json:
        print_json([one.as_json() for one in found])
    elif replicas:
        print_replicas(found)
    else:
        print_partitions(
            found,
            empty="none: all is well"
            if offline or unwritable or under_replicated
            else "no partitions",
        )


def _chosen(
    listed: Iterable[leader_pb.TopicDescription], named: Collection[str]
) -> list[leader_pb.TopicDescription]:
    """Raises UsageError."""
    topics = list(listed)
    missing = sorted(set(named) - {topic.name for topic in topics})
    if missing:
        raise click.UsageError(f"There is no topic {missing[0]}; see `oncelog topic list`.")
    return [topic for topic in topics if not named or topic.name in named]


def _require_known(
    node_id: str | None,
    metadata: pb.GetMetadataReply,
    topics: Iterable[leader_pb.TopicDescription],
) -> None:
    """One that has no replica is known where it runs. Raises UsageError."""
    known = {node.node_id for node in metadata.nodes}
    known.update(*(partition.replicas for topic in topics for partition in topic.partitions))
    if node_id is not None and node_id not in known:
        raise click.UsageError(f"There is no node {node_id}; see `oncelog cluster status`.")
