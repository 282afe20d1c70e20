"""What the RPCs of Cluster need of their caller (`core/needs`), and those of Replication: whoever
has an identity is told who leads what, and of topics those that he may describe; the rest is for
operators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from oncelog_server.core.access import Need, ResourceKind, Verb
from oncelog_server.core.needs import (
    Entry,
    ItemNeed,
    TopicNames,
    operating,
    require_few,
    serving,
    watching,
)
from oncelog_server.core.ports import Call, ClusterMetadata
from oncelogpb.v1 import cluster_pb2 as pb

# Names and ids of one GetMetadata.
METADATA_NAMES_MAX: Final = 10_000
# Partitions of one ReassignPartitions, and those that one DescribeReplicas names.
REASSIGNED_MAX: Final = 100
REPLICAS_DESCRIBED_MAX: Final = 10_000
# What one UncleanElect says that its caller was told.
TOLD_CHARACTERS_MAX: Final = 1_000
OPERATED: Final = (
    "unclean_elect",
    "balance_leaders",
    "reassign_partitions",
    "get_config",
    "list_rules",
    "add_rules",
    "remove_rules",
    "test_access",
    "list_quotas",
    "set_quotas",
    "remove_quotas",
)
# Followers are processes of ours; how far they are, operators ask.
REPLICATION: Final[Mapping[str, Entry]] = {
    **{method: serving(method) for method in ("follow", "fetch_snapshot")},
    "describe_replicas": watching("describe_replicas"),
}


def entries(metadata: ClusterMetadata) -> Mapping[str, Entry]:
    """Of Cluster, by RPC."""
    topics = TopicNames(metadata)

    def described(request: pb.GetMetadataRequest, call: Call) -> Sequence[ItemNeed]:
        """Names first, then ids; one that is unknown here is absent from the reply."""
        asked = len(request.topics) + len(request.topic_ids)
        require_few("metadata_names_max", asked, METADATA_NAMES_MAX)
        names = [Need(Verb.DESCRIBE, ResourceKind.TOPIC, name) for name in request.topics]
        return [*names, *(topics.need(Verb.DESCRIBE, id_) for id_ in request.topic_ids)]

    return {
        "get_metadata": Entry(items=described),
        **{method: operating(method) for method in OPERATED},
    }
