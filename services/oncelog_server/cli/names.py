"""Names that a cluster knows, for the shell to complete: topics, partitions, groups; and profiles.

Somebody waits with a finger on the tab key: what does not answer at once gives nothing, and no
error either. It asks by gRPC alone, for the client takes longer to import than the cluster to
answer.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import click
from click.shell_completion import CompletionItem

from oncelog_server.cli import connection
from oncelog_server.cli.connection import Connection
from oncelog_server.cli.direct import Direct
from oncelog_server.cli.profiles import ProfileFile, config_path

# One process has so long, and all of it together.
ANSWER_SECONDS: Final = 0.5
ALL_SECONDS: Final = 1.0
NAMES_MAX: Final = 200

Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def topics(context: click.Context, _: click.Parameter, begun: str) -> list[CompletionItem]:
    return _items(begun, _asked(context, _topics))


def places(context: click.Context, _: click.Parameter, begun: str) -> list[CompletionItem]:
    """TOPIC/PARTITION."""
    return _items(begun, _asked(context, _places))


def groups(context: click.Context, _: click.Parameter, begun: str) -> list[CompletionItem]:
    return _items(begun, _asked(context, lambda cluster: _groups(cluster, begun)))


def profiles(_: click.Context, __: click.Parameter, begun: str) -> list[CompletionItem]:
    try:
        return _items(begun, ProfileFile.read(config_path(os.environ)).profiles)
    except click.ClickException:
        return []


def _items(begun: str, names: Iterable[str]) -> list[CompletionItem]:
    found = sorted(name for name in names if name.startswith(begun))
    return [CompletionItem(name) for name in found[:NAMES_MAX]]


def _asked(context: click.Context, ask: Callable[[_Cluster], Iterable[str]]) -> list[str]:
    """Nothing where the cluster is not to be found, or does not answer at once."""
    import grpc

    try:
        given = {one.name: context.params.get(one.name) for one in connection.SETTINGS}
        chosen = connection.resolve(
            given, context.params.get("profile"), source_of=lambda name: None
        )
        with Direct(chosen) as direct:
            return list(ask(_Cluster(chosen, direct)))
    except (click.ClickException, grpc.RpcError, OSError, ValueError):
        return []


class _Cluster:
    """Its processes, while one completion lasts."""

    def __init__(self, chosen: Connection, direct: Direct) -> None:
        self._chosen = chosen
        self._direct = direct
        self._give_up = time.monotonic() + ALL_SECONDS

    def of_role(self, role: str) -> list[str]:
        """Addresses of the processes that run the role."""
        from oncelogpb.v1 import cluster_pb2 as pb

        metadata = self.first(
            self._chosen.bootstrap.split(","),
            "Cluster/GetMetadata",
            pb.GetMetadataRequest(),
            pb.GetMetadataReply,
        )
        return [
            f"{node.endpoint.host}:{node.endpoint.port}"
            for node in metadata.nodes
            if role in node.roles
        ]

    def first(self, addresses: Iterable[str], method: str, request: Any, reply: Any) -> Any:
        """The answer of the first one that gives one. Raises RpcError, ValueError (none was
        named)."""
        import grpc

        failure: Exception = ValueError("nobody to ask")
        for address in addresses:
            try:
                return self.ask(address, method, request, reply)
            except grpc.RpcError as error:
                failure = error
        raise failure

    def ask(self, address: str, method: str, request: Any, reply: Any) -> Any:
        left = min(ANSWER_SECONDS, self._give_up - time.monotonic())
        return self._direct.ask(address, method, request, reply, timeout_s=max(0.0, left))


def _listed(cluster: _Cluster, *, names_only: bool) -> Any:
    from oncelogpb.v1 import partition_leader_pb2 as pb

    reply = cluster.first(
        cluster.of_role("partition_leader"),
        "PartitionLeader/ListTopics",
        pb.ListTopicsRequest(names_only=names_only),
        pb.ListTopicsReply,
    )
    return reply.topics


def _topics(cluster: _Cluster) -> Iterator[str]:
    for topic in _listed(cluster, names_only=True):
        yield topic.name


def _places(cluster: _Cluster) -> Iterator[str]:
    for topic in _listed(cluster, names_only=False):
        for partition in topic.partitions:
            yield f"{topic.name}/{partition.number}"


def _groups(cluster: _Cluster, begun: str) -> Iterator[str]:
    from oncelogpb.v1 import offset_manager_pb2 as pb

    for address in cluster.of_role("offset_manager"):
        reply = cluster.ask(
            address,
            "OffsetManager/ListGroups",
            pb.ListGroupsRequest(prefix=begun),
            pb.ListGroupsReply,
        )
        for group in reply.groups:
            yield group.group
