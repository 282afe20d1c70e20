"""Every RPC, what is asked of it, and what that needs: the table that the walk (`test_walk`) holds
the processes to. An RPC, or a field that names something, which is in no case fails it.

A need is written `verb kind:name`, as in `oncelog acl`. The tables of the roles (`<role>/access`)
say the same in code; here it is said again, on purpose, by somebody who did not write them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from oncelog_server.runtime.rpc.cluster_access import OPERATED
from oncelogpb import rpcs
from oncelogpb.v1 import (
    cluster_pb2,
    coordinator_pb2,
    offset_manager_pb2,
    participant_pb2,
    partition_leader_pb2,
    replication_pb2,
)
from tests.access.stage import Stage, init

# No rule gives these: who may is said by configuration.
SERVICES: Final = ("services",)
OPERATORS: Final = ("operators",)


class Case(NamedTuple):
    service: str
    method: str
    # Called for each request anew.
    make: Callable[[Stage], Any]
    # All of them, or SERVICES, or OPERATORS; none: whoever has an identity.
    needs: tuple[str, ...] = ()
    # Any one rule will do, of whatever; what is told to who has none.
    any_rule: str = ""
    # A process of ours may, without a rule.
    services_may: bool = False

    @property
    def name(self) -> str:
        return f"{self.service}.{self.method}"


CASES: Final = (
    Case(
        "Cluster",
        "get_metadata",
        lambda s: cluster_pb2.GetMetadataRequest(
            topics=["a", "no-such-topic"], topic_ids=[s.topics["b"]]
        ),
        ("describe topic:a", "describe topic:no-such-topic", "describe topic:b"),
    ),
    Case("Cluster", "get_metadata", lambda s: cluster_pb2.GetMetadataRequest()),
    *(
        Case(
            "Cluster",
            method,
            lambda s, method=method: rpcs.message_class(  # type: ignore[misc]
                rpcs.methods(rpcs.find("Cluster"))[method].input_type
            )(),
            OPERATORS,
        )
        for method in OPERATED
    ),
    # ------------------------------------------------------------------------------- coordinator
    Case("Coordinator", "init_producer", lambda s: init("fresh"), ("write producer:fresh",)),
    Case(
        "Coordinator",
        "init_producer",
        lambda s: init("idle"),
        ("write producer:idle", "fence producer:idle"),
    ),
    Case("Coordinator", "init_producer", lambda s: init(group="x"), any_rule="write producer:"),
    Case(
        "Coordinator",
        "begin_transaction",
        lambda s: coordinator_pb2.BeginTransactionRequest(
            producer=s.producers["asking"], request_id=1, parts=[s.place("a"), s.place("b")]
        ),
        ("write producer:asking", "write topic:a", "write topic:b"),
    ),
    Case(
        "Coordinator",
        "commit_transaction",
        lambda s: coordinator_pb2.CommitTransactionRequest(
            tx_id=s.transactions["committing"],
            producer=s.producers["committing"],
            manifest=s.manifest("a", "b"),
        ),
        ("write producer:committing", "write topic:a", "write topic:b"),
    ),
    Case(
        "Coordinator",
        "abort_transaction",
        lambda s: coordinator_pb2.AbortTransactionRequest(
            tx_id=s.transactions["aborting"], producer=s.producers["aborting"]
        ),
        ("abort transaction:aborting",),
    ),
    Case(
        "Coordinator",
        "abort_transaction",
        lambda s: coordinator_pb2.AbortTransactionRequest(
            tx_id=s.transactions["aborting"], operator=True
        ),
        ("abort transaction:aborting",),
    ),
    Case(
        "Coordinator",
        "transact",
        lambda s: coordinator_pb2.TransactRequest(
            producer=s.producers["committing"],
            request_number=1,
            batches=[s.batch("a"), s.batch("b")],
            offsets=s.offsets("g", "in"),
        ),
        (
            "write producer:committing",
            "write topic:a",
            "write topic:b",
            "read group:g",
            "read topic:in",
        ),
    ),
    Case(
        "Coordinator",
        "get_transaction",
        lambda s: coordinator_pb2.GetTransactionRequest(tx_id=s.transactions["asking"]),
        ("describe transaction:asking",),
    ),
    Case(
        "Coordinator",
        "get_transaction",
        lambda s: coordinator_pb2.GetTransactionRequest(
            tx_id=s.transactions["asking"], only_visibility=True
        ),
    ),
    Case(
        "Coordinator",
        "get_transaction",
        lambda s: coordinator_pb2.GetTransactionRequest(
            producer=s.producers["asking"], request_number=1
        ),
        ("describe transaction:asking",),
    ),
    Case("Coordinator", "list_transactions", lambda s: coordinator_pb2.ListTransactionsRequest()),
    Case(
        "Coordinator",
        "ask_transactions",
        lambda s: coordinator_pb2.AskTransactionsRequest(journal_partition=0),
        SERVICES,
    ),
    # -------------------------------------------------------------------------- partition leader
    Case(
        "PartitionLeader",
        "produce",
        lambda s: s.plain("a", "b"),
        ("write topic:a", "write topic:b"),
    ),
    Case(
        "PartitionLeader",
        "fetch",
        lambda s: partition_leader_pb2.FetchRequest(
            partitions=[
                partition_leader_pb2.FetchPartition(partition=s.place(topic)) for topic in "ab"
            ]
        ),
        ("read topic:a", "read topic:b"),
    ),
    Case(
        "PartitionLeader",
        "subscribe",
        lambda s: partition_leader_pb2.SubscribeRequest(
            partitions=[
                partition_leader_pb2.FetchPartition(partition=s.place(topic)) for topic in "ab"
            ]
        ),
        ("read topic:a", "read topic:b"),
    ),
    Case(
        "PartitionLeader",
        "list_offsets",
        lambda s: partition_leader_pb2.ListOffsetsRequest(
            queries=[
                partition_leader_pb2.OffsetQuery(partition=s.place(topic), latest=True)
                for topic in "ab"
            ]
        ),
        ("describe topic:a", "describe topic:b"),
        # Offset managers measure what waits for groups.
        services_may=True,
    ),
    Case(
        "PartitionLeader",
        "create_topic",
        lambda s: partition_leader_pb2.CreateTopicRequest(name="made", partitions=1),
        ("create topic:made",),
    ),
    Case(
        "PartitionLeader",
        "create_topic",
        lambda s: partition_leader_pb2.CreateTopicRequest(name="a", validate_only=True),
        ("create topic:a",),
    ),
    Case(
        "PartitionLeader",
        "describe_topics",
        lambda s: partition_leader_pb2.DescribeTopicsRequest(
            names=["a"], topic_ids=[s.topics["b"]]
        ),
        ("describe topic:a", "describe topic:b"),
    ),
    Case("PartitionLeader", "list_topics", lambda s: partition_leader_pb2.ListTopicsRequest()),
    Case(
        "PartitionLeader",
        "alter_topic",
        lambda s: partition_leader_pb2.AlterTopicRequest(
            name="b", configs={"max.batch.bytes": "1000000"}
        ),
        ("alter topic:b",),
    ),
    Case(
        "PartitionLeader",
        "delete_topic",
        lambda s: partition_leader_pb2.DeleteTopicRequest(name="doomed"),
        ("delete topic:doomed",),
    ),
    # The id only narrows what the name asks for: of another topic it deletes nothing.
    Case(
        "PartitionLeader",
        "delete_topic",
        lambda s: partition_leader_pb2.DeleteTopicRequest(
            name="doomed", topic_id=s.place("a").topic_id
        ),
        ("delete topic:doomed",),
    ),
    Case(
        "PartitionLeader",
        "resolve_transaction",
        lambda s: partition_leader_pb2.ResolveTransactionRequest(
            tx_id=s.transactions["asking"],
            partition=s.place("a"),
            action=partition_leader_pb2.ResolveTransactionRequest.ACTION_DROP,
        ),
        OPERATORS,
    ),
    Case(
        "PartitionLeader",
        "truncate_partition",
        lambda s: partition_leader_pb2.TruncatePartitionRequest(partition=s.place("b"), offset=0),
        ("delete topic:b",),
    ),
    Case(
        "PartitionLeader",
        "truncate_partition",
        lambda s: partition_leader_pb2.TruncatePartitionRequest(
            partition=s.place("a"), end=True, dry_run=True
        ),
        ("delete topic:a",),
    ),
    Case(
        "PartitionLeader",
        "describe_journals",
        lambda s: partition_leader_pb2.DescribeJournalsRequest(partitions=[s.place("a")]),
        OPERATORS,
    ),
    # ---------------------------------------------------------------------------- offset manager
    Case(
        "OffsetManager",
        "commit_offsets",
        lambda s: offset_manager_pb2.CommitOffsetsRequest(offsets=s.offsets("g", "a", "b")),
        ("read group:g", "read topic:a", "read topic:b"),
    ),
    Case(
        "OffsetManager",
        "commit_transaction_offsets",
        lambda s: offset_manager_pb2.CommitTransactionOffsetsRequest(
            tx_id=s.transactions["asking"],
            producer=s.producers["asking"],
            offsets=s.offsets("tx", "a", "b"),
        ),
        ("read group:tx", "read topic:a", "read topic:b"),
        services_may=True,
    ),
    Case(
        "OffsetManager",
        "fetch_offsets",
        lambda s: offset_manager_pb2.FetchOffsetsRequest(
            group="g", partitions=[s.place("a"), s.place("b")]
        ),
        ("read group:g", "describe topic:a", "describe topic:b"),
    ),
    Case("OffsetManager", "list_groups", lambda s: offset_manager_pb2.ListGroupsRequest()),
    Case(
        "OffsetManager",
        "delete_group",
        lambda s: offset_manager_pb2.DeleteGroupRequest(group="gone"),
        ("delete group:gone",),
    ),
    Case(
        "OffsetManager",
        "claim_group",
        lambda s: offset_manager_pb2.ClaimGroupRequest(
            group="claimed", claim_id="c", holder="a query"
        ),
        ("read group:claimed",),
    ),
    Case(
        "OffsetManager",
        "reset_offsets",
        lambda s: offset_manager_pb2.ResetOffsetsRequest(
            offsets=s.offsets("reset", "a", "b"), reset_id=b"r" * 16
        ),
        ("alter group:reset", "describe topic:a", "describe topic:b"),
    ),
    Case(
        "OffsetManager",
        "describe_group",
        lambda s: offset_manager_pb2.DescribeGroupRequest(group="gone"),
        ("describe group:gone",),
    ),
    Case(
        "OffsetManager",
        "remove_member",
        lambda s: offset_manager_pb2.RemoveMemberRequest(group="gone", member_id="m"),
        ("delete group:gone",),
    ),
    Case(
        "OffsetManager",
        "heartbeat",
        lambda s: offset_manager_pb2.HeartbeatRequest(
            group="g", subscribed_topics=["a"], owned=[s.place("b")]
        ),
        ("read group:g", "read topic:a", "read topic:b"),
    ),
    # ------------------------------------------------------------------------------ participants
    Case(
        "Participant",
        "write_markers",
        lambda s: participant_pb2.WriteMarkersRequest(),
        SERVICES,
    ),
    # ------------------------------------------------------------------------------- replication
    Case(
        "Replication",
        "describe_replicas",
        lambda s: replication_pb2.DescribeReplicasRequest(),
        OPERATORS,
    ),
    Case(
        "Replication",
        "fetch_snapshot",
        lambda s: replication_pb2.FetchSnapshotRequest(),
        SERVICES,
    ),
)

# A stream of its own kind; its entry stands in the table all the same.
UNSERVED: Final = {("Replication", "follow")}

# Fields that name something, and need nothing for it: why.
FREE: Final = {
    "Cluster.get_metadata: transaction_groups": "a route is a hash of the name",
    "Cluster.get_metadata: consumer_groups": "a route is a hash of the name",
    "Coordinator.commit_transaction: begin_next.parts.topic_id": "a hint, left out: test_hints",
    "Coordinator.abort_transaction: parts.topic_id": "a hint, left out: test_hints",
    "Coordinator.list_transactions: name": "a filter; what is shown is what may be described",
    "Coordinator.list_transactions: group": "a filter; what is shown is what may be described",
    "PartitionLeader.produce: tx_id": "whose it is, is remembered: test_claims",
}
# What a field that names something is called.
NAMING: Final = frozenset(
    {
        "consumer_groups", "group", "name", "names", "producer_id", "subscribed_topics", "topic",
        "topic_id", "topic_ids", "topics", "transaction_groups", "tx_id",
    }
)  # fmt: skip
