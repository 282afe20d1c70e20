"""A cluster that answers by script, behind the Protocol that commands use."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import CliRunner, Result

from oncelog_server.cli import session
from oncelog_server.cli.app import oncelog
from oncelog_server.cli.connection import PROFILE_VARIABLE, SETTINGS
from oncelogpb.errors import OncelogError
from oncelogpb.v1 import cluster_pb2, types_pb2
from oncelogpb.v1 import partition_leader_pb2 as leader_pb

TOPIC_ID = b"payments........"
Answer = Callable[[Any], Any]


class Cluster:
    """`answers` by method: a reply, an error, or a function of the request."""

    def __init__(self, **answers: Any) -> None:
        self.answers: dict[str, Any] = {
            "partition_leader.describe_topics": describe_topics,
            "partition_leader.list_topics": leader_pb.ListTopicsReply(topics=[payments()]),
            "cluster.get_metadata": cluster_pb2.GetMetadataReply(
                topics=[payments()], etcd_reachable=True
            ),
        }
        self.answers |= {name.replace("__", "."): answer for name, answer in answers.items()}
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
        return CliRunner().invoke(oncelog, line.split(), input=io.BytesIO(stdin or b""))

    return command


def json_of(result: Result) -> Any:
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


class _Connected:
    def __init__(self, cluster: Cluster) -> None:
        self.call = cluster.call
        self._cluster = cluster

    def led_topic(
        self, created: leader_pb.TopicDescription, timeout_ms: int | None = None
    ) -> leader_pb.TopicDescription:
        return self._cluster.led or created

    def close(self) -> None:
        pass
