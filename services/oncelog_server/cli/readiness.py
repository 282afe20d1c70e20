"""When the processes of `oncelog up` are ready: all have joined, and every control partition that
can have a leader has one. What lies on nodes that are away is not waited for."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Final, NamedTuple

from oncelog_server.core.ids import (
    CONSUMER_OFFSETS,
    CONTROL_PARTITIONS,
    TRANSACTION_CONTROL,
    partition_of_name,
)

if TYPE_CHECKING:
    from oncelog.protocol import Protocol
    from oncelogpb.v1 import cluster_pb2 as pb

METADATA_TIMEOUT_MS: Final = 2_000


class Seen(NamedTuple):
    """What the cluster says of itself."""

    # Of the processes that have joined.
    addresses: Collection[str]
    # What has no leader yet; "": nothing that is waited for.
    missing: str


def look(protocol: Protocol, away: Collection[str]) -> Seen:
    """`away` are the ids of nodes whose data is here and that are not started."""
    from oncelogpb.errors import OncelogError
    from oncelogpb.v1 import cluster_pb2 as pb

    request = pb.GetMetadataRequest(
        journal_partitions=range(CONTROL_PARTITIONS),
        consumer_groups=group_per_partition(),
        # Where their replicas are; told to operators only, where rules say who may.
        topics=(TRANSACTION_CONTROL, CONSUMER_OFFSETS) if away else (),
    )
    try:
        metadata: pb.GetMetadataReply = protocol.call(
            "cluster.get_metadata", request, METADATA_TIMEOUT_MS
        )
    except OncelogError as error:
        return Seen((), str(error))
    joined = {f"{node.endpoint.host}:{node.endpoint.port}" for node in metadata.nodes}
    return Seen(joined, missing(metadata, away))


def missing(metadata: pb.GetMetadataReply, away: Collection[str]) -> str:
    """Of the control partitions."""
    only_away = {
        topic.name: sum(
            bool(partition.replicas) and set(partition.replicas) <= set(away)
            for partition in topic.partitions
        )
        for topic in metadata.topics
    }
    for topic, routes in (
        (TRANSACTION_CONTROL, metadata.journal_partitions),
        (CONSUMER_OFFSETS, metadata.consumer_groups),
    ):
        if away and topic not in only_away:
            # Nobody told us where they are: what is missing may be away.
            continue
        led = sum(route.HasField("leader") for route in routes)
        expected = CONTROL_PARTITIONS - only_away.get(topic, 0)
        if led < expected:
            return f"{led} of {expected} partitions of {topic} have a leader"
    return ""


def group_per_partition() -> list[str]:
    """Names of groups, one for each partition of `__consumer_offsets`."""
    found: dict[int, str] = {}
    number = 0
    while len(found) < CONTROL_PARTITIONS:
        found.setdefault(partition_of_name(f"up-{number}"), f"up-{number}")
        number += 1
    return list(found.values())
