"""Who may follow, and for whom: over real gRPC, with real certificates."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import pytest

from oncelog_server.core.ids import BootId
from oncelog_server.core.ports import Address
from oncelog_server.runtime.access.config import Mode
from oncelog_server.runtime.access.guard import Guard
from oncelog_server.runtime.clock import RealClock
from oncelog_server.runtime.replication.serving import ReplicationService
from oncelog_server.runtime.rpc import cluster_access
from oncelog_server.runtime.rpc.certificates import read
from oncelog_server.runtime.rpc.peers import GrpcPeers
from oncelog_server.runtime.rpc.server import RpcServer
from oncelogpb.errors import InvalidArgument, OncelogError, PermissionDenied, Unavailable
from oncelogpb.v1 import replication_pb2 as pb
from tests.simulation.virtual_time import VirtualTimeLoop
from tests.unit.rpc.authority import Authority
from tests.unit.rpc.harness import HANG_S, Recorder

FOLLOW = "replication.follow"
CLUSTER, LEADER = b"c" * 16, BootId(b"l" * 16)
# What etcd shows.
BOOTS = {"n2": BootId(b"2" * 16), "n3": BootId(b"3" * 16)}


class World:
    """A leader's listener that asks for certificates, and followers."""

    def __init__(self, directory: Path) -> None:
        self.authority = Authority(directory)
        self.reporter = Recorder()
        self.guard = Guard(Mode.ON, clock=VirtualTimeLoop(), reporter=self.reporter)
        self.guard.serve({"Replication": cluster_access.REPLICATION})
        self.guard.know_self("ours")
        self.service = ReplicationService(
            lambda partition: None,
            self.lives,
            tuple,
            RealClock(),
            cluster_id=CLUSTER,
            boot_id=LEADER,
        )
        self.port = 0
        self.boots = dict(BOOTS)

    async def lives(self, node: str, boot_id: BootId) -> bool:
        return self.boots.get(node) == boot_id

    def peers(self, identity: str) -> GrpcPeers:
        return GrpcPeers(read(self.authority.issue(identity)))

    def stream(
        self, peers: GrpcPeers, requests: AsyncIterator[pb.FollowRequest]
    ) -> AsyncGenerator[pb.FollowReply, None]:
        return peers.exchange(Address("n1", LEADER, "127.0.0.1", self.port, 1), FOLLOW, requests)


@asynccontextmanager
async def leading(directory: Path) -> AsyncIterator[World]:
    world = World(directory)
    server = RpcServer(
        {"Replication": world.service},
        listen="127.0.0.1:0",
        reporter=world.reporter,
        tls=read(world.authority.issue("server")),
        guard=world.guard,
    )
    world.port = await server.start()
    try:
        async with asyncio.timeout(HANG_S):
            yield world
    finally:
        await server.stop()


def asks(
    node: str = "n2", boot_id: bytes = BOOTS["n2"], number: int = 0, cluster: bytes = CLUSTER
) -> pb.FollowRequest:
    """About a partition that is not there: so it is answered with an error."""
    request = pb.FollowRequest(
        cluster_id=cluster, node_id=node, boot_id=boot_id, leader_boot_id=LEADER
    )
    message = request.messages.add(incarnation=b"i" * 16, epoch=1)
    message.partition.topic_id = b"t" * 16
    message.partition.number = number
    message.log_end.SetInParent()
    return request


async def said(*requests: pb.FollowRequest) -> AsyncGenerator[pb.FollowRequest, None]:
    for request in requests:
        yield request
    await asyncio.Event().wait()


def test_a_stream_that_stands_ends_with_the_right_to_it(tmp_path: Path) -> None:
    async def story() -> None:
        async with leading(tmp_path) as world:
            peers, go_on = world.peers("ours"), asyncio.Event()

            async def requests() -> AsyncGenerator[pb.FollowRequest, None]:
                yield asks(number=1)
                await go_on.wait()
                yield asks(number=2)
                await asyncio.Event().wait()

            async with aclosing(world.stream(peers, requests())) as replies:
                assert len((await anext(replies)).messages) == 1
                world.guard.know_self("others")
                go_on.set()
                with pytest.raises(PermissionDenied, match="own processes"):
                    await anext(replies)
            assert world.service.stream_count == 0
            await peers.close()

    asyncio.run(story())


def test_who_is_no_service_follows_nobody(tmp_path: Path) -> None:
    async def story() -> None:
        async with leading(tmp_path) as world:
            peers = world.peers("mallory")
            with pytest.raises(PermissionDenied):
                await anext(world.stream(peers, said(asks())))
            await peers.close()

    asyncio.run(story())


@pytest.mark.parametrize(
    ("requests", "expected", "why"),
    [
        ([asks(boot_id=b"9" * 16)], Unavailable, "as a run of node n2"),
        ([asks("n2", BOOTS["n3"])], Unavailable, "as a run of node n2"),
        ([asks("n9")], Unavailable, "as a run of node n9"),
        ([asks(boot_id=b"")], Unavailable, "as a run of node n2"),
        ([asks(), asks("n3", BOOTS["n3"])], InvalidArgument, "one stream has one follower"),
        ([asks(cluster=b"d" * 16)], InvalidArgument, "another cluster"),
    ],
)
def test_i5_an_acknowledgement_counts_for_the_node_that_says_it(
    tmp_path: Path, requests: list[pb.FollowRequest], expected: type[Exception], why: str
) -> None:
    async def story() -> None:
        async with leading(tmp_path) as world:
            peers = world.peers("ours")
            met: Exception | None = None
            async with aclosing(world.stream(peers, said(*requests))) as replies:
                try:
                    async with asyncio.timeout(5):
                        for _ in range(len(requests) + 1):
                            await anext(replies)
                except (OncelogError, TimeoutError) as error:
                    met = error
            assert isinstance(met, expected), "it follows under that name"
            assert why in str(met)
            await peers.close()

    asyncio.run(story())


def test_a_process_has_one_stream_and_the_newest_counts(tmp_path: Path) -> None:
    async def story() -> None:
        async with leading(tmp_path) as world:
            one, other, third = (world.peers("ours") for _ in range(3))
            async with (
                aclosing(world.stream(one, said(asks()))) as older,
                aclosing(world.stream(other, said(asks()))) as newer,
                aclosing(world.stream(third, said(asks("n3", BOOTS["n3"])))) as of_another,
            ):
                await anext(older)
                await anext(newer)
                await anext(of_another)
                with pytest.raises(Unavailable, match="newer stream"):
                    await anext(older)
                assert world.service.stream_count == 2
            for peers in (one, other, third):
                await peers.close()

    asyncio.run(story())


def test_i5_the_run_of_a_node_before_is_not_heard_beside_the_next_one(tmp_path: Path) -> None:
    """What it said last arrives late: it would name an incarnation that the node is no more."""

    async def story() -> None:
        async with leading(tmp_path) as world:
            one, other = world.peers("ours"), world.peers("ours")
            async with aclosing(world.stream(one, said(asks()))) as older:
                await anext(older)
                world.boots["n2"] = BootId(b"9" * 16)
                request = asks(boot_id=world.boots["n2"])
                async with aclosing(world.stream(other, said(request))) as newer:
                    await anext(newer)
                    assert world.service.stream_count == 1, "both are heard"
                    with pytest.raises(Unavailable, match="newer stream"):
                        await anext(older)
            for peers in (one, other):
                await peers.close()

    asyncio.run(story())
