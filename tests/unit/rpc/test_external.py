"""Callers from outside are told the addresses at which they reach each process."""

from __future__ import annotations

from typing import Any

import grpc.aio

from oncelog_server.core.ids import BootId
from oncelog_server.core.ports import NodeInfo
from oncelog_server.runtime.loopback_ports import HOST, free_ports
from oncelog_server.runtime.rpc.external import External, mentions_endpoint
from oncelog_server.runtime.rpc.server import RpcServer
from oncelogpb import calls, rpcs
from oncelogpb.v1 import cluster_pb2 as pb
from oncelogpb.v1 import partition_leader_pb2 as leader_pb
from oncelogpb.v1 import types_pb2
from tests.unit.rpc.harness import Recorder, run


def node(name: str, *, external: str = "") -> NodeInfo:
    return NodeInfo(
        name, BootId(b"b" * 16), f"{name}.inside", 7400, ["coordinator"], "0.1",
        external_host=external, external_port=443 if external else 0,
    )  # fmt: skip


def metadata() -> pb.GetMetadataReply:
    """Addresses at every depth: of nodes, of a route's leader, of a partition's."""
    at = types_pb2.Endpoint(host="n1.inside", port=7400)
    leader = types_pb2.Leader(node_id="n1", endpoint=at)
    return pb.GetMetadataReply(
        nodes=[
            pb.Node(node_id="n1", endpoint=at),
            pb.Node(node_id="n2", endpoint=types_pb2.Endpoint(host="n2.inside", port=7400)),
        ],
        consumer_groups=[pb.Route(group="g", leader=leader)],
        topics=[
            leader_pb.TopicDescription(
                name="t",
                partitions=[
                    leader_pb.PartitionDescription(number=0, leader=leader),
                    leader_pb.PartitionDescription(number=1),
                ],
            )
        ],
    )


def addresses(reply: pb.GetMetadataReply) -> list[str]:
    return [
        f"{at.host}:{at.port}"
        for at in (
            *(node.endpoint for node in reply.nodes),
            *(route.leader.endpoint for route in reply.consumer_groups),
            reply.topics[0].partitions[0].leader.endpoint,
        )
    ]


class Handler:
    async def get_metadata(self, request: Any, call: Any) -> Any:
        return metadata()


def test_each_caller_is_told_what_he_reaches_where_he_came_in() -> None:
    async def story() -> None:
        inside_port, outside_port = free_ports(2)
        external = External(f"{HOST}:{outside_port}")
        external.learn(lambda: [node("n1", external="n1.example.org"), node("n2")])
        server = RpcServer(
            {"Cluster": Handler()},
            listen=f"{HOST}:{inside_port}",
            reporter=Recorder(),
            external=external,
        )
        told = {}
        try:
            assert await server.start() == inside_port
            for port in (inside_port, outside_port):
                async with grpc.aio.insecure_channel(f"{HOST}:{port}") as channel:
                    request = pb.GetMetadataRequest()
                    told[port] = await calls.unary(channel, "cluster", "get_metadata", request)
        finally:
            await server.stop()
        assert addresses(told[inside_port]) == [
            "n1.inside:7400", "n2.inside:7400", "n1.inside:7400", "n1.inside:7400"
        ]  # fmt: skip
        # n2 has no address outside: that it is told with its own shows which one lacks it.
        assert addresses(told[outside_port]) == [
            "n1.example.org:443", "n2.inside:7400", "n1.example.org:443", "n1.example.org:443"
        ]  # fmt: skip
        assert not told[outside_port].topics[0].partitions[1].HasField("leader")

    run(story())


def test_addresses_stand_in_replies_of_unary_calls_only() -> None:
    """Those are the ones that are looked through: no batch waits for it."""
    found = set()
    for service in rpcs.ALL.values():
        for name, method in rpcs.methods(service).items():
            if mentions_endpoint(method.output_type):
                found.add(f"{service.name}.{name}")
                assert not method.server_streaming
                assert name not in rpcs.stream_fields(service)
    assert found == {
        "Cluster.get_metadata",
        "PartitionLeader.create_topic",
        "PartitionLeader.describe_topics",
        "PartitionLeader.list_topics",
        "PartitionLeader.alter_topic",
    }
