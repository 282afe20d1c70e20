"""A stream both ways between two processes, over real gRPC."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing

import pytest

from oncelog_server.core.ids import BootId
from oncelog_server.core.ports import Address
from oncelog_server.runtime.rpc.limits import RpcLimits
from oncelog_server.runtime.rpc.peers import GrpcPeers
from oncelog_server.runtime.rpc.server import RpcServer
from oncelogpb.errors import InvalidArgument, Throttled, Unavailable
from oncelogpb.v1 import coordinator_pb2 as coordinator
from oncelogpb.v1 import replication_pb2 as pb
from tests.unit.rpc.harness import Handlers, Recorder

FOLLOW, INIT = "replication.follow", "coordinator.init_producer"


class Echo:
    """A leader that says the node's name back."""

    def __init__(self) -> None:
        self.over = asyncio.Event()

    async def follow(
        self, requests: AsyncIterator[pb.FollowRequest], call: object
    ) -> AsyncGenerator[pb.FollowReply, None]:
        try:
            async for request in requests:
                if request.node_id == "stranger":
                    raise InvalidArgument("another cluster is meant", field="cluster_id")
                yield pb.FollowReply(cluster_id=request.node_id.encode())
        finally:
            self.over.set()


def at(port: int) -> Address:
    return Address("n1", BootId(b"b" * 16), "127.0.0.1", port, 1)


async def says(*names: str) -> AsyncGenerator[pb.FollowRequest, None]:
    for name in names:
        yield pb.FollowRequest(node_id=name)
    await asyncio.Event().wait()


async def talk() -> None:
    echo = Echo()
    server = RpcServer({"Replication": echo}, listen="127.0.0.1:0", reporter=Recorder())
    port = await server.start()
    peers = GrpcPeers()
    try:
        async with aclosing(peers.exchange(at(port), FOLLOW, says("a", "b"))) as replies:
            assert (await anext(replies)).cluster_id == b"a"
            assert (await anext(replies)).cluster_id == b"b"
        async with asyncio.timeout(10):
            await echo.over.wait()
        with pytest.raises(InvalidArgument, match="another cluster"):
            await anext(peers.exchange(at(port), FOLLOW, says("stranger")))
        replies = peers.exchange(at(port), FOLLOW, says("a"))
        await anext(replies)
        stopping = asyncio.create_task(server.stop())
        with pytest.raises(Unavailable, match="stopping"):
            await anext(replies)
        await stopping
    finally:
        await peers.close()
        await server.stop()


def test_what_is_said_arrives_both_ways_and_errors_keep_their_names() -> None:
    asyncio.run(talk())


async def crowd() -> None:
    """One stream is all that there may be."""
    handlers = Handlers(init_producer=answer)
    server = RpcServer(
        {"Replication": Echo(), "Coordinator": handlers},
        listen="127.0.0.1:0",
        reporter=Recorder(),
        limits=RpcLimits(streams_max=1),
    )
    port = await server.start()
    one, other = GrpcPeers(), GrpcPeers()
    request = coordinator.InitProducerRequest()
    try:
        await one.call(at(port), INIT, request, timeout_ms=5_000)
        async with aclosing(one.exchange(at(port), FOLLOW, says("a"))) as replies:
            try:
                assert (await anext(replies)).cluster_id == b"a"
            except Throttled as error:
                raise AssertionError("followers get theirs") from error
            with pytest.raises(Throttled, match="streams_max"):
                await anext(other.exchange(at(port), FOLLOW, says("b")))
            with pytest.raises(Throttled, match="streams_max"):
                await other.call(at(port), INIT, request, timeout_ms=5_000)
            assert server.held()["streams"] == 2
    finally:
        await one.close()
        await other.close()
        await server.stop()


async def answer(request: object, call: object) -> coordinator.InitProducerReply:
    return coordinator.InitProducerReply()


def test_i29_callers_cannot_lock_followers_out() -> None:
    asyncio.run(crowd())
