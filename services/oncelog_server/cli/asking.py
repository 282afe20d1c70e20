"""What each process of a cluster says by itself, all asked at once and each for a bounded time: one
that is frozen, or cut off, holds up nobody, and is told as what it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from oncelog_server.cli.direct import Direct
from oncelogpb import errors
from oncelogpb.v1 import cluster_pb2, partition_leader_pb2, replication_pb2, types_pb2

ANSWER_SECONDS: Final = 3.0
# Who has to look at its directories, of which there may be thousands.
DISK_ANSWER_SECONDS: Final = 30.0
# A topic and a number.
Key = tuple[bytes, int]
DESCRIBE_REPLICAS: Final = "Replication/DescribeReplicas"


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
    *,
    with_disk: bool = False,
) -> Told:
    """`partitions`: which ones, by node; nodes that are not in it are not asked. None: all.
    `with_disk`: also what they take on the disk, which they have to look up."""
    requests = [
        (
            node.node_id,
            address_of(node),
            replication_pb2.DescribeReplicasRequest(
                cluster_id=cluster_id,
                boot_id=node.boot_id,
                with_disk=with_disk,
                partitions=[
                    types_pb2.Partition(topic_id=topic_id, number=number)
                    for topic_id, number in (partitions or {}).get(node.node_id, ())
                ],
            ),
        )
        for node in nodes
        if partitions is None or node.node_id in partitions
    ]
    answers = ask_each(
        direct,
        requests,
        DESCRIBE_REPLICAS,
        replication_pb2.DescribeReplicasReply,
        timeout_s=DISK_ANSWER_SECONDS if with_disk else ANSWER_SECONDS,
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
        [(node.node_id, address_of(node), request) for node in nodes],
        "PartitionLeader/DescribeJournals",
        partition_leader_pb2.DescribeJournalsReply,
    )


def ask_each(
    direct: Direct,
    asked: Iterable[tuple[str, str, Any]],
    method: str,
    reply: Any,
    *,
    timeout_s: float = ANSWER_SECONDS,
) -> dict[str, Any]:
    """`asked`: a name, an address, a request. By name: the reply, or Unanswered."""
    import grpc

    begun = {
        name: direct.begin(address, method, request, reply, timeout_s=timeout_s)
        for name, address, request in asked
    }
    answers: dict[str, Any] = {}
    for name, answer in begun.items():
        try:
            answers[name] = answer.result()
        except grpc.RpcError as error:
            answers[name] = _unanswered(error, method, timeout_s)
    return answers


def require_all(answers: Mapping[str, Any]) -> None:
    """Raises PermissionDenied where somebody refused; Unavailable where somebody did not answer,
    and says who."""
    silent = {name: one for name, one in answers.items() if isinstance(one, Unanswered)}
    if any(one.is_refused for one in silent.values()):
        raise errors.PermissionDenied(next(o.why for o in silent.values() if o.is_refused))
    if silent:
        named = "; ".join(f"{name}: {one.why}" for name, one in sorted(silent.items()))
        raise errors.Unavailable(
            f"{len(silent)} of {len(answers)} processes did not answer ({named}); the others did"
        )


def _unanswered(error: Any, method: str, timeout_s: float) -> Unanswered:
    import grpc

    code, details = error.code(), error.details() or ""
    match code:
        case grpc.StatusCode.PERMISSION_DENIED | grpc.StatusCode.UNAUTHENTICATED:
            return Unanswered(details, is_refused=True)
        case grpc.StatusCode.DEADLINE_EXCEEDED:
            return Unanswered(f"no answer within {timeout_s:g} s")
        case grpc.StatusCode.UNAVAILABLE:
            more = f" ({details})" if details else ""
            return Unanswered(f"nobody answers at its address{more}")
        case grpc.StatusCode.INVALID_ARGUMENT if method == DESCRIBE_REPLICAS:
            # It is asked by its boot id.
            return Unanswered("another process is at its address by now")
        case _:
            return Unanswered(details or code.name)
