"""A cluster that answers by script, behind the Protocol that commands use."""

from __future__ import annotations

import asyncio
import io
import json
import re
from collections.abc import Callable, Coroutine
from typing import Any, cast

import grpc
import pytest
from click.testing import CliRunner, Result

from oncelog_server.cli import session
from oncelog_server.cli.app import oncelog
from oncelog_server.cli.connection import PROFILE_VARIABLE, SETTINGS
from oncelogpb.errors import OncelogError
from oncelogpb.v1 import cluster_pb2, offset_manager_pb2, replication_pb2, types_pb2
from oncelogpb.v1 import partition_leader_pb2 as leader_pb

TOPIC_ID = b"payments........"
Answer = Callable[[Any], Any]
N1 = cluster_pb2.Node(
    node_id="n1",
    endpoint=types_pb2.Endpoint(host="h", port=7401),
    roles=["partition_leader"],
)


class Cluster:
    """`answers` by method: a reply, an error, or a function of the request."""

    def __init__(self, **answers: Any) -> None:
        self.answers: dict[str, Any] = {
            "partition_leader.describe_topics": describe_topics,
            "partition_leader.list_topics": leader_pb.ListTopicsReply(topics=[payments()]),
            "cluster.get_metadata": cluster_pb2.GetMetadataReply(
                topics=[payments()], etcd_reachable=True, nodes=[N1]
            ),
            "replication.describe_replicas": replication_pb2.DescribeReplicasReply(),
            "partition_leader.describe_journals": leader_pb.DescribeJournalsReply(),
            "offset_manager.describe_group": offset_manager_pb2.DescribeGroupReply(),
        }
        self.answers |= {name.replace("__", "."): answer for name, answer in answers.items()}
        # What one node says, instead of `answers`: by its host.
        self.nodes: dict[str, Any] = {}
        # A topic as it is once its elections are over.
        self.led: leader_pb.TopicDescription | None = None
        self.asked: list[tuple[str, Any]] = []
        self.bootstraps: list[str] = []

    def requests(self, method: str) -> list[Any]:
        return [request for asked, request in self.asked if asked == method]

    def call(self, method: str, request: Any, timeout_ms: int | None = None) -> Any:
        kept = type(request)()
        kept.CopyFrom(request)
        self.asked.append((method, kept))
        answer = self.answers[method]
        reply = answer(request) if callable(answer) else answer
        if isinstance(reply, OncelogError):
            raise reply
        return reply


def payments(partitions: int = 2, led: int = 1) -> leader_pb.TopicDescription:
    """A topic of two partitions; the second has no leader."""
    leader = types_pb2.Leader(node_id="n1", endpoint=types_pb2.Endpoint(host="h", port=7401))
    return leader_pb.TopicDescription(
        name="payments",
        topic_id=TOPIC_ID,
        replication_factor=1,
        created_ms=1_767_225_600_000,
        configs={"materialization": "reference"},
        partitions=[
            leader_pb.PartitionDescription(
                number=number,
                epoch=1,
                replicas=["n1"],
                isr=["n1"],
                leader=leader if number < led else None,
            )
            for number in range(partitions)
        ],
    )


def describe_topics(request: Any) -> Any:
    return leader_pb.DescribeTopicsReply(topics=[payments() for _ in request.names])


def partition(number: int) -> types_pb2.Partition:
    return types_pb2.Partition(topic_id=TOPIC_ID, number=number)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> Callable[..., Result]:
    """`run(cluster, "topic list --json")` in an empty directory."""
    monkeypatch.chdir(tmp_path)
    for name in (PROFILE_VARIABLE, *(setting.variable for setting in SETTINGS)):
        monkeypatch.delenv(name, raising=False)
    # Not the file of whoever runs the tests.
    monkeypatch.setenv("ONCELOG_CONFIG", str(tmp_path / "config.toml"))

    def command(cluster: Cluster, line: str, stdin: bytes | None = None) -> Result:
        def protocol(bootstrap: str, **options: Any) -> Any:
            cluster.bootstraps.append(bootstrap)
            return _Connected(cluster)

        monkeypatch.setattr(session, "open_protocol", protocol)
        monkeypatch.setattr(session, "Direct", lambda connection: _Direct(cluster))
        return CliRunner().invoke(oncelog, line.split(), input=io.BytesIO(stdin or b""))

    return command


def json_of(result: Result) -> Any:
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


class _Connected:
    def __init__(self, cluster: Cluster) -> None:
        self.call = cluster.call
        self._cluster = cluster

    def run(self, work: Callable[[Any], Coroutine[Any, Any, Any]]) -> Any:
        return asyncio.run(work(_Async(self._cluster)))

    def led_topic(
        self, created: leader_pb.TopicDescription, timeout_ms: int | None = None
    ) -> leader_pb.TopicDescription:
        return self._cluster.led or created

    def close(self) -> None:
        pass


class _Async:
    """The asyncio form."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def call(self, method: str, request: Any, timeout_ms: int | None = None) -> Any:
        return self._cluster.call(method, request)

    async def topic(self, name: str) -> leader_pb.TopicDescription:
        asked = leader_pb.DescribeTopicsRequest(names=[name])
        reply = self._cluster.call("partition_leader.describe_topics", asked)
        return cast(leader_pb.TopicDescription, reply.topics[0])

    def entropy(self, count: int) -> bytes:
        return bytes(count)


class Silence(grpc.RpcError):
    """What the transport says of a process that gives no answer, or a refusal."""

    def __init__(self, code: grpc.StatusCode = grpc.StatusCode.DEADLINE_EXCEEDED) -> None:
        super().__init__()
        self._code = code

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return "as scripted"


class _Direct:
    """Calls to one process each."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def begin(
        self, address: str, method: str, request: Any, reply: Any, *, timeout_s: float
    ) -> Any:
        service, _, name = method.partition("/")
        known = f"{_snake(service)}.{_snake(name)}"
        answer = self._cluster.nodes.get(address.partition(":")[0])
        if answer is None or known != "replication.describe_replicas":
            answer = self._cluster.call(known, request)
        return _Answered(answer)

    def __enter__(self) -> _Direct:
        return self

    def __exit__(self, *exception: object) -> None: ...


class _Answered:
    def __init__(self, answer: Any) -> None:
        self._answer = answer

    def result(self) -> Any:
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer


def _snake(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()
