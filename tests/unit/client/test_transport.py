"""The channels of the client: one for each member that it talks to, and none for who left."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from oncelog._core.routing import Endpoint
from oncelog._transport import GrpcTransport
from oncelogpb import in_place
from oncelogpb.errors import UnknownOutcome
from oncelogpb.v1 import cluster_pb2
from oncelogpb.v1 import partition_leader_pb2 as pb
from tests.unit.client.scripted import ScriptedTransport, on_virtual_time, protocol_over
from tests.unit.rpc.harness import run, serving


class Leader:
    """A process whose answers wait for `go`."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.go.set()
        self.begun = 0

    async def answer(self, request: Any, call: Any) -> Any:
        self.begun += 1
        await self.go.wait()
        return pb.FetchReply() if isinstance(request, pb.FetchRequest) else pb.ListTopicsReply()

    async def subscribe(self, request: Any, call: Any) -> Any:
        self.begun += 1
        yield pb.FetchReply()
        await self.go.wait()
        yield pb.FetchReply()


@contextlib.asynccontextmanager
async def led() -> AsyncIterator[tuple[Leader, Endpoint]]:
    """A leader that serves, and where."""
    leader = Leader()
    async with serving(
        "PartitionLeader",
        fetch=leader.answer,
        list_topics=leader.answer,
        subscribe=leader.subscribe,
    ) as (server, _):
        yield leader, Endpoint("127.0.0.1", server.port)


async def read_two(transport: GrpcTransport, to: Endpoint) -> int:
    request = pb.SubscribeRequest()
    replies = transport.stream(to, "partition_leader.subscribe", request)
    async with contextlib.aclosing(replies):
        return len([reply async for reply in replies])


def asked(method: str, request: Any) -> Callable[[GrpcTransport, Endpoint], Any]:
    return lambda transport, to: transport.call(to, method, request, 5_000)


USES: list[Callable[[GrpcTransport, Endpoint], Any]] = [
    asked("partition_leader.fetch", pb.FetchRequest()),
    asked("partition_leader.list_topics", pb.ListTopicsRequest()),
    read_two,
]


def test_who_is_no_member_any_more_loses_its_channel_once_nothing_runs_on_it() -> None:
    async def story() -> None:
        async with led() as (leader, to):
            transport = GrpcTransport()
            other = Endpoint("127.0.0.1", 1)
            for use in USES:
                leader.go.clear()
                begun = leader.begun
                using = asyncio.create_task(use(transport, to))
                while leader.begun == begun:
                    await asyncio.sleep(0.01)
                transport.retain([other])
                assert list(transport._lines) == [to], "an answer is on its way"
                leader.go.set()
                await using
                transport.retain([to])
                assert list(transport._lines) == [to]
                transport.retain([other])
                assert not transport._lines
            # Who comes back is connected to again.
            await USES[0](transport, to)
            await transport.close()

    run(story())


def test_i31_who_is_gone_is_waited_for_by_nobody() -> None:
    """Whatever a call is: it ends as one whose answer is lost, and its task goes on."""

    async def story() -> None:
        async with led() as (leader, to):
            transport = GrpcTransport()
            for use in USES:
                leader.go.clear()
                begun = leader.begun
                using = asyncio.create_task(use(transport, to))
                while leader.begun == begun:
                    await asyncio.sleep(0.01)
                transport.abandon(to)
                await asyncio.wait([using])
                assert not using.cancelled(), "CancelledError is for its own caller's cancellation"
                assert isinstance(using.exception(), UnknownOutcome)
                leader.go.set()
                # It was only thought to be gone.
                await use(transport, to)
            await transport.close()

    run(story())


def test_a_session_with_who_is_gone_is_told_to_be_over() -> None:
    async def story() -> None:
        transport, to, ended = GrpcTransport(), Endpoint("127.0.0.1", 1), asyncio.Event()
        other = Endpoint("127.0.0.1", 2)
        forget = transport.on_end(to, "coordinator", ended.set)
        forget_other = transport.on_end(other, "coordinator", lambda: pytest.fail("it stands"))
        transport.abandon(to)
        await ended.wait()
        forget()
        forget_other()
        transport.abandon(Endpoint("127.0.0.1", 3))
        await transport.close()

    run(story())


def test_a_process_that_holds_a_session_keeps_its_channel() -> None:
    async def story() -> None:
        transport = GrpcTransport()
        to = Endpoint("127.0.0.1", 1)
        forget = transport.on_end(to, "coordinator", lambda: None)
        transport.retain([])
        assert list(transport._lines) == [to]
        forget()
        transport.retain([])
        assert not transport._lines
        await transport.close()

    run(story())


def test_each_look_at_the_cluster_says_who_its_members_are() -> None:
    async def story() -> None:
        transport = ScriptedTransport()
        protocol = protocol_over(transport)
        await protocol.refresh()
        members = {Endpoint(n.endpoint.host, n.endpoint.port) for n in protocol.directory.nodes}
        assert set(transport.retained[-1]) == {Endpoint("boot", 1), *members}
        transport.handlers["cluster.get_metadata"] = lambda to, request: (
            cluster_pb2.GetMetadataReply(cluster_id=b"c", etcd_reachable=False)
        )
        asked_before = len(transport.retained)
        await protocol.refresh()
        assert len(transport.retained) == asked_before, "who knows nothing newer says nothing"

    on_virtual_time(story)


def test_large_payloads_of_a_stream_come_beside_their_reply() -> None:
    payload = bytes(range(256)) * 1024

    class Full(Leader):
        async def subscribe(self, request: Any, call: Any) -> Any:
            part = pb.FetchedPartition(batches=[pb.FetchedBatch(payload=payload)])
            yield pb.FetchReply(partitions=[part])

    async def story() -> None:
        leader = Full()
        async with serving("PartitionLeader", subscribe=leader.subscribe) as (server, _):
            transport = GrpcTransport()
            to = Endpoint("127.0.0.1", server.port)
            replies = transport.stream(to, "partition_leader.subscribe", pb.SubscribeRequest())
            async with contextlib.aclosing(replies):
                reply = await anext(replies)
            await transport.close()
        assert isinstance(reply, in_place.LiftedFetch)
        [(_, [(_, got)])] = in_place.fetched(reply)
        assert bytes(got) == payload

    asyncio.run(story())
