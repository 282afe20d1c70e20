"""Where the edge of gRPC asks the guard: each way that a call can come, and what it is told."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from oncelog_server.core.access import Need, Pattern, ResourceKind, Verb
from oncelog_server.core.needs import Entry, Tables
from oncelog_server.core.ports import Clock
from oncelog_server.core.quotas import Quota
from oncelog_server.runtime.access.config import Mode
from oncelog_server.runtime.access.guard import Guard
from oncelog_server.runtime.clock import RealClock
from oncelog_server.runtime.rpc import cluster_access
from oncelog_server.runtime.rpc.certificates import read
from oncelog_server.runtime.rpc.server import RpcServer
from oncelog_server.runtime.rpc.tls import client_credentials
from oncelogpb import calls, errors
from oncelogpb.v1 import cluster_pb2, coordinator_pb2, offset_manager_pb2, partition_leader_pb2
from tests.access.world import rule_of
from tests.unit.access.test_quotas import ManualClock
from tests.unit.rpc.authority import Authority
from tests.unit.rpc.harness import Handlers, Recorder, outcome_of, run


class Edge:
    """A listener with handlers of a test, and connections to it."""

    def __init__(self, directory: Path, tables: Tables, clock: Clock | None = None) -> None:
        self.authority = Authority(directory / "authority")
        self.reporter = Recorder()
        self.guard = Guard(
            Mode.ON,
            clock=clock or RealClock(),
            reporter=self.reporter,
            operators=[Pattern("root")],
        )
        self.guard.know_self("oncelog")
        self.guard.serve(tables)
        self.port = 0

    @asynccontextmanager
    async def serving(self, **handlers: Handlers) -> AsyncIterator[None]:
        server = RpcServer(
            handlers,
            listen="127.0.0.1:0",
            reporter=self.reporter,
            tls=read(self.authority.issue("oncelog")),
            guard=self.guard,
        )
        self.port = await server.start()
        try:
            yield
        finally:
            await server.stop(0)

    def channel(self, who: str) -> Any:
        credentials = client_credentials(read(self.authority.issue(who)))
        return grpc.aio.secure_channel(
            f"127.0.0.1:{self.port}", credentials, options=calls.CHANNEL_OPTIONS
        )


async def begun(request: Any, call: Any) -> Any:
    return coordinator_pb2.BeginTransactionReply(tx_id=1)


def test_a_follower_that_is_no_process_of_ours_is_not_followed(tmp_path: Path) -> None:
    async def story() -> None:
        edge = Edge(tmp_path, {"Replication": cluster_access.REPLICATION})
        told = {}
        async with edge.serving(Replication=Handlers()):
            for who in ("mallory", "root", "oncelog"):
                channel = edge.channel(who)
                stream = channel.stream_stream("/oncelogpb.v1.Replication/Follow")()
                failure = await outcome_of(stream.read())
                told[who] = calls.from_rpc_error(failure).reason
                await channel.close()
        assert told == {
            "mallory": "PERMISSION_DENIED",
            "root": "PERMISSION_DENIED",
            "oncelog": "UNSUPPORTED",
        }

    run(story())


def test_an_rpc_without_an_entry_and_a_broken_entry_let_nobody_in(tmp_path: Path) -> None:
    def broken(request: Any, call: Any) -> Any:
        raise KeyError("a bug in a table")

    async def story() -> None:
        edge = Edge(tmp_path, {"Coordinator": {"commit_transaction": Entry(broken)}})
        handlers = Handlers(begin_transaction=begun, commit_transaction=begun)
        async with edge.serving(Coordinator=handlers):
            channel = edge.channel("root")
            stream = calls.CallStream(channel, "Coordinator")
            for method, request, reason in (
                (
                    "begin_transaction",
                    coordinator_pb2.BeginTransactionRequest(),
                    errors.PermissionDenied,
                ),
                (
                    "commit_transaction",
                    coordinator_pb2.CommitTransactionRequest(),
                    errors.Internal,
                ),
            ):
                unary = calls.unary(channel, "Coordinator", method, request)
                assert isinstance(await outcome_of(unary), reason)
                assert isinstance(await outcome_of(stream.call(method, request)), reason)
            await stream.close()
            await channel.close()
        faults = [fields for event, fields in edge.reporter.events if event == "internal error"]
        assert len(faults) == 2
        assert "a bug in a table" in str(faults[0]["traceback"])

    run(story())


@pytest.mark.parametrize("limit", ["quota_calls_per_second", "quota_bytes_per_second"])
def test_every_way_of_a_call_is_counted_against_its_quota(tmp_path: Path, limit: str) -> None:
    async def story() -> None:
        # Nothing is earned again, however slowly this machine calls.
        clock = ManualClock()
        edge = Edge(tmp_path, {"Coordinator": {"begin_transaction": Entry()}}, clock)
        field = limit.removeprefix("quota_")
        edge.guard.learn([], [Quota(Pattern("alice"), **{field: 40})])
        async with edge.serving(Coordinator=Handlers(begin_transaction=begun)):
            request = coordinator_pb2.BeginTransactionRequest(request_id=7)
            channel = edge.channel("alice")
            stream = calls.CallStream(channel, "Coordinator")
            ways: list[Callable[[], Awaitable[Any]]] = [
                lambda: calls.unary(channel, "Coordinator", "begin_transaction", request),
                lambda: stream.call("begin_transaction", request),
            ]
            for way in ways:
                outcomes = [await outcome_of(way()) for _ in range(60)]
                refused = [one for one in outcomes if isinstance(one, errors.Throttled)]
                assert refused
                assert {one.metadata["limit"] for one in refused} == {limit}
            await stream.close()
            await channel.close()
            oncelog = edge.channel("oncelog")
            free = calls.unary(oncelog, "Coordinator", "begin_transaction", request)
            assert (await free).tx_id == 1
            await oncelog.close()

    run(story())


def test_i23_a_member_whose_quota_is_used_up_is_heard(tmp_path: Path) -> None:
    """Its heartbeats were THROTTLED before anybody heard them, for longer than its session."""
    heard = 0

    async def hear(request: Any, call: Any) -> Any:
        nonlocal heard
        heard += 1
        return offset_manager_pb2.HeartbeatReply()

    async def claimed(request: Any, call: Any) -> Any:
        return offset_manager_pb2.ClaimGroupReply()

    async def story() -> None:
        entries = {name: Entry() for name in ("heartbeat", "claim_group", "list_groups")}
        edge = Edge(tmp_path, {"OffsetManager": entries})
        edge.guard.learn([], [Quota(Pattern("alice"), bytes_per_second=1_000, calls_per_second=1)])
        meter = edge.guard.meter("alice")
        assert meter is not None
        # One large message of a producer: to be earned again in more than a minute.
        meter.charge(100_000)
        async with edge.serving(OffsetManager=Handlers(heartbeat=hear, claim_group=claimed)):
            channel = edge.channel("alice")

            async def told(method: str, request: Any) -> Any:
                return await outcome_of(calls.unary(channel, "OffsetManager", method, request))

            beat = offset_manager_pb2.HeartbeatRequest(group="g")
            claim = offset_manager_pb2.ClaimGroupRequest(group="g")
            outcomes = [await told("heartbeat", beat) for _ in range(4)]
            outcomes += [await told("claim_group", claim) for _ in range(4)]
            assert not [one for one in outcomes if isinstance(one, errors.OncelogError)]
            assert heard == 4
            other = await told("list_groups", offset_manager_pb2.ListGroupsRequest())
            assert isinstance(other, errors.Throttled), "what it did is charged all the same"
            await channel.close()

    run(story())


def test_a_stream_of_replies_is_slowed_down_and_not_ended(tmp_path: Path) -> None:
    """Each reply takes ten times what a second brings; none of them is lost."""

    async def give(request: Any, call: Any) -> AsyncIterator[Any]:
        for number in range(3):
            yield partition_leader_pb2.FetchReply(
                partitions=[partition_leader_pb2.FetchedPartition(start_offset=number)] * 10
            )

    async def story() -> None:
        edge = Edge(tmp_path, {"PartitionLeader": {"subscribe": Entry()}})
        edge.guard.learn([], [Quota(Pattern("alice"), bytes_per_second=60)])
        async with edge.serving(PartitionLeader=Handlers(subscribe=give)):
            channel = edge.channel("alice")
            replies = calls.server_stream(
                channel, "PartitionLeader", "subscribe", partition_leader_pb2.SubscribeRequest()
            )
            found = [reply.partitions[0].start_offset async for reply in replies]
            assert found == [0, 1, 2]
            await channel.close()

    run(story())


@pytest.mark.parametrize("names", [10_001, 400_000])
def test_what_names_too_much_is_refused_before_it_is_judged(tmp_path: Path, names: int) -> None:
    async def handle(request: Any, call: Any) -> Any:
        raise AssertionError("nobody came so far")

    async def story() -> None:
        nothing: Any = None
        edge = Edge(tmp_path, {"Cluster": cluster_access.entries(nothing)})
        async with edge.serving(Cluster=Handlers(get_metadata=handle)):
            channel = edge.channel("mallory")
            request = cluster_pb2.GetMetadataRequest(topics=["x"] * names)
            refused = await outcome_of(calls.unary(channel, "Cluster", "get_metadata", request))
            assert isinstance(refused, errors.TooLarge)
            assert refused.metadata["limit"] == "metadata_names_max"
            await channel.close()

    run(story())


def test_rules_that_change_hold_for_the_next_call_on_a_standing_stream(tmp_path: Path) -> None:
    async def story() -> None:
        need = Need(Verb.WRITE, ResourceKind.PRODUCER, "p")
        entry = Entry(lambda request, call: (need,))
        edge = Edge(tmp_path, {"Coordinator": {"begin_transaction": entry}})
        async with edge.serving(Coordinator=Handlers(begin_transaction=begun)):
            channel = edge.channel("alice")
            stream = calls.CallStream(channel, "Coordinator")
            request = coordinator_pb2.BeginTransactionRequest()
            told = []
            for lines in ([], ["alice write producer:p"], ["deny alice write producer:*"]):
                edge.guard.learn([rule for line in lines for rule in rule_of(line)], [])
                outcome = await outcome_of(stream.call("begin_transaction", request))
                told.append(getattr(outcome, "reason", "ok"))
            assert told == ["PERMISSION_DENIED", "ok", "PERMISSION_DENIED"]
            await stream.close()
            await channel.close()

    run(story())
