"""What each process of a cluster says by itself, all asked at once and each for a bounded time: one
that is frozen, or cut off, holds up nobody, and is told as what it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from oncelog_server.cli.direct import Direct
from oncelogpb.v1 import cluster_pb2, partition_leader_pb2, replication_pb2, types_pb2

ANSWER_SECONDS: Final = 3.0
# A topic and a number.
Key = tuple[bytes, int]


class Unanswered(NamedTuple):
    """Why a process that should run gave no answer."""

    why: str
    # It answered, that the caller may not know.
    is_refused: bool = False


class Told(NamedTuple):
    """What the processes say of their replicas."""

    # By node, then by partition.
    replicas: Mapping[str, Mapping[Key, replication_pb2.ReplicaDescription]]
    # By node.
    unanswered: Mapping[str, Unanswered]

    @property
    def is_refused(self) -> bool:
        """The caller is no operator."""
        return any(one.is_refused for one in self.unanswered.values())

    @property
    def unreachable(self) -> dict[str, str]:
        """Why, by node."""
        return {node: one.why for node, one in self.unanswered.items() if not one.is_refused}


def address_of(node: cluster_pb2.Node) -> str:
    host = node.endpoint.host
    return f"[{host}]:{node.endpoint.port}" if ":" in host else f"{host}:{node.endpoint.port}"


def ask_replicas(
    direct: Direct,
    cluster_id: bytes,
    nodes: Iterable[cluster_pb2.Node],
    partitions: Mapping[str, Sequence[Key]] | None = None,
) -> Told:
    """`partitions`: which ones, by node; nodes that are not in it are not asked. None: all."""
    requests = {
        node.node_id: (
            node,
            replication_pb2.DescribeReplicasRequest(
                cluster_id=cluster_id,
                boot_id=node.boot_id,
                partitions=[
                    types_pb2.Partition(topic_id=topic_id, number=number)
                    for topic_id, number in (partitions or {}).get(node.node_id, ())
                ],
            ),
        )
        for node in nodes
        if partitions is None or node.node_id in partitions
    }
    answers = ask_each(
        direct,
        requests.values(),
        "Replication/DescribeReplicas",
        replication_pb2.DescribeReplicasReply,
    )
    return Told(
        {
            node: {(one.partition.topic_id, one.partition.number): one for one in answer.replicas}
            for node, answer in answers.items()
            if not isinstance(answer, Unanswered)
        },
        {node: answer for node, answer in answers.items() if isinstance(answer, Unanswered)},
    )


def ask_journals(
    direct: Direct, nodes: Iterable[cluster_pb2.Node]
) -> dict[str, partition_leader_pb2.DescribeJournalsReply | Unanswered]:
    """By node, of all that it leads."""
    request = partition_leader_pb2.DescribeJournalsRequest()
    return ask_each(
        direct,
        [(node, request) for node in nodes],
        "PartitionLeader/DescribeJournals",
        partition_leader_pb2.DescribeJournalsReply,
    )


def ask_each(
    direct: Direct, asked: Iterable[tuple[cluster_pb2.Node, Any]], method: str, reply: Any
) -> dict[str, Any]:
    """By node: the reply, or Unanswered."""
    import grpc

    begun = {
        node.node_id: direct.begin(
            address_of(node), method, request, reply, timeout_s=ANSWER_SECONDS
        )
        for node, request in asked
    }
    answers: dict[str, Any] = {}
    for node_id, answer in begun.items():
        try:
            answers[node_id] = answer.result()
        except grpc.RpcError as error:
            answers[node_id] = _unanswered(error)
    return answers


def _unanswered(error: Any) -> Unanswered:
    import grpc

    code, details = error.code(), error.details() or ""
    match code:
        case grpc.StatusCode.PERMISSION_DENIED | grpc.StatusCode.UNAUTHENTICATED:
            return Unanswered(details, is_refused=True)
        case grpc.StatusCode.DEADLINE_EXCEEDED:
            return Unanswered(f"no answer within {ANSWER_SECONDS:g} s")
        case grpc.StatusCode.UNAVAILABLE:
            return Unanswered("nobody answers at its address")
        case grpc.StatusCode.INVALID_ARGUMENT:
            # It is asked by its boot id.
            return Unanswered("another process is at its address by now")
        case _:
            return Unanswered(details or code.name)
